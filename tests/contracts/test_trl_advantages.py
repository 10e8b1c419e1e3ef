"""Our estimators beside TRL's: equal on a thousand random ragged groups.

TRL pads every group to the same size, and a member that no reward function could score takes no part: such
members make the groups ragged. The formulas are written down here once more and always compared; against
TRL's own code they are compared where it is installed (``pip install --no-deps trl`` is enough).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from slime_bridge.advantages import GDPO, GRPO, GSPO, RLOO, AdvantageEstimator, DrGRPO, RewardBatch
from tests.contracts import trl_source

needs_trl = pytest.mark.skipif(
    trl_source.source_folder() is None, reason="TRL's source is not installed (pip install --no-deps trl)"
)
Rewards = NDArray[np.float64]

GROUPS, MEMBERS = 1000, 9
EPSILON = 1e-4
SCALED = {"multi_objective_aggregation": "sum_then_normalize", "scale_rewards": "group"}
UNSCALED = {**SCALED, "scale_rewards": "none"}
SUMMED = {"multi_objective_aggregation": "normalize_then_sum", "scale_rewards": "group"}
PLAIN = {"reward_clip_range": None, "beta": 0.0, "normalize_advantages": False}


def ragged_rewards(functions: int, seed: int = 0) -> Rewards:
    """Groups of 0 to nine scored members, binary and graded, some of them constant; NaN for the others."""
    rng = np.random.default_rng(seed)
    shape = (GROUPS, MEMBERS, functions)
    graded = rng.normal(scale=rng.choice([0.01, 1.0, 100.0], size=(GROUPS, 1, 1)), size=shape)
    binary = (rng.random(shape) < rng.random((GROUPS, 1, 1))).astype(np.float64)
    rewards = np.where(rng.random((GROUPS, 1, 1)) < 0.5, binary, graded)
    rewards[::17] = rewards[::17, :1]
    absent = rng.random((GROUPS, MEMBERS)) < rng.choice([0.0, 0.3, 0.8], size=(GROUPS, 1))
    rewards[absent] = np.nan
    return rewards


def ours(estimator: AdvantageEstimator, rewards: Rewards) -> Rewards:
    """Advantages by one of our estimators, with every member a trajectory of one trace."""
    groups, members, functions = rewards.shape
    flat = rewards.reshape(-1, functions)
    batch = RewardBatch(
        reward=flat.sum(axis=1),
        group=np.repeat(np.arange(groups), members),
        trajectory=np.arange(groups * members),
        components={f"r{number}": flat[:, number] for number in range(functions)},
    )
    return np.asarray(estimator(batch)).reshape(groups, members)


def _written_down(rewards: Rewards, member: Callable[[list[float], float], float]) -> Rewards:
    found = np.zeros(rewards.shape[:2])
    for place, group in enumerate(rewards[..., 0].tolist()):
        there = [reward for reward in group if reward == reward]
        for who, reward in enumerate(group):
            if reward == reward and len(there) > 1:
                found[place, who] = member(there, reward)
    return found


def _scaled(there: list[float], reward: float) -> float:
    mean = sum(there) / len(there)
    variance = sum((other - mean) ** 2 for other in there) / (len(there) - 1)
    return (reward - mean) / (variance**0.5 + EPSILON)


def _centred(there: list[float], reward: float) -> float:
    return reward - sum(there) / len(there)


def _against_the_others(there: list[float], reward: float) -> float:
    return reward - (sum(there) - reward) / (len(there) - 1)


CASES: dict[str, tuple[AdvantageEstimator, str, dict[str, Any], Callable[[list[float], float], float]]] = {
    "grpo": (GRPO(epsilon=EPSILON), "grpo", SCALED, _scaled),
    "gspo": (GSPO(epsilon=EPSILON), "grpo", SCALED, _scaled),
    "dr_grpo": (DrGRPO(), "grpo", UNSCALED, _centred),
    "rloo": (RLOO(), "rloo", PLAIN, _against_the_others),
}


@pytest.mark.parametrize("name", CASES)
def test_equals_the_formula_that_trl_computes(name: str) -> None:
    """A plain loop over the members of each group gives the same numbers."""
    estimator, _, _, member = CASES[name]
    rewards = ragged_rewards(1)
    np.testing.assert_allclose(ours(estimator, rewards), _written_down(rewards, member), atol=1e-9)


@pytest.mark.trl
@needs_trl
@pytest.mark.parametrize("name", CASES)
def test_equals_trls_own_code(name: str) -> None:
    """Group-relative and leave-one-out advantages, with TRL's epsilon where it divides."""
    estimator, trainer, settings, _ = CASES[name]
    rewards = ragged_rewards(1)
    theirs = trl_source.advantages(trainer, rewards, **settings)
    assert np.abs(theirs).max() > 1
    np.testing.assert_allclose(ours(estimator, rewards), theirs, atol=1e-6)


@pytest.mark.trl
@needs_trl
def test_gdpo_equals_trls_normalisation_before_summing() -> None:
    """Three components, each normalised in its group, the sum over the batch."""
    rewards = ragged_rewards(3, seed=1)
    theirs = trl_source.advantages("grpo", rewards, **SUMMED)
    found = ours(GDPO(keys=("r0", "r1", "r2"), epsilon=EPSILON), rewards)
    assert np.abs(theirs).max() > 1
    np.testing.assert_allclose(found, theirs, atol=1e-6)
