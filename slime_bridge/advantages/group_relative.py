"""Estimators that compare each trajectory with its siblings: one number per trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from slime_bridge.advantages.base import AdvantageEstimator, Lone, Scaling
from slime_bridge.advantages.batch import Floats, RewardBatch
from slime_bridge.advantages.statistics import (
    SPREAD_FLOOR,
    group_means,
    group_spreads,
    means_of_the_others,
    spread_or_one,
)

__all__ = ["GRPO", "GSPO", "RLOO", "DrGRPO", "LeaveOneTrajectoryOut"]

_UNIT = "the unit is the trajectory: several traces of one session share its mean reward in all statistics"
_UNUSABLE = "trajectories that failed or have nothing to train on take no part and get 0"


def _for_traces(batch: RewardBatch, baseline: Floats, divisor: Floats) -> Floats:
    """Return ``(own reward - baseline) / divisor`` per eligible trace; both are per trajectory."""
    grouping = batch.grouping
    of = grouping.trajectory[grouping.eligible]
    result = np.zeros(len(batch))
    result[grouping.eligible] = (batch.reward[grouping.eligible] - baseline[of]) / divisor[of]
    return result


@dataclass(frozen=True)
class LeaveOneTrajectoryOut(AdvantageEstimator):
    """A trace's reward minus the mean of the other trajectories: the bridge's default.

    Parameters
    ----------
    std_normalization
        Divide by the sample standard deviation over all valid trajectories of the group.
    """

    std_normalization: bool = False
    formula: ClassVar[str] = "A = (r - mean of m_j over j != own) / W, with W = 1 unless std_normalization"
    source: ClassVar[str] = "RLOO (arXiv:2402.14740), on trajectories instead of samples"
    differences: ClassVar[tuple[str, ...]] = (
        _UNIT,
        _UNUSABLE,
        "a lone trajectory has no baseline and keeps its reward",
        "the optional spread is over all trajectories: that of the others is zero where one stands out",
    )
    lone: ClassVar[Lone] = "raw"

    @property
    def scaling(self) -> Scaling:
        """Advantages scale with the rewards unless they are divided by their spread."""
        return "invariant" if self.std_normalization else "equivariant"

    def __call__(self, batch: RewardBatch) -> Floats:
        """Return one advantage per trace, shape (n,)."""
        grouping = batch.grouping
        means = grouping.trajectory_means(batch.reward)
        divisor = np.ones(len(means))
        if self.std_normalization:
            divisor = spread_or_one(group_spreads(grouping, means))[grouping.group]
        return _for_traces(batch, means_of_the_others(grouping, means), divisor)


@dataclass(frozen=True)
class RLOO(AdvantageEstimator):
    """REINFORCE with the other trajectories' mean as the baseline."""

    formula: ClassVar[str] = "A = r - mean of m_j over j != own"
    source: ClassVar[str] = "Ahmadian et al. 2024, arXiv:2402.14740; Kool et al. 2019"
    differences: ClassVar[tuple[str, ...]] = (_UNIT, _UNUSABLE, "a lone trajectory, left open there, gets 0")

    def __call__(self, batch: RewardBatch) -> Floats:
        """Return one advantage per trace, shape (n,)."""
        grouping = batch.grouping
        means = grouping.trajectory_means(batch.reward)
        result = _for_traces(batch, means_of_the_others(grouping, means), np.ones(len(means)))
        result[grouping.sizes[grouping.group_of_trace] < 2] = 0.0
        return result


@dataclass(frozen=True)
class GRPO(AdvantageEstimator):
    """A trace's reward minus the group's mean, over the group's standard deviation.

    Parameters
    ----------
    std_normalization
        Divide by the sample standard deviation.
    epsilon
        Added to it.
    """

    std_normalization: bool = True
    epsilon: float = 1e-6
    formula: ClassVar[str] = (
        "A = (r - mean of m_j) / (W + epsilon), with W + epsilon = 1 unless std_normalization"
    )
    source: ClassVar[str] = (
        "Shao et al. 2024, arXiv:2402.03300; numbers as in Slime's normalisation of a group"
    )
    differences: ClassVar[tuple[str, ...]] = (
        _UNIT,
        _UNUSABLE,
        "groups are told apart by their number, never by position",
        "a spread below 1e-6 divides by 1, so that traces of equal trajectories do not get huge advantages",
    )

    def __post_init__(self) -> None:
        self._require_finite("epsilon", at_least=0)

    @property
    def scaling(self) -> Scaling:
        """Advantages do not depend on the rewards' scale when they are divided by their spread."""
        return "invariant" if self.std_normalization else "equivariant"

    def __call__(self, batch: RewardBatch) -> Floats:
        """Return one advantage per trace, shape (n,)."""
        grouping = batch.grouping
        means = grouping.trajectory_means(batch.reward)
        divisor = np.ones(grouping.n_groups)
        if self.std_normalization:
            spreads = group_spreads(grouping, means)
            divisor = np.where(spreads < SPREAD_FLOOR, 1.0, spreads + self.epsilon)
        return _for_traces(batch, group_means(grouping, means)[grouping.group], divisor[grouping.group])


@dataclass(frozen=True)
class DrGRPO(AdvantageEstimator):
    """A trace's reward minus the group's mean, not divided by anything."""

    formula: ClassVar[str] = "A = r - mean of m_j"
    source: ClassVar[str] = "Liu et al. 2025 (Dr. GRPO), arXiv:2503.20783"
    differences: ClassVar[tuple[str, ...]] = (
        _UNIT,
        _UNUSABLE,
        "only the advantage: the constant length normalisation of the loss is the trainer's business",
    )

    def __call__(self, batch: RewardBatch) -> Floats:
        """Return one advantage per trace, shape (n,)."""
        return GRPO(std_normalization=False)(batch)


@dataclass(frozen=True)
class GSPO(GRPO):
    """GRPO's advantage, used with one importance ratio per sequence."""

    source: ClassVar[str] = (
        "Zheng et al. 2025, arXiv:2507.18071; numbers as in Slime's normalisation of a group"
    )
    differences: ClassVar[tuple[str, ...]] = (
        *GRPO.differences,
        "only the advantage: the sequence-level ratio and its clipping are part of the trainer's loss",
    )
