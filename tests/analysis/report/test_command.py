"""`workbench report`: what it prints about one run and about two, and what it refuses."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest

from analysis import cli
from analysis.report.command import _size

STORED = Path(__file__).resolve().parents[2] / "data" / "levels"


def _run(folder: Path, level: int) -> str:
    """A recorded run's folder, of its journal alone."""
    (folder / "polar").mkdir(parents=True)
    journal = lzma.decompress((STORED / f"level_{level}.jsonl.xz").read_bytes())
    (folder / "polar" / "journal.jsonl").write_bytes(journal)
    return str(folder)


def _report(out: Path, *paths: str) -> int:
    first, *others = paths
    compare = ["--compare", others[0]] if others else []
    return cli.main(["report", first, "--no-index", "--no-figures", "-o", str(out), *compare])


def test_findings_of_both_runs_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Level 1 keeps the trainer waiting and has no lag; level 3 comes close to the bound."""
    slow, fast = _run(tmp_path / "slow", 1), _run(tmp_path / "fast", 3)
    assert _report(tmp_path / "page.html", slow, fast) == 0
    said = capsys.readouterr().out
    first, _, second = said.partition("\n'fast'\n")
    assert "\n'slow'\n" in first
    assert "trainer waited" in first.partition("\n'slow'\n")[2]
    assert "trainer waited 9" not in second
    assert second.count("\n") >= 2
    assert _report(tmp_path / "one.html", slow) == 0
    assert "\n'slow'\n" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("count", "text"), [(1, "1 KiB"), (52_000, "51 KiB"), (2**20, "1.0 MiB"), (4_600_000, "4.4 MiB")]
)
def test_sizes_have_a_digit_before_the_point(count: int, text: str) -> None:
    """No page is 0.0 MiB."""
    assert _size(count) == text


def test_a_folder_without_data_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Empty, of something else, or not there: an error that says so, and no page."""
    empty, other = tmp_path / "empty", tmp_path / "other"
    empty.mkdir()
    other.mkdir()
    (other / "notes.txt").write_text("nothing of a run")
    good, page = _run(tmp_path / "good", 1), tmp_path / "page.html"
    for paths in ([str(empty)], [str(other)], [str(tmp_path / "nowhere")], [good, str(empty)]):
        assert _report(page, *paths) != 0
        said = capsys.readouterr().err
        assert said.startswith("workbench report: ")
        assert "nothing of a run" in said or "no such file" in said
        assert not page.exists()
