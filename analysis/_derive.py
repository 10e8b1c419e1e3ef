"""Numbers that no source holds: sums and means over the members of a session, a group, a rollout.

What a source (a Parquet file of our own) already says stays. Failed sessions, placeholders and sessions
without a reward are in no mean; they are counts of their own. Sorting is on ids, numerically, missing last.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analysis._identity import Ints
from analysis._link import Linked, unused_results
from analysis._tables import (
    as_floats,
    as_integers,
    counterparts,
    flags,
    floats,
    integers,
    known,
    one_array,
    set_columns,
    sums_by,
    take_table,
)

__all__ = [
    "ROLLOUT_KEY",
    "derive_groups",
    "derive_rollouts",
    "derive_sessions",
    "derive_traces",
    "sort_order",
    "sort_rows",
    "trace_order",
]

ROLLOUT_KEY = ("run", "evaluation", "rollout_id")
"""What makes two rows belong to the same rollout."""

_SORT_KEYS = {
    "rollout": ("run", "evaluation", "rollout_id"),
    "group": ("run", "evaluation", "rollout_id", "dataset", "group_index", "worker", "group"),
    "session": (
        *("run", "evaluation", "rollout_id", "dataset", "group_index", "worker", "group", "attempt"),
        *("position", "trajectory"),
    ),
    "trace": ("run", "evaluation", "rollout_id", "group_index", "trajectory", "sample_index", "trace_index"),
    "completion": (
        *("run", "evaluation", "rollout_id", "group_index", "task_id", "session_id"),
        "completion_number",
    ),
    "event": ("run",),
    "metric": ("run",),
}


def sort_order(table: pa.Table, grain: str) -> Ints | None:
    """Return the order of the rows by their ids; None where they stand in it. Equal ids keep their order."""
    names = [name for name in _SORT_KEYS[grain] if table.column(name).null_count < len(table)]
    if len(table) < 2 or not names:
        return None
    keys = [(name, "ascending") for name in names]
    order = pc.sort_indices(table.select(names), sort_keys=keys).to_numpy().astype(np.int64)
    return None if (np.diff(order) == 1).all() else order


def sort_rows(table: pa.Table, grain: str) -> pa.Table:
    """Return the rows in the order of their ids, numerically; missing ids last."""
    order = sort_order(table, grain)
    return table if order is None else take_table(table, order)


def trace_order(traces: Linked) -> Ints:
    """Return the order of traces: by session, as sessions are ordered, then by place; others after them."""
    table = traces.table
    order = np.lexsort(
        (
            integers(table, "trace_index", np.iinfo(np.int64).max),
            np.where(traces.owner < 0, len(table), traces.owner),
        )
    )
    loose = int((traces.owner < 0).sum())
    if loose:
        tail = order[len(order) - loose :]
        inner = sort_order(table.take(tail), "trace")
        order[len(order) - loose :] = tail if inner is None else tail[inner]
    return order.astype(np.int64)


def _keep(table: pa.Table, **computed: pa.Array) -> pa.Table:
    """Set derived columns where the table does not say anything yet."""
    filled = {name: pc.coalesce(one_array(table.column(name)), values) for name, values in computed.items()}
    return set_columns(table, **filled)


def derive_traces(traces: pa.Table, rollouts: pa.Table) -> pa.Table:
    """Tell which traces were not trained on, where the train dump of their rollout is there."""
    dumped = rollouts.filter(rollouts.column("trained_traces").is_valid())
    left_out = (counterparts(traces, dumped, (ROLLOUT_KEY,)) >= 0) & ~known(traces, "trained")
    return _keep(traces, trained=pa.array(np.zeros(len(traces), bool), mask=~left_out))


def derive_sessions(sessions: pa.Table, traces: Linked) -> pa.Table:
    """Give sessions the advantages of their traces."""
    count, owner, table = len(sessions), traces.owner, traces.table
    raw, final = floats(table, "advantage_raw"), floats(table, "advantage")
    weights = np.where(known(table, "trainable_tokens"), integers(table, "trainable_tokens"), 0)
    has_raw, has_final = ~np.isnan(raw), ~np.isnan(final) & (weights > 0)
    raws = sums_by(owner, count, where=has_raw)
    tokens = sums_by(owner, count, weights, has_final)
    return _keep(
        sessions,
        advantage_raw=as_floats(_ratio(sums_by(owner, count, np.nan_to_num(raw), has_raw), raws)),
        advantage=as_floats(_ratio(sums_by(owner, count, np.nan_to_num(final) * weights, has_final), tokens)),
    )


def derive_groups(groups: pa.Table, sessions: Linked, traces: Linked) -> pa.Table:
    """Count and average over each group's sessions and traces."""
    count, owner, table = len(groups), sessions.owner, sessions.table
    members = sums_by(owner, count)
    of_trace = _group_of_traces(traces, sessions)
    real = ~flags(traces.table, "placeholder")
    usable = flags(table, "usable") & ~unused_results(table, owner, count)
    rewards = floats(table, "reward")
    rated = usable & ~np.isnan(rewards)
    stats = _moments(rewards, np.where(rated, owner, -1), count)
    advantage = np.abs(floats(traces.table, "advantage"))
    largest = _largest(np.where(np.isnan(advantage), -1, of_trace), advantage, count)
    some = members > 0
    return _keep(
        groups,
        sessions=as_integers(members, some),
        traces=as_integers(sums_by(of_trace, count, where=real), some),
        trainable_tokens=as_integers(sums_by(owner, count, integers(table, "trainable_tokens")), some),
        response_tokens=as_integers(sums_by(owner, count, integers(table, "response_tokens")), some),
        rated_sessions=as_integers(stats["count"], some),
        reward_mean=as_floats(stats["mean"]),
        reward_std=as_floats(stats["std"]),
        reward_min=as_floats(-_largest(np.where(rated, owner, -1), -rewards, count)),
        reward_max=as_floats(_largest(np.where(rated, owner, -1), rewards, count)),
        advantage_abs_max=as_floats(largest),
    )


