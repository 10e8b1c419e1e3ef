"""Has a series changed, since when, and by how much? Surges, falls from the best stretch, and streaks too.

Noise is measured on differences of neighbours, so that a slow drift counts as a change and not as noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.stats.columns import Bools, Floats

__all__ = ["Change", "Surge", "change_point", "fall_from_best", "longest_streak", "noise", "surge"]

_LAGS = (1, 2, 3)


@dataclass(frozen=True, slots=True)
class Change:
    """A step in a series.

    Attributes
    ----------
    at
        Place in the series from which on it is different.
    before, after
        Means on either side.
    z
        The difference in standard errors, with its sign.
    """

    at: int
    before: float
    after: float
    z: float

    @property
    def difference(self) -> float:
        """After minus before."""
        return self.after - self.before


@dataclass(frozen=True, slots=True)
class Surge:
    """A stretch in which a series stood above its usual level.

    Attributes
    ----------
    start, stop
        Places in the series, `stop` not included.
    inside
        Mean over the stretch.
    usual
        The level it is set against: the lower quartile of the series.
    """

    start: int
    stop: int
    inside: float
    usual: float


def noise(values: Floats) -> float:
    """Return the standard deviation of a series around its slow course; NaN for fewer than five values.

    Parameters
    ----------
    values
        Shape (n,), all there. Differences at distances 1 to 3 are used, and the largest answer counts: a
        series whose neighbours are alike is noisier than its steps.
    """
    if len(values) < 5:
        return float("nan")
    spreads = [float(np.sqrt(np.mean((values[lag:] - values[:-lag]) ** 2) / 2)) for lag in _LAGS]
    return max(spreads)


def change_point(values: Floats, *, least: int = 5) -> Change | None:
    """Find the split that divides a series best into two levels.

    Parameters
    ----------
    values
        Shape (n,): missing ones (NaN) are left out.
    least
        Values on either side of the split.

    Returns
    -------
    Change or None
        None where fewer than ``2 * least`` values are there or all are equal. The split is the one with the
        largest difference of means in standard errors; since it was looked for, `z` of pure noise reaches 3
        to 4, and 6 is rare.
    """
    there = np.flatnonzero(~np.isnan(values))
    known = values[there]
    count = len(known)
    if count < 2 * least:
        return None
    left = np.arange(least, count - least + 1)
    added = np.cumsum(known)
    before = added[left - 1] / left
    after = (added[-1] - added[left - 1]) / (count - left)
    scale = np.sqrt(1 / left + 1 / (count - left))
    best = int(np.argmax(np.abs(after - before) / scale))
    spread = noise(known)
    difference = float(after[best] - before[best])
    if difference == 0:
        return None
    z = difference / (spread * float(scale[best])) if spread > 0 else float(np.copysign(np.inf, difference))
    return Change(int(there[left[best]]), float(before[best]), float(after[best]), z)


def fall_from_best(values: Floats, *, width: int = 5) -> Change | None:
    """Compare the last values of a series with the best stretch of as many before them.

    Parameters
    ----------
    values
        Shape (n,): missing ones (NaN) are left out.
    width
        Values per stretch.

    Returns
    -------
    Change or None
        `before` is the largest mean of `width` values that end before the last `width`, `at` the place after
        them, `after` the mean of the last; None for fewer than ``2 * width`` values.
    """
    there = np.flatnonzero(~np.isnan(values))
    known = values[there]
    if len(known) < 2 * width:
        return None
    added = np.concatenate([[0.0], np.cumsum(known)])
    means = (added[width:] - added[:-width]) / width
    best = int(np.argmax(means[: len(means) - width]))
    difference = float(means[-1] - means[best])
    error = noise(known) * np.sqrt(2 / width)
    z = difference / error if error > 0 else float(np.copysign(np.inf, difference)) if difference else 0.0
    return Change(int(there[best + width]), float(means[best]), float(means[-1]), float(z))


def longest_streak(marks: Bools) -> tuple[int, int]:
    """Return start and stop of the longest run of true values, the last of equals; (0, 0) if none."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], marks, [False]]).astype(np.int8)))
    starts, stops = edges[::2], edges[1::2]
    if not len(starts):
        return 0, 0
    best = len(starts) - 1 - int(np.argmax((stops - starts)[::-1]))
    return int(starts[best]), int(stops[best])


def surge(shares: Floats, trials: Floats, *, rise: float, least: int = 3) -> Surge | None:
    """Find the longest stretch in which a share stood far above its usual level.

    Parameters
    ----------
    shares
        Shape (n,): one share per rollout, NaN where nobody knows; those neither continue nor end a stretch.
    trials
        Shape (n,): of how many each is the share.
    rise
        Each value of the stretch lies at least this far above the usual level, and three standard errors of
        the usual level besides.
    least
        Values in a row.

    Returns
    -------
    Surge or None
        None where there is no such stretch, or fewer than ``2 * least`` values are known. For independent
        trials each value of pure noise passes with probability below 0.02, three in a row below 1e-5.
    """
    there = np.flatnonzero(~np.isnan(shares))
    known, size = shares[there], np.maximum(trials[there], 1.0)
    if len(known) < 2 * least:
        return None
    usual = float(np.quantile(known, 0.25))
    middle = np.clip(np.median(known) if usual == 0 else usual, 1 / (2 * size), 0.5)
    error = np.sqrt(middle * (1 - middle) / size)
    steps = 1.4826 * float(np.median(np.abs(np.diff(known)))) / np.sqrt(2)
    start, stop = longest_streak(known > usual + np.maximum(rise, 3 * np.maximum(error, steps)))
    if stop - start < least:
        return None
    return Surge(int(there[start]), int(there[stop - 1]) + 1, float(known[start:stop].mean()), usual)
