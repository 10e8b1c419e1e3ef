"""A run to look at: which one is taken, and that a failed making of one leaves nothing."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from analysis.errors import LabError
from analysis.lab import example
from analysis.lab.example import EXAMPLES, example_run, example_runs, make_example


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, and a cache that is empty too."""
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    monkeypatch.delenv("WORKBENCH_RUN", raising=False)
    monkeypatch.setenv("SLIME_BRIDGE_CACHE", str(tmp_path / "cache"))
    return tmp_path


def finished(folder: Path, *, age: float = 0.0) -> Path:
    """What `workbench lab` leaves when it has ended well, as far as finding it needs."""
    (folder / "checkpoint" / "final").mkdir(parents=True)
    for name in ("config.json", "metrics.jsonl"):
        (folder / name).write_text("{}")
        os.utime(folder / name, (1e9 - age, 1e9 - age))
    return folder


def test_the_newest_complete_run_is_taken_here_or_one_folder_up(here):
    finished(here / "runs" / "old", age=100)
    newest = finished(here / "notebooks" / "runs" / "new", age=10)
    unfinished = finished(here / "runs" / "killed")
    (unfinished / "checkpoint" / "final").rmdir()
    assert example_run() == newest
    assert example_runs(2) == [newest, here / "runs" / "old"]


def test_named_runs_come_first_and_must_be_there(here, monkeypatch):
    finished(here / "runs" / "own")
    mine = [here / "a", here / "b"]
    for folder in mine:
        folder.mkdir()
    monkeypatch.setenv("WORKBENCH_RUN", os.pathsep.join(map(str, mine)))
    assert example_runs(2) == mine
    monkeypatch.setenv("WORKBENCH_RUN", str(here / "nowhere"))
    with pytest.raises(LabError, match="nowhere"):
        example_run()


def test_where_there_are_too_few_all_are_made_once(here, monkeypatch, capsys):
    finished(here / "runs" / "only")
    made = []

    def make(folder, settings, *, show):
        made.append(settings)
        show("rollout 1/1")
        return finished(folder)

    monkeypatch.setattr(example, "make_example", make)
    first = example_runs(2)
    assert made == list(EXAMPLES)
    assert "rollout 1/1" in capsys.readouterr().err
    assert example_runs(2) == first
    assert len(made) == 2


def test_the_examples_differ_in_their_learning_rate_only():
    first, second = EXAMPLES
    assert replace(second, train=first.train) == first
    assert replace(second.train, learning_rate=first.train.learning_rate) == first.train


@pytest.mark.parametrize("count", [0, 3])
def test_there_are_one_or_two_runs(count):
    with pytest.raises(ValueError, match="count"):
        example_runs(count)


def test_a_failure_tells_the_end_of_the_output_and_leaves_nothing(here):
    folder = here / "made"
    # The child refuses a folder that holds something already.
    taken = here / f".made.{os.getpid()}.partial"
    taken.mkdir()
    (taken / "file").touch()
    with pytest.raises(LabError, match="status 2\\n(.|\\n)*is not an empty folder"):
        make_example(folder)
    assert [path.name for path in here.iterdir()] == ["notebooks"]


def test_without_the_embedded_stack_the_message_says_what_to_install(here, monkeypatch):
    monkeypatch.setattr(example, "_NEEDED", "a_library_that_nobody_has")
    with pytest.raises(LabError, match="pip install '.\\[lab\\]' in a checkout"):
        example_run()
