"""Problems and skipped files: kept as data, shown as frames."""

from __future__ import annotations

import pytest

from analysis.errors import FileLimitError, LoadError
from analysis.problems import Problem, Skipped, problems_frame, skipped_frame


def test_a_problem_reads_as_a_sentence() -> None:
    """Path, what, why and what to do, without holes where one is unknown."""
    assert str(Problem("/a", "is empty", "", "")) == "/a: is empty"
    assert str(Problem("/a", "is empty", "no bytes", "wait")) == "/a: is empty: no bytes (wait)"
    assert str(Skipped("/a", "hidden")) == "/a: hidden"


@pytest.mark.parametrize("kind", [LoadError, FileLimitError])
def test_problems_of_errors(kind: type[LoadError]) -> None:
    """An error of a reader becomes a problem with its parts."""
    assert Problem.of("/a", kind("what", "why", "fix")) == Problem("/a", "what", "why", "fix")


def test_frames() -> None:
    """Frames have their columns with and without rows."""
    frame = problems_frame([Problem("/a", "w"), Problem("/b", "x", "y", "z")])
    assert frame.columns.tolist() == ["path", "what", "why", "fix"]
    assert frame.iloc[1].tolist() == ["/b", "x", "y", "z"]
    assert problems_frame([]).columns.tolist() == ["path", "what", "why", "fix"]
    assert skipped_frame([Skipped("/a", "hidden")])["reason"].tolist() == ["hidden"]
    assert str(skipped_frame([]).dtypes["path"]) == "string"
