"""Means and spreads over the trajectories of a group, and over a whole batch, without a loop over groups.

Sums run in the order in which trajectories first appear, one after another, so that a plain loop over the
same numbers gives bit for bit the same result. A mean is kept within the range of what it averages: rounding
must not give a group of equal rewards an advantage.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slime_bridge.advantages.batch import Floats, Grouping

__all__ = [
    "SPREAD_FLOOR",
    "deviation",
    "group_means",
    "group_spreads",
    "means_of_the_others",
    "spread_or_one",
    "whitened",
]

SPREAD_FLOOR = 1e-6
"""A standard deviation below this is rounding noise; dividing by it would turn noise into advantages."""


def group_means(grouping: Grouping, means: Floats) -> Floats:
    """Return the mean over each group's valid trajectories, shape (G,); 0 for groups without any.

    Parameters
    ----------
    grouping
        Who belongs to whom.
    means
        Shape (T,): the trajectories' means.
    """
    valid = grouping.valid
    groups, values = grouping.group[valid], means[valid]
    low, high = np.full(grouping.n_groups, np.inf), np.full(grouping.n_groups, -np.inf)
    np.minimum.at(low, groups, values)
    np.maximum.at(high, groups, values)
    sums = np.bincount(groups, weights=values, minlength=grouping.n_groups)
    result = np.zeros(grouping.n_groups)
    there = grouping.sizes > 0
    result[there] = np.clip(sums[there] / grouping.sizes[there], low[there], high[there])
    return result


def group_spreads(grouping: Grouping, means: Floats, *, ddof: int = 1) -> Floats:
    """Return the standard deviation over each group's valid trajectories, shape (G,).

    0 for groups with `ddof` or fewer valid trajectories.
    """
    valid = grouping.valid
    groups = grouping.group[valid]
    off = means[valid] - group_means(grouping, means)[groups]
    squares = np.bincount(groups, weights=off * off, minlength=grouping.n_groups)
    degrees = grouping.sizes - ddof
    variance: Floats = np.divide(squares, degrees, out=np.zeros(grouping.n_groups), where=degrees > 0)
    return np.sqrt(variance)


def spread_or_one(spreads: Floats) -> Floats:
    """Return the spreads, 1 in place of those below `SPREAD_FLOOR`."""
    return np.where(spreads < SPREAD_FLOOR, 1.0, spreads)


def means_of_the_others(grouping: Grouping, means: Floats) -> Floats:
    """Return for each valid trajectory the mean over the other valid ones of its group, shape (T,).

    0 for the only valid trajectory of a group, and for invalid ones.
    """
    result = np.zeros(len(means))
    for members in _members_by_size(grouping):
        size = len(members)
        values = means[members]
        for position in range(size):
            others = np.delete(values, position, axis=0)
            total = np.add.accumulate(others, axis=0)[-1]
            result[members[position]] = np.clip(total / (size - 1), others.min(axis=0), others.max(axis=0))
    return result


def _members_by_size(grouping: Grouping) -> list[NDArray[np.int64]]:
    """Return the valid trajectories per group size n >= 2, shape (n, groups of that size)."""
    valid = np.flatnonzero(grouping.valid)
    members = valid[np.argsort(grouping.group[valid], kind="stable")]
    starts = np.concatenate([[0], np.cumsum(grouping.sizes)])[:-1]
    sizes = np.unique(grouping.sizes[grouping.sizes > 1])
    return [
        members[starts[grouping.sizes == size][None, :] + np.arange(size)[:, None]] for size in sizes.tolist()
    ]


def deviation(values: Floats, *, ddof: int = 1) -> float:
    """Return the standard deviation of some numbers; 0.0 for `ddof` numbers or fewer."""
    return float(np.std(values, ddof=ddof)) if len(values) > ddof else 0.0


def whitened(values: Floats, weights: Floats, *, epsilon: float = 1e-8) -> Floats:
    """Shift and scale to weighted mean 0 and variance 1.

    With M the sum of the weights, the variance is ``sum(w (a - mean)^2) / M * M / (M - 1)`` and the result
    ``(a - mean) / sqrt(variance + epsilon)``. Where M is below 2 only the mean is taken off; without any
    weight the result is 0.

    Parameters
    ----------
    values, weights
        Shape (n,); a weight is the number of tokens that a value stands for.
    """
    total = float(weights.sum())
    if total <= 0:
        return np.zeros_like(values)
    off = values - float((weights * values).sum()) / total
    if total < 2:
        return off
    variance = float((weights * off * off).sum()) / (total - 1)
    result: Floats = off / np.sqrt(variance + epsilon)
    return result
