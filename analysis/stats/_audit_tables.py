"""Checks of tables: rewards, failures, versions, lag, identities, advantages and contradicting sources."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.stats._audit import AuditData, Check, Found, of_rows, unchecked
from analysis.stats.columns import codes, flags, floats, integers, known, seconds_since, texts
from analysis.stats.configuration import estimator_in_use
from analysis.stats.frames import group_codes
from analysis.stats.lag import version_numbers
from analysis.stats.recomputation import recompute

__all__ = ["TABLE_CHECKS"]

_CLOSE = 1e-3


def reward_placement(data: AuditData) -> Found:
    """Find traces whose reward is not the one that the evaluator gave their session."""
    owner = data.session_of_trace
    reward = floats(data.traces, "reward")
    outcome = np.full(len(reward), np.nan)
    outcome[owner >= 0] = floats(data.frames.sessions, "outcome_reward")[owner[owner >= 0]]
    both = ~np.isnan(reward) & ~np.isnan(outcome) & ~flags(data.traces, "placeholder")
    both &= ~flags(data.traces, "trainable_by_server") & ~flags(data.traces, "masked_by_server")
    if not both.any():
        return unchecked("no evaluator's reward is loaded beside those of the traces")
    off = both & (np.abs(reward - outcome) > 1e-6)
    # Evaluators may rate traces one by one: then no trace of the session has the outcome.
    alike = np.bincount(owner[both & ~off], minlength=len(data.frames.sessions)) > 0
    several = np.bincount(owner[both], minlength=len(data.frames.sessions)) > 1
    wrong = off & (alike[owner] | ~several[owner])
    details = [f"{r:.6g}, the evaluator gave {o:.6g}" for r, o in zip(reward, outcome, strict=True)]
    return of_rows(wrong, details, int(both.sum()))


def reward_infinite(data: AuditData) -> Found:
    """Find rewards that are infinite."""
    reward = floats(data.traces, "reward")
    return of_rows(np.isinf(reward), "the reward is infinite", int((~np.isnan(reward)).sum()))


def failed_trained(data: AuditData) -> Found:
    """Find sessions that failed and are trained on all the same."""
    table = data.frames.sessions
    rescued = np.zeros(len(table), dtype=bool)
    owner = data.session_of_trace
    saved = flags(data.traces, "trainable_by_server") & (owner >= 0)
    rescued[owner[saved]] = True
    decided = known(table, "completed") & flags(table, "accepted")
    wrong = decided & ~flags(table, "completed") & (integers(table, "trainable_tokens") > 0) & ~rescued
    details = [f"{status or 'no status'}, and tokens to train on" for status in texts(table, "status")]
    return of_rows(wrong, details, int(decided.sum()), "session")


def version_order(data: AuditData) -> Found:
    """Find sessions whose oldest weights are newer than their newest."""
    table = data.frames.sessions
    both = np.concatenate([texts(table, "weight_version_oldest"), texts(table, "weight_version_newest")])
    if pd.isna(both).all():
        return unchecked("nobody reports weight versions", "session")
    if not all(str(version).lstrip("-").isdigit() for version in both[~pd.isna(both)]):
        return unchecked("weight versions are names, which have no order", "session")
    oldest, newest = np.split(version_numbers(both), 2)
    there = ~np.isnan(oldest) & ~np.isnan(newest)
    details = [f"oldest {a:.0f}, newest {b:.0f}" for a, b in zip(oldest, newest, strict=True)]
    return of_rows(there & (oldest > newest), details, int(there.sum()), "session")


def version_backwards(data: AuditData) -> Found:
    """Find groups that were submitted under an older policy than a group before them."""
    table = data.frames.groups
    at, version = seconds_since(table, "submitted_at"), floats(table, "policy_version")
    there = ~np.isnan(at) & ~np.isnan(version) & (integers(table, "attempts", missing=1) <= 1)
    if not there.any():
        return unchecked("nobody tells when groups were submitted, and under which policy", "group")
    life = codes(table, ("run", "worker"))
    order = np.flatnonzero(there)
    order = order[np.lexsort((at[order], life[order]))]
    wrong = np.zeros(len(table), dtype=bool)
    top, previous = -np.inf, None
    newest = np.full(len(table), np.nan)
    for row in order:
        top = version[row] if life[row] != previous else max(top, version[row])
        previous = life[row]
        newest[row] = top
        wrong[row] = version[row] < top
    details = [f"policy {v:.0f} after policy {n:.0f}" for v, n in zip(version, newest, strict=True)]
    return of_rows(wrong, details, len(order), "group")


def lag_arithmetic(data: AuditData) -> Found:
    """Find groups whose lag is negative, not the difference of its versions, or not the sum of its parts."""
    table = data.frames.groups
    lag, rollout = floats(table, "staleness"), floats(table, "rollout_id")
    version = floats(table, "policy_version")
    parts = floats(table, "staleness_in_flight") + floats(table, "staleness_in_queue")
    there = ~np.isnan(lag)
    if not there.any():
        return unchecked("no group has a lag", "group")
    off = there & ~np.isnan(version) & ~np.isnan(rollout) & (lag != rollout - version)
    split = there & ~np.isnan(parts) & (lag != parts)
    details = [
        f"lag {a:.0f}: rollout {r:.0f} minus policy {v:.0f}, in flight and in queue {p:.0f}"
        for a, r, v, p in zip(lag, rollout, version, parts, strict=True)
    ]
    return of_rows(off | split | (there & (lag < 0)), details, int(there.sum()), "group")


def advantage_mismatch(data: AuditData) -> Found:
    """Find traces that were handed another advantage than their rewards give."""
    raw = floats(data.traces, "advantage_raw")
    there = ~np.isnan(raw)
    if not there.any():
        return unchecked("no train dump is loaded")
    function = estimator_in_use(data.frames)
    if getattr(function, "level", "trace") == "token":
        return unchecked("the estimator gives numbers per token")
    again = floats(recompute(data.traces, function, sessions=data.frames.sessions), "advantage")
    both = there & ~np.isnan(again)
    off = both & (np.abs(raw - again) > _CLOSE * np.maximum(1.0, np.abs(again)))
    if off.sum() > 0.5 * both.sum():
        return unchecked("the run was trained with an estimator that its files do not name")
    details = [f"{a:.5g}, the rewards give {b:.5g}" for a, b in zip(raw, again, strict=True)]
    return of_rows(off, details, int(both.sum()))


def trace_gaps(data: AuditData) -> Found:
    """Find sessions that lack a trace, or have one twice."""
    table = data.frames.sessions
    owner, index = data.session_of_trace, integers(data.traces, "trace_index", missing=-1)
    real = (owner >= 0) & (index >= 0)
    said = integers(table, "kept_traces", missing=-1)
    number = np.bincount(owner[real], minlength=len(table))
    pairs = pd.DataFrame({"owner": owner[real], "index": index[real]}).drop_duplicates()
    different = np.bincount(pairs["owner"].to_numpy(dtype=np.int64), minlength=len(table))
    there = (said >= 0) & (number > 0)
    wrong = there & ((number < said) | (different != number))
    numbers = zip(number, different, said, strict=True)
    details = [f"{n} traces, {d} different, {s} expected" for n, d, s in numbers]
    return of_rows(wrong, details, int(there.sum()), "session")


def trajectory_shared(data: AuditData) -> Found:
    """Find sessions of one group that share a trajectory key: the trainer would count them as one."""
    table = data.frames.sessions
    used = flags(table, "accepted") & known(table, "trajectory") & known(table, "session_id")
    rows = np.flatnonzero(used)
    group = group_codes(table)[0][rows] if len(rows) else rows
    keyed = pd.DataFrame({"group": group, "key": integers(table, "trajectory", missing=-1)[rows]})
    again = keyed.duplicated(keep="first").to_numpy(dtype=bool)
    wrong = np.zeros(len(table), dtype=bool)
    wrong[rows[again]] = True
    details = [f"trajectory {key} is another session's" for key in integers(table, "trajectory", missing=-1)]
    return of_rows(wrong, details, len(rows), "session")


def times_negative(data: AuditData) -> Found:
    """Find sessions with a negative time."""
    table = data.frames.sessions
    names = [name for name in table.columns if name.endswith("_ms") and name != "timing_extra"]
    names = [name for name in names if str(table[name].dtype) == "Float64"]
    values = np.stack([floats(table, name) for name in names]) if names else np.zeros((1, len(table)))
    low = np.where(np.isnan(values), np.inf, values)
    place = low.argmin(axis=0)
    there = ~np.isnan(values).all(axis=0)
    details = [f"{names[p]} is {low[p, row]:.4g}" if names else "" for row, p in enumerate(place)]
    return of_rows(low.min(axis=0) < 0, details, int(there.sum()), "session")


def _conflicts(data: AuditData, rounding: bool) -> Found:
    table = data.traces
    cells = texts(table, "conflicts")
    names = [{part.split(":")[0].strip() for part in cell.split(";")} if cell else set() for cell in cells]
    about = [{n for n in found if n.startswith("logprob")} for found in names]
    wrong = np.array([bool(a) if rounding else bool(n - a) for n, a in zip(names, about, strict=True)], bool)
    several = np.array([source is not None and "+" in source for source in texts(table, "sources")], bool)
    if not several.any():
        return unchecked("every trace comes from one source")
    return of_rows(wrong, [str(cell)[:300] for cell in cells], int(several.sum()))


def source_conflict(data: AuditData) -> Found:
    """Find traces that their sources tell different things about."""
    return _conflicts(data, rounding=False)


def source_rounding(data: AuditData) -> Found:
    """Find traces whose logprobs changed between two sources."""
    return _conflicts(data, rounding=True)


TABLE_CHECKS: tuple[Check, ...] = (
    Check("reward_placement", "warning", "a trace has another reward than its session got", reward_placement),
    Check("reward_infinite", "error", "a reward is infinite", reward_infinite),
    Check("failed_trained", "error", "a failed session is trained on", failed_trained, "sessions"),
    Check("version_order", "error", "the oldest weights are the newer ones", version_order, "sessions"),
    Check("version_backwards", "warning", "the policy version went backwards", version_backwards, "groups"),
    Check("lag_arithmetic", "error", "lag, versions and parts do not add up", lag_arithmetic, "groups"),
    Check("advantage_mismatch", "error", "the advantage is not that of the rewards", advantage_mismatch),
    Check("trace_gaps", "warning", "a session lacks a trace, or has one twice", trace_gaps, "sessions"),
    Check("trajectory_shared", "error", "two sessions share a trajectory", trajectory_shared, "sessions"),
    Check("times_negative", "warning", "a time is negative", times_negative, "sessions"),
    Check("source_conflict", "warning", "sources contradict each other", source_conflict),
    Check("source_rounding", "warning", "logprobs changed between sources", source_rounding),
)
"""Checks of tables."""
