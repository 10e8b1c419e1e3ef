"""Trainer processes: started, ended by whatever a scenario says, and looked at from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from analysis.lab.polar_server.testing import PolarHandle
from tests.scenarios.scenario import Scenario

ROOT = Path(__file__).resolve().parents[2]
EXIT_CODES = {"end of script": 0, "exception": 1, "sigterm": 128 + signal.SIGTERM}
_END_SECONDS = 40.0


def start_process(
    module: str, arguments: Sequence[str], *, errors: int | None = subprocess.PIPE
) -> subprocess.Popen[str]:
    """Start ``python -m module`` in the repository, with pipes to and from it."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        cwd=ROOT,
        env=environment,
    )


def end_of_process(scenario: Scenario, polar: PolarHandle, folder: Path) -> float:
    """Let a trainer process run into its end with work in flight; return the seconds that the end took."""
    values = {
        "url": polar.url,
        "folder": str(folder),
        "settings": dict(scenario.settings),
        "rollouts": list(scenario.rollouts),
        "ends_by": scenario.ends_by,
    }
    process = start_process("tests.scenarios.ending_trainer", [json.dumps(values)])
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        assert ready == "ready\n", process.communicate()
        if scenario.ends_by == "sigterm":
            process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        _, err = process.communicate(timeout=_END_SECONDS)
        seconds = time.monotonic() - began
    finally:
        process.kill()
        process.wait()
    assert process.returncode == EXIT_CODES[scenario.ends_by], err
    return seconds
