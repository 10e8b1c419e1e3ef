"""Zero rewards that the task did not give: which of them were infrastructure, and what they did to others.

A session whose reward is 0, or is missing and was counted as 0, moves the baseline of every sibling.
Whether it failed at the task or was let down is read from what else is known of it; the first cause that
applies is its:

===================  ==========  =====================================================================
cause                verdict     evidence
===================  ==========  =====================================================================
missing_reward       certain     nobody gave a reward, and the bridge hands over 0
reward_discarded     certain     the server replaced the evaluator's reward
error                certain     the session or its trajectory ended in an error
timeout              certain     the session's time ran out; suspected if it was the agent's own time
evaluator_error      certain     the evaluator reports an error
lost_calls           suspected   model calls were left out when the trajectory was built
sandbox              suspected   commands in the sandbox raised, timed out or were cancelled
aborted_turn         suspected   a weight push may have cut a turn
task                 no          nothing points at the infrastructure
===================  ==========  =====================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from analysis.errors import StatsError
from analysis.stats.batches import AnyEstimator, resolve
from analysis.stats.columns import (
    Bools,
    Floats,
    flags,
    floats,
    integers,
    json_cells,
    known,
    nullable,
    sums,
    texts,
)
from analysis.stats.configuration import estimator_in_use
from analysis.stats.frames import (
    GROUP_IDS,
    SESSION_IDS,
    TRACE_IDS,
    Frames,
    as_frames,
    group_codes,
    ids_of,
    session_rows,
)
from analysis.stats.recomputation import recompute
from analysis.stats.sessions import fates

__all__ = ["CAUSES", "Contamination", "contamination"]

CAUSES = (
    "missing_reward",
    "reward_discarded",
    "error",
    "timeout",
    "evaluator_error",
    "lost_calls",
    "sandbox",
    "aborted_turn",
    "task",
)
"""Causes of a zero reward, in the order in which they are looked for."""

_SUSPECTED = ("lost_calls", "sandbox", "aborted_turn")
_ERROR_KEYS = ("error", "exception", "evaluator_error", "grading_error")
_SANDBOX = ("runtime_exec_exception_count", "runtime_exec_timeout_count", "runtime_exec_cancelled_count")


@dataclass(frozen=True, eq=False)
class Contamination:
    """Zeros that the infrastructure gave, and their effect.

    Attributes
    ----------
    sessions
        One row per training session without a positive reward: ids, `status`, `reward`, `cause`, `verdict`
        (``certain``, ``suspected``, ``no``), `counted` (it entered baselines), `evidence`.
    groups
        One row per group with a counted session under suspicion: ids, `contaminated`, `counted`
        (trajectories), `mean`, `mean_without`, `shift` (of the mean, without minus with).
    traces
        One row per trace of these groups: ids, `contaminated`, `advantage`, `advantage_without` (the
        contaminated ones left out; missing for these), `shift`, `sign_flip`.
    summary
        One row per cause: `cause`, `verdict`, `sessions`, `counted`, `share_of_zeros`.
    effect
        One row: `zeros`, `contaminated_sessions`, `affected_groups`, `affected_traces`, `mean_shift` (mean
        absolute shift of an affected trace's advantage), `relative_shift` (over the mean absolute advantage
        of all trained traces), `sign_flips`.
    """

    sessions: pd.DataFrame
    groups: pd.DataFrame
    traces: pd.DataFrame
    summary: pd.DataFrame
    effect: pd.DataFrame


def contamination(
    run: Any,
    estimator: AnyEstimator | None = None,
    *,
    verdicts: Sequence[Literal["certain", "suspected"]] = ("certain", "suspected"),
) -> Contamination:
    """Find the zero rewards that were infrastructure, and how far they moved baselines and advantages.

    Parameters
    ----------
    run
        A loaded run or a mapping of frames.
    estimator
        As in `recompute`; None takes the one that the run was trained with, as far as its files say.
    verdicts
        Which zeros are left out to measure the effect.

    Raises
    ------
    StatsError
        If a verdict is unknown.
    """
    if not set(verdicts) <= {"certain", "suspected"}:
        raise StatsError(f"verdicts are 'certain' and 'suspected', got {tuple(verdicts)!r}")
    frames = as_frames(run)
    function = estimator_in_use(frames) if estimator is None else resolve(estimator)
    found = _zero_sessions(frames)
    suspects = found["verdict"].isin(list(verdicts)).to_numpy(dtype=bool)
    chosen = np.zeros(len(frames.sessions), dtype=bool)
    chosen[found["row"].to_numpy(dtype=np.int64)[suspects]] = True
    traces = _with_and_without(frames, function, chosen)
    effect = _effect(found, traces)
    groups = _groups(traces)
    # Whole groups that are affected, and nothing else, are worth a row.
    affected = traces["affected"].to_numpy(dtype=bool)
    kept = traces[affected].drop(columns=["affected", "code", "reward", "in_mean"]).reset_index(drop=True)
    return Contamination(found.drop(columns="row"), groups, kept, _summary(found), effect)


def _zero_sessions(frames: Frames) -> pd.DataFrame:
    table = frames.sessions
    fate = fates(frames)
    reward = floats(table, "reward")
    attempted = np.isin(fate, ["trained", "unusable", "rejected"])
    rows = np.flatnonzero(attempted & ~(np.nan_to_num(reward) > 0) & ~(np.nan_to_num(reward) < 0))
    part = table.iloc[rows]
    cause, evidence = _causes(frames, part)
    agent = texts(part, "timeout_source") == "agent"
    certain = ~np.isin(cause, (*_SUSPECTED, "task")) & ~((cause == "timeout") & agent)
    verdict = np.where(certain, "certain", np.where(cause == "task", "no", "suspected"))
    numbers = nullable(
        {
            "status": texts(part, "status"),
            "reward": reward[rows],
            "cause": cause,
            "verdict": verdict.astype(object),
            "counted": (fate[rows] == "trained"),
            "evidence": evidence,
        },
        index=part.index,
    )
    result = pd.concat([ids_of(part, SESSION_IDS), numbers], axis=1).reset_index(drop=True)
    return result.assign(row=rows)


def _causes(frames: Frames, part: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Return the cause of each zero, and what points at it in words."""
    usable, status = flags(part, "usable"), texts(part, "status")
    missing = usable & (~known(part, "reward") | (integers(part, "missing_rewards") > 0))
    trouble = np.sum([np.maximum(integers(part, name), 0) for name in _SANDBOX], axis=0)
    reports = json_cells(part, "evaluation_report")
    reported = np.array([next((r[k] for k in _ERROR_KEYS if r.get(k)), None) for r in reports], dtype=object)
    lost = np.maximum(integers(part, "completions_total") - integers(part, "completions_merged"), 0)
    lost -= np.maximum(integers(part, "completions_excluded"), 0)
    lost = np.where(known(part, "completions_merged"), lost, 0)
    cut = (integers(part, "aborted_masked_tokens") > 0) | _has_aborted_trace(frames, part)
    ended = ~pd.isna(status) & (status != "COMPLETED") & (status != "TIMEOUT")
    tests: dict[str, tuple[Bools, Any]] = {
        "missing_reward": (missing, "no reward"),
        "reward_discarded": (flags(part, "reward_discarded") & usable, "the server replaced it"),
        "error": (ended | (known(part, "error") & (status != "TIMEOUT")), texts(part, "error")),
        "timeout": (status == "TIMEOUT", texts(part, "timeout_stage")),
        "evaluator_error": (~pd.isna(reported), reported),
        "lost_calls": (lost > 0, [f"{n} model calls left out" for n in lost]),
        "sandbox": (trouble > 0, [f"{n} commands failed to run" for n in trouble]),
        "aborted_turn": (cut, "a turn was cut"),
    }
    cause = np.full(len(part), "task", dtype=object)
    evidence = np.full(len(part), None, dtype=object)
    for name, (holds, words) in reversed(tests.items()):
        holds = np.broadcast_to(np.asarray(holds, dtype=bool), (len(part),))
        cause[holds] = name
        told = (
            np.full(len(part), words, dtype=object) if isinstance(words, str) else np.asarray(words, object)
        )
        evidence[holds] = told[holds]
    return cause, np.array([None if pd.isna(text) else str(text)[:200] for text in evidence], dtype=object)


