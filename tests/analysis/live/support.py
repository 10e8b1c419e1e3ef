"""What tests of live runs share: a connection to a scripted Polar server, and what may be left afterwards."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from analysis.lab.polar_server.testing import FaultScript, PolarHandle, SessionProfile, serve_polar
from analysis.live.connecting import connect
from analysis.live.connection import Lab

KEYS = {"polar_task_template": {"agent": {"harness": "lab"}, "timeout_seconds": 30.0}}

QUICK = FaultScript(seed=3, sessions=SessionProfile(duration=0.0))
HANGING = FaultScript(seed=3, sessions=SessionProfile(duration=3600.0))


@contextmanager
def lab_at(
    runs: Path, script: FaultScript = QUICK, *, newer: bool = True, **settings: Any
) -> Iterator[tuple[Lab, PolarHandle]]:
    """A connection to a scripted server; both end with the block."""
    with serve_polar(script, newer=newer) as polar:
        lab = connect(polar.url, runs_dir=runs, **{"config": KEYS, **settings})
        try:
            yield lab, polar
        finally:
            lab.close()


def live_threads() -> list[str]:
    """Names of threads that belong to live runs or to the bridge."""
    own = ("live-", "polar-journal", "polar-lookup", "polar-doctor")
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(own)]


def eventually(condition: Any, what: str, timeout: float = 20.0) -> None:
    """Wait until a condition holds; for what ends in a thread that nobody can wait for."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout} s: {what}"
        time.sleep(0.01)
