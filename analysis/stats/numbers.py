"""Small statistics on plain arrays: correlations, intervals, effect sizes. Knows nothing about runs.

Bootstraps draw whole clusters where rows of one cluster are not independent, and take a seed.
"""

from __future__ import annotations

import math

import numpy as np

from analysis.stats.columns import Bools, Floats, Ints

__all__ = [
    "cliffs_delta",
    "cluster_bootstrap",
    "correlation",
    "mean_or_nan",
    "ranks",
    "total_variation",
    "weighted_mean",
    "wilson_interval",
]


def mean_or_nan(values: Floats | Ints | Bools) -> float:
    """Return the mean of some numbers, NaN of none."""
    return float(np.mean(values)) if len(values) else math.nan


def weighted_mean(values: Floats, weights: Floats) -> float:
    """Return the weighted mean over values that are there; NaN where the weights sum to 0."""
    there = ~np.isnan(values)
    total = float(weights[there].sum())
    return float((values[there] * weights[there]).sum()) / total if total > 0 else math.nan


def ranks(values: Floats) -> Floats:
    """Return ranks from 1, equal values sharing the mean of theirs; shape (n,)."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(values) else np.zeros(0, int)
    sizes = np.diff(np.r_[starts, len(values)])
    result = np.empty(len(values))
    result[order] = np.repeat(starts + (sizes + 1) / 2, sizes)
    return result


def correlation(first: Floats, second: Floats) -> float:
    """Return Pearson's correlation; NaN for fewer than two pairs or where one side does not vary."""
    if len(first) < 2:
        return math.nan
    a, b = first - first.mean(), second - second.mean()
    scale = math.sqrt(float(a @ a) * float(b @ b))
    return float(a @ b) / scale if scale > 0 else math.nan


def wilson_interval(successes: float, trials: float, z: float = 1.959963984540054) -> tuple[float, float]:
    """Return Wilson's score interval of a share; NaN without trials.

    References
    ----------
    Wilson 1927, Journal of the American Statistical Association 22, 209-212.
    """
    if trials <= 0:
        return math.nan, math.nan
    share, square = successes / trials, z * z
    centre = (share + square / (2 * trials)) / (1 + square / trials)
    half = (
        z / (1 + square / trials) * math.sqrt(share * (1 - share) / trials + square / (4 * trials * trials))
    )
    return max(0.0, centre - half), min(1.0, centre + half)


def cliffs_delta(first: Floats, second: Floats) -> float:
    """Return ``P(first > second) - P(first < second)`` over all pairs, -1 to 1; NaN where a side is empty.

    References
    ----------
    Cliff 1993, Psychological Bulletin 114, 494-509.
    """
    n, m = len(first), len(second)
    if not n or not m:
        return math.nan
    ordered = np.sort(second)
    above = np.searchsorted(ordered, first, side="left").sum()
    below = m * n - np.searchsorted(ordered, first, side="right").sum()
    return float(above - below) / (n * m)


def total_variation(first: Floats, second: Floats) -> float:
    """Return half the sum of absolute differences of two distributions over the same categories, 0 to 1.

    Parameters
    ----------
    first, second
        Shape (k,): counts; NaN where a side is empty.
    """
    a, b = float(first.sum()), float(second.sum())
    if a <= 0 or b <= 0:
        return math.nan
    return float(np.abs(first / a - second / b).sum()) / 2


def cluster_bootstrap(clusters: Ints, replicates: int, seed: int) -> np.ndarray:
    """Draw how often each row takes part in each replicate, whole clusters at a time.

    Parameters
    ----------
    clusters
        Shape (n,): 0 to c - 1.
    replicates
        Number of draws B.
    seed
        Of the draws.

    Returns
    -------
    array
        Shape (B, n), int64: each replicate draws c clusters with replacement.
    """
    count = int(clusters.max(initial=-1)) + 1
    rng = np.random.default_rng(seed)
    if not count:
        return np.zeros((replicates, 0), dtype=np.int64)
    times = rng.multinomial(count, np.full(count, 1.0 / count), size=replicates)
    return np.asarray(times[:, clusters], dtype=np.int64)
