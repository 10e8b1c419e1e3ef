"""What a terminal is shown of a table: telling columns, within its width, with commands for the rest."""

from __future__ import annotations

import csv
from pathlib import Path

import pandas as pd
import pytest

import analysis
from analysis import cli, schema
from analysis.cli_tables import COLUMNS, choose, fit
from analysis.cli_words import AS_OPTIONS, in_options
from analysis.lab.run_folder import RunFolder
from tests.analysis.test_loading import write_session

SOURCES = Path(analysis.__file__).parent


def shown(capsys: pytest.CaptureFixture[str], *argv: str) -> list[str]:
    """Load with these options and return the lines of the table that follows the summary."""
    assert cli.main(["load", "--no-index", *argv]) == 0
    return capsys.readouterr().out.split("\n\n", 1)[1].splitlines()[1:]


def test_default_columns_are_columns() -> None:
    """Each stands in the schema under the table's name."""
    for table, columns in COLUMNS.items():
        known = {column.name for column in schema.columns_of(table.removesuffix("s"))}
        assert known.issuperset(columns), table


@pytest.mark.parametrize("width", [60, 100, 160])
def test_a_table_fits_the_terminal(
    embedded: RunFolder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    """No line is longer, except that three columns always stay; what was left out has a command."""
    monkeypatch.setenv("COLUMNS", str(width))
    for table in ("groups", "sessions", "traces", "rollouts", "events", "metrics"):
        lines = shown(capsys, str(embedded.root), "--show", table, "--rows", "4")
        rows = [line for line in lines if not line.startswith(("... and", "everything:"))]
        assert len(rows) == 5 or table == "rollouts"
        assert len(rows[0].split()) == 3 or max(map(len, rows)) <= width
        assert any("--columns all" in line for line in lines)
        assert "--csv FILE" in lines[-1]
        assert "workbench convert" in lines[-1]


def test_a_group_shows_its_fate_first(
    embedded: RunFolder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the width of a common terminal: which group, what became of it, and its reward."""
    monkeypatch.setenv("COLUMNS", "100")
    header = shown(capsys, str(embedded.root), "--show", "groups")[0].split()
    assert header[:4] == ["rollout_id", "evaluation", "group", "state"]
    assert "reward_mean" in header


def test_all_columns_and_chosen_ones(embedded: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """`--columns all` is everything with values; named ones are shown whatever the width."""
    everything = shown(capsys, str(embedded.root), "--show", "sessions", "--columns", "all")[0].split()
    assert len(everything) > 40
    some = shown(
        capsys, str(embedded.root), "--show", "sessions", "--columns", "session_id,reward", "--rows", "1"
    )
    assert some[0].split() == ["session_id", "reward"]
    assert not any("more columns" in line for line in some)


def test_csv_holds_all_rows_and_columns(
    embedded: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the terminal leaves out; for one table at a time."""
    out = tmp_path / "sessions.csv"
    said = shown(capsys, str(embedded.root), "--show", "sessions", "--csv", str(out))
    frame = analysis.load(embedded.root, index=False).sessions()
    with out.open(newline="") as file:
        header, *rows = csv.reader(file)
    assert (header, len(rows)) == (list(frame.columns), len(frame))
    assert said == [f"{len(frame)} rows of {len(frame.columns)} columns in {out}"]
    assert cli.main(["load", str(embedded.root), "--csv", str(out)]) == 1
    assert "name it with one --show" in capsys.readouterr().err


def test_names_are_never_cut_and_prose_is() -> None:
    """An id that lacks its end finds nothing; the end of a prompt is missed by nobody."""
    frame = pd.DataFrame({"session_id": ["sk-polar-" + "0" * 36], "reward": [0.5], "error": ["x" * 200]})
    narrow = fit(frame, 90)
    assert (narrow.columns, "0" * 36 in narrow.text, "xxx..." in narrow.text) == (3, True, True)
    assert max(map(len, narrow.text.split("\n"))) <= 90
    assert "x" * 200 in fit(frame, None).text


def test_several_runs_are_told_apart() -> None:
    """The run's name stands in front where it tells anything; a table of unknowns shows what it has."""
    one = pd.DataFrame({"run": ["a", "a"], "rollout_id": [0, 1], "sessions": [8, 8]})
    assert list(choose(one, "groups")) == ["rollout_id", "sessions"]
    assert list(choose(one.assign(run=["a", "b"]), "groups")) == ["run", "rollout_id", "sessions"]
    assert list(choose(pd.DataFrame({"path": ["x"]}), "groups")) == ["path"]


class TestNothing:
    @pytest.mark.parametrize("job", [["load"], ["convert"]])
    def test_a_folder_without_a_run_is_an_error(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], job: list[str]
    ) -> None:
        """Exit code 1, with what a run is made of; nothing is written."""
        out = [str(tmp_path / "out")] if job == ["convert"] else []
        (tmp_path / "empty").mkdir()
        assert cli.main([*job, str(tmp_path / "empty"), *out]) == 1
        said = capsys.readouterr().err
        assert said.startswith(
            f"workbench {job[0]}: nothing of a run in {tmp_path / 'empty'}: no files at all"
        )
        assert "journal.jsonl" in said
        assert not (tmp_path / "out").exists()

    def test_files_of_other_kinds_are_counted(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """With the options that list them, which work on such a folder too."""
        (tmp_path / "notes.txt").write_text("x")
        assert cli.main(["load", str(tmp_path), "--no-index", "--show", "skipped"]) == 1
        said = capsys.readouterr()
        assert "notes.txt" in said.out
        assert "1 file or folder is of no use (--show skipped" in said.err

    def test_a_little_is_a_run(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """One session is enough."""
        write_session(tmp_path, "s1")
        assert cli.main(["load", str(tmp_path), "--no-index"]) == 0
        capsys.readouterr()


class TestWords:
    @pytest.mark.parametrize("python", [python for python, _ in AS_OPTIONS])
    def test_each_phrase_is_one_that_the_library_uses(self, python: str) -> None:
        """Else the message was reworded, and a terminal shows Python again."""
        stem = python.removesuffix('"').removesuffix("`")
        assert any(
            stem in path.read_text() or stem.replace('"', '\\"') in path.read_text()
            for path in SOURCES.rglob("*.py")
            if path.name != "cli_words.py"
        )

    def test_the_summary_names_options(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Where the notebook's says `run.problems`."""
        write_session(tmp_path, "s1")
        write_session(tmp_path, "torn").write_bytes(b"{")
        (tmp_path / "notes.txt").write_text("x")
        assert cli.main(["load", str(tmp_path), "--no-index", "--show", "problems"]) == 0
        said = capsys.readouterr().out
        assert "1 problem (--show problems)" in said
        assert "1 file or folder holds nothing to load (--show skipped)" in said
        assert "run." not in said.replace(str(tmp_path), "")

    def test_advice_in_a_message(self) -> None:
        """The argument becomes the option."""
        assert in_options("pass `trusted=True` only if") == "pass --trusted only if"
        assert in_options("strict=False loads the rest") == "without --strict the rest is loaded"
