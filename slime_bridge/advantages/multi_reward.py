"""Estimators for several reward components per trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from slime_bridge.advantages.base import AdvantageEstimator, Scaling
from slime_bridge.advantages.batch import Floats, Grouping, RewardBatch
from slime_bridge.advantages.statistics import (
    SPREAD_FLOOR,
    deviation,
    group_means,
    group_spreads,
    spread_or_one,
)
from slime_bridge.errors import AdvantageError

__all__ = ["DVAO", "GDPO"]

_MISSING = "a trace that lacks one of the components counts as one without a reward"


def _checked_keys(owner: object, keys: Any) -> tuple[str, ...]:
    names = () if isinstance(keys, str) or not isinstance(keys, Sequence) else tuple(keys)
    if (
        len(names) < 2
        or len(set(names)) != len(names)
        or not all(isinstance(name, str) and name for name in names)
    ):
        raise AdvantageError(
            f"{type(owner).__name__}: keys must name at least two different reward components, got {keys!r}"
        )
    return names


def _centred(batch: RewardBatch, keys: tuple[str, ...]) -> tuple[Grouping, list[tuple[Floats, Floats]]]:
    """Return the grouping, and per component the traces' distance from the group's mean and the means."""
    values = [batch.component(name) for name in keys]
    known: NDArray[np.bool_] = np.logical_and.reduce([np.isfinite(column) for column in values])
    grouping = Grouping.of(batch, known)
    parts = []
    for column in values:
        means = grouping.trajectory_means(column)
        off = column - group_means(grouping, means)[grouping.group_of_trace]
        parts.append((np.where(grouping.eligible, off, 0.0), means))
    return grouping, parts


@dataclass(frozen=True)
class GDPO(AdvantageEstimator):
    """Each component normalised in its group, summed, and the sum normalised over the batch.

    Parameters
    ----------
    keys
        Names of the components, at least two.
    epsilon
        Added to each standard deviation.
    """

    keys: tuple[str, ...] = ("correctness", "format")
    epsilon: float = 1e-4
    formula: ClassVar[str] = (
        "S = sum over components of (r_c - mean of m_c) / (W_c + epsilon), W_c the group's sample deviation;"
        " A = (S - mean of S) / (deviation of S + epsilon) over the trajectory means of S in the batch"
    )
    source: ClassVar[str] = "Liu et al. 2026, arXiv:2601.05242"
    differences: ClassVar[tuple[str, ...]] = (
        "the unit is the trajectory, in the groups and in the batch",
        "trajectories that failed or have nothing to train on take no part and get 0",
        "a component whose spread is below 1e-6 is divided by 1",
        "components have equal weights",
        _MISSING,
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", _checked_keys(self, self.keys))
        self._require_finite("epsilon", at_least=0)

    @property
    def scaling(self) -> Scaling:
        """Advantages do not depend on the components' scales."""
        return "invariant"

    @property
    def components(self) -> tuple[str, ...]:
        """The keys."""
        return self.keys

    def __call__(self, batch: RewardBatch) -> Floats:
        """Return one advantage per trace, shape (n,)."""
        grouping, parts = _centred(batch, self.keys)
        total = np.zeros(len(batch))
        for off, means in parts:
            spreads = group_spreads(grouping, means)
            divisor = np.where(spreads < SPREAD_FLOOR, 1.0, spreads + self.epsilon)
            total += off / divisor[grouping.group_of_trace]
        sums = grouping.trajectory_means(total)[grouping.valid]
        spread = deviation(sums)
        centre = float(sums.mean()) if len(sums) else 0.0
        divisor_of_all = 1.0 if spread < SPREAD_FLOOR else spread + self.epsilon
        return np.where(grouping.eligible, (total - centre) / divisor_of_all, 0.0)


@dataclass(frozen=True)
class DVAO(AdvantageEstimator):
    """The sum of the centred components over the sum of their standard deviations.

    Parameters
    ----------
    keys
        Names of the components, at least two.
    """

    keys: tuple[str, ...] = ("correctness", "format")
    formula: ClassVar[str] = (
        "A = sum over components of (r_c - mean of m_c) / W, W the sum of their population deviations"
    )
    source: ClassVar[str] = "Jiang et al. 2026, arXiv:2605.25604"
    differences: ClassVar[tuple[str, ...]] = (
        "the unit is the trajectory",
        "trajectories that failed or have nothing to train on take no part and get 0",
        _MISSING,
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", _checked_keys(self, self.keys))

    @property
    def scaling(self) -> Scaling:
        """Advantages do not depend on the common scale of the components."""
        return "invariant"

    @property
    def components(self) -> tuple[str, ...]:
        """The keys."""
        return self.keys

    def __call__(self, batch: RewardBatch) -> Floats:
        """Return one advantage per trace, shape (n,)."""
        grouping, parts = _centred(batch, self.keys)
        total = np.zeros(len(batch))
        spreads = np.zeros(grouping.n_groups)
        for off, means in parts:
            total += off
            spreads += group_spreads(grouping, means, ddof=0)
        return total / spread_or_one(spreads)[grouping.group_of_trace]
