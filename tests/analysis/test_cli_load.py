"""`workbench load` and `workbench convert`: what they print, and how they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from analysis import cli
from analysis.lab.run_folder import RunFolder
from tests.analysis.test_loading import load, same, write_session

ROOT = Path(__file__).resolve().parents[2]


def test_load_prints_the_summary_and_what_was_asked_for(
    embedded: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    """First that it loads, then the account, then tables with the wanted columns and number of rows."""
    code = cli.main(
        ["load", str(embedded.root), "--no-index", "--show", "coverage", "--show", "sessions",
         "--columns", "session_id, reward", "--rows", "3"]
    )  # fmt: skip
    shown = capsys.readouterr().out
    assert code == 0
    assert shown.startswith(f"loading {embedded.root}\nRun lab")
    assert "9 delivered, 1 rejected" in shown
    assert "fraction" in shown
    assert "and 40 more rows (--rows)" in shown
    assert "node_id" not in shown


def test_accounts_name_files_from_the_run_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A path that every line would begin with says nothing."""
    write_session(tmp_path, "s1")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "engine.log").write_text("ready\n")
    assert cli.main(["load", str(tmp_path), "--no-index", "--show", "skipped"]) == 0
    shown = capsys.readouterr().out
    assert "1 file or folder holds nothing to load (--show skipped)" in shown
    account = shown.split("skipped\n")[-1]
    assert os.path.join("logs", "engine.log") in account
    assert str(tmp_path) not in account


def test_tables_show_only_columns_with_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --columns; a table without rows says so."""
    write_session(tmp_path, "s1")
    assert cli.main(["load", str(tmp_path), "--no-index", "--show", "sessions", "--show", "metrics"]) == 0
    shown = capsys.readouterr().out
    assert "session_id" in shown
    assert "node_id" not in shown
    assert shown.endswith("metrics\nnothing\n")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["/no/such/run"], "no such file"),
        (["{run}", "--strict"], "ses_torn.json"),
        (["{run}", "--address", "somewhere"], "--engine ray"),
        (["{run}", "--show", "sessions", "--columns", "nope"], "nope"),
    ],
)
def test_what_goes_wrong_is_one_line_and_exit_code_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    """A missing run, a problem in strict mode, contradicting options, a wrong column."""
    write_session(tmp_path, "whole")
    write_session(tmp_path, "torn").write_bytes(b"{")
    code = cli.main(["load", "--no-index", *(option.format(run=tmp_path) for option in options)])
    error = capsys.readouterr().err
    assert code == 1
    assert error.startswith("workbench load: ")
    assert said in error
    assert error.count("\n") == 1


def test_convert_writes_a_dataset_that_loads(embedded: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """The same run; a second time only with --overwrite."""
    out = embedded.root.parent / "dataset"
    assert cli.main(["convert", str(embedded.root), str(out), "--no-index"]) == 0
    assert f"MiB in {out}" in capsys.readouterr().out
    assert same(load(out), load(embedded.root))
    assert cli.main(["convert", str(embedded.root), str(out), "--no-index"]) == 1
    assert "--overwrite" in capsys.readouterr().err
    assert (
        cli.main(["convert", str(embedded.root), str(out), "--no-index", "--overwrite", "--no-tokens"]) == 0
    )
    assert not (out / "token").exists()


def test_the_index_goes_where_it_is_wanted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--index DIR."""
    write_session(tmp_path / "run", "s1")
    assert cli.main(["load", str(tmp_path / "run"), "--index", str(tmp_path / "index")]) == 0
    assert any((tmp_path / "index").iterdir())
    capsys.readouterr()


def test_output_into_a_pipe_that_closes_is_no_traceback(tmp_path: Path) -> None:
    """`workbench load RUN --show events | head -1` ends as by the signal.

    The first line comes before anything heavy is loaded.
    """
    for number in range(50):
        write_session(tmp_path / "run", f"s{number}")
    argv = [sys.executable, "-m", "analysis.cli", "load", str(tmp_path / "run"), "--no-index"]
    argv += ["--show", "sessions", "--rows", "1000"] * 20
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, text=True) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert child.stdout.readline() == f"loading {tmp_path / 'run'}\n"
        child.stdout.close()
        assert child.wait(timeout=60) == 128 + signal.SIGPIPE
        assert child.stderr.read() == ""
