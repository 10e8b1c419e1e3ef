"""The trainer killed at random points and resumed: every prompt is trained on, none twice for no reason.

A kill undoes the steps since the last checkpoint: the model goes back, and so do their prompts. A kill
between the two halves of a checkpoint, the model's and the data's, leaves the model with steps that the data
does not know: their prompts come once more. Both are counted from the trainer's own log and the checkpoint
files, and nothing else may come twice.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analysis.lab.polar_server.testing import (
    Fault,
    FaultScript,
    Lognormal,
    PolarHandle,
    SessionProfile,
    serve_polar,
)
from slime_bridge.journal import JournalAuditor, read_journal
from tests.scenarios.killed_trainer import MODEL, TRAINED
from tests.scenarios.processes import start_process

KILLS = 10
"""Kills per test; five tests make fifty."""

BATCH = 4
EPOCH = 120
"""Prompts of the epoch."""

FARTHEST = 40
"""Tasks that a trainer submits before it is killed, at most."""

SCRIPT = FaultScript(
    sessions=SessionProfile(duration=Lognormal(0.01, 1.0, 0.03)),
    faults=[
        Fault("callback_duplicate", probability=0.2),
        Fault("session_error", sessions=[0], probability=0.2),
    ],
)


class Nursery:
    """Starts trainers as processes of their own, quickly, and kills them."""

    def __init__(self) -> None:
        self._process = start_process("tests.scenarios.killed_trainer", [], errors=None)

    def live(self, values: dict[str, Any], until: Callable[[], None] | None) -> int:
        """Start a trainer, kill it when `until` returns unless it has ended, and return its exit code."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(values) + "\n")
        process.stdin.flush()
        child = os.pidfd_open(int(process.stdout.readline()))
        try:
            if until is not None:
                until()
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(child, signal.SIGKILL)
            code = int(process.stdout.readline())
        finally:
            os.close(child)
        assert code in (0, -signal.SIGKILL), "the trainer failed; its error is above"
        return code

    def close(self) -> None:
        """End the process that starts the others; trainers have all ended."""
        self._process.communicate(timeout=30)


