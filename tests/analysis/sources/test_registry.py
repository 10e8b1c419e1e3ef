"""Reading many files: each by its reader, none in the way of another."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from analysis.errors import LoadError
from analysis.sources import registry
from analysis.sources.base import ReadOptions, Sink, SourceFile, SourceKind
from analysis.sources.registry import READERS, read, read_files
from tests.analysis.sources.source_files import CAPTURES, rows, session, write_json

SESSION = SourceKind.POLAR_SESSION


def test_every_kind_has_a_reader() -> None:
    """Each kind names a module with a `collect`."""
    assert set(READERS) == set(SourceKind)
    for kind, module in READERS.items():
        if kind != SourceKind.PARQUET:
            assert callable(importlib.import_module(module).collect)


def test_order_and_batches(tmp_path: Path) -> None:
    """Files in any batches give the rows that they give one by one, in the order of the files."""
    paths = [write_json(tmp_path / f"ses_{i}.json", session(f"s-{i}")) for i in range(5)]
    files = [SourceFile.at(path, SESSION) for path in paths]
    together = read_files(files)
    assert together.files == tuple(files)
    alone = [row for file in files for row in rows(read(file), "trace")]
    assert rows(together, "trace") == alone
    assert [row["session_id"] for row in rows(together, "session")] == [f"s-{i}" for i in range(5)]


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (LoadError("is odd", "why", "fix"), "is odd"),
        (PermissionError(13, "Permission denied"), "cannot be read"),
        (MemoryError(), "too large or too deeply nested to be read"),
        (RecursionError(), "too large or too deeply nested to be read"),
        (ZeroDivisionError("x"), "its reader failed"),
    ],
)
def test_a_failing_file_is_one_problem(monkeypatch: pytest.MonkeyPatch, error: Exception, what: str) -> None:
    """Whatever goes wrong with one file, its rows are taken back, it is listed, and the next one is read."""

    class Reader:
        @staticmethod
        def collect(file: SourceFile, sink: Sink, options: ReadOptions) -> None:
            sink.add("session", {"session_id": file.path})
            if file.path == "/bad":
                raise error

    monkeypatch.setattr(registry.importlib, "import_module", lambda name: Reader)
    files = [SourceFile(path, SESSION) for path in ("/one", "/bad", "/two")]
    records = read_files(files)
    assert [row["session_id"] for row in rows(records, "session")] == ["/one", "/two"]
    assert [(problem.path, problem.what) for problem in records.problems] == [("/bad", what)]


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit])
def test_interruptions_pass(monkeypatch: pytest.MonkeyPatch, interruption: type[BaseException]) -> None:
    """An interruption is not a problem of a file."""

    class Reader:
        @staticmethod
        def collect(*_: Any) -> None:
            raise interruption

    monkeypatch.setattr(registry.importlib, "import_module", lambda name: Reader)
    with pytest.raises(interruption):
        read(SourceFile("/a", SESSION))


def test_wrong_kinds_are_problems() -> None:
    """A file read as something else than it is says so; no reader trips over another's format."""
    for path in sorted(CAPTURES.glob("*.json")):
        for kind in SourceKind:
            if kind == SourceKind.PARQUET:
                continue
            records = read(SourceFile.at(path, kind))
            assert all(problem.what != "its reader failed" for problem in records.problems), (path, kind)
