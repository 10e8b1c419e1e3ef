"""Columns of nullable frames as NumPy arrays, numbers for combinations of values, and JSON in cells."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

__all__ = [
    "Bools",
    "Floats",
    "Ints",
    "codes",
    "first_known",
    "flags",
    "floats",
    "integers",
    "json_cells",
    "known",
    "nullable",
    "only",
    "seconds_since",
    "sums",
    "texts",
]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def floats(frame: pd.DataFrame, name: str) -> Floats:
    """Return a numeric column as float64; NaN where it is missing."""
    return np.asarray(frame[name].to_numpy(dtype=np.float64, na_value=np.nan), dtype=np.float64)


def integers(frame: pd.DataFrame, name: str, missing: int = 0) -> Ints:
    """Return an integer column, with a number for what is missing."""
    return np.asarray(frame[name].to_numpy(dtype=np.int64, na_value=missing), dtype=np.int64)


def flags(frame: pd.DataFrame, name: str, missing: bool = False) -> Bools:
    """Return a yes-or-no column, with an answer for what is missing."""
    return np.asarray(frame[name].to_numpy(dtype=bool, na_value=missing), dtype=bool)


def texts(frame: pd.DataFrame, name: str) -> NDArray[np.object_]:
    """Return a text column as objects; None where it is missing."""
    return np.asarray(frame[name].to_numpy(dtype=object, na_value=None), dtype=object)


def first_known(*columns: NDArray[np.object_]) -> NDArray[np.object_]:
    """Return for each row the first value that is there, None where none is."""
    result = columns[0].copy()
    for column in columns[1:]:
        holes = pd.isna(result)
        result[holes] = column[holes]
    return result


def only(values: NDArray[np.object_], keep: Bools) -> NDArray[np.object_]:
    """Return the values where `keep` is true, None elsewhere."""
    result = values.copy()
    result[~keep] = None
    return result


def sums(owner: Ints, count: int, weights: Floats | Ints | Bools | None = None) -> Floats:
    """Add up weights (1 each by default) per owner, shape (count,); rows of nobody (-1) are left out."""
    chosen = owner >= 0
    values = None if weights is None else np.asarray(weights, dtype=np.float64)[chosen]
    return np.asarray(np.bincount(owner[chosen], weights=values, minlength=count), dtype=np.float64)


def known(frame: pd.DataFrame, name: str) -> Bools:
    """Return where a column has a value."""
    return np.asarray(frame[name].notna().to_numpy(), dtype=bool)


def seconds_since(frame: pd.DataFrame, name: str, origin: pd.Timestamp | None = None) -> Floats:
    """Return a column of moments as seconds since `origin` (the Unix epoch by default); NaN where missing."""
    moments = pd.to_datetime(frame[name], utc=True)
    start = pd.Timestamp(0, tz="UTC") if origin is None else origin
    return np.asarray((moments - start).dt.total_seconds().to_numpy(dtype=np.float64, na_value=np.nan))


def codes(frame: pd.DataFrame, names: Sequence[str]) -> Ints:
    """Give distinct combinations of values numbers in order of appearance, -1 where a part is missing.

    A missing ``run`` or ``evaluation`` counts as a value: frames that were built by hand hold one run, and
    training unless they say otherwise.
    """
    combined = np.zeros(len(frame), dtype=np.int64)
    complete = np.ones(len(frame), dtype=bool)
    for name in names:
        column = frame[name].astype(object)
        if name == "evaluation":
            column = column.where(column.notna(), False)
        numbers, values = pd.factorize(column)
        if name == "run":
            numbers = numbers + 1
        complete &= numbers >= 0
        combined = combined * (len(values) + 2) + np.maximum(numbers, 0)
        # Renumbered after each part, so that products stay far below 2**63.
        combined = pd.factorize(combined)[0].astype(np.int64)
    result = np.full(len(frame), -1, dtype=np.int64)
    result[complete] = pd.factorize(combined[complete])[0]
    return result


def json_cells(frame: pd.DataFrame, name: str) -> list[Mapping[str, Any]]:
    """Return a column of JSON objects, an empty mapping where a cell is missing or holds something else."""
    return [_object(cell) for cell in texts(frame, name)]


def _object(cell: Any) -> Mapping[str, Any]:
    if cell is None:
        return {}
    if isinstance(cell, Mapping):
        return cell
    try:
        value = json.loads(cell)
    except (TypeError, ValueError):  # a cell that was cut or never was JSON says nothing
        return {}
    return value if isinstance(value, Mapping) else {}


def nullable(columns: Mapping[str, Any], index: pd.Index | None = None) -> pd.DataFrame:
    """Build a frame with nullable dtypes: NaN and None become missing, never a number.

    Parameters
    ----------
    columns
        Arrays or lists by name. Floats become ``Float64``, integers ``Int64``, flags ``boolean``, texts
        ``string``; series keep their dtype.
    index
        Rows' labels; 0, 1, 2, ... by default.
    """
    made = {name: _nullable_column(values) for name, values in columns.items()}
    return pd.DataFrame(made, index=index)


def _nullable_column(values: Any) -> Any:
    if isinstance(values, pd.Series):
        return values.array
    array = np.asarray(values)
    if array.dtype.kind == "f":
        return pd.arrays.FloatingArray(array.astype(np.float64), np.isnan(array))
    if array.dtype.kind in "iu":
        return pd.array(array, dtype="Int64")
    if array.dtype.kind == "b":
        return pd.array(array, dtype="boolean")
    if array.dtype.kind == "M":
        return values
    return pd.array(array, dtype="string")
