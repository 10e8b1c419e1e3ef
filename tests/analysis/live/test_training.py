"""Trainings from a notebook: a process each, followed from its files, side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from analysis.errors import SubmissionError, TrainingError
from analysis.lab.processes import ChildProcess
from analysis.lab.settings import LabSettings
from analysis.live import training_start
from analysis.live.registry import LiveFolder
from analysis.live.side_by_side import TrainingsSideBySide
from analysis.live.training import TrainingHandle
from analysis.live.training_start import start_trainings
from tests.analysis.live.support import live_threads, scripted_training


@pytest.fixture(autouse=True)
def scripted_trainer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A process that writes what a training writes, and ends as its estimator says."""
    scripted_training(monkeypatch, tmp_path)


def start(runs: Path, estimator: Any = None, **options: Any) -> Any:
    given: dict[str, Any] = {"rollouts": 3, "seed": 0, "name": None, "settings": {}}
    return start_trainings(runs, estimator, **{**given, **options})


def test_a_training_from_start_to_end(tmp_path: Path) -> None:
    """Its curve is followed, and its end is written down."""
    handle = start(tmp_path / "runs", name="mine")
    assert isinstance(handle, TrainingHandle)
    result = handle.result(40)
    assert result.state == handle.state == "finished"
    assert [point.value for point in result.reward] == [0.0, 0.1, 0.2]
    assert "0.000 at first, 0.200 at last" in repr(result)
    assert "3 of 3 rollouts" in repr(handle)
    assert LiveFolder.find(tmp_path / "runs", "mine").read().state == "finished"
    assert live_threads() == []


def test_a_training_that_fails_says_why(tmp_path: Path) -> None:
    """With the end of its log."""
    handle = start(tmp_path / "runs", "rloo")
    with pytest.raises(TrainingError, match="it went wrong"):
        handle.result(40)
    assert handle.state == "failed"
    assert "it went wrong" in handle._repr_html_()


def test_cancelling_ends_the_process(tmp_path: Path) -> None:
    """And what was done is kept."""
    handle = start(tmp_path / "runs", "gspo")
    while len(handle.progress.curves.get("reward", ())) < 3:
        assert not handle.wait(0.01)
    handle.cancel()
    result = handle.result(40)
    assert result.state == "cancelled"
    assert len(result.reward) == 3
    assert not handle._process.running
    assert live_threads() == []


def test_side_by_side_under_one_seed(tmp_path: Path) -> None:
    """The settings differ in the estimator only; the view has a line for each."""
    both = start(tmp_path / "runs", [None, "grpo"], name="pair", seed=7)
    assert isinstance(both, TrainingsSideBySide)
    assert both.wait(40)
    assert [handle.name for handle in both] == ["pair-0-default", "pair-1-grpo"]
    settings = [json.loads((handle.folder.parent / "settings.json").read_text()) for handle in both]
    assert settings[0].pop("advantage_estimator") is None
    assert settings[1].pop("advantage_estimator") == "grpo"
    assert settings[0] == settings[1]
    assert settings[0]["seed"] == 7
    html = both._repr_html_()
    assert html.count("<polyline") == 2
    assert len(both.result()) == 2
    assert len(both) == 2


def test_none_starts_without_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the second cannot be started, the first is ended."""
    real, started = training_start.training_process, []

    def process(folder: Path, settings: LabSettings) -> ChildProcess:
        child = real(folder, settings)
        if started:
            child.argv = ["/no/such/program"]
        started.append(child)
        return child

    monkeypatch.setattr(training_start, "training_process", process)
    with monkeypatch.context() as broken:
        broken.setattr(ChildProcess, "start", _fails_at_the_second(ChildProcess.start))
        with pytest.raises(RuntimeError, match="second"):
            start(tmp_path / "runs", ["gspo", "gspo"])
    assert not started[0].running
    assert live_threads() == []


def _fails_at_the_second(start: Any) -> Any:
    calls: list[int] = []

    def once(self: ChildProcess) -> ChildProcess:
        calls.append(1)
        if len(calls) > 1:
            raise RuntimeError("the second cannot start")
        started: ChildProcess = start(self)
        return started

    return once


@pytest.mark.parametrize(
    ("estimator", "settings"), [("no_such", {}), ([], {}), (None, {"no_such": 1}), (None, {"rollouts": 0})]
)
def test_wrong_settings_start_nothing(tmp_path: Path, estimator: Any, settings: dict[str, Any]) -> None:
    """A typed error in the cell."""
    rollouts = settings.pop("rollouts", 3)
    with pytest.raises(SubmissionError):
        start(tmp_path / "runs", estimator, settings=settings, rollouts=rollouts)
    assert not (tmp_path / "runs").exists()


def test_a_training_of_an_earlier_kernel(tmp_path: Path) -> None:
    """Its files are there; it ended with its notebook unless it says otherwise."""
    first = start(tmp_path / "runs", name="mine")
    first.wait(40)
    again = TrainingHandle(LiveFolder.find(tmp_path / "runs", "mine"), None)
    again.start()
    assert again.done
    assert again.state == "finished"
    assert len(again.result(0.0).reward) == 3
