"""Ctrl-C ends a lab run in order at whatever moment it comes, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from analysis.lab.dumps import read_dump

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.timeout(180)]

ENDS_WITHIN = 20.0
"""Seconds between the signal and the end; generous, because other work shares the machine."""

RUN = """
import sys
from pathlib import Path
from analysis.lab.command import run_settings
from analysis.lab.settings import AgentTroubles, LabSettings

settings = LabSettings(
    seed=3, rollouts=2, rollout_batch_size=2, n_samples_per_prompt=2, eval_prompts=4,
    warm_start_steps={steps},
    min_complete_accept_fraction=0.0, troubles=AgentTroubles(tool_latency_median=0.0, failure_rate=0.0),
)
sys.exit(run_settings(settings, Path(sys.argv[1])))
"""


class LabRun:
    """A lab run in a process of its own, followed line by line."""

    def __init__(self, folder: Path, cache: Path, *, warm_start_steps: int) -> None:
        self.folder = folder
        self.cache = cache
        self.token = uuid.uuid4().hex
        self.lines: list[str] = []
        environment = {**os.environ, "SLIME_BRIDGE_CACHE": str(cache), "LAB_RUN_TOKEN": self.token}
        self.process = subprocess.Popen(
            [sys.executable, "-c", RUN.format(steps=warm_start_steps), str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**environment, "OMP_NUM_THREADS": "1"},
            cwd=Path(__file__).parents[2],
        )

    def read_until(self, text: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            if text in line:
                return
        pytest.fail(f"the run ended before {text!r}:\n" + "\n".join(self.lines))

    def interrupt(self, signum: int = signal.SIGINT) -> int:
        """Send a signal; return the exit code, reading what the run still says."""
        self.process.send_signal(signum)
        rest, _ = self.process.communicate(timeout=ENDS_WITHIN)
        self.lines.extend(rest.splitlines())
        return self.process.returncode

    def survivors(self) -> list[str]:
        """Command lines of processes that the run started and that still live, itself included."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and self.token.encode() in (entry / "environ").read_bytes():
                    found.append((entry / "cmdline").read_text().replace("\0", " "))
            except OSError:
                continue
        return found

    def listening(self) -> list[int]:
        """Ports named in the run's output that still accept connections."""
        ports = {int(port) for port in re.findall(r"http://127\.0\.0\.1:(\d+)", "\n".join(self.lines))}
        return [port for port in ports if _accepts(port)]


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def start(tmp_path: Path) -> Iterator[object]:
    runs: list[LabRun] = []

    def start(*, warm_start_steps: int = 5) -> LabRun:
        runs.append(LabRun(tmp_path / "run", tmp_path / "cache", warm_start_steps=warm_start_steps))
        return runs[-1]

    yield start
    for run in runs:
        if run.process.poll() is None:
            run.process.kill()
        run.process.communicate()


def assert_nothing_is_left(run: LabRun) -> None:
    """No process, no port, no partial file; everything that is there can be read to its end."""
    deadline = time.monotonic() + 5.0
    # The kernel needs a moment to take a killed process off the list.
    while run.survivors() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert run.survivors() == []
    assert run.listening() == []
    for root in (run.folder, run.cache):
        assert [
            path for path in root.rglob("*") if "partial" in path.name or path.name.endswith(".part")
        ] == []
    for path in run.folder.rglob("*.pt"):
        read_dump(path)
    for path in [*run.folder.rglob("*.jsonl"), *run.folder.rglob("config.json")]:
        for line in path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]:
            json.loads(line)
    for path in run.folder.rglob("*.png"):
        assert path.read_bytes().endswith(b"IEND\xaeB`\x82")


@pytest.mark.parametrize(
    ("moment", "steps"), [("warm start 1/", 5000), ("engine http", 5), ("drawing figures", 5)]
)
def test_ctrl_c_at(moment: str, steps: int, start) -> None:
    """Exit code 130 within seconds, a word about where the partial run is, and nothing left behind."""
    run = start(warm_start_steps=steps)
    run.read_until(moment)
    assert run.interrupt() == 130
    said = "\n".join(run.lines)
    assert "stopped by SIGINT" in said
    assert str(run.folder) in said
    assert "Traceback" not in said
    assert_nothing_is_left(run)


def test_ctrl_c_before_anything_is_loaded(start) -> None:
    """The first line comes before anything heavy is loaded, and then Ctrl-C ends in order."""
    run = start()
    run.read_until("run folder")
    assert run.interrupt() == 130
    assert_nothing_is_left(run)


def test_kill_during_evaluation_is_as_orderly_as_ctrl_c(start) -> None:
    """SIGTERM, as a scheduler or a closing container sends it, ends with 143 and nothing left."""
    run = start()
    run.read_until("held-out questions after")
    assert run.interrupt(signal.SIGTERM) == 143
    assert "stopped by SIGTERM" in "\n".join(run.lines)
    assert_nothing_is_left(run)


def test_impatient_ctrl_c_during_training_is_no_shortcut_past_the_clean_up(start) -> None:
    """Several signals in a row end the run once, in order."""
    run = start()
    run.read_until("rollout 1/2")
    for _ in range(4):
        run.process.send_signal(signal.SIGINT)
        time.sleep(0.05)
    assert run.interrupt() == 130
    assert_nothing_is_left(run)
