"""Ctrl-C in the jobs that read a run: one word, exit code 130, and nothing half-written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.analysis.test_loading import write_session

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "options",
    [
        ["load", "{run}", "--engine", "processes", "--workers", "2", "--no-index"],
        ["convert", "{run}", "{out}", "--no-index"],
        ["report", "{run}", "--out", "{out}", "--no-index"],
    ],
)
def test_an_interrupted_job_ends_in_one_line(tmp_path: Path, options: list[str]) -> None:
    """The terminal sends the signal to the whole process group, workers included."""
    for number in range(400):
        write_session(tmp_path / "run", f"s{number}", tokens=2000)
    argv = [option.format(run=tmp_path / "run", out=tmp_path / "out") for option in options]
    job = subprocess.Popen(
        [sys.executable, "-m", "analysis.cli", *argv],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert job.stdout is not None
        assert job.stdout.readline() == f"loading {tmp_path / 'run'}\n"
        os.killpg(job.pid, signal.SIGINT)
        _, said = job.communicate(timeout=40)
    finally:
        job.kill()
        job.wait()
    assert (job.returncode, said) == (130, "interrupted\n")
    assert not (tmp_path / "out").exists()
