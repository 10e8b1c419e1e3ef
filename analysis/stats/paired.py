"""Two runs compared on the tasks that both tried: differences with intervals, tests, and what could be seen.

Sessions of one prompt are alike, so that prompts are what is drawn, resampled and exchanged; each counts
once, however many sessions it has. With ``d_p`` the difference of a prompt's means, second minus first:

- the estimate is the mean of ``d_p``, its standard error ``s / sqrt(n)`` over the n prompts;
- the interval is a bootstrap-t: quantiles of ``(mean* - mean) / se*`` over resampled prompts (Efron and
  Tibshirani 1993, chapter 12), which holds its level for skewed and discrete differences;
- the p-value is that of flipping signs: under the null a prompt's two means could be exchanged. All 2^n
  flips are tried where they are few, else random ones;
- the minimum detectable effect is the true difference that such a test finds with the given power.

Where too few prompts are shared, prompts of either run are taken as independent (design ``unpaired``):
differences of means over prompts, labels permuted instead of signs flipped.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from analysis.errors import StatsError
from analysis.stats.columns import Floats, Ints, sums

__all__ = ["Difference", "holm", "paired_difference"]

_LEAST_PAIRS = 5
_ALL_FLIPS = 12  # up to this many pairs, every flip is tried
_CHUNK = 4_000_000


@dataclass(frozen=True, slots=True)
class Difference:
    """How far a second run is from a first one in some quantity; NaN where nothing can be said.

    Attributes
    ----------
    design
        ``paired`` or ``unpaired``.
    clusters
        Prompts that both tried, or in both runs together where they are not paired.
    only_first, only_second
        Prompts that only one tried; they take no part in a paired design.
    first, second
        Means over prompts.
    difference, low, high
        Second minus first, with its interval.
    standard_error
        Of the difference.
    p_value
        Two-sided.
    detectable
        Smallest true difference that would be found with the given power.
    """

    design: str
    clusters: int
    only_first: int
    only_second: int
    first: float
    second: float
    difference: float
    low: float
    high: float
    standard_error: float
    p_value: float
    detectable: float


def paired_difference(
    first: Floats,
    first_clusters: Ints,
    second: Floats,
    second_clusters: Ints,
    *,
    level: float = 0.95,
    power: float = 0.8,
    replicates: int = 2000,
    seed: int = 0,
) -> Difference:
    """Compare a quantity between two runs, prompt by prompt.

    Parameters
    ----------
    first, second
        Shapes (n,) and (m,): one value per session; NaN is left out.
    first_clusters, second_clusters
        Prompt of each session, from 0; equal numbers mean the same prompt. Sessions of nobody (-1) are left
        out.
    level
        Of the interval.
    power
        With which the minimum detectable effect is found.
    replicates, seed
        Of bootstrap and permutation.

    Raises
    ------
    StatsError
        If level or power is not between 0 and 1.
    """
    if not (0 < level < 1 and 0 < power < 1):
        raise StatsError(f"level and power lie between 0 and 1, got {level} and {power}")
    count = 1 + max(int(first_clusters.max(initial=-1)), int(second_clusters.max(initial=-1)))
    one, other = _means(first, first_clusters, count), _means(second, second_clusters, count)
    in_one, in_other = ~np.isnan(one), ~np.isnan(other)
    both = in_one & in_other
    rng = np.random.default_rng(seed)
    only = int((in_one & ~both).sum()), int((in_other & ~both).sum())
    if int(both.sum()) >= _LEAST_PAIRS:
        found = _paired(other[both] - one[both], level, power, replicates, rng)
        return Difference(
            "paired", int(both.sum()), *only, float(one[both].mean()), float(other[both].mean()), *found
        )
    mine, theirs = one[in_one], other[in_other]
    found = _unpaired(mine, theirs, level, power, replicates, rng)
    means = [float(part.mean()) if len(part) else math.nan for part in (mine, theirs)]
    return Difference("unpaired", int((in_one | in_other).sum()), *only, means[0], means[1], *found)


def holm(p_values: Floats) -> Floats:
    """Return p-values adjusted for their number (Holm 1979); NaN stays and does not count.

    Parameters
    ----------
    p_values
        Shape (n,).
    """
    result = np.full(len(p_values), np.nan)
    there = np.flatnonzero(~np.isnan(p_values))
    order = there[np.argsort(p_values[there], kind="stable")]
    scaled = p_values[order] * np.arange(len(order), 0, -1)
    result[order] = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return result


def _means(values: Floats, clusters: Ints, count: int) -> Floats:
    owner = np.where(np.isnan(values), -1, clusters)
    number = sums(owner, count)
    result: Floats = np.divide(
        sums(owner, count, np.nan_to_num(values)), number, out=np.full(count, np.nan), where=number > 0
    )
    return result


_Found = tuple[float, float, float, float, float, float]


def _paired(d: Floats, level: float, power: float, replicates: int, rng: np.random.Generator) -> _Found:
    mean, error = float(d.mean()), float(d.std(ddof=1) / math.sqrt(len(d)))
    draws = d[rng.integers(0, len(d), (replicates, len(d)))]
    errors = draws.std(axis=1, ddof=1) / math.sqrt(len(d))
    low, high, reach = _studentised(draws.mean(axis=1) - mean, errors, level)
    interval = (mean - high * error, mean - low * error)
    return mean, *interval, error, _flips(d, replicates, rng), _detectable(reach, power, error)


def _unpaired(
    one: Floats, other: Floats, level: float, power: float, replicates: int, rng: np.random.Generator
) -> _Found:
    if len(one) < 2 or len(other) < 2:
        mean = float(other.mean() - one.mean()) if len(one) and len(other) else math.nan
        return mean, math.nan, math.nan, math.nan, math.nan, math.nan
    mean = float(other.mean() - one.mean())
    error = math.sqrt(float(one.var(ddof=1)) / len(one) + float(other.var(ddof=1)) / len(other))
    a = one[rng.integers(0, len(one), (replicates, len(one)))]
    b = other[rng.integers(0, len(other), (replicates, len(other)))]
    errors = np.sqrt(a.var(axis=1, ddof=1) / len(one) + b.var(axis=1, ddof=1) / len(other))
    low, high, reach = _studentised(b.mean(axis=1) - a.mean(axis=1) - mean, errors, level)
    interval = (mean - high * error, mean - low * error)
    return mean, *interval, error, _labels(one, other, replicates, rng), _detectable(reach, power, error)


def _studentised(off: Floats, errors: Floats, level: float) -> tuple[float, float, float]:
    """Return lower and upper quantile of the studentised error of the mean, and how far they reach."""
    # A replicate of equal values knows no error: it counts as far off, on the side where it is.
    t = np.divide(off, errors, out=np.where(off == 0, 0.0, np.copysign(np.inf, off)), where=errors > 1e-12)
    ordered = np.sort(t)
    place = (1 - level) / 2 * (len(t) - 1)
    low, high = float(ordered[math.floor(place)]), float(ordered[len(t) - 1 - math.floor(place)])
    return low, high, (high - low) / 2


def _detectable(reach: float, power: float, error: float) -> float:
    return (reach + NormalDist().inv_cdf(power)) * error if math.isfinite(reach) else math.nan


def _flips(d: Floats, replicates: int, rng: np.random.Generator) -> float:
    """Return the two-sided p-value of the mean under flips of signs."""
    seen = abs(float(d.sum())) - 1e-12 * float(np.abs(d).sum())
    if len(d) <= _ALL_FLIPS:
        signs = np.array(list(itertools.product((-1.0, 1.0), repeat=len(d))))
        return float((np.abs(signs @ d) >= seen).mean())
    hits, left = 0, replicates
    while left:
        now = min(left, max(1, _CHUNK // len(d)))
        signs = rng.integers(0, 2, (now, len(d))) * 2.0 - 1.0
        hits += int((np.abs(signs @ d) >= seen).sum())
        left -= now
    return (hits + 1) / (replicates + 1)


def _labels(one: Floats, other: Floats, replicates: int, rng: np.random.Generator) -> float:
    """Return the two-sided p-value of the difference of means under permuted labels."""
    whole = np.concatenate([one, other])
    size, total = len(other), float(whole.sum())
    seen = abs(float(other.mean() - one.mean()))
    hits = 0
    for _ in range(replicates):
        part = float(rng.choice(whole, size, replace=False).sum())
        hits += abs(part / size - (total - part) / len(one)) >= seen - 1e-12
    return (hits + 1) / (replicates + 1)
