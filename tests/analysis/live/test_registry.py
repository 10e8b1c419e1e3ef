"""Names of live runs: one folder each, one driver at a time."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from analysis.errors import RunBusyError, RunNameError, RunNotFoundError
from analysis.lab.processes import ChildProcess
from analysis.live.registry import LiveFolder, runs_folder, runs_frame


def test_a_run_from_its_beginning_to_its_end(tmp_path: Path) -> None:
    """The record says what it is and how it ended."""
    folder = LiveFolder.new(tmp_path, "submission", "mine", server="http://polar")
    record = folder.read()
    assert (record.name, record.kind, record.server, record.state) == (
        "mine",
        "submission",
        "http://polar",
        "running",
    )
    folder.end("budget", "max_seconds reached")
    record = LiveFolder.find(tmp_path, "mine").read()
    assert (record.state, record.reason) == ("budget", "max_seconds reached")
    assert record.ended is not None
    assert record.ended >= record.created


def test_a_taken_name_is_refused_and_the_way_out_told(tmp_path: Path) -> None:
    """Nothing of the first run is touched."""
    LiveFolder.new(tmp_path, "submission", "mine", server="").end("finished")
    with pytest.raises(RunNameError, match=r"live\.attach\('mine'\)"):
        LiveFolder.new(tmp_path, "submission", "mine", server="")


def test_unnamed_runs_get_names_of_their_own(tmp_path: Path) -> None:
    """Several within a second, too."""
    names = {LiveFolder.new(tmp_path, "training", None, server="").path.name for _ in range(5)}
    assert len(names) == 5
    assert all(name.startswith("training-") for name in names)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../a", "a b", "-a", "x" * 101, "a\n", "ü", 3, b"a"])
def test_names_are_plain(tmp_path: Path, name: Any) -> None:
    """A name is one folder, never a path."""
    with pytest.raises(RunNameError, match="cannot name a run"):
        LiveFolder.new(tmp_path, "submission", name, server="")
    with pytest.raises(RunNotFoundError):
        LiveFolder.find(tmp_path, name)


def test_an_unknown_name_lists_the_known_ones(tmp_path: Path) -> None:
    """So that a typo is found."""
    LiveFolder.new(tmp_path, "submission", "mine", server="")
    with pytest.raises(RunNotFoundError, match="there are: mine"):
        LiveFolder.find(tmp_path, "yours")


def test_one_driver_at_a_time(tmp_path: Path) -> None:
    """A second claim is refused until the first ends, in this process and in others."""
    first = LiveFolder.new(tmp_path, "submission", "mine", server="")
    second = LiveFolder.find(tmp_path, "mine")
    with pytest.raises(RunBusyError, match="mine is driven"):
        second.lock()
    first.release()
    second.lock()
    second.release()


def test_the_claim_ends_with_its_process(tmp_path: Path) -> None:
    """However the process ends."""
    code = (
        "import sys, time, pathlib\n"
        "from analysis.live.registry import LiveFolder\n"
        "kept = LiveFolder.new(pathlib.Path(sys.argv[1]), 'submission', 'theirs', server='')\n"
        "open(sys.argv[1] + '/ready', 'w').close(); time.sleep(60)\n"
    )
    child = ChildProcess([sys.executable, "-c", code, str(tmp_path)], name="owner", log_path=tmp_path / "log")
    with child:
        while not (tmp_path / "ready").exists():
            assert child.running, child.log_tail()
        with pytest.raises(RunBusyError):
            LiveFolder.find(tmp_path, "theirs").lock()
    LiveFolder.find(tmp_path, "theirs").lock()


def test_all_runs_as_a_frame(tmp_path: Path) -> None:
    """Newest first; folders of something else, and damaged records, are no runs."""
    assert list(runs_frame(tmp_path / "none")["name"]) == []
    LiveFolder.new(tmp_path, "submission", "a", server="").end("finished")
    LiveFolder.new(tmp_path, "training", "b", server="")
    (tmp_path / "other").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "live.json").write_text("{")
    good = json.loads((tmp_path / "a" / "live.json").read_text())
    for number, change in enumerate([{"created": "soon"}, {"ended": 1e300}, {"name": 3}, {"created": None}]):
        (tmp_path / f"odd-{number}").mkdir()
        (tmp_path / f"odd-{number}" / "live.json").write_text(json.dumps({**good, **change}))
    frame = runs_frame(tmp_path)
    assert list(frame["name"]) == ["b", "a"]
    assert list(frame["state"]) == ["running", "finished"]
    assert frame["ended"].isna().tolist() == [True, False]


def test_the_folder_of_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given, else from the environment, else beside the notebook."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WORKBENCH_RUNS", raising=False)
    assert runs_folder() == tmp_path / "runs"
    monkeypatch.setenv("WORKBENCH_RUNS", str(tmp_path / "elsewhere"))
    assert runs_folder() == tmp_path / "elsewhere"
    assert runs_folder(tmp_path / "given") == tmp_path / "given"
