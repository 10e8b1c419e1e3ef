"""Which estimator a run was trained with, as its files say."""

from __future__ import annotations

from typing import Any

import pytest

from analysis.stats.advantages import recompute
from analysis.stats.configuration import estimator_in_use
from analysis.stats.frames import as_frames
from slime_bridge.advantages import GDPO, GRPO, LeaveOneTrajectoryOut
from tests.analysis.stats.builder import RunBuilder

DIVIDED = LeaveOneTrajectoryOut(std_normalization=True)


def _dumped(estimator: Any, constant: int, varied: int, **config: Any) -> dict[str, Any]:
    """A run whose dumped advantages are an estimator's; most of its groups may be without variance."""
    builder = RunBuilder(**config)
    for _ in range(constant):
        builder.group([1.0, 1.0, 1.0, 1.0])
    for _ in range(varied):
        builder.group([1.0, 0.0, 0.0, 0.0])
    tables = builder.tables()
    traces = tables["trace"]
    traces["advantage_raw"] = recompute(traces, estimator)["advantage"]
    return tables


@pytest.mark.parametrize("estimator", [LeaveOneTrajectoryOut(), DIVIDED])
@pytest.mark.parametrize("constant", [0, 9])
def test_groups_without_variance_decide_nothing(estimator: LeaveOneTrajectoryOut, constant: int) -> None:
    """Both forms give them zeros, and over nine of ten groups the median difference would be 0 for either."""
    assert estimator_in_use(as_frames(_dumped(estimator, constant, 1))) == estimator


def test_where_nothing_tells_the_default_is_taken() -> None:
    """Without dumped advantages, or with zeros alone."""
    builder = RunBuilder()
    builder.group([1.0, 0.0])
    assert estimator_in_use(as_frames(builder.tables())) == LeaveOneTrajectoryOut()
    assert estimator_in_use(as_frames(_dumped(DIVIDED, 3, 0))) == LeaveOneTrajectoryOut()


def test_the_journal_names_what_was_chosen() -> None:
    """Over what the numbers look like; a class of the user's own is never imported on a journal's word."""
    named = {"advantage_estimator": "grpo", "advantage_estimator_kwargs": {"epsilon": 0.5}}
    assert estimator_in_use(as_frames(_dumped(DIVIDED, 0, 2, **named))) == GRPO(epsilon=0.5)
    rewards = {"gdpo_reward_keys": ["correct", "short"]}
    assert estimator_in_use(as_frames(_dumped(DIVIDED, 0, 2, **rewards))) == GDPO(keys=("correct", "short"))
    foreign = {"advantage_estimator": "antigravity:fly"}
    assert estimator_in_use(as_frames(_dumped(DIVIDED, 0, 2, **foreign))) == DIVIDED
