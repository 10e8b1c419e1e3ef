"""What the rewards of a few trajectories tell about the reward distribution of their prompt.

Model
-----
The rewards of a prompt's trajectories are independent draws from an unknown distribution ``P``. Its prior is
a Dirichlet process ``DP(alpha, G0)``: the base measure ``G0`` is the mean of the empirical distributions of
the groups nearby (the pool), and ``alpha`` says how many observations that prior is worth. After n rewards
the posterior is ``DP(alpha + n, (alpha G0 + sum of the n points) / (alpha + n))`` (Ferguson 1973, Annals of
Statistics 1, 209-230). Drawing from it is a bootstrap in which the pool helps out: with ``alpha = 0`` it is
the Bayesian bootstrap (Rubin 1981, Annals of Statistics 9, 130-134), for rewards of 0 and 1 it is the
beta-binomial posterior.

Three things are uncertain besides, and are drawn as well:

- ``alpha``. Under the model the variance of a prompt's mean is ``s^2 / (alpha + 1)`` and that within a prompt
  ``s^2 alpha / (alpha + 1)``, so ``alpha = within / between``. With the one-way analysis of variance of the
  pool, ``F`` its ratio of mean squares and ``m`` its typical group size, ``1 + m / alpha`` is ``F`` over a
  draw of the F distribution, taken where that is above 1 and weighed by its cube: where prompts hardly
  differ, the estimate alone would say too often that they do not differ at all.
- ``G0``: the pool's groups are weighed by a Bayesian bootstrap.
- The spread, where rewards are graded. Draws are stretched around their mean by ``sqrt(nu / chi^2_nu)`` with
  ``nu = (n - 1) / (u f^2)``: f is the part of the posterior variance that comes from the group itself, and u
  is 0 where groups hold two different rewards and 1 where all rewards differ. It is Student's correction;
  two values need none, since their spread follows from their mean.

A plain bootstrap of the siblings alone is no substitute: of eight failures it says that the prompt can never
be solved.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from analysis.stats.columns import Floats, Ints

__all__ = ["GroupedRewards", "Pool", "group_posteriors", "make_pool", "pool_members", "stretch"]

_ATOMS = 16
_LEAST_ALPHA, _MOST_ALPHA = 1e-3, 1e6
_LEANING = 3.0
_CHUNK = 2_000_000


@dataclass(frozen=True, eq=False)
class GroupedRewards:
    """The mean rewards of one batch's valid trajectories, group by group.

    Parameters
    ----------
    values
        Shape (T,): one per valid trajectory.
    group
        Shape (T,): 0 to `count` - 1.
    count
        Groups, those without a valid trajectory included.
    """

    values: Floats
    group: Ints
    count: int

    @property
    def sizes(self) -> Ints:
        """Valid trajectories per group, shape (count,)."""
        return np.bincount(self.group, minlength=self.count)

    @property
    def means(self) -> Floats:
        """Mean per group, shape (count,); 0 for groups without a trajectory."""
        sums = np.bincount(self.group, weights=self.values, minlength=self.count)
        means: Floats = sums / np.maximum(self.sizes, 1)
        return means


@dataclass(frozen=True, eq=False)
class Pool:
    """The prior that nearby groups give.

    Parameters
    ----------
    atoms
        Shape (k,): support of the base measure, at most 16; none where the pool is empty.
    shares
        Shape (g, k): the distribution of each of the pool's groups over the atoms.
    ratio
        F of the analysis of variance; NaN where there are too few groups or rewards.
    freedom
        Its degrees of freedom, between and within.
    typical
        Typical group size m.
    graded
        u: 0 where groups hold at most two different rewards, 1 where all differ.
    low, high
        Smallest and largest reward in the pool.
    """

    atoms: Floats
    shares: Floats
    ratio: float
    freedom: tuple[float, float]
    typical: float
    graded: float
    low: float
    high: float

    @property
    def groups(self) -> int:
        """Groups in the pool."""
        return len(self.shares)

    @property
    def alpha(self) -> float:
        """The estimate of alpha: how many observations the prior is worth; 1 where nothing says."""
        if np.isnan(self.ratio):
            return 1.0
        excess = self.ratio - 1.0
        return float(np.clip(self.typical / excess, _LEAST_ALPHA, _MOST_ALPHA)) if excess > 0 else _MOST_ALPHA

    def draw_alpha(self, replicates: int, rng: np.random.Generator) -> Floats:
        """Draw alpha, shape (B,)."""
        if np.isnan(self.ratio) or not np.isfinite(self.ratio):
            return np.full(replicates, self.alpha)
        draws = rng.f(*self.freedom, size=20 * replicates)
        draws = draws[(draws < self.ratio) & (draws > 0)]
        if not len(draws):
            return np.full(replicates, self.alpha)
        weights = draws**-_LEANING
        draws = rng.choice(draws, replicates, p=weights / weights.sum())
        excess = self.ratio / draws - 1.0
        return np.clip(self.typical / np.maximum(excess, 1e-12), _LEAST_ALPHA, _MOST_ALPHA)

    def draw_base(self, replicates: int, rng: np.random.Generator) -> Floats:
        """Draw the weights of the pool's groups, shape (B, g); each row sums to 1."""
        if not self.groups:
            return np.zeros((replicates, 0))
        weights: Floats = rng.dirichlet(np.ones(self.groups), size=replicates)
        return weights


