"""Estimators that fail while others are compared: named, left out, and no reason to lose the rest."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from analysis.errors import StatsError
from analysis.stats.advantages import compare, recompute
from slime_bridge.advantages import RewardBatch
from slime_bridge.errors import AdvantageError
from tests.analysis.stats.builder import RunBuilder


def leaves(rewards: np.ndarray, groups: np.ndarray, trajectories: np.ndarray) -> np.ndarray:
    sys.exit(1)


def nans(rewards: np.ndarray, groups: np.ndarray, trajectories: np.ndarray) -> np.ndarray:
    return rewards * np.nan


def short(batch: RewardBatch) -> list[float]:
    return [1.0]


@pytest.fixture
def run() -> dict:
    builder = RunBuilder()
    builder.group([1.0, 0.0, 0.0])
    builder.group([0.0, 1.0, 1.0], rollout_id=1)
    return builder.tables()


def test_the_others_are_compared(run: dict) -> None:
    """With a warning and a row for each that failed; gae needs values that this run has not."""
    with pytest.warns(RuntimeWarning, match="is left out of the comparison") as said:
        found = compare(run, ["loo", leaves, nans, short, "gae", "grpo"])
    assert len(said) == 4
    assert found.summary["estimator"].tolist() == ["loo", "grpo"]
    assert set(found.traces["estimator"]) == {"loo", "grpo"}
    why = found.failed.set_index("estimator")["why"]
    assert list(why.index) == ["leaves", "nans", "short", "gae"]
    assert "leaves failed: SystemExit: 1" in why["leaves"]
    assert "nans returned nan at 0" in why["nans"]
    assert "short returned shape (1,), expected (3,)" in why["short"]
    assert "GAE needs per-token arrays" in why["gae"]


def test_where_all_work_none_failed(run: dict) -> None:
    """An empty table with the same columns."""
    found = compare(run, ["loo"])
    assert found.failed.columns.tolist() == ["estimator", "why"]
    assert found.failed.empty


def test_a_name_that_is_none_and_nothing_left_are_errors(run: dict) -> None:
    """A slip of the pen is not an estimator that failed."""
    with pytest.raises(AdvantageError, match="did you mean 'grpo'"):
        compare(run, ["loo", "grpoo"])
    with pytest.raises(AdvantageError, match="nans returned nan"):
        compare(run, [nans])
    with pytest.raises(AdvantageError, match="leaves failed: SystemExit"):
        recompute(run, leaves)
    with pytest.raises(StatsError, match="missing_reward"):
        compare(run, ["loo"], missing_reward="none")  # type: ignore[arg-type]
