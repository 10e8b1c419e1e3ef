"""Ctrl-C anywhere in a cell that trains: no process, no thread and no folder that says it still runs."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from analysis import live
from analysis.lab.polar_server.testing import PolarHandle, serve_polar
from analysis.live import connection, training
from analysis.live.connecting import connect
from analysis.live.connection import Lab
from tests.analysis.live.support import KEYS, QUICK, Interrupter, eventually, live_threads, scripted_training


@pytest.fixture
def polar(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[PolarHandle]:
    """A server to be connected to, trainings that are quick to start, and a kernel's own handler."""
    scripted_training(monkeypatch, tmp_path)
    monkeypatch.setattr(training, "_STOP_SECONDS", 2.0)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with serve_polar(QUICK, newer=True) as polar:
        yield polar
    signal.signal(signal.SIGINT, before)


def connected(polar: PolarHandle, runs: Path) -> Lab:
    lab = connect(polar.url, runs_dir=runs, config=KEYS)
    lab._backend.embedded = True  # which alone trains; a real embedded stack takes seconds to start
    return lab


def cell(lab: Lab) -> None:
    """What a cell might do: train two estimators side by side, look, stop."""
    pair = lab.train(["gspo", "loo"], rollouts=3)
    str(pair)
    pair.wait(0.02)
    pair.cancel()
    pair.wait(0.02)


def interrupt_at_random_points(polar: PolarHandle, place: Path, points: int, seed: int) -> int:
    """Run cells, each interrupted once, and check after each what is left; return how many were struck."""
    for number in range(2):  # the first time many lines run that never run again
        lab = connected(polar, place / f"dry{number}")
        with Interrupter(None) as dry:
            cell(lab)
        lab.close()
    rng, struck = random.Random(seed), 0
    children = {child.pid for child in psutil.Process().children(recursive=True)}
    for number in range(points):
        lab = connected(polar, place / str(number))
        interrupter = Interrupter(rng.randrange(1, dry.lines))
        try:
            with interrupter:
                cell(lab)
        except KeyboardInterrupt:
            assert interrupter.struck
        struck += interrupter.struck
        lab.close()
        assert all(handle.done for handle in lab.handles.values())
        eventually(lambda: not live_threads(), f"point {number}: threads {live_threads()}")
        left = {child.pid for child in psutil.Process().children(recursive=True)} - children
        assert left == set(), f"point {number}: processes {left}"
        states = set(live.runs(place / str(number))["state"])
        assert "running" not in states, f"point {number}"
    return struck


def test_a_training_that_has_just_started_has_an_owner(
    polar: PolarHandle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted before `train` could return it, it is the connection's, which ends it."""
    start = connection.start_trainings

    def start_and_be_interrupted(*given: Any, **options: Any) -> Any:
        started = start(*given, **options)
        signal.raise_signal(signal.SIGINT)
        return started

    monkeypatch.setattr(connection, "start_trainings", start_and_be_interrupted)
    lab = connected(polar, tmp_path / "runs")
    with pytest.raises(KeyboardInterrupt):
        lab.train("gspo", rollouts=3)
    [handle] = lab.handles.values()
    assert not handle.done
    lab.close()
    assert handle.done
    assert live.runs(tmp_path / "runs")["state"].tolist() == ["cancelled"]


def test_random_interrupts_leave_nothing(polar: PolarHandle, tmp_path: Path) -> None:
    """A few of the points; the others in the slow test."""
    assert interrupt_at_random_points(polar, tmp_path / "runs", points=8, seed=0) >= 4


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_hundred_random_interrupts_leave_nothing(polar: PolarHandle, tmp_path: Path) -> None:
    """At 100 random points of starting, showing, waiting and cancelling."""
    assert interrupt_at_random_points(polar, tmp_path / "runs", points=100, seed=1) >= 50
