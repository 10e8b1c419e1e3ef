"""A long run with mixed faults: memory stays flat, and no thread, descriptor or sample is left behind.

The server is a process of its own, so that what this process holds is the trainer's and the bridge's.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import signal
import statistics
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from analysis.lab.polar_server.testing import Fault
from slime_bridge.rollout import generate_rollout_polar_async, stop_global_worker
from tests.scenarios.checks import Books, Leftovers
from tests.scenarios.playing import Shelf
from tests.scenarios.processes import start_process
from tests.slime_bridge.rollouts import make_args

SESSIONS = 8
PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 2**20

PROFILE = {"prompt_tokens": [100, 300], "turns": [2, 4], "turn_tokens": [20, 100], "tool_tokens": [50, 150]}
"""About 600 tokens per session: two thousand groups that leaked would be hundreds of megabytes."""

FAULTS = [
    Fault("session_error", probability=0.01),
    Fault("session_timeout", probability=0.005),
    Fault("nan_logprob", probability=0.005),
    Fault("session_malformed", probability=0.005),
    Fault("callback_lost", probability=0.005),
    Fault("callback_duplicate", probability=0.01),
    Fault("callback_malformed", value="truncated", probability=0.003),
    Fault("task_failed", attempts=[0], probability=0.003),
    Fault("task_endless", attempts=[0], probability=0.001),
    Fault("response_status", on="submit", status=503, probability=0.01),
    Fault("response_reset", on="submit", probability=0.005),
    Fault("response_cut", on="submit", processed=True, probability=0.003),
    Fault("restart", on="submit", skip=100),
    Fault("outage", on="submit", skip=140, seconds=0.5),
]
"""Together they hit about one task, session or request in twenty."""


@contextmanager
def server_process(folder: Path) -> Iterator[str]:
    """Run the Polar-compatible server as a process and give its URL."""
    script = folder / "script.json"
    faults = [dataclasses.asdict(fault) for fault in FAULTS]
    script.write_text(json.dumps({"faults": faults, "sessions": PROFILE, "seed": 1}))
    options = ["--port", "0", "--script", str(script), "--log-level", "error"]
    process = start_process("analysis.lab.polar_server", options, errors=None)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().split()[2].rstrip(";")
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)


@dataclasses.dataclass
class Gauge:
    """What the process holds after each rollout."""

    memory: list[float] = dataclasses.field(default_factory=list)
    threads: list[int] = dataclasses.field(default_factory=list)
    descriptors: list[int] = dataclasses.field(default_factory=list)
    samples: list[weakref.ref[Any]] = dataclasses.field(default_factory=list)

    def read(self, groups: list[list[Any]]) -> None:
        """Take one reading, and remember the batch weakly."""
        self.samples += [weakref.ref(sample) for group in groups for sample in group]
        del groups
        self.memory.append(int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_MB)
        self.threads.append(threading.active_count())
        self.descriptors.append(len(os.listdir("/proc/self/fd")))

    def growth(self, readings: list[float]) -> float:
        """Return by how much the last quarter exceeds the second one: what comes before is warming up."""
        quarter = len(readings) // 4
        return statistics.median(readings[-quarter:]) - statistics.median(readings[quarter : 2 * quarter])

    def alive(self) -> int:
        """Count the delivered samples that somebody still holds."""
        gc.collect()
        return sum(sample() is not None for sample in self.samples)


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("groups", "batch"), [(160, 8), pytest.param(2000, 25, marks=pytest.mark.slow)], ids=["short", "long"]
)
def test_long_run_leaves_nothing_behind(groups, batch, tmp_path):
    """Groups of eight sessions with five per cent of mixed faults."""
    left, gauge, source = Leftovers(), Gauge(), Shelf(n=SESSIONS)
    with server_process(tmp_path) as url:
        args = make_args(
            url,
            rollout_batch_size=batch,
            n_samples_per_prompt=SESSIONS,
            polar_fully_async=True,
            polar_group_timeout=6.0,
            polar_run_dir=str(tmp_path / "run"),
            # A lost callback costs seconds, in which small rollouts pass by: age is not the subject here.
            update_weights_interval=1000,
        )
        try:
            for rollout_id in range(groups // batch):
                output = generate_rollout_polar_async(args, rollout_id, source)
                assert len(output.samples) == batch
                assert output.metrics["polar/ledger/unaccounted"] == 0
                gauge.read(output.samples)
                del output
        finally:
            stop_global_worker()
    left.check()
    books = Books(tmp_path / "run")
    books.check_closed()
    assert books.counts["delivered"] == groups
    assert books.counts["rejected"] == books.counts["given_up"] == books.counts["abandoned"] == 0
    assert source.unaccounted() == set()
    assert sum(books.lost_sessions.values()) > 0
    assert books.requeued or groups < 1000
    # The last batch's bookkeeping may live until the next one.
    assert gauge.alive() <= 2 * batch * SESSIONS
    assert max(gauge.threads) - gauge.threads[0] <= 4, gauge.threads
    assert gauge.growth(gauge.descriptors) <= 8, gauge.descriptors
    assert gauge.growth(gauge.memory) < 24, [round(value) for value in gauge.memory]
