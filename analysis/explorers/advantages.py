"""Advantages under whichever estimator is chosen: for all traces at once, and for one group in detail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from analysis.errors import StatsError
from analysis.explorers.lookup import GroupKey, RunTables
from analysis.explorers.state import SelectionState
from analysis.stats.autopsy import TOKEN_MEANS, Autopsy, GroupInBatch, autopsy, taken_apart
from analysis.stats.batches import Batch, batches
from analysis.stats.columns import Floats, floats
from analysis.stats.configuration import estimator_in_use
from analysis.stats.frames import Frames
from analysis.stats.recomputation import recompute
from slime_bridge.advantages import checked_advantages
from slime_bridge.errors import AdvantageError

__all__ = [
    "advantages_note",
    "advantages_of_traces",
    "autopsy_of",
    "largest_by_group",
    "per_estimator",
    "prepare",
    "trained_with",
]

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
            return found, "No advantages were dumped: choose an estimator to compute them."
        return found, ""

    def compute() -> tuple[Floats, str]:
        try:
            return _computed(tables, state.resolved_estimator()), ""
        except (AdvantageError, StatsError) as exc:
            return np.full(len(tables.traces), np.nan), str(exc)

    answer: tuple[Floats, str] = per_estimator(state, "advantages", make=compute)
    return answer


def advantages_note(state: SelectionState, why: str) -> Markup:
    """Return what is to be said about the advantages that are shown, as HTML; empty if nothing is.

    Parameters
    ----------
    state
        With the estimator.
    why
        Why there are none, as `advantages_of_traces` says; that an estimator failed is an error.
    """
    if why:
        failed = state.estimator is not None
        form = '<div class="wb-error" role="alert">{}</div>' if failed else '<p class="wb-note">{}</p>'
        return Markup(form).format(why)
    function = state.resolved_estimator() or trained_with(state.tables)
    if getattr(function, "level", "trace") != "token":
        return Markup("")
    text = f"{state.estimator or repr(function)} gives numbers per token: {TOKEN_MEANS}."
    return Markup('<p class="wb-note">{}</p>').format(text)


def per_estimator(state: SelectionState, *names: Any, make: Callable[[], Any]) -> Any:
    """Return what `make` gives under the selected estimator, made once until the run is read again.

    Parameters
    ----------
    state
        With the estimator.
    *names
        What it is called; hashable.
    make
        Called without arguments.
    """
    own = None if state.estimator is None else state.estimators[state.estimator]
    # An object of the user's is kept with what it gave, so that its id stays its own.
    kept = state.tables.once((*names, state.estimator, id(own)), lambda: (own, make()))
    return kept[1]


def _computed(tables: RunTables, function: Callable[..., Any] | None) -> Floats:
    assert function is not None  # a label is selected

    components = tuple(getattr(function, "components", ()))
    if components:
        return _by_components(tables, function, components)
    if getattr(function, "level", "trace") == "token":
        tokens = tables.frames.tokens  # all of the run, and only where an estimator asks for them
        answer = recompute(tables.traces, function, sessions=tables.sessions, tokens=tokens)
        return floats(answer, "advantage")
    values = np.full(len(tables.traces), np.nan)
    for batch in _batches(tables):
        values[batch.rows] = checked_advantages(function, batch.rewards)
    return values


def _by_components(tables: RunTables, function: Callable[..., Any], components: tuple[str, ...]) -> Floats:
    values = np.full(len(tables.traces), np.nan)
    seen = set()
    for batch in _batches(tables, components):
        found = batch.rewards.components
        seen |= {name for name in components if np.isfinite(found[name]).any()}
        values[batch.rows] = checked_advantages(function, batch.rewards)
    lacking = [name for name in components if name not in seen]
    if lacking:
        raise StatsError(
            f"no trace of this run has the reward component {lacking[0]!r}; hand over an estimator with the"
            " names of yours, as in explore(run, estimators=[GDPO(keys=...)])"
        )
    return values


def prepare(tables: RunTables) -> None:
    """Gather what estimators are asked about, so that the first switch is as fast as the others."""
    _batches(tables)
    trained_with(tables)


def _batches(tables: RunTables, components: tuple[str, ...] = ()) -> list[Batch]:
    ready: list[Batch] = tables.once(
        ("batches", components),
        lambda: list(batches(tables.traces, sessions=tables.sessions, components=components)),
    )
    return ready


def largest_by_group(tables: RunTables, advantages: Floats) -> Floats:
    """Return the largest absolute advantage of each group's traces, NaN where there is none."""
    owner = tables.group_of_trace
    chosen = (owner >= 0) & np.isfinite(advantages)
    largest = np.full(len(tables.groups), -np.inf)
    np.maximum.at(largest, owner[chosen], np.abs(advantages[chosen]))
    return np.where(np.isneginf(largest), np.nan, largest)


def autopsy_of(state: SelectionState, key: GroupKey) -> Autopsy:
    """Take a group apart under the selected estimator; its tokens are left out.

    Raises
    ------
    AdvantageError, StatsError
        If the estimator cannot be asked about single traces of this run.
    """

    def compute() -> Autopsy:
        tables = state.tables
        _, why = advantages_of_traces(state)
        if why and state.estimator is not None:
            raise StatsError(why)
        row = tables.group_row(key)
        if row is None:
            raise StatsError(f"the run has no {key.label()}")
        function = state.resolved_estimator() or trained_with(tables)
        if getattr(function, "level", "trace") == "token":
            return _by_token(tables, row, key, function)
        return taken_apart(_found(tables, row, function), function)

    found: Autopsy = per_estimator(state, "autopsy", key, make=compute)
    return found


def _by_token(tables: RunTables, row: int, key: GroupKey, function: Callable[..., Any]) -> Autopsy:
    """Take a group apart under an estimator that is asked with token arrays."""
    frames = tables.frames
    # That group alone, since numbers may be those of several groups.
    part = Frames(
        {
            "groups": frames.groups.iloc[[row]],
            "sessions": frames.sessions,
            "traces": frames.traces,
            "tokens": frames.tokens,
        }
    )
    by = "group" if key.group is not None else "group_index"
    return autopsy(part, getattr(key, by), function, by=by)


def _found(tables: RunTables, row: int, function: Callable[..., Any]) -> GroupInBatch:
    """Return a group with the batch of its rollout, looked up rather than searched for."""
    table: pd.DataFrame = tables.once(
        "placed_traces", lambda: tables.traces.assign(at_row=np.arange(len(tables.traces)))
    )
    sessions = tables.sessions.iloc[np.flatnonzero(tables.group_of_session == row)]
    sessions = sessions.sort_values(["position", "attempt"], kind="stable").reset_index(drop=True)
    group = tables.groups.iloc[[row]]
    for batch in _batches(tables, tuple(getattr(function, "components", ()))):
        places = np.flatnonzero(tables.group_of_trace[batch.rows] == row)
        if len(places):
            return GroupInBatch(group, sessions, batch, table, places)
    return GroupInBatch(group, sessions, None, table, np.zeros(0, dtype=np.int64))