def derive_rollouts(rollouts: pa.Table, groups: pa.Table, sessions: Linked) -> pa.Table:
    """Count and average over each rollout's groups and sessions."""
    count, table = len(rollouts), sessions.table
    owner = counterparts(groups, rollouts, (ROLLOUT_KEY,))
    accepted, training = flags(groups, "accepted"), ~flags(groups, "evaluation")
    rejected = np.asarray(pc.fill_null(pc.equal(groups.column("state"), "rejected"), False).to_numpy(), bool)
    some = sums_by(owner, count) > 0
    judged = some & ~flags(rollouts, "evaluation")
    taken = np.where(accepted, owner, -1)
    of_session = np.where(sessions.owner >= 0, owner[sessions.owner], -1) if len(groups) else sessions.owner
    have = sums_by(of_session, count) > 0
    # Nothing is accepted or rejected in an evaluation: all of it counts.
    in_taken = np.where(flags(table, "accepted") | flags(table, "evaluation"), of_session, -1)
    rewards = floats(table, "reward")
    usable = flags(table, "usable") & ~unused_results(table, sessions.owner, len(groups))
    stats = _moments(rewards, np.where(usable & ~np.isnan(rewards), in_taken, -1), count)
    lag = floats(groups, "staleness")
    lags = _moments(lag, np.where(np.isnan(lag), -1, taken), count)
    return _keep(
        rollouts,
        groups=as_integers(sums_by(owner, count), some),
        delivered_groups=as_integers(sums_by(taken, count), judged),
        rejected_groups=as_integers(sums_by(owner, count, where=rejected), judged),
        unfinished_groups=as_integers(sums_by(owner, count, where=~accepted & ~rejected & training), judged),
        sessions=as_integers(sums_by(of_session, count), have),
        completed_sessions=as_integers(sums_by(of_session, count, where=flags(table, "completed")), have),
        usable_sessions=as_integers(sums_by(of_session, count, where=usable), have),
        reward_mean=as_floats(stats["mean"]),
        reward_std=as_floats(stats["std"]),
        staleness_mean=as_floats(lags["mean"]),
        staleness_max=as_floats(_largest(np.where(np.isnan(lag), -1, taken), lag, count)),
        trainable_tokens=as_integers(sums_by(in_taken, count, integers(table, "trainable_tokens")), have),
        response_tokens=as_integers(sums_by(in_taken, count, integers(table, "response_tokens")), have),
    )


def _group_of_traces(traces: Linked, sessions: Linked) -> Ints:
    if not len(sessions.owner):
        return np.full(len(traces.owner), -1, dtype=np.int64)
    return np.where(traces.owner >= 0, sessions.owner[traces.owner], -1)


def _moments(values: Any, owner: Ints, count: int) -> dict[str, np.ndarray]:
    """Return count, mean and population standard deviation per owner; NaN where there is nothing."""
    numbers = sums_by(owner, count)
    mean = _ratio(sums_by(owner, count, np.nan_to_num(values), None), numbers)
    away = np.where(owner >= 0, np.nan_to_num(values) - mean[owner], 0.0) if count else values
    spread = np.sqrt(_ratio(sums_by(owner, count, away * away), numbers))
    return {"count": numbers, "mean": mean, "std": spread}


def _largest(owner: Ints, values: Any, count: int) -> np.ndarray:
    result = np.full(count, -np.inf)
    rows = owner >= 0
    np.maximum.at(result, owner[rows], values[rows])
    return np.where(np.isneginf(result), np.nan, result)


def _ratio(above: Any, below: Any) -> np.ndarray:
    result = np.full(len(below), np.nan)
    np.divide(above, below, out=result, where=below > 0)
    return result
