"""Numbers about a rollout: one vote per session, missing is not zero."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from analysis.lab.rollout_stats import interval, mean_and_error, rollout_statistics, sessions_of


def _sample(group: int, trajectory: int, reward: float | None, **changes: Any) -> dict[str, Any]:
    base = {
        "group_index": group,
        "index": trajectory,
        "group_id": trajectory,
        "tokens": [1, 2, 3, 4],
        "response_length": 2,
        "loss_mask": [1, 1],
        "reward": {"score": reward},
        "remove_sample": False,
        "status": "completed",
        "weight_versions": ["3"],
        "metadata": {"polar": {"policy_staleness": 2}},
    }
    return base | changes


def test_a_session_with_many_traces_has_one_vote() -> None:
    """Two traces of one session are averaged before sessions are."""
    samples = [_sample(0, 0, 1.0), _sample(0, 0, 0.0), _sample(0, 1, 1.0)]
    first, second = sessions_of(samples, reward_key="score")
    assert first.reward == 0.5
    assert first.samples == [0, 1]
    assert first.trainable_tokens == 4
    assert second.reward == 1.0
    assert rollout_statistics(samples, reward_key="score")["lab/reward_mean"] == pytest.approx(0.75)


def test_failed_masked_and_reward_less_sessions_stay_out_of_the_mean() -> None:
    """Only usable sessions with a reward count; the others are counted by themselves."""
    samples = [
        _sample(0, 0, 1.0),
        _sample(0, 1, 0.0, status="failed"),
        _sample(0, 2, 0.0, loss_mask=[0, 0]),
        _sample(0, 3, 0.0, remove_sample=True),
        _sample(1, 4, None),
    ]
    numbers = rollout_statistics(samples, reward_key="score")
    assert numbers["lab/reward_mean"] == 1.0
    assert numbers["lab/sessions"] == 5
    assert numbers["lab/usable_sessions"] == 2
    assert numbers["lab/groups"] == 2
    assert numbers["lab/trainable_tokens"] == 4


def test_nothing_usable_gives_nan_not_zero() -> None:
    """Without a usable session the reward and the lag are unknown."""
    numbers = rollout_statistics([_sample(0, 0, 0.0, status="aborted")], reward_key="score", engine_version=5)
    for name in ("lab/reward_mean", "lab/reward_stderr", "lab/lag_mean", "lab/lag_max", "lab/token_lag_mean"):
        assert math.isnan(numbers[name])
    assert rollout_statistics([])["lab/sessions"] == 0


def test_token_lag_counts_from_the_oldest_token() -> None:
    """A session that spans two weight versions is as old as its oldest token."""
    samples = [
        _sample(0, 0, 1.0, weight_versions=["6", "4"]),
        _sample(0, 1, 1.0, weight_versions=["default"]),
    ]
    numbers = rollout_statistics(samples, reward_key="score", engine_version=7)
    assert numbers["lab/token_lag_mean"] == 3.0
    assert (numbers["lab/lag_min"], numbers["lab/lag_mean"], numbers["lab/lag_max"]) == (2.0, 2.0, 2.0)


def test_lag_is_unknown_without_a_stamp() -> None:
    """A sample that did not come from Polar has no lag, and says so."""
    numbers = rollout_statistics([_sample(0, 0, 1.0, metadata={}, weight_versions=[])], reward_key="score")
    assert math.isnan(numbers["lab/lag_mean"])
    assert math.isnan(numbers["lab/token_lag_mean"])


def test_error_of_the_mean_sees_a_group_as_one_draw() -> None:
    """Perfectly correlated groups of eight are worth one draw each, not eight."""
    rng = np.random.default_rng(0)
    outcomes = rng.integers(0, 2, 200).astype(float)
    clustered = [(group, value) for group, value in enumerate(outcomes) for _ in range(8)]
    mean, error = mean_and_error(clustered)
    assert mean == pytest.approx(outcomes.mean())
    assert error == pytest.approx(outcomes.std(ddof=1) / math.sqrt(200), rel=1e-9)


def test_error_of_the_mean_in_edge_cases() -> None:
    """No value: no mean; one group: no error; NaN values are left out."""
    assert all(math.isnan(value) for value in mean_and_error([]))
    mean, error = mean_and_error([(0, 1.0), (0, 0.0), (1, math.nan)])
    assert mean == 0.5
    assert math.isnan(error)
    assert interval(0.5, 0.1) == pytest.approx((0.304, 0.696))


def test_endings_tell_how_sessions_ended() -> None:
    """Polar's status in one word; a completed session with a cut trace counts as truncated, once."""

    def ended(trajectory: int, polar: str | None, own: str) -> dict[str, Any]:
        metadata = {"polar": {"session_status": polar}} if polar else {}
        return _sample(0, trajectory, 1.0, status=own, metadata=metadata)

    samples = [
        ended(0, "COMPLETED", "completed"),
        ended(1, "COMPLETED", "truncated"),
        ended(1, "COMPLETED", "completed"),
        ended(2, "TIMEOUT", "aborted"),
        ended(3, "ERROR", "failed"),
        ended(4, "ERROR", "failed"),
        ended(5, None, "completed"),
    ]
    numbers = rollout_statistics(samples, reward_key="score")
    assert numbers["lab/endings"] == {"completed": 2, "error": 2, "timeout": 1, "truncated": 1}
