"""What tests of live runs share: a connection to a scripted Polar server, and what may be left afterwards."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from analysis.lab.polar_server.testing import FaultScript, PolarHandle, SessionProfile, serve_polar
from analysis.lab.processes import ChildProcess
from analysis.lab.settings import LabSettings
from analysis.live import training, training_start
from analysis.live.connecting import connect
from analysis.live.connection import Lab

KEYS = {"polar_task_template": {"agent": {"harness": "lab"}, "timeout_seconds": 30.0}}

QUICK = FaultScript(seed=3, sessions=SessionProfile(duration=0.0))
HANGING = FaultScript(seed=3, sessions=SessionProfile(duration=3600.0))


TRAINER = """
import json, pathlib, sys, time
settings = json.loads(pathlib.Path(sys.argv[1]).read_text())
run = pathlib.Path(sys.argv[2]) / "polar"
run.mkdir(parents=True)
print("training", flush=True)
with (run / "journal.jsonl").open("a") as journal:
    for rollout in range(settings["rollouts"]):
        record = {"v": 1, "ts": time.time(), "event": "rollout_summary", "rollout_id": rollout}
        record["metrics"] = {"polar/reward_mean_completed": rollout / 10}
        journal.write(json.dumps(record) + "\\n")
        journal.flush()
mode = settings["advantage_estimator"]
if mode == "rloo":
    sys.exit("it went wrong")
if mode == "gspo":
    time.sleep(60)
"""


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


def scripted_training(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    """Let trainings be processes that write what a training writes, and end as their estimator says."""
    script = place / "trainer.py"
    script.write_text(TRAINER)

    def process(folder: Path, settings: LabSettings) -> ChildProcess:
        (folder / "settings.json").write_text(json.dumps(settings.to_dict()))
        argv = [sys.executable, str(script), str(folder / "settings.json"), str(folder / "run")]
        return ChildProcess(argv, name="training", log_path=folder / "training.log")

    monkeypatch.setattr(training, "_INTERVAL", 0.01)
    monkeypatch.setattr(training_start, "training_process", process)


class Interrupter:
    """Raises SIGINT in the main thread at the n-th line that runs anywhere below the block."""

    def __init__(self, at: int | None) -> None:
        self.lines = 0
        self.struck = False
        self._at = at

    def __enter__(self) -> Interrupter:
        sys.settrace(self._call)
        return self

    def __exit__(self, *exc: object) -> None:
        sys.settrace(None)

    def _call(self, frame: FrameType, event: str, arg: Any) -> Callable[..., Any] | None:
        # The machinery of `with` around this very object is not the cell's.
        return (
            None
            if frame.f_code.co_filename == __file__ and "Interrupter" in frame.f_code.co_qualname
            else self._line
        )

    def _line(self, frame: FrameType, event: str, arg: Any) -> Callable[..., Any]:
        if event == "line":
            self.lines += 1
            if self.lines == self._at:
                self.struck = True
                signal.raise_signal(signal.SIGINT)
        return self._line
