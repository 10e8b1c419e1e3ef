"""Advantages under whichever estimator is chosen: for all traces at once, and for one group in detail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from analysis.errors import StatsError
from analysis.explorers.lookup import GroupKey, RunTables
from analysis.explorers.state import SelectionState
from analysis.stats._batches import Batch, batches
from analysis.stats._columns import Floats, floats
from analysis.stats._config import estimator_in_use
from analysis.stats._frames import Frames
from analysis.stats._tokens import TokenTable
from analysis.stats.autopsy import Autopsy, autopsy
from analysis.stats.recomputation import recompute
from slime_bridge.advantages import checked_advantages
from slime_bridge.errors import AdvantageError

__all__ = ["advantages_of_traces", "autopsy_of", "largest_by_group", "trained_with"]

_ENOUGH_ROLLOUTS = 3


def trained_with(tables: RunTables) -> Callable[..., Any]:
    """Return the estimator that the run was trained with, as far as its files say.

    The first rollouts whose advantages were dumped decide where the journal leaves a choice.
    """

    def find() -> Callable[..., Any]:
        frames = tables.frames
        dumped = np.flatnonzero(np.isfinite(floats(frames.traces, "advantage_raw")))
        ids = frames.traces["rollout_id"].iloc[dumped]
        few = ids.isin(ids.drop_duplicates().head(_ENOUGH_ROLLOUTS)).to_numpy(dtype=bool)
        near = dumped[few]
        owners = np.unique(tables.session_of_trace[near])
        part = Frames(
            {
                "events": frames.events,
                "traces": frames.traces.iloc[near],
                "sessions": frames.sessions.iloc[owners[owners >= 0]],
            }
        )
        return estimator_in_use(part)

    found: Callable[..., Any] = tables.once("trained_with", find)
    return found


def advantages_of_traces(state: SelectionState) -> tuple[Floats, str]:
    """Return the advantage of each trace under the selected estimator.

    Returns
    -------
    advantages
        Shape (n,), in the order of the table of traces: what the trainer was handed where no estimator is
        selected, else recomputed; NaN where there is none.
    why
        Why there are none, in words; empty if there are.
    """
    tables, label = state.tables, state.estimator
    if label is None:
        final, raw = floats(tables.traces, "advantage"), floats(tables.traces, "advantage_raw")
        found = np.where(np.isnan(final), raw, final)
        if len(found) and np.isnan(found).all():
            return found, "no advantages were dumped; choose an estimator to compute them"
        return found, ""

    def compute() -> tuple[Floats, str]:
        try:
            function = state.resolved_estimator()
            assert function is not None
            return _computed(tables, function), ""
        except (AdvantageError, StatsError) as exc:
            return np.full(len(tables.traces), np.nan), str(exc)

    answer: tuple[Floats, str] = tables.once(f"advantages/{label}/{state.estimator_edition(label)}", compute)
    return answer


def _computed(tables: RunTables, function: Callable[..., Any]) -> Floats:
    if getattr(function, "components", ()) or getattr(function, "level", "trace") == "token":
        own = recompute(tables.traces, function, sessions=tables.sessions)
        return floats(own, "advantage")
    values = np.full(len(tables.traces), np.nan)
    ready: list[Batch] = tables.once(
        "batches", lambda: list(batches(tables.traces, sessions=tables.sessions))
    )
    for batch in ready:
        values[batch.rows] = checked_advantages(function, batch.rewards)
    return values


def largest_by_group(tables: RunTables, advantages: Floats) -> Floats:
    """Return the largest absolute advantage of each group's traces, NaN where there is none."""
    owner = tables.group_of_trace
    chosen = (owner >= 0) & np.isfinite(advantages)
    largest = np.full(len(tables.groups), -np.inf)
    np.maximum.at(largest, owner[chosen], np.abs(advantages[chosen]))
    return np.where(np.isneginf(largest), np.nan, largest)


def autopsy_of(state: SelectionState, key: GroupKey) -> Autopsy:
    """Take a group apart under the selected estimator; only its rollout is looked at.

    Raises
    ------
    AdvantageError, StatsError
        If the estimator cannot be asked about single traces of this run.
    """
    label = state.estimator
    edition = 0 if label is None else state.estimator_edition(label)

    def compute() -> Autopsy:
        tables = state.tables
        row = tables.group_row(key)
        if row is None:
            raise StatsError(f"the run has no {key.label()}")
        function = state.resolved_estimator() or trained_with(tables)
        frames = _rollout_of(tables, row)
        by, number = ("group", key.group) if key.group is not None else ("group_index", key.group_index)
        if number is None:
            raise StatsError("this group has no number: its files do not say enough to take it apart")
        return autopsy(frames, number, function, by=by)

    found: Autopsy = state.tables.once(f"autopsy/{key!r}/{label}/{edition}", compute)
    return found


def _rollout_of(tables: RunTables, row: int) -> Frames:
    """Return a group with the sessions and traces of its whole rollout: what an estimator sees at once."""
    key = tables.group_keys[row]
    groups = tables.groups
    same = np.ones(len(groups), dtype=bool)
    for name in ("run", "rollout_id", "evaluation"):
        value = getattr(key, name)
        column = groups[name]
        same &= (column.isna() if value is None else (column == value).fillna(False)).to_numpy(dtype=bool)
    chosen = np.flatnonzero(same)
    sessions = np.flatnonzero(np.isin(tables.group_of_session, chosen))
    traces = np.flatnonzero(np.isin(tables.group_of_trace, chosen))
    return Frames(
        {
            "groups": groups.iloc[[row]],
            "sessions": tables.sessions.iloc[sessions],
            "traces": tables.traces.iloc[traces].reset_index(drop=True),
            "tokens": TokenTable.empty(),
        }
    )
