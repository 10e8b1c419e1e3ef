"""Runs with planted facts for the tests of the explorers."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from analysis.schema import empty_frame
from tests.analysis.stats.builder import RunBuilder

HOSTILE = '<img src=x onerror="window.hit=1"><script>hit()</script>\u202egnp.exe'


def small_run(prompt: str = "add 1 and 2") -> dict[str, Any]:
    """Three rollouts with two groups each, one of them rejected.

    Group 0 has rewards 1, 0, 1; group 3 was rejected and lacks a session; group 5 has no spread.
    """
    return dict(_small_run(prompt))


@cache
def _small_run(prompt: str) -> dict[str, Any]:
    builder = RunBuilder(advantage_estimator="grpo")
    for rollout_id, reward in enumerate((0.5, 0.6, None)):
        builder.rollout(
            rollout_id,
            reward_mean=reward,
            reward_std=0.1,
            staleness_mean=1.0 * rollout_id,
            staleness_max=2,
            delivered_groups=2 if rollout_id != 1 else 1,
            rejected_groups=int(rollout_id == 1),
            groups=2,
        )
    builder.group([1.0, 0.0, 1.0], rollout_id=0, prompt=prompt, tokens=10)
    builder.group([0.25, 0.75], rollout_id=0, prompt="add 3 and 4", tokens=4)
    builder.group([0.0, 1.0], rollout_id=1, prompt="subtract", staleness=1)
    builder.group(
        [0.0, None, 1.0],
        rollout_id=1,
        accepted=False,
        reject_reason="low_complete_fraction",
        prompt="divide",
        sessions=[{}, {"usable": False, "completed": False, "status": "ERROR"}, {}],
    )
    builder.group([1.0, 0.5], rollout_id=2, prompt="multiply", staleness=2)
    builder.group([1.0, 1.0], rollout_id=2, prompt="multiply by 1", staleness=2)
    return builder.tables()


class FramesAsRun:
    """Frames behind the methods of a run."""

    def __init__(self, tables: dict[str, Any]) -> None:
        for grain in ("rollout", "group", "session", "trace", "event"):
            setattr(self, f"{grain}s", lambda grain=grain: tables[grain])


def one_group() -> dict[str, Any]:
    """A single delivered group, in no rollout that anybody recorded."""
    builder = RunBuilder()
    builder.group([1.0, 0.0])
    return builder.tables()


def no_rows() -> dict[str, Any]:
    """A run of which nothing is known."""
    return {f"{grain}s": empty_frame(grain) for grain in ("rollout", "group", "session", "trace")}


def many_traces(groups: int, size: int, *, groups_per_rollout: int = 250) -> dict[str, Any]:
    """A run of `groups` x `size` sessions with a trace each, made column by column."""
    n = groups * size
    rng = np.random.default_rng(7)
    rewards = rng.integers(0, 2, (groups, size)).astype(float)
    group = np.arange(groups)
    states = np.where(rng.random(groups) < 0.1, "rejected", "delivered")
    shared = {"run": "run", "evaluation": False, "worker": "w"}
    own = {
        "rollout_id": group // groups_per_rollout,
        "group": group,
        "group_index": group,
    }
    group_values = (
        shared
        | own
        | {
            "state": states,
            "accepted": states == "delivered",
            "reward_mean": rewards.mean(axis=1),
            "reward_std": rewards.std(axis=1),
            "attempts": 1,
            "expected_sessions": size,
            "complete_usable_sessions": size,
            "required_sessions": size - 1,
            "trainable_tokens": 10 * size,
            "reject_reason": np.where(states == "rejected", "low_complete_fraction", None),
            "prompt_preview": np.array([f'[{{"role":"user","content":"question {g}"}}]' for g in group]),
        }
    )
    per_session = {name: np.repeat(values, size) for name, values in own.items()}
    ids = (
        shared
        | per_session
        | {
            "session_id": np.array([f"s-{k}" for k in range(n)]),
            "trajectory": np.arange(n),
            "attempt": 1,
            "position": np.tile(np.arange(size), groups),
            "reward": rewards.reshape(-1),
            "task_id": np.repeat(np.array([f"task-{g}" for g in group]), size),
            "trainable_tokens": 10,
        }
    )
    rollouts = np.arange(-(-groups // groups_per_rollout))
    rollout_values = shared | {
        "rollout_id": rollouts,
        "reward_mean": 0.5,
        "reward_std": 0.5,
        "delivered_groups": 200,
        "rejected_groups": 20,
    }
    return {
        "rollouts": _filled("rollout", len(rollouts), rollout_values),
        "groups": _filled("group", groups, group_values),
        "sessions": _filled(
            "session", n, ids | {"usable": True, "finished": True, "completed": True, "status": "COMPLETED"}
        ),
        "traces": _filled(
            "trace",
            n,
            ids
            | {
                "trace_index": 0,
                "sample_index": np.arange(n),
                "sample_status": "completed",
                "accepted": np.repeat(states == "delivered", size),
                "response_tokens": 10,
            },
        ),
    }


def _filled(grain: str, count: int, values: dict[str, Any]) -> pd.DataFrame:
    frame = empty_frame(grain).reindex(range(count))
    for name, value in values.items():
        if name in frame:
            frame[name] = pd.Series(value, index=frame.index).astype(frame[name].dtype)
    return frame
