"""Rewards per rollout: means over the right sessions, and intervals that count groups."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from analysis.errors import StatsError
from analysis.stats import rewards
from analysis.stats.training import _student
from tests.analysis.stats.builder import RunBuilder, same, untouched


def test_means_of_usable_and_of_completed_sessions() -> None:
    """Rejected groups, unusable sessions and missing rewards are in no mean; evaluations are rows apart."""
    builder = RunBuilder()
    late = {"completed": False, "usable": True, "status": "TIMEOUT"}
    builder.group([1.0, 0.0, 0.8, None], sessions=[{}, {}, late, {}])
    builder.group([1.0, 1.0], accepted=False, state="rejected")
    builder.group([0.25, 0.75], rollout_id=3)
    held_out = {"evaluation": True, "dataset": "held_out"}
    builder.group([0.0], accepted=None, sessions=[held_out], **held_out)
    tables = builder.tables()
    before = untouched(tables)
    found = rewards(tables)
    same(before, tables)
    assert found["rollout_id"].tolist() == [0, 3, 0]
    assert found["evaluation"].tolist() == [False, False, True]
    assert found["dataset"].fillna("none").tolist() == ["none", "none", "held_out"]
    assert found["sessions"].tolist() == [3, 2, 1]
    assert found["completed_sessions"].tolist() == [2, 2, 1]
    assert found["reward_mean"].tolist() == pytest.approx([0.6, 0.5, 0.0])
    assert found["reward_mean_completed"].tolist() == [0.5, 0.5, 0.0]
    assert found["reward_std"].tolist() == pytest.approx([math.sqrt(0.56 / 3), 0.25, 0.0])
    assert found["reward_low"].isna().all()  # of fewer than four groups nothing can be said


def test_interval_of_groups_of_one_is_students() -> None:
    """With one session per group it is the textbook interval: 2.776 standard errors for five."""
    builder = RunBuilder()
    values = [0.1, 0.4, 0.5, 0.9, 0.35]
    for value in values:
        builder.group([value])
    found = rewards(builder.tables()).iloc[0]
    half = 2.7764 * np.std(values, ddof=1) / math.sqrt(5)
    assert found["reward_high"] - found["reward_mean"] == pytest.approx(half, rel=0.005)
    assert found["reward_mean"] - found["reward_low"] == pytest.approx(half, rel=0.005)


def test_intervals_cover_the_truth_though_sessions_of_a_group_are_alike() -> None:
    """In 600 rollouts of 16 groups of 8 about 95 % hold the expected reward."""
    rng = np.random.default_rng(4)
    rows, covered, naive = [], 0, 0
    for rollout in range(600):
        chance = rng.beta(1.0, 1.0, 16)
        for group, own in enumerate(chance):
            for reward in (rng.random(8) < own).astype(float):
                rows.append((rollout, 16 * rollout + group, reward))
    table = pd.DataFrame(rows, columns=["rollout_id", "group_index", "reward"])
    table = table.assign(run="r", usable=True, completed=True, accepted=True, evaluation=False)
    for row in rewards({"sessions": table}).itertuples():
        covered += row.reward_low <= 0.5 <= row.reward_high
        naive += abs(row.reward_mean - 0.5) <= 1.96 * row.reward_std / math.sqrt(row.sessions)
    assert 0.93 <= covered / 600 <= 0.97
    assert naive / 600 < 0.8


@pytest.mark.parametrize(
    ("level", "freedom", "quantile"), [(0.95, 3, 3.1824), (0.95, 15, 2.1314), (0.8, 5, 1.4759)]
)
def test_students_quantile_is_that_of_the_table(level: float, freedom: int, quantile: float) -> None:
    """Within a percent."""
    assert _student(level, freedom) == pytest.approx(quantile, rel=0.01)


def test_nothing_and_nonsense() -> None:
    """No sessions are no rows, with all columns; a level of 1 is refused."""
    empty = rewards({})
    assert empty.empty
    assert {"reward_mean", "reward_low", "reward_mean_completed"} <= set(empty)
    with pytest.raises(StatsError, match="level"):
        rewards({}, level=1.0)
