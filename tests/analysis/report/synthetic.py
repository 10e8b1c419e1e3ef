"""Runs made of random numbers: a clean one, and the same with one fault that begins at a known rollout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from analysis.schema import columns_of, empty_frame

ROLLOUTS, GROUPS, SIZE, START = 42, 8, 6, 28
EPOCH = pd.Timestamp("2026-01-01", tz="UTC")


def frame(grain: str, count: int, **columns: Any) -> pd.DataFrame:
    """A table with all declared columns and dtypes from arrays of some of them."""
    declared = {column.name: column.dtype for column in columns_of(grain)}
    assert not set(columns) - set(declared), sorted(set(columns) - set(declared))
    made = empty_frame(grain).reindex(range(count))
    for name, values in columns.items():
        if declared[name].startswith("datetime"):
            made[name] = EPOCH + pd.to_timedelta(np.asarray(values, dtype=float), unit="s").as_unit("us")
            continue
        series = pd.Series(np.broadcast_to(np.asarray(values, dtype=object), count).copy(), dtype=object)
        made[name] = series.where(series.notna(), None).astype(declared[name])
    return made


def synthetic_run(
    fault: str = "", *, seed: int = 0, rollouts: int = ROLLOUTS, groups: int = GROUPS, size: int = SIZE
) -> dict[str, pd.DataFrame]:
    """Frames of a run in which every number is as it should be but for one fault from rollout `START` on."""
    rng = np.random.default_rng(seed)
    count = rollouts * groups
    rollout = np.repeat(np.arange(rollouts), groups)
    late = rollout >= START
    prompt = rng.integers(0, 24, count)
    chance = 0.3 + 0.4 * (np.arange(24) % 12 / 11)[prompt]
    if fault == "too easy":
        chance = np.where(late, 0.995, chance)
    if fault == "reward drop":
        chance = np.where(late, 0.05, chance)
    if fault == "stuck prompts":
        chance = np.where(prompt < 8, 0.0, chance)
    refused = 0.4 if fault == "waste" else 0.05
    rejected = rng.random(count) < refused
    if fault == "rejections":
        rejected |= (rollout >= START) & (rollout < START + 6) & (rng.random(count) < 0.9)
    lag = np.where(rollout < 2, 0, rng.integers(0, 2, count) + (2 * late if fault == "lag" else 0))
    rewards = (rng.random((count, size)) < chance[:, None]).astype(float)
    failed = rng.random((count, size)) < 0.03
    if fault == "failures":
        failed |= late[:, None] & (rng.random((count, size)) < 0.4)
    sessions = _sessions(rng, rollout, rejected, lag, rewards, failed, fault, size)
    traces = _traces(rng, sessions, fault)
    rated = np.where(failed, np.nan, rewards)
    with np.errstate(invalid="ignore"):
        mean, spread = _mean_and_std(rated)
    table = frame(
        "group",
        count,
        run="run",
        rollout_id=rollout,
        evaluation=False,
        worker="w",
        group=np.arange(count),
        group_index=np.arange(count),
        attempted=True,
        accepted=~rejected,
        state=np.where(rejected, "rejected", "delivered"),
        verdict=np.where(rejected, "rejected", "accepted"),
        reject_reason=np.where(rejected, "low_complete_fraction", None),
        prompt_sha256=[f"sha-{p}" for p in prompt],
        prompt_preview=[f"prompt {p}" for p in prompt],
        expected_sessions=size,
        attempts=1,
        rated_sessions=(~failed).sum(axis=1),
        reward_mean=mean,
        reward_std=spread,
        staleness=np.where(rejected, np.nan, lag),
        staleness_in_flight=np.where(rejected, np.nan, 0),
        staleness_in_queue=np.where(rejected, np.nan, lag),
        policy_version=rollout - lag,
    )
    return {
        "rollout": _rollouts(rng, rollouts, fault),
        "group": table,
        "session": sessions,
        "trace": traces,
    }


def _mean_and_std(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    there = ~np.isnan(values)
    number = np.maximum(there.sum(axis=1), 1)
    mean = np.where(there, values, 0).sum(axis=1) / number
    spread = np.sqrt(np.where(there, (values - mean[:, None]) ** 2, 0).sum(axis=1) / number)
    empty = there.sum(axis=1) == 0
    return np.where(empty, np.nan, mean), np.where(empty, np.nan, spread)


def _sessions(
    rng: np.random.Generator,
    rollout: np.ndarray,
    rejected: np.ndarray,
    lag: np.ndarray,
    rewards: np.ndarray,
    failed: np.ndarray,
    fault: str,
    size: int,
) -> pd.DataFrame:
    group = np.repeat(np.arange(len(rollout)), size)
    failed, reward = failed.reshape(-1), rewards.reshape(-1)
    count = len(group)
    status = np.where(failed, "ERROR", "COMPLETED").astype(object)
    usable = ~failed
    if fault == "infrastructure zeros":
        hit = usable & (rng.random(count) < 0.1)
        status[hit], reward = "TIMEOUT", np.where(hit, 0.0, reward)
    own = np.repeat(rejected, size)
    return frame(
        "session",
        count,
        run="run",
        rollout_id=rollout[group],
        evaluation=False,
        worker="w",
        group=group,
        group_index=group,
        task_id=[f"t{g}" for g in group],
        attempt=1,
        trajectory=np.arange(count),
        position=np.tile(np.arange(size), len(rollout)),
        session_id=[f"s{i}" for i in range(count)],
        attempted=True,
        finished=True,
        accepted=~own,
        status=status,
        completed=status == "COMPLETED",
        early_stopped=False,
        usable=usable,
        group_state=np.where(own, "rejected", "delivered"),
        reward=np.where(usable, reward, np.nan),
        staleness=np.where(own, np.nan, lag[group]),
        turns=np.where(usable, rng.integers(1, 5, count), 0),
        e2e_ms=1000 * rng.lognormal(1.0, 0.4, count),
        node_id="node",
    )


def _traces(rng: np.random.Generator, sessions: pd.DataFrame, fault: str) -> pd.DataFrame:
    rows = sessions[sessions["usable"].to_numpy(dtype=bool)].reset_index(drop=True)
    count = len(rows)
    rollout = rows["rollout_id"].to_numpy(dtype=np.int64)
    late = rollout >= START
    turns = rows["turns"].to_numpy(dtype=np.int64)
    tokens = np.rint(turns * 40 * rng.lognormal(0, 0.3, count)).clip(4)
    share = 0.3 + 0.3 / turns + rng.normal(0, 0.02, count)
    if fault == "mask drift":
        share = np.where(late, share * 0.6, share)
    learnt = np.rint(tokens * share).clip(1, tokens)
    cut = rng.random(count) < np.where(late & (fault == "truncation"), 0.4, 0.02)
    scale = np.full(count, 0.1)
    if fault == "weights":
        scale = np.where(late, 2.0, scale)
    apart = 0.15 if fault == "mismatch" else 0.01
    sessions.loc[sessions["usable"].to_numpy(dtype=bool), "response_tokens"] = pd.array(
        tokens, dtype="Float64"
    ).astype("Int64")
    same = {
        name: rows[name].to_numpy(dtype=object)
        for name in (
            "run",
            "rollout_id",
            "evaluation",
            "worker",
            "group",
            "group_index",
            "task_id",
            "attempt",
            "trajectory",
            "position",
            "session_id",
            "accepted",
            "reward",
            "turns",
        )
    }
    return frame(
        "trace",
        count,
        **same,
        trace_index=0,
        sample_index=same["trajectory"],
        placeholder=False,
        sample_status="completed",
        removed=False,
        finish_reason=np.where(cut, "length", "stop"),
        prompt_tokens=20,
        response_tokens=tokens,
        sampled_tokens=learnt,
        trainable_tokens=learnt,
        train_logprob_diff=rng.normal(0, scale) / learnt,
        train_logprob_abs_diff=apart * rng.lognormal(0, 0.1, count),
        train_logprob_max_diff=apart * 3,
    )


def _rollouts(rng: np.random.Generator, rollouts: int, fault: str) -> pd.DataFrame:
    held_out = np.arange(0, rollouts + 1, max(rollouts // 3, 1))
    number = np.concatenate([np.arange(rollouts), held_out])
    evaluation = np.arange(len(number)) >= rollouts
    mean = 0.5 + rng.normal(0, 0.02, len(number))
    if fault == "held-out drop":
        mean[-1] -= 0.3
    wait = 0.9 if fault == "waiting" else 0.2
    step = 10.0
    return frame(
        "rollout",
        len(number),
        run="run",
        rollout_id=number,
        evaluation=evaluation,
        requested_at=np.where(evaluation, np.nan, step * (number + 1 - wait)),
        delivered_at=np.where(evaluation, np.nan, step * (number + 1)),
        reward_mean=np.where(evaluation, mean, np.nan),
        reward_std=np.where(evaluation, 0.5, np.nan),
        usable_sessions=np.where(evaluation, 256, np.nan),
    )
