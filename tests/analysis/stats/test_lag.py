"""Lag is counted once per group, session and token, its parts add up, and bounds are the bridge's own."""

from __future__ import annotations

import json

import numpy as np
import pytest

from analysis.stats.staleness import lag, version_numbers
from tests.analysis.stats.builder import RunBuilder, same, untouched


def _builder() -> RunBuilder:
    builder = RunBuilder(max_async_level=1, update_weights_interval=1)
    builder.group([1.0, 0.0], rollout_id=3, staleness=2, in_queue=1, tokens=10)
    builder.group([1.0, 1.0], rollout_id=3, staleness=0, tokens=30)
    builder.group([0.0, 0.0], rollout_id=4, staleness=1, tokens=20)
    builder.group(
        [0.0],
        rollout_id=4,
        staleness=None,
        accepted=False,
        reject_reason="too_stale",
        verdict_numbers=json.dumps({"staleness": 3, "max_staleness": 2}),
    )
    return builder


def test_parts_add_up_and_bounds_hold() -> None:
    """In flight plus in queue is the lag; what was too old is outside the bound that the journal states."""
    groups = lag(_builder().tables()).groups
    assert groups["lag"].tolist() == [2, 0, 1, 3]
    delivered = groups[groups["accepted"]]
    assert (delivered["in_flight"] + delivered["in_queue"] == delivered["lag"]).all()
    assert groups["bound"].tolist() == [2.0] * 4
    assert groups["within"].tolist() == [True, True, True, False]


def test_histogram_by_group_session_and_token() -> None:
    """Counts and shares of delivered groups, their sessions, and their trainable tokens."""
    histogram = lag(_builder().tables()).histogram
    total = histogram[histogram["part"] == "total"]
    assert total["lag"].tolist() == [0, 1, 2]
    assert total["groups"].tolist() == [1, 1, 1]
    assert total["tokens"].tolist() == [60, 40, 20]
    assert total["token_share"].tolist() == pytest.approx([0.5, 1 / 3, 1 / 6])
    queue = histogram[histogram["part"] == "in_queue"].set_index("lag")
    assert queue.loc[1.0, "groups"] == 1


def test_rollouts_weigh_by_group_and_by_token() -> None:
    """The mean over groups and the mean over tokens differ where old groups are short."""
    rollouts = lag(_builder().tables()).rollouts
    assert rollouts["rollout_id"].tolist() == [3, 4]
    assert rollouts["lag_mean"].tolist() == [1.0, 1.0]
    assert rollouts["token_lag_mean"].tolist() == pytest.approx([0.5, 1.0])
    assert rollouts["lag_max"].tolist() == [2.0, 1.0]
    assert rollouts["bound"].tolist() == [2.0, 2.0]


def test_weight_versions_inside_a_session() -> None:
    """Oldest and newest, whether one served it all, and how far the oldest is behind the newest seen."""
    builder = RunBuilder()
    versions = [("3", "3"), ("2", "4"), (None, None)]
    builder.group(
        [1.0] * 3,
        rollout_id=5,
        sessions=[{"weight_version_oldest": a, "weight_version_newest": b} for a, b in versions],
    )
    found = lag(builder.tables())
    assert found.sessions["versions_spanned"].tolist()[:2] == [0, 2]
    assert found.sessions["behind"].tolist()[:2] == [1, 2]
    assert found.sessions["behind"].isna().tolist() == [False, False, True]
    assert found.rollouts["mixed_share"].tolist() == [0.5]


def test_versions_that_are_names_are_ordered_by_appearance() -> None:
    """Integers count as they are; digests only tell same from different."""
    assert np.array_equal(
        version_numbers(np.array(["10", "9", None], dtype=object)), [10, 9, np.nan], equal_nan=True
    )
    assert version_numbers(np.array(["b", "a", "b"], dtype=object)).tolist() == [0, 1, 0]


def test_lag_against_reward_and_rejection() -> None:
    """One row per lag: how many candidates, how many of them were rejected, and the reward of the groups."""
    relations = lag(_builder().tables()).relations
    assert relations["lag"].tolist() == [0, 1, 2, 3]
    assert relations["rejected"].tolist() == [0, 0, 0, 1]
    assert relations["rejected_share"].tolist() == [0.0, 0.0, 0.0, 1.0]
    assert (relations["low"] <= relations["rejected_share"]).all()


def test_empty_and_unchanged() -> None:
    """Nothing gives empty frames with their columns; nothing is changed."""
    empty = lag({})
    for name in ("groups", "sessions", "histogram", "rollouts", "relations"):
        assert len(getattr(empty, name)) == 0, name
    assert str(empty.rollouts["lag_mean"].dtype) == "Float64"
    tables = _builder().tables()
    before = untouched(tables)
    lag(tables)
    same(before, tables)
