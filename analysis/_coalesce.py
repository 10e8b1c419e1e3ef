"""Several rows about one thing become one row, column by column, and what contradicts is written down.

Within a source the column's `combine` rule decides; among sources the column's order of authority. Missing
values never count. Knows nothing about what the columns mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analysis._columns import TIME, Column
from analysis._identity import Ints
from analysis._tables import one_array, take_table

__all__ = ["SOURCE_COLUMN", "coalesce"]

SOURCE_COLUMN = "__source"
"""Name of the column that says which source a row comes from."""

_NEVER_COMPARED = frozenset({"run", "rollout_id", "attempt", "sources", "conflicts", "path", "worker"})
"""Columns in which sources differ by nature, as they do in times: each notes when it heard of something."""

_RELATIVE = 1e-4  # values pass through float32 and through text with few digits
_MAX_SHOWN = 60


def coalesce(table: pa.Table, entity: Ints, columns: Sequence[Column], sources: Sequence[str]) -> pa.Table:
    """Return one row per entity, in the order of entity numbers.

    Parameters
    ----------
    table
        Rows with the declared columns and `SOURCE_COLUMN` (positions in `sources`).
    entity
        Number of each row's entity, from 0 without gaps.
    columns
        What the result has, in order.
    sources
        Names of all sources.
    """
    count = int(entity.max()) + 1 if len(entity) else 0
    sizes = np.bincount(entity, minlength=count)
    alone = np.flatnonzero(sizes[entity] == 1)
    several = np.flatnonzero(sizes[entity] > 1)
    plain = _plain(take_table(table, alone), columns, sources)
    if not len(several):
        return take_table(plain, np.argsort(entity, kind="stable"))
    numbers, local = np.unique(entity[several], return_inverse=True)
    joined = _joined(table.take(several), local.reshape(-1).astype(np.int64), columns, sources)
    both = pa.concat_tables([plain, joined])
    return take_table(both, np.argsort(np.r_[entity[alone], numbers], kind="stable"))


def _plain(table: pa.Table, columns: Sequence[Column], sources: Sequence[str]) -> pa.Table:
    """Rows that stand alone: their own source is all there is to say."""
    own = pa.DictionaryArray.from_arrays(
        _source_codes(table).astype(np.int32), pa.array(sources, pa.string())
    )
    named = {"sources": _first_known(table, "sources", own.cast(pa.string()))}
    arrays = [named[c.name] if c.name in named else table.column(c.name) for c in columns]
    return pa.Table.from_arrays(arrays, names=[c.name for c in columns])


def _first_known(table: pa.Table, name: str, otherwise: pa.Array) -> Any:
    """Rows that were joined before (read back from Parquet) keep what they say."""
    column = table.column(name)
    return otherwise if column.null_count == len(column) else pc.coalesce(column, otherwise)


def _joined(table: pa.Table, entity: Ints, columns: Sequence[Column], sources: Sequence[str]) -> pa.Table:
    """Rows of things that several rows speak of."""
    count = int(entity.max()) + 1
    source = _source_codes(table)
    conflicts: dict[int, list[str]] = {}
    arrays: dict[str, Any] = {}
    for column in columns:
        if column.name in ("sources", "conflicts"):
            continue
        values = one_array(table.column(column.name))
        picks = _picks(values, entity, source, count, column, sources)
        arrays[column.name] = _pick_values(values, picks, entity, source, count, column)
        compared = column.name not in _NEVER_COMPARED and column.dtype != TIME and column.combine != "any"
        if compared and len(picks) > 1:
            alike = _alike(table, entity, count, column.unless)
            _compare(column.name, values, picks, source, sources, conflicts, alike)
    arrays["sources"] = _source_names(table, entity, source, count, sources)
    texts = [None] * count
    for number, lines in conflicts.items():
        texts[number] = "; ".join(lines)  # type: ignore[call-overload]
    arrays["conflicts"] = pa.array(texts, pa.string())
    return pa.Table.from_arrays([arrays[c.name] for c in columns], names=[c.name for c in columns])


def _source_codes(table: pa.Table) -> Ints:
    return np.asarray(table.column(SOURCE_COLUMN).to_numpy(), dtype=np.int64)


def _picks(
    values: pa.Array, entity: Ints, source: Ints, count: int, column: Column, sources: Sequence[str]
) -> list[tuple[int, Ints]]:
    """Return, best authority first, each source that has values: its code, and its row per entity (or -1)."""
    valid = np.asarray(pc.is_valid(values).to_numpy(zero_copy_only=False), dtype=bool)
    picks = []
    for code in _authority(column, sources):
        rows = np.flatnonzero(valid & (source == code))
        if len(rows):
            chosen = np.full(count, -1, dtype=np.int64)
            ordered = _ordered(rows, values, column.combine)
            chosen[entity[ordered]] = ordered  # of rows of the same entity the last one stays
            picks.append((code, chosen))
    return picks


def _authority(column: Column, sources: Sequence[str]) -> list[int]:
    named = [sources.index(name) for name in column.sources if name in sources]
    return named + [code for code in range(len(sources)) if code not in named]


def _ordered(rows: Ints, values: pa.Array, combine: str) -> Ints:
    """Order rows so that the one that counts comes last."""
    if combine == "first":
        return rows[::-1]
    if combine in ("min", "max", "any"):
        taken = values.take(rows)
        order = np.asarray(pc.array_sort_indices(taken).to_numpy(), dtype=np.int64)
        return rows[order[::-1] if combine == "min" else order]
    return rows


def _pick_values(
    values: pa.Array,
    picks: list[tuple[int, Ints]],
    entity: Ints,
    source: Ints,
    count: int,
    column: Column,
) -> pa.Array:
    best = np.full(count, -1, dtype=np.int64)
    for _, chosen in reversed(picks):
        best = np.where(chosen >= 0, chosen, best)
    taken = values.take(pa.array(best, mask=best < 0))
    if column.combine != "sum" or not picks:
        return taken
    best_source = np.where(best >= 0, source[best], -1)
    rows = np.flatnonzero(source == best_source[entity])
    sums = np.zeros(count, dtype=np.int64 if pa.types.is_integer(values.type) else np.float64)
    np.add.at(sums, entity[rows], pc.fill_null(values.take(rows), 0).to_numpy(zero_copy_only=False))
    return pa.array(sums, type=values.type, mask=best < 0)


def _alike(table: pa.Table, entity: Ints, count: int, unless: str | None) -> Any:
    """Return for each entity whether its sources should say the same."""
    alike = np.ones(count, dtype=bool)
    if unless is not None:
        differs = pc.fill_null(one_array(table.column(unless)), False).to_numpy(zero_copy_only=False)
        alike[entity[np.asarray(differs, dtype=bool)]] = False
    return alike


def _source_names(
    table: pa.Table, entity: Ints, source: Ints, count: int, sources: Sequence[str]
) -> pa.Array:
    """Join the names of the sources that know each entity, in the order of `sources`."""
    known = table.column("sources").to_pylist()
    names: list[set[str]] = [set() for _ in range(count)]
    for number, code, before in zip(entity.tolist(), source.tolist(), known, strict=True):
        names[number].update(before.split("+") if before else (sources[code],))
    rank = {name: place for place, name in enumerate(sources)}
    return pa.array(
        ["+".join(sorted(found, key=lambda name: rank.get(name, len(rank)))) for found in names], pa.string()
    )


def _compare(
    name: str,
    values: pa.Array,
    picks: Sequence[tuple[int, Ints]],
    source: Ints,
    sources: Sequence[str],
    conflicts: dict[int, list[str]],
    alike: Any,
) -> None:
    """Note the entities whose sources do not say the same, although they should."""
    best = picks[0][1]
    said: dict[int, dict[str, Any]] = {}
    for code, chosen in picks[1:]:
        both = np.flatnonzero((best >= 0) & (chosen >= 0) & alike)
        ours, theirs = values.take(best[both]), values.take(chosen[both])
        for place in np.flatnonzero(_differ(ours, theirs)).tolist():
            number = int(both[place])
            winner = sources[int(source[best[number]])]
            said.setdefault(number, {winner: ours[place].as_py()})[sources[code]] = theirs[place].as_py()
        best = np.where(best >= 0, best, chosen)
    for number, entry in said.items():
        conflicts.setdefault(number, []).append(f"{name}: {_shown(entry)}")


def _differ(ours: pa.Array, theirs: pa.Array) -> Any:
    if pa.types.is_floating(ours.type):
        left, right = ours.to_numpy(zero_copy_only=False), theirs.to_numpy(zero_copy_only=False)
        return ~np.isclose(left, right, rtol=_RELATIVE, atol=1e-6, equal_nan=True)
    return pc.not_equal(ours, theirs).to_numpy(zero_copy_only=False)


def _shown(entry: Mapping[str, Any]) -> str:
    return ", ".join(f"{source} says {_short(value)}" for source, value in entry.items())


def _short(value: Any) -> str:
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:.6g}"
    text = str(value)
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 1] + "…"
