"""Small tools on Arrow tables for joining them: columns as NumPy arrays and back, filled from one another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from analysis._identity import Ints, codes, find

__all__ = [
    "Bools",
    "Floats",
    "as_floats",
    "as_integers",
    "fill",
    "flags",
    "floats",
    "integers",
    "codes_of_both",
    "counterparts",
    "known",
    "one_array",
    "set_columns",
    "sums_by",
    "take_rows",
    "take_table",
]

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]


def one_array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return a column in one piece."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    combined = column.combine_chunks()
    return pa.concat_arrays(combined.chunks) if isinstance(combined, pa.ChunkedArray) else combined


def known(table: pa.Table, name: str) -> Bools:
    """Return where a column has a value."""
    column = table.column(name)
    if column.null_count == len(column):
        return np.zeros(len(column), dtype=bool)
    return np.asarray(pc.is_valid(column).to_numpy(), dtype=bool)


def flags(table: pa.Table, name: str) -> Bools:
    """Return a boolean column; false where it is missing."""
    return np.asarray(pc.fill_null(table.column(name), False).to_numpy(), dtype=bool)


def integers(table: pa.Table, name: str, missing: int = 0) -> Ints:
    """Return an integer column, with a number for what is missing."""
    return np.asarray(pc.fill_null(table.column(name), missing).to_numpy(), dtype=np.int64)


def floats(table: pa.Table, name: str) -> Floats:
    """Return a numeric column as floats; NaN where it is missing."""
    column = table.column(name)
    if pa.types.is_integer(column.type):
        column = column.cast(pa.float64())
    return np.asarray(pc.fill_null(column, np.nan).to_numpy(), dtype=np.float64)


def as_integers(values: Any, valid: Any) -> pa.Array:
    """Return integers as a column, missing where `valid` is false."""
    return pa.array(np.asarray(values, dtype=np.int64), mask=~np.asarray(valid, dtype=bool))


def as_floats(values: Any, valid: Any = True) -> pa.Array:
    """Return floats as a column, missing where `valid` is false or the value is NaN."""
    numbers = np.asarray(values, dtype=np.float64)
    return pa.array(numbers, mask=np.isnan(numbers) | ~np.broadcast_to(valid, numbers.shape))


def set_columns(table: pa.Table, **columns: pa.Array | pa.ChunkedArray) -> pa.Table:
    """Replace columns by name."""
    for name, values in columns.items():
        place = table.column_names.index(name)
        table = table.set_column(
            place, table.schema.field(place), values.cast(table.schema.field(place).type)
        )
    return table


def take_table(table: pa.Table, order: Ints) -> pa.Table:
    """Return rows of a table in this order; columns without a value share one buffer per type."""
    count = len(order)
    if count == len(table) and (order == np.arange(count)).all():
        return table
    rows = pa.array(order)
    nulls: dict[pa.DataType, pa.Array] = {}
    arrays = []
    for column in table.columns:
        if column.null_count < len(column):
            arrays.append(one_array(column).take(rows))
        else:
            arrays.append(nulls.setdefault(column.type, pa.nulls(count, column.type)))
    return pa.Table.from_arrays(arrays, schema=table.schema)


def take_rows(column: pa.ChunkedArray | pa.Array, rows: Ints) -> pa.Array:
    """Return the values at these rows; missing where a row is -1."""
    return one_array(column).take(pa.array(rows, mask=rows < 0))


def fill(
    table: pa.Table, other: pa.Table, rows: Ints, names: Iterable[str], *, replace: bool = False
) -> pa.Table:
    """Fill columns from the counterparts of the rows in another table.

    Parameters
    ----------
    table, other
        Both have the columns.
    rows
        Place of each row's counterpart in `other`; -1 for none.
    names
        Which columns.
    replace
        What the other table says goes before what the row says itself.
    """
    if not len(other) or (rows < 0).all():
        return table
    for name in names:
        if other.column(name).null_count == len(other):
            continue
        theirs, own = take_rows(other.column(name), rows), one_array(table.column(name))
        first, second = (theirs, own) if replace else (own, theirs)
        table = set_columns(
            table, **{name: pc.coalesce(first, second) if second.null_count < len(second) else first}
        )
    return table


def counterparts(table: pa.Table, other: pa.Table, keys: Sequence[Sequence[str]]) -> Ints:
    """Find each row's counterpart in another table.

    Parameters
    ----------
    table, other
        Both have the key columns.
    keys
        Names of key columns, to be tried in this order.

    Returns
    -------
    array
        Place in `other`; -1 where no key finds exactly one.
    """
    found = np.full(len(table), -1, dtype=np.int64)
    for names in keys:
        waiting = np.flatnonzero(found < 0)
        if not len(waiting) or not len(other):
            break
        some = len(waiting) < len(table)
        columns = [one_array(table.column(name)) for name in names]
        if some:
            columns = [column.take(pa.array(waiting)) for column in columns]
        if any(column.null_count == len(column) for column in columns):
            continue
        both = codes_of_both(columns, [one_array(other.column(name)) for name in names])
        found[waiting] = find([both[: len(waiting)]], [both[len(waiting) :]])
    return found


def codes_of_both(ours: Sequence[pa.Array], theirs: Sequence[pa.Array]) -> Ints:
    """Return codes of both tables' rows, one after the other, so that equal codes mean equal values."""
    return codes([pa.chunked_array([left, right]) for left, right in zip(ours, theirs, strict=True)])


def sums_by(owner: Ints, count: int, weights: Any = None, where: Any = None) -> Floats:
    """Add up weights (1 each by default) per owner; rows of nobody (-1) are left out."""
    chosen = owner >= 0 if where is None else (owner >= 0) & where
    values = None if weights is None else np.broadcast_to(weights, owner.shape)[chosen]
    return np.bincount(owner[chosen], weights=values, minlength=count).astype(np.float64)