class Run:
    """One training run over its lives.

    Parameters
    ----------
    folder
        Holds everything that outlives a process.
    polar
        The rollout server.
    nursery
        Starts trainer processes.
    ahead
        Whether it works as ``train_async.py`` does, fully asynchronous; else as ``train.py``.
    rng
        Decides about the moments of death.
    """

    def __init__(
        self, folder: Path, polar: PolarHandle, nursery: Nursery, *, ahead: bool, rng: random.Random
    ) -> None:
        self.folder = folder
        self._polar = polar
        self._nursery = nursery
        self.kills = self.lives = 0
        self.undone: Counter[int] = Counter()
        self.repeated: Counter[int] = Counter()
        self.trained: Counter[int] = Counter()
        self.history: dict[int, list[int]] = {}
        self._gaps: set[int] = set()
        self._seen = 0
        self._rng = rng
        # A fully asynchronous run may deliver prompts of the next epoch before the last ones of this one.
        self.rollouts = EPOCH // BATCH + (2 if ahead else 0)
        self._values: dict[str, Any] = {
            "url": polar.url,
            "folder": str(folder),
            "prompts": EPOCH,
            "batch": BATCH,
            "save_interval": rng.choice([1, 2, 3]),
            "ahead": ahead,
            # A bound that nothing here reaches: a prompt that is too old is rejected, which would be right.
            "settings": {"polar_fully_async": ahead, "update_weights_interval": 50},
        }

    def live(self, *, kill: bool) -> bool:
        """Start the trainer and kill it after a random time, or let it end; tells whether it ended."""
        self._note_resume()
        self.lives += 1
        values = {**self._values, "life": self.lives, "rollouts": self.rollouts}
        code = self._nursery.live(values, self._wait if kill else None)
        self.kills += code == -signal.SIGKILL
        return code == 0

    def _wait(self) -> None:
        """Return at a random point of the trainer's life: in its start, or at some task and a bit later."""
        goal = self._polar.submits + self._rng.randrange(FARTHEST)
        with contextlib.suppress(TimeoutError):
            self._polar.wait_until(lambda: self._polar.submits >= goal, timeout=5.0)
        time.sleep(self._rng.uniform(0.0, 0.03))

    def _note_resume(self) -> None:
        """Note what the coming life does again: steps undone, and steps that the data does not know of."""
        self._read_log()
        model = self._model()
        for rollout_id in [number for number in self.history if number > model]:
            self.undone.update(self.history.pop(rollout_id))
        states = (self.folder / "rollout").glob("global_dataset_state_dict_*.json")
        data = max((n for path in states if (n := int(path.stem.rpartition("_")[2])) <= model), default=-1)
        if data < model and model not in self._gaps:
            self._gaps.add(model)
            for rollout_id in range(data + 1, model + 1):
                self.repeated.update(self.history[rollout_id])
                self.rollouts += 1

    def _read_log(self) -> None:
        """Take in what the trainer has logged since the last look."""
        path = self.folder / TRAINED
        lines = path.read_text().splitlines() if path.exists() else []
        for entry in map(json.loads, lines[self._seen :]):
            if "rollout" in entry:
                assert entry["rollout"] == len(self.history), "a step was left out"
                self.history[entry["rollout"]] = entry["groups"]
                self.trained.update(entry["groups"])
        self._seen = len(lines)

    def _model(self) -> int:
        path = self.folder / MODEL
        return int(path.read_text()) if path.exists() else -1

    def check(self) -> None:
        """Count exactly."""
        self._read_log()
        assert self._model() == self.rollouts - 1
        assert sorted(self.history) == list(range(self.rollouts))
        kept = Counter(group for groups in self.history.values() for group in groups)
        assert set(range(EPOCH)) <= set(kept), f"never trained on: {set(range(EPOCH)) - set(kept)}"
        assert kept == Counter(set(kept)) + self.repeated
        assert self.trained == kept + self.undone
        auditor = JournalAuditor()
        for record in read_journal(self.folder / "polar"):
            auditor.feed(record)
        assert auditor.finish() == []
        counts = auditor.counts
        assert counts["killed"] <= self.kills
        assert counts["delivered"] - counts["replayed"] == len(self._delivered())
        assert counts["rejected"] == counts["given_up"] == counts["abandoned"] == 0

    def _delivered(self) -> set[int]:
        """Return the groups that were handed over, whether or not the trainer lived to train on them."""
        drawn: dict[int, int] = {}
        delivered = set()
        for record in read_journal(self.folder / "polar"):
            if record["event"] == "group_drawn":
                drawn[record["group"]] = record["group_index"]
            elif record["event"] == "group_delivered":
                delivered.add(drawn[record["group"]])
        return delivered


def kill_until(polar: PolarHandle, nursery: Nursery, folder: Path, rng: random.Random) -> int:
    """Run epochs to their ends with `KILLS` kills in all; return how many lives that took."""
    kills = lives = 0
    while kills < KILLS:
        run = Run(folder / f"run{lives}", polar, nursery, ahead=rng.random() < 0.5, rng=rng)
        run.folder.mkdir()
        while not run.live(kill=kills + run.kills < KILLS):
            pass
        run.check()
        kills += run.kills
        lives += run.lives
    return lives


@pytest.fixture(scope="module")
def nursery():
    started = Nursery()
    yield started
    started.close()


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[pytest.mark.slow] if seed else []) for seed in range(5)]
)
def test_killed_trainer_trains_on_every_prompt(seed, tmp_path, nursery):
    """Ten kills per run of this test; the server never sees a task id twice."""
    with serve_polar(SCRIPT) as polar:
        lives = kill_until(polar, nursery, tmp_path, random.Random(seed))
        assert lives > KILLS
        assert 409 not in {record.status for record in polar.submissions}
        ids = [task.task_id for task in polar.history]
        assert len(set(ids)) == len(ids)