def _has_aborted_trace(frames: Frames, part: pd.DataFrame) -> Bools:
    traces = frames.traces
    cut = (texts(traces, "finish_reason") == "abort") | (integers(traces, "aborted_turns") > 0)
    owner = session_rows(part, traces[cut])
    return np.asarray(sums(owner, len(part)) > 0, dtype=bool)


def _with_and_without(frames: Frames, function: Any, contaminated: Bools) -> pd.DataFrame:
    """Return all traces with their advantages, and those without the contaminated sessions."""
    table = frames.traces.reset_index(drop=True)
    owner = session_rows(frames.sessions, table)
    guilty = (
        np.where(owner >= 0, contaminated[owner], False) if len(contaminated) else np.zeros(len(table), bool)
    )
    guilty = guilty.astype(bool) & flags(table, "accepted", missing=True)
    options: dict[str, Any] = {"sessions": frames.sessions}
    if getattr(function, "level", "trace") == "token":
        options["tokens"] = frames.tokens
    before = recompute(table, function, **options)
    counted = before["counted"].to_numpy(dtype=bool)
    guilty &= counted
    status = table["sample_status"].where(~guilty, "failed").fillna("completed")
    after = recompute(table.assign(sample_status=status.astype("string")), function, **options)
    code = group_codes(table)[0]
    affected = sums(code, int(code.max(initial=-1)) + 1, guilty)[code] > 0
    own, other = floats(before, "advantage"), floats(after, "advantage")
    other = np.where(guilty, np.nan, other)
    flip = (np.sign(own) * np.sign(np.nan_to_num(other)) < 0) & ~np.isnan(other)
    reward = np.nan_to_num(floats(table, "reward"))
    numbers = nullable(
        {
            "contaminated": guilty,
            "advantage": own,
            "advantage_without": other,
            "shift": other - own,
            "sign_flip": flip,
        }
    )
    result = pd.concat([ids_of(table, TRACE_IDS), numbers], axis=1)
    return result.assign(affected=affected & ~np.isnan(own), code=code, reward=reward, in_mean=counted)


