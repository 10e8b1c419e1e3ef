"""Estimators for the best of k attempts: a trajectory is worth what it adds to them, not its score."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

from slime_bridge.advantages.base import AdvantageEstimator, Scaling
from slime_bridge.advantages.batch import Floats, Grouping, RewardBatch
from slime_bridge.errors import AdvantageError

__all__ = ["MaxAtK", "PassAtK"]


@lru_cache(maxsize=256)
def _weights(n: int, k: int) -> Floats:
    """Return the matrix that maps n ascending rewards to their advantages for the best of k < n.

    Of all subsets of size k that contain i, a share of ``C(i-1, k-1) / C(n-1, k-1)`` has i as its best
    (counted from 1), and ``C(j-2, k-2) / C(n-1, k-1)`` has a better j. Of those without i, ``C(p-1, k-1) /
    C(n-1, k)`` has the one as its best that comes p-th among the others.
    """
    with_i, without_i = math.comb(n - 1, k - 1), math.comb(n - 1, k)
    weights = np.zeros((n, n))
    for i in range(1, n + 1):
        weights[i - 1, i - 1] = math.comb(i - 1, k - 1) / with_i
        for j in range(1, n + 1):
            if j == i:
                continue
            if j > i and k > 1:
                weights[i - 1, j - 1] += math.comb(j - 2, k - 2) / with_i
            place = j if j < i else j - 1
            weights[i - 1, j - 1] -= math.comb(place - 1, k - 1) / without_i
    weights.setflags(write=False)
    return weights


@dataclass(frozen=True)
class MaxAtK(AdvantageEstimator):
    """What a trajectory adds to the expected best reward of k attempts.

    Parameters
    ----------
    k
        Number of attempts, at least 1. In a group of n <= k valid trajectories it is lowered to n - 1.
    """

    k: int = 4
    formula: ClassVar[str] = (
        "A_j = mean of the best m over the group's k-subsets with j - mean of the best m over those without j"
    )
    source: ClassVar[str] = "Walder and Karkhanis 2025 (PKPO), arXiv:2505.15201, leave-one-out form"
    differences: ClassVar[tuple[str, ...]] = (
        "scaled by n/k, so that k = 1 is RLOO",
        "all traces of a trajectory get the trajectory's advantage",
        "trajectories that failed or have nothing to train on take no part and get 0",
        "k is lowered to n - 1 in groups of n <= k; a lone trajectory gets 0",
    )

    def __post_init__(self) -> None:
        if not isinstance(self.k, int) or isinstance(self.k, bool) or self.k < 1:
            raise AdvantageError(f"{type(self).__name__}: k must be an integer of at least 1, got {self.k!r}")

    def __call__(self, batch: RewardBatch) -> Floats:
        """Return one advantage per trace, shape (n,)."""
        grouping = batch.grouping
        return self._advantages(grouping, grouping.trajectory_means(batch.reward))

    def _advantages(self, grouping: Grouping, means: Floats) -> Floats:
        valid = np.flatnonzero(grouping.valid)
        # Ascending within each group: the weights are for sorted rewards.
        ranked = valid[np.lexsort((means[valid], grouping.group[valid]))]
        starts = np.concatenate([[0], np.cumsum(grouping.sizes)])
        advantages = np.zeros(len(means))
        for size in np.unique(grouping.sizes[grouping.sizes > 1]).tolist():
            members = ranked[starts[:-1][grouping.sizes == size][:, None] + np.arange(size)]
            values = means[members]
            # Weights of a row sum to 0: taking off the lowest reward first keeps equal rewards at exactly 0.
            centred = values - values[:, :1]
            advantages[members] = centred @ _weights(size, min(self.k, size - 1)).T
        result = np.where(grouping.eligible, advantages[grouping.trajectory], 0.0)
        return np.asarray(result, dtype=np.float64)


@dataclass(frozen=True)
class PassAtK(MaxAtK):
    """What a trajectory adds to the probability that one of k attempts succeeds.

    Parameters
    ----------
    k
        Number of attempts, at least 1. In a group of n <= k valid trajectories it is lowered to n - 1.
    threshold
        A trajectory succeeds if its mean reward is at least this.
    """

    threshold: float = 1.0
    formula: ClassVar[str] = "max@k of 1 where m >= threshold, else 0"
    source: ClassVar[str] = "Walder and Karkhanis 2025 (PKPO), arXiv:2505.15201, for binary rewards"
    shift_invariant: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_finite("threshold")

    @property
    def scaling(self) -> Scaling:
        """Rewards count only as above or below the threshold."""
        return "other"

    def __call__(self, batch: RewardBatch) -> Floats:
        """Return one advantage per trace, shape (n,)."""
        grouping = batch.grouping
        means = grouping.trajectory_means(batch.reward)
        passed = np.where(np.isnan(means), np.nan, means >= self.threshold)
        return self._advantages(grouping, passed)
