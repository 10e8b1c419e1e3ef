"""A cell interrupted anywhere: nothing that nobody owns is left, on the server, in the process, on a port."""

from __future__ import annotations

import json
import random
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from analysis.lab.polar_server.testing import FaultScript, Lognormal, PolarHandle, SessionProfile, serve_polar
from analysis.live.connecting import connect
from analysis.live.connection import Lab
from tests.analysis.live.support import HANGING, KEYS, Interrupter, eventually, lab_at, live_threads

SLOW_SESSIONS = FaultScript(seed=1, sessions=SessionProfile(duration=Lognormal(0.02, 1.0, maximum=0.2)))


@pytest.fixture
def python_handles_sigint() -> Iterator[None]:
    """The handler that a kernel has."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def cell(lab: Lab) -> None:
    """What a cell might do."""
    handle = lab.submit(["a", "b", "c"], 2)
    str(handle)
    handle.wait(0.02)
    handle.cancel()
    handle.wait(0.02)


def listening() -> set[int]:
    """Ports that this process listens on."""
    import psutil

    return {c.laddr.port for c in psutil.Process().net_connections("tcp") if c.status == psutil.CONN_LISTEN}


def interrupt_at_random_points(polar: PolarHandle, runs: Path, points: int, seed: int) -> int:
    """Run cells, each interrupted once, and check after each what is left; return how many were struck."""
    # Twice, because the first time many lines run that never run again.
    for _ in range(2):
        with Interrupter(None) as dry:
            lab = connect(polar.url, runs_dir=runs, config=KEYS)
            cell(lab)
        lab.close()
    before, rng, struck = listening(), random.Random(seed), 0
    for number in range(points):
        interrupter = Interrupter(rng.randrange(1, dry.lines))
        lab = None
        try:
            with interrupter:
                lab = connect(polar.url, runs_dir=runs / str(number), config=KEYS)
                cell(lab)
        except KeyboardInterrupt:
            assert interrupter.struck
        struck += interrupter.struck
        if lab is not None:
            lab.close()
            assert all(handle.done for handle in lab.handles.values())
        eventually(lambda: not live_threads(), f"point {number}: threads {live_threads()}")
        running = [task_id for task_id, task in polar.tasks.items() if task.status == "running"]
        assert running == [], f"point {number}: orphans on the server"
        assert listening() == before, f"point {number}: a port is left"
    return struck


@pytest.mark.usefixtures("python_handles_sigint")
def test_random_interrupts_leave_nothing(tmp_path: Path) -> None:
    """A few of the points; the others in the slow test."""
    with serve_polar(SLOW_SESSIONS, newer=True) as polar:
        assert interrupt_at_random_points(polar, tmp_path, points=12, seed=0) >= 6


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("python_handles_sigint")
def test_a_hundred_random_interrupts_leave_nothing(tmp_path: Path) -> None:
    """At 100 random points of connecting, submitting, showing, waiting and cancelling."""
    with serve_polar(SLOW_SESSIONS, newer=True) as polar:
        assert interrupt_at_random_points(polar, tmp_path, points=100, seed=1) >= 50


@pytest.mark.usefixtures("python_handles_sigint")
def test_an_interrupt_of_a_waiting_cell_ends_the_waiting_only(tmp_path: Path) -> None:
    """The work goes on, and the same handle ends it."""
    with lab_at(tmp_path, HANGING) as (lab, polar):
        handle = lab.submit("a", 2)
        polar.wait_until(lambda: polar.running_sessions == 2)
        with pytest.raises(KeyboardInterrupt):
            interrupt_main_when_waiting(handle.wait)
        assert not handle.done
        assert polar.running_sessions == 2
        handle.cancel()
        assert handle.result(20).state == "cancelled"
        polar.wait_until(lambda: polar.running_sessions == 0)


def interrupt_main_when_waiting(wait: Callable[[], Any]) -> None:
    """Call a function that waits, and interrupt it while it does."""
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    before = signal.signal(signal.SIGALRM, lambda number, frame: signal.raise_signal(signal.SIGINT))
    try:
        wait()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def test_ports_are_free_again(tmp_path: Path) -> None:
    """The port that results were posted to can be bound when the submission has ended."""
    with lab_at(tmp_path) as (lab, polar):
        lab.submit("a", 2).result(20)
        address = json.loads(polar.submissions[0].body)["callback_url"].split("/")[2]
        host, port = address.rsplit(":", 1)
        with socket.socket() as probe:
            assert probe.connect_ex((host, int(port))) != 0
