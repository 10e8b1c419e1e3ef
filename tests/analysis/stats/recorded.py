"""Recorded runs of an asynchronous trainer, simulated by plain loops without the bridge's scheduler."""

from __future__ import annotations

import math
import random
from typing import Any

import pandas as pd

from tests.analysis.stats.builder import START, RunBuilder

WANTED, SESSIONS = 4, 6


def _at(seconds: float) -> pd.Timestamp:
    return START + pd.Timedelta(seconds=seconds)


class _Trial:
    """One group of the recorded run."""

    def __init__(
        self, number: int, now: float, version: int, rng: random.Random, early_stop: int | None
    ) -> None:
        self.number, self.drawn, self.version = number, now, version
        self.seconds = [rng.lognormvariate(1.5, 0.7) for _ in range(SESSIONS)]
        self.usable = [rng.random() > 0.05 for _ in range(SESSIONS)]
        self.overhead = rng.uniform(0.05, 0.3)
        order = sorted(range(SESSIONS), key=lambda s: self.seconds[s])
        self.stopped: set[int] = set()
        end = max(self.seconds)
        if early_stop is not None:
            counted = [s for s in order if self.usable[s]][:early_stop]
            if len(counted) == early_stop:
                end = self.seconds[counted[-1]]
                self.stopped = {s for s in order if self.seconds[s] > end}
        self.done = now + end + self.overhead
        self.accepted = sum(self.usable[s] for s in range(SESSIONS) if s not in self.stopped) >= 4
        self.version_at_result = version
        self.end: dict[str, Any] = {}


def recorded_run(
    level: int, *, rollouts: int = 120, seed: int = 0, early_stop: int | None = None, train: float = 4.0
) -> tuple[dict[str, Any], float]:
    """Simulate a fully asynchronous run; return its frames and its mean time between deliveries."""
    rng = random.Random(seed)
    now, number = 0.0, 0
    alive: list[_Trial] = []
    every: list[_Trial] = []
    calls: list[tuple[int, float, float]] = []
    for rollout in range(rollouts):
        requested = now
        for trial in [t for t in alive if rollout - t.version > level + 1]:
            alive.remove(trial)
            late = trial.done > now
            trial.end = {"state": "rejected", "accepted": False, "at": now, "rollout": rollout, "late": late}
        while True:
            for trial in [t for t in alive if t.done <= now and not t.accepted]:
                alive.remove(trial)
                trial.end = {"state": "rejected", "accepted": False, "at": trial.done, "rollout": rollout}
            while len(alive) < WANTED * level:
                alive.append(_Trial(number, now, rollout, rng, early_stop))
                every.append(alive[-1])
                number += 1
            ready = sorted((t for t in alive if t.done <= now and t.accepted), key=lambda t: t.number)
            if len(ready) >= WANTED:
                break
            now = min(t.done for t in alive if t.done > now)
        for trial in ready[:WANTED]:
            alive.remove(trial)
            trial.end = {"state": "delivered", "accepted": True, "at": now, "rollout": rollout}
        calls.append((rollout, requested, now))
        now += train * rng.lognormvariate(0, 0.2)
    steps = [calls[0][2]] + [b[2] - a[2] for a, b in zip(calls[:-1], calls[1:], strict=True)]
    return _frames(level, every, calls), sum(steps) / len(steps)


def _frames(level: int, every: list[_Trial], calls: list[tuple[int, float, float]]) -> dict[str, Any]:
    builder = RunBuilder(
        max_async_level=level,
        update_weights_interval=1,
        rollout_batch_size=WANTED,
        n_samples_per_prompt=SESSIONS,
        fully_async=True,
        min_complete_accept_fraction=0.6,
        early_stop_grace_sessions=0,
    )
    for rollout, requested, delivered in calls:
        builder.event("rollout_requested", requested, rollout_id=rollout, wanted=WANTED)
        builder.rollout(rollout, requested_at=_at(requested), delivered_at=_at(delivered))
    for trial in every:
        end = trial.end or {"state": "returned", "accepted": None, "at": math.nan, "rollout": None}
        lag = None if end["accepted"] is not True else end["rollout"] - trial.version
        stale = "late" in end
        reason = "too_stale" if stale else None if trial.accepted else "low_complete_fraction"
        known = 0 if end.get("late") else SESSIONS  # a task that was stopped leaves no results
        builder.group(
            [1.0] * known,
            expected_sessions=SESSIONS,
            rollout_id=end["rollout"],
            accepted=end["accepted"],
            state=end["state"],
            verdict=None if end.get("late") else "accepted" if trial.accepted else "rejected",
            reject_reason=reason,
            staleness=lag,
            drawn_at=_at(trial.drawn),
            submitted_at=_at(trial.drawn),
            result_at=_at(trial.done - 0.01) if known else None,
            judged_at=_at(trial.done) if known else None,
            ended_at=None if math.isnan(end["at"]) else _at(end["at"]),
            result_seconds=trial.done - 0.01 - trial.drawn if known else None,
            sessions=[
                {
                    "e2e_ms": 1000 * trial.seconds[s],
                    "usable": trial.usable[s] and s not in trial.stopped,
                    "completed": trial.usable[s] and s not in trial.stopped,
                    "early_stopped": s in trial.stopped,
                    "kept_traces": 1,
                }
                for s in range(known)
            ],
        )
    return builder.tables()