def pool_members(groups_per_batch: Sequence[int], least: int) -> list[slice]:
    """Choose for each batch the neighbours that its prior is estimated from.

    Parameters
    ----------
    groups_per_batch
        Groups of each batch, in order of time.
    least
        Neighbours on both sides are added until there are that many groups.
    """
    totals = np.concatenate([[0], np.cumsum(groups_per_batch)])
    count = len(groups_per_batch)
    chosen = []
    for place in range(count):
        first, last = place, place + 1
        while totals[last] - totals[first] < least and (first > 0 or last < count):
            first, last = max(0, first - 1), min(count, last + 1)
        chosen.append(slice(first, last))
    return chosen


def make_pool(batches: Sequence[GroupedRewards]) -> Pool:
    """Estimate the prior from some batches."""
    starts = np.concatenate([[0], np.cumsum([batch.count for batch in batches], dtype=np.int64)])
    values = np.concatenate([np.zeros(0), *(batch.values for batch in batches)])
    numbers = [b.group + start for b, start in zip(batches, starts[:-1], strict=True)]
    groups = np.unique(np.concatenate([np.zeros(0, np.int64), *numbers]), return_inverse=True)[1].reshape(-1)
    if not len(values):
        nothing = np.zeros(0), np.zeros((0, 0))
        return Pool(*nothing, np.nan, (0.0, 0.0), 1.0, 0.0, np.nan, np.nan)
    sizes = np.bincount(groups)
    ratio, freedom, typical = _variance_ratio(values, groups, sizes)
    atom_of, atoms = _atoms(values, 1.0 / sizes[groups])
    shares = np.zeros((len(sizes), len(atoms)))
    np.add.at(shares, (groups, atom_of), 1.0 / sizes[groups])
    graded = _graded(values, groups, sizes)
    return Pool(atoms, shares, ratio, freedom, typical, graded, float(values.min()), float(values.max()))


def _variance_ratio(values: Floats, groups: Ints, sizes: Ints) -> tuple[float, tuple[float, float], float]:
    """Return F, its degrees of freedom, and the typical group size of a one-way analysis of variance."""
    n, k = float(len(values)), float(len(sizes))
    if n - k < 1 or k < 2:
        return np.nan, (0.0, 0.0), 1.0
    means = np.bincount(groups, weights=values) / sizes
    off = values - means[groups]
    within = float(off @ off) / (n - k)
    spread = means - float(values.mean())
    between = float((sizes * spread * spread).sum()) / (k - 1)
    typical = (n - float((sizes**2).sum()) / n) / (k - 1)
    if within <= 0:
        return (np.inf if between > 0 else np.nan), (k - 1, n - k), typical
    return between / within, (k - 1, n - k), typical


def _atoms(values: Floats, weights: Floats) -> tuple[Ints, Floats]:
    """Return each value's atom, and at most 16 atoms, neighbours of about equal weight joined."""
    distinct, inverse = np.unique(values, return_inverse=True)
    inverse = inverse.reshape(-1)
    if len(distinct) <= _ATOMS:
        return inverse, distinct
    mass = np.bincount(inverse, weights=weights)
    middle = (np.cumsum(mass) - mass / 2) / mass.sum()
    bins = np.unique(np.minimum((middle * _ATOMS).astype(np.int64), _ATOMS - 1), return_inverse=True)[1]
    sums = np.bincount(bins.reshape(-1), weights=mass * distinct)
    return bins.reshape(-1)[inverse], sums / np.bincount(bins.reshape(-1), weights=mass)


