"""Choices of a part of a run: which rows of each table stay, given what was chosen on one level.

Levels are nested: a rollout's groups, a group's sessions, a session's traces. A choice on one level takes its
members with it, and leaves of the outer levels what still has a member.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analysis._derive import ROLLOUT_KEY
from analysis._identity import Ints
from analysis._tables import Bools, flags, integers, known, one_array
from analysis.merge import OWNER
from analysis.records import widen
from analysis.schema import GRAINS, TABLES, arrow_schema, to_frame

__all__ = ["Choice", "Rows", "all_rows", "choose", "last_rollouts", "sampled", "traces_of"]

Rows = Mapping[str, Ints]
"""Places of the rows that stay, ascending, by table."""

Choice = Callable[[Mapping[str, pa.Table], Rows], Rows]
"""From the tables and the rows that stayed so far to the rows that stay."""

_LEVELS = ("rollout", "group", "session", "trace")
_NUMBER_OF = {"rollout": "rollout_id", "group": "group", "session": "session_id", "trace": "trace_index"}
_ATTACHED = {"completion": "session", "event": "group", "metric": "rollout"}


def all_rows(tables: Mapping[str, pa.Table]) -> Rows:
    """Return every row of every table."""
    return {grain: np.arange(len(tables[grain])) for grain in GRAINS}


def choose(levels_wanted: Mapping[str, Any], columns: Mapping[str, Any]) -> Choice:
    """Choose by functions of frames and by values of columns.

    Parameters
    ----------
    levels_wanted
        By level, a function from the level's frame to booleans, or values of the column that numbers it: one,
        or a collection. None leaves the level alone.
    columns
        Values by column.

    Raises
    ------
    KeyError
        If no table has such a column.
    ValueError
        If a column can hold no such value.
    """
    functions = {level: wanted for level, wanted in levels_wanted.items() if callable(wanted)}
    numbers = {
        _NUMBER_OF[level]: wanted
        for level, wanted in levels_wanted.items()
        if wanted is not None and not callable(wanted)
    }
    if twice := numbers.keys() & columns.keys():
        raise TypeError(f"{', '.join(sorted(twice))} is given twice, as a column and by its level")
    columns = {**columns, **numbers}
    levels = {name: _level_of(name) for name in columns}

    def choice(tables: Mapping[str, pa.Table], rows: Rows) -> Rows:
        wanted: dict[str, Bools] = {}
        for level in _LEVELS:
            place = rows[level]
            mask = np.ones(len(place), dtype=bool)
            asked = False
            for name, value in columns.items():
                if level == levels[name] or (name in ROLLOUT_KEY and name in tables[level].column_names):
                    mask &= _matches(tables[level].column(name), value, name)[place]
                    asked = True
            function = functions.get(level)
            if function is not None:
                frame = to_frame(widen(tables[level].take(pa.array(place)), arrow_schema(level)))
                mask &= _as_mask(function(frame), len(place), level)
                asked = True
            if asked:
                wanted[level] = mask
        by_id_alone = columns.keys() <= set(ROLLOUT_KEY) and not functions
        return _nested(tables, rows, wanted, _loose(tables, columns) if by_id_alone else {})

    return choice


def sampled(n: int, seed: int, by: str) -> Choice:
    """Choose `n` at random on one level.

    Raises
    ------
    ValueError
        If `n` is negative or there is no such level.
    """
    if by not in _LEVELS:
        raise ValueError(f"by must be one of {', '.join(_LEVELS)}, got {by!r}")
    if n < 0:
        raise ValueError(f"n must not be negative, got {n}")

    def choice(tables: Mapping[str, pa.Table], rows: Rows) -> Rows:
        count = len(rows[by])
        mask = np.zeros(count, dtype=bool)
        mask[np.random.default_rng(seed).permutation(count)[:n]] = True
        return _nested(tables, rows, {by: mask})

    return choice


def last_rollouts(n: int) -> Choice:
    """Choose the last `n` training rollouts of each run, and the evaluations since the first of them."""
    if n < 0:
        raise ValueError(f"n must not be negative, got {n}")

    def choice(tables: Mapping[str, pa.Table], rows: Rows) -> Rows:
        table = tables["rollout"].take(pa.array(rows["rollout"]))
        ids, has_id = integers(table, "rollout_id"), known(table, "rollout_id")
        training = ~flags(table, "evaluation") & has_id
        mask = np.zeros(len(table), dtype=bool)
        runs = np.asarray(
            one_array(table.column("run")).dictionary_encode().indices.to_numpy(zero_copy_only=False)
        )
        for run in np.unique(runs):
            own = (runs == run) & has_id
            counted = own & training if (own & training).any() else own
            last = np.sort(ids[counted])[-n:] if n else ids[:0]
            if len(last):
                mask |= own & (ids >= last[0])
        return _nested(tables, rows, {"rollout": mask})

    return choice


def _level_of(name: str) -> str:
    for level in _LEVELS:
        if any(column.name == name for column in TABLES[level]):
            return level
    raise KeyError(f"no column {name!r} in the tables {', '.join(_LEVELS)}; see run.describe()")


def _matches(column: pa.ChunkedArray, value: Any, name: str) -> Bools:
    values = one_array(column)
    if value is None:
        found = pc.is_null(values)
    elif isinstance(value, Collection) and not isinstance(value, str | bytes):
        members = [member for member in value if member is not None]
        wanted = pa.array([_typed(member, values.type, name) for member in members], values.type)
        found = pc.is_in(values, value_set=wanted)
        if len(members) < len(value):
            found = pc.or_(found, pc.is_null(values))
    else:
        found = pc.equal(values, _typed(value, values.type, name))
    return np.asarray(pc.fill_null(found, False).to_numpy(zero_copy_only=False), dtype=bool)


def _typed(value: Any, kind: pa.DataType, name: str) -> pa.Scalar:
    """Return a value as one of a column; raises ValueError where the column can hold no such value."""
    try:
        scalar = pa.scalar(value, kind)
        # Arrow would cut 3.5 to 3, and find rows that nobody asked for.
        held = value != value or scalar.as_py() == value
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        held = False
    if not held:
        raise ValueError(f"the column {name!r} holds {kind}, so no row can have {value!r:.80}")
    return scalar


def _as_mask(answer: Any, length: int, level: str) -> Bools:
    filled = answer.fillna(False) if hasattr(answer, "fillna") else answer
    mask = np.asarray(filled, dtype=bool)
    if mask.shape != (length,):
        raise ValueError(f"the function for {level} gave shape {mask.shape}, expected ({length},)")
    return mask


def _loose(tables: Mapping[str, pa.Table], columns: Mapping[str, Any]) -> dict[str, Bools]:
    """Tell which rows have the wanted ids: those that belong to nothing are chosen by these alone."""
    masks: dict[str, Bools] = {}
    for grain, table in tables.items():
        masks[grain] = np.ones(len(table), dtype=bool)
        for name, value in columns.items():
            masks[grain] &= _matches(table.column(name), value, name)
    return masks


def _nested(
    tables: Mapping[str, pa.Table],
    rows: Rows,
    wanted: Mapping[str, Bools],
    loose: Mapping[str, Bools] = MappingProxyType({}),
) -> Rows:
    """Carry what was wanted on some levels to all tables.

    Parameters
    ----------
    tables, rows
        As in `Choice`.
    wanted
        Which of `rows` were asked for, on some levels.
    loose
        By table, which rows stay although they belong to nothing; none by default.
    """
    if not wanted:
        return rows
    stays: dict[str, Bools] = {}
    for place, level in enumerate(_LEVELS):
        mask = np.zeros(len(tables[level]), dtype=bool)
        mask[rows[level]] = wanted.get(level, True)
        if any(outer in wanted for outer in _LEVELS[:place]):
            owner = _owner(tables[level])
            mask &= np.where(owner >= 0, _lookup(stays[_LEVELS[place - 1]], owner), loose.get(level, False))
        stays[level] = mask
    for place in range(len(_LEVELS) - 1, 0, -1):
        inner, outer = _LEVELS[place], _LEVELS[place - 1]
        if any(level in wanted for level in _LEVELS[place:]):
            owner = _owner(tables[inner])
            members = np.zeros(len(tables[outer]), dtype=bool)
            members[owner[stays[inner] & (owner >= 0)]] = True
            stays[outer] &= members
    result: dict[str, Ints] = {level: np.flatnonzero(stays[level]) for level in _LEVELS}
    for grain, outer in _ATTACHED.items():
        mask = np.zeros(len(tables[grain]), dtype=bool)
        mask[rows[grain]] = True
        owner = _owner(tables[grain])
        mask &= np.where(owner >= 0, _lookup(stays[outer], owner), loose.get(grain, False))
        result[grain] = np.flatnonzero(mask)
    return result


def _owner(table: pa.Table) -> Ints:
    return integers(table, OWNER, -1)


def _lookup(flags_by_place: Bools, owner: Ints) -> Bools:
    return flags_by_place[owner] if len(flags_by_place) else np.zeros(len(owner), dtype=bool)


def traces_of(traces: pa.Table, session_id: str | Iterable[str] | None, trace_index: int | None) -> Ints:
    """Return the places of the traces of some sessions, placeholders left out.

    Parameters
    ----------
    traces
        The trace table.
    session_id
        Of one session or several; None for all.
    trace_index
        Only this trace of each session.

    Raises
    ------
    KeyError
        A session has no row in the table.
    """
    chosen = ~flags(traces, "placeholder")
    if session_id is not None:
        wanted = [session_id] if isinstance(session_id, str) else list(dict.fromkeys(session_id))
        column = traces.column("session_id")
        theirs = np.asarray(pc.is_in(column, value_set=pa.array(wanted, pa.string())).to_numpy(), dtype=bool)
        missing = sorted(set(wanted) - set(column.filter(pa.array(theirs)).unique().to_pylist()))
        if missing:
            more = f" (and {len(missing) - 3} more)" if len(missing) > 3 else ""
            raise KeyError(f"no traces of session {', '.join(missing[:3])}{more} here")
        chosen &= theirs
    if trace_index is not None:
        chosen &= integers(traces, "trace_index", -1) == trace_index
    return np.flatnonzero(chosen)
