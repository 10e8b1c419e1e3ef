"""Which rows are about the same thing: entity numbers from the keys that a table declares.

Every key is tried in the declared order and counts only where all of its parts are known. A row that has the
first key is what that key says. A row that lacks it joins the one thing that shares a later key with it;
where several things share that key, it decides nothing. Works on Arrow columns; knows nothing about sources.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

__all__ = ["Ints", "codes", "find", "identify", "occurrences", "with_occurrence"]

Ints = NDArray[np.int64]

UNKNOWN = -1


def codes(columns: Sequence[pa.ChunkedArray | pa.Array]) -> Ints:
    """Return numbers for the distinct combinations of values; -1 where a part is missing.

    Parameters
    ----------
    columns
        Of equal length; at least one.
    """
    combined: Ints | None = None
    known: Any = None
    for values in columns:
        encoded = _encoded(values)
        part = encoded.indices
        valid = np.asarray(pc.is_valid(part).to_numpy(zero_copy_only=False), dtype=bool)
        numbers = np.asarray(pc.fill_null(part, 0).to_numpy(zero_copy_only=False), dtype=np.int64)
        known = valid if known is None else known & valid
        if combined is None:
            combined = numbers
        else:
            # Renumbered after each part, so that products stay far below 2**63.
            combined = _dense(combined * max(1, len(encoded.dictionary)) + numbers)
    if combined is None:
        raise ValueError("a key needs at least one part")
    return np.where(known, combined, UNKNOWN)


def occurrences(values: Ints) -> Ints:
    """Count repeated values: 0 for the first of each, 1 for the second, and so on."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(ordered) else np.zeros(0, int)
    counts = np.arange(len(ordered)) - np.repeat(starts, np.diff(np.r_[starts, len(ordered)]))
    result = np.empty(len(values), dtype=np.int64)
    result[order] = counts
    return result


def with_occurrence(key: Ints, file: Ints) -> Ints:
    """Tell equal keys of one file apart by their order; copies in other files still meet their original.

    Parameters
    ----------
    key, file
        Codes per row.
    """
    within = key * (int(file.max(initial=0)) + 1) + file
    repeated = occurrences(np.where(key < 0, UNKNOWN, within))
    repeated[key < 0] = 0
    if not repeated.any():
        return key
    return np.where(key < 0, key, key * (int(repeated.max()) + 1) + repeated)


def identify(length: int, keys: Sequence[Callable[[], Ints]]) -> Ints:
    """Give every row the number of its entity, in order of first appearance.

    Parameters
    ----------
    length
        Number of rows.
    keys
        In order of authority: gives one code per row; -1 where the row lacks a part of the key. Called only
        if there are rows that earlier keys leave open. A row that lacks all keys is an entity of its own.
    """
    entity = np.full(length, UNKNOWN, dtype=np.int64)
    count = 0
    made: dict[int, Ints] = {}
    for level in range(len(keys)):
        if (entity != UNKNOWN).all():
            break
        for later in range(level, len(keys) if count else level + 1):
            if later not in made:
                made[later] = keys[later]()
        key = made[level]
        waiting = (entity == UNKNOWN) & (key != UNKNOWN)
        if not waiting.any():
            continue
        if count:
            for later in range(level, len(keys)):
                _join(entity, made[later], waiting & (entity == UNKNOWN))
        fresh = np.flatnonzero(waiting & (entity == UNKNOWN))
        if len(fresh):
            numbers = _dense(key[fresh])
            entity[fresh] = numbers + count
            count += int(numbers.max()) + 1
    alone = np.flatnonzero(entity == UNKNOWN)
    entity[alone] = count + np.arange(len(alone))
    return _by_first_appearance(entity)


def find(keys: Sequence[Ints], others: Sequence[Ints]) -> Ints:
    """Find each row's counterpart in another table.

    Parameters
    ----------
    keys
        Codes of the rows, per key.
    others
        Codes of the other table's rows for the same keys, numbered together with `keys`.

    Returns
    -------
    array
        Position in the other table; -1 where no key finds exactly one.
    """
    found = np.full(len(keys[0]), UNKNOWN, dtype=np.int64)
    for key, other in zip(keys, others, strict=True):
        waiting = (found == UNKNOWN) & (key != UNKNOWN)
        if waiting.any() and len(other):
            owner = _owners(other, np.arange(len(other)), int(max(key.max(), other.max())) + 1)
            found[waiting] = owner[key[waiting]]
    return found


def _join(entity: Ints, key: Ints, waiting: Any) -> None:
    """Let waiting rows join the one entity that shares the key with them."""
    rows = np.flatnonzero(waiting & (key != UNKNOWN))
    settled = np.flatnonzero((entity != UNKNOWN) & (key != UNKNOWN))
    if len(rows) and len(settled):
        owner = _owners(key[settled], entity[settled], int(key.max()) + 1)
        entity[rows] = owner[key[rows]]


def _owners(key: Ints, entity: Ints, size: int) -> Ints:
    """Return the entity that owns each code; -1 for none and for several."""
    owner = np.full(size, UNKNOWN, dtype=np.int64)
    known = key != UNKNOWN
    owner[key[known]] = entity[known]
    shared = owner[key[known]] != entity[known]
    owner[key[known][shared]] = UNKNOWN
    return owner


def _dense(values: Ints) -> Ints:
    return np.unique(values, return_inverse=True)[1].astype(np.int64, copy=False).reshape(-1)


def _by_first_appearance(entity: Ints) -> Ints:
    _, first, inverse = np.unique(entity, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first, kind="stable")] = np.arange(len(first))
    return rank[inverse.reshape(-1)]


def _encoded(values: pa.ChunkedArray | pa.Array) -> pa.DictionaryArray:
    array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if isinstance(array, pa.ChunkedArray):  # more than one chunk may remain where offsets would overflow
        array = pa.concat_arrays(array.chunks)
    if not pa.types.is_dictionary(array.type):
        array = array.dictionary_encode()
    return array