def _graded(values: Floats, groups: Ints, sizes: Ints) -> float:
    """Return u, the mean over groups with a spread of (different rewards - 2) / (trajectories - 2)."""
    pairs = np.unique(np.stack([groups.astype(np.float64), values]), axis=1)
    different = np.bincount(pairs[0].astype(np.int64), minlength=len(sizes))
    used = (sizes > 2) & (different > 1)
    if not used.any():
        return 0.0
    return float(np.mean((different[used] - 2) / (sizes[used] - 2)))


def stretch(batch: GroupedRewards, pool: Pool, replicates: int, rng: np.random.Generator) -> Floats:
    """Draw by what the draws of each group are stretched around their mean, shape (B, count)."""
    sizes, alpha = batch.sizes.astype(np.float64), pool.alpha
    if pool.graded <= 0 or not pool.groups:
        return np.ones((replicates, batch.count))
    share = pool.shares.mean(axis=0)
    centre = float(share @ pool.atoms)
    off = batch.values - batch.means[batch.group]
    within = np.bincount(batch.group, weights=off * off, minlength=batch.count)
    own = within + sizes * alpha / (sizes + alpha) * (batch.means - centre) ** 2
    prior = alpha * float(share @ (pool.atoms - centre) ** 2)
    part = np.divide(own, own + prior, out=np.zeros(batch.count), where=own + prior > 0)
    freedom = np.maximum(sizes - 1.0, 1.0) / np.maximum(pool.graded * part * part, 1e-6)
    factors: Floats = np.sqrt(freedom / rng.chisquare(freedom, size=(replicates, batch.count)))
    return factors


def group_posteriors(
    batch: GroupedRewards, pool: Pool, replicates: int, rng: np.random.Generator
) -> Iterator[tuple[Ints, Floats, Floats]]:
    """Draw the mean and the standard deviation of each group's reward distribution.

    Parameters
    ----------
    batch
        The observed rewards.
    pool
        The prior.
    replicates
        Draws B.
    rng
        Source of the draws.

    Yields
    ------
    groups : array of shape (g,)
        Some of the batch's groups; each comes once.
    mean, deviation : arrays of shape (B, g)
        NaN for a group that has neither rewards nor a prior.
    """
    sizes = batch.sizes
    widest = int(sizes.max(initial=0)) + len(pool.atoms)
    step = max(1, _CHUNK // max(1, replicates * max(widest, 1)))
    order = np.argsort(batch.group, kind="stable")
    starts = np.concatenate([[0], np.cumsum(sizes)])
    prior = pool.draw_alpha(replicates, rng)[:, None] * (pool.draw_base(replicates, rng) @ pool.shares)
    for first in range(0, batch.count, step):
        groups = np.arange(first, min(first + step, batch.count))
        width = int(sizes[groups].max(initial=0))
        atoms = np.zeros((len(groups), width + len(pool.atoms)))
        atoms[:, width:] = pool.atoms
        shapes = np.zeros((replicates, len(groups), atoms.shape[1]))
        shapes[:, :, width:] = prior[:, None, :]
        for row, group in enumerate(groups):
            members = order[starts[group] : starts[group + 1]]
            atoms[row, : len(members)], shapes[:, row, : len(members)] = batch.values[members], 1.0
        yield groups, *_moments(rng.standard_gamma(shapes), atoms)


def _moments(weights: Floats, atoms: Floats) -> tuple[Floats, Floats]:
    """Return weighted mean and standard deviation over the last axis."""
    total = weights.sum(axis=-1)
    total = np.where(total > 0, total, np.nan)
    mean = (weights * atoms).sum(axis=-1) / total
    # Centred first: the spread of large, close rewards would drown in rounding otherwise.
    centre = atoms.mean(axis=-1) if atoms.shape[-1] else np.full(atoms.shape[0], np.nan)
    off = atoms - centre[:, None]
    second = (weights * off * off).sum(axis=-1) / total
    variance = second - (mean - centre) ** 2
    return mean, np.sqrt(np.maximum(variance, 0.0))
