"""Which rows mean the same thing, by several keys in order of authority; on codes where -1 is unknown."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from analysis.stats.columns import Ints

__all__ = ["find", "identify"]


def identify(keys: Sequence[Ints]) -> Ints:
    """Give every row the number of its entity, in order of first appearance.

    Parameters
    ----------
    keys
        One code per row for each key, best first; -1 where the row lacks a part of the key.

    Returns
    -------
    array
        Rows with the same first known key are one entity. A row that lacks it joins the one entity that
        shares a later key with it; where several do, and where it has no key at all, it is its own.
    """
    entity = np.full(len(keys[0]), -1, dtype=np.int64)
    count = 0
    for level, key in enumerate(keys):
        for later in keys[level:]:
            _join(entity, later, (key >= 0) & (entity < 0))
        fresh = np.flatnonzero((key >= 0) & (entity < 0))
        if len(fresh):
            numbers = np.unique(key[fresh], return_inverse=True)[1].reshape(-1)
            entity[fresh] = numbers + count
            count += int(numbers.max()) + 1
    alone = np.flatnonzero(entity < 0)
    entity[alone] = count + np.arange(len(alone))
    _, first, inverse = np.unique(entity, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first, kind="stable")] = np.arange(len(first))
    return rank[inverse.reshape(-1)]


def find(keys: Sequence[Ints], others: Sequence[Ints]) -> Ints:
    """Find each row's counterpart in another table: its position there, -1 where no key finds just one.

    Parameters
    ----------
    keys
        Codes of the rows, per key, best first.
    others
        Codes of the other table's rows for the same keys, numbered together with `keys`.
    """
    found = np.full(len(keys[0]), -1, dtype=np.int64)
    for key, other in zip(keys, others, strict=True):
        waiting = (found < 0) & (key >= 0)
        if waiting.any() and len(other):
            size = int(max(key.max(), other.max())) + 1
            found[waiting] = _owners(other, np.arange(len(other)), size)[key[waiting]]
    return found


def _join(entity: Ints, key: Ints, waiting: np.ndarray) -> None:
    """Let waiting rows join the one entity that shares the key with them."""
    rows = np.flatnonzero(waiting & (key >= 0))
    settled = np.flatnonzero((entity >= 0) & (key >= 0))
    if len(rows) and len(settled):
        entity[rows] = _owners(key[settled], entity[settled], int(key.max()) + 1)[key[rows]]


def _owners(key: Ints, entity: Ints, size: int) -> Ints:
    """Return the entity that owns each code; -1 for none and for several."""
    owner = np.full(size, -1, dtype=np.int64)
    known = key >= 0
    owner[key[known]] = entity[known]
    shared = owner[key[known]] != entity[known]
    owner[key[known][shared]] = -1
    return owner