def _groups(traces: pd.DataFrame) -> pd.DataFrame:
    rows = []
    used = traces[traces["affected"].to_numpy(dtype=bool)]
    for _, part in used.groupby("code", sort=True):
        guilty = part["contaminated"].to_numpy(dtype=bool)
        counted = part["in_mean"].to_numpy(dtype=bool)
        trajectory = part["session_id"].astype(object).fillna(part["trajectory"].astype(object))
        means = part[counted].assign(of=trajectory[counted]).groupby("of", sort=False)
        with_all = means["reward"].mean().to_numpy(dtype=float)
        without = with_all[~means["contaminated"].any().to_numpy(dtype=bool)]
        rows.append(
            {
                **{name: part.iloc[0][name] for name in GROUP_IDS},
                "contaminated": len(with_all) - len(without),
                "counted": len(with_all),
                "mean": float(with_all.mean()) if len(with_all) else np.nan,
                "mean_without": float(without.mean()) if len(without) else np.nan,
                "contaminated_traces": int(guilty.sum()),
            }
        )
    columns = [*GROUP_IDS, "contaminated", "counted", "contaminated_traces", "mean", "mean_without"]
    frame = pd.DataFrame(rows, columns=columns)
    types = {name: traces[name].dtype for name in GROUP_IDS}
    types |= dict.fromkeys(columns[-5:-2], "Int64") | dict.fromkeys(columns[-2:], "Float64")
    frame = frame.astype(types)
    return frame.assign(shift=frame["mean_without"] - frame["mean"])


def _summary(found: pd.DataFrame) -> pd.DataFrame:
    rows = [(cause, found[(found["cause"] == cause).to_numpy(dtype=bool)]) for cause in CAUSES]
    certain = ["suspected" if c in _SUSPECTED else "no" if c == "task" else "certain" for c in CAUSES]
    counted: list[Floats] = [part["counted"].to_numpy(dtype=float) for _, part in rows]
    total = max(len(found), 1)
    return nullable(
        {
            "cause": np.array(CAUSES, dtype=object),
            "verdict": np.array(certain, dtype=object),
            "sessions": np.array([len(part) for _, part in rows], dtype=np.int64),
            "counted": np.array([int(values.sum()) for values in counted], dtype=np.int64),
            "share_of_zeros": np.array([len(part) / total for _, part in rows], dtype=float),
        }
    )


def _effect(found: pd.DataFrame, traces: pd.DataFrame) -> pd.DataFrame:
    shift = np.abs(floats(traces, "shift"))[traces["affected"].to_numpy(dtype=bool)]
    shift = shift[~np.isnan(shift)]
    every = np.abs(floats(traces, "advantage"))
    every = every[~np.isnan(every)]
    mean = float(shift.mean()) if len(shift) else np.nan
    scale = float(every.mean()) if len(every) else np.nan
    used = traces[traces["affected"].to_numpy(dtype=bool)]
    numbers = {
        "zeros": len(found),
        "contaminated_sessions": int(used[used["contaminated"].to_numpy(dtype=bool)]["session_id"].nunique()),
        "affected_groups": int(used["code"].nunique()),
        "affected_traces": len(shift),
        "mean_shift": mean,
        "relative_shift": mean / scale if scale and scale > 0 else np.nan,
        "sign_flips": int(used["sign_flip"].sum()),
    }
    return nullable({name: np.array([value]) for name, value in numbers.items()})
