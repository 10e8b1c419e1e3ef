"""Intervals cover the true advantage as often as they say, and reported noise is the noise there is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from analysis.errors import StatsError
from analysis.stats._posterior import GroupedRewards, group_posteriors, make_pool, pool_members
from analysis.stats.advantages import uncertainty
from analysis.stats.numbers import weighted_mean
from slime_bridge.advantages import GRPO, MaxAtK
from tests.analysis.stats.builder import RunBuilder, run_of_rewards, same, untouched

GROUPS = 1200


def _beta(a: float, b: float) -> Callable:
    def draw(rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        value = rng.beta(a, b, GROUPS)
        rewards = (rng.random((GROUPS, size)) < value[:, None]).astype(float)
        return rewards, value, np.sqrt(value * (1 - value))

    return draw


def _normal(between: float) -> Callable:
    def draw(rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        value = rng.normal(0, between, GROUPS)
        return value[:, None] + rng.normal(0, 1, (GROUPS, size)), value, np.ones(GROUPS)

    return draw


def _half_hopeless(rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    value = np.where(rng.random(GROUPS) < 0.4, 0.0, rng.beta(1, 1, GROUPS))
    rewards = (rng.random((GROUPS, size)) < value[:, None]).astype(float)
    return rewards, value, np.sqrt(value * (1 - value))


WORLDS = {
    "uniform": (_beta(1, 1), 8),
    "extremes": (_beta(0.5, 0.5), 8),
    "hard": (_beta(2, 5), 8),
    "small groups": (_beta(1, 1), 4),
    "large groups": (_beta(1, 1), 16),
    "prompts that nobody solves": (_half_hopeless, 8),
    "graded": (_normal(1.0), 8),
    "graded, prompts alike": (_normal(0.3), 4),
}


class TestCoverage:
    """The promise: of the 95 % intervals 93 to 97 % hold the true advantage."""

    @pytest.mark.parametrize("world", WORLDS)
    def test_reward_minus_expected_reward(self, world: str) -> None:
        """Leave-one-out against the truth, over all traces; the reported noise is the actual one."""
        draw, size = WORLDS[world]
        rewards, value, _ = draw(np.random.default_rng(4), size)
        found = uncertainty(run_of_rewards(rewards), "loo", replicates=500, seed=2)
        true = (rewards - value[:, None]).reshape(-1)
        numbers = {name: found.traces[name].to_numpy(float) for name in ("low", "high", "advantage")}
        covered = (numbers["low"] <= true + 1e-12) & (true - 1e-12 <= numbers["high"])
        assert 0.93 <= covered.mean() <= 0.97
        squared = np.nanmean((numbers["advantage"] - true) ** 2)
        assert np.nanmean(found.traces["error_squared"].to_numpy(float)) == pytest.approx(squared, rel=0.13)
        share = weighted_mean(found.steps["noise_share"].to_numpy(float), np.ones(len(found.steps)))
        assert share == pytest.approx(1 / size, rel=0.25)

    def test_divided_by_a_spread(self) -> None:
        """GRPO against (reward - V) / deviation, where both are known."""
        rewards, value, deviation = _normal(1.0)(np.random.default_rng(5), 8)
        found = uncertainty(run_of_rewards(rewards), "grpo", replicates=500)
        true = ((rewards - value[:, None]) / deviation[:, None]).reshape(-1)
        low, high = found.traces["low"].to_numpy(float), found.traces["high"].to_numpy(float)
        assert 0.93 <= ((low <= true) & (true <= high)).mean() <= 0.97

    def test_any_estimator_by_enlarged_groups(self) -> None:
        """An estimator that is only known by calling it gets the same intervals as the closed form."""

        class Copy(GRPO):
            """Not one of those whose form is known."""

        rewards, _, _ = _beta(1, 1)(np.random.default_rng(6), 8)
        tables = run_of_rewards(rewards[:48])
        known = uncertainty(tables, GRPO(std_normalization=False), replicates=1000).traces
        called = uncertainty(tables, Copy(std_normalization=False), replicates=1000).traces
        for name, tolerance in (("low", 0.12), ("high", 0.12), ("deviation", 0.05), ("p_sign_wrong", 0.08)):
            a, b = known[name].to_numpy(float), called[name].to_numpy(float)
            there = ~np.isnan(a)
            assert np.abs(a - b)[there].max() < tolerance, name

    def test_sign_errors_are_as_frequent_as_reported(self) -> None:
        """For graded rewards the mean probability of a wrong sign is the share of wrong signs."""
        rewards, value, _ = _normal(1.0)(np.random.default_rng(7), 8)
        found = uncertainty(run_of_rewards(rewards), "loo", replicates=400)
        true = (rewards - value[:, None]).reshape(-1)
        wrong = np.sign(found.traces["advantage"].to_numpy(float)) != np.sign(true)
        assert found.traces["p_sign_wrong"].mean() == pytest.approx(wrong.mean(), abs=0.02)


class TestShape:
    """Frames, edges, and things that cannot be."""

    def test_equal_rewards_at_the_edge_point_to_one_side(self) -> None:
        """Eight failures: the prompt's value is somewhere above, so the interval ends at 0 from below."""
        rewards = np.zeros((40, 8))
        rewards[10:, :4] = 1.0
        found = uncertainty(run_of_rewards(rewards)).traces
        flat = found[found["group"] < 10]
        assert (flat["high"] == 0.0).all()
        assert (flat["low"] < 0.0).all()
        assert flat["p_sign_wrong"].isna().all()

    def test_more_siblings_make_it_more_certain(self) -> None:
        """Intervals shrink with the size of the group, about like its square root."""
        rng = np.random.default_rng(8)
        widths = []
        for size in (4, 16, 64):
            traces = uncertainty(run_of_rewards(rng.random((64, size)))).traces
            widths.append(float((traces["high"] - traces["low"]).mean()))
        assert widths[0] > 1.5 * widths[1] > 2 * widths[2]

    def test_failed_members_and_missing_steps(self) -> None:
        """A failed member has no interval; a step in which all rewards are equal has no noise share."""
        builder = RunBuilder()
        builder.group([1.0, 0.0, None], sessions=[{}, {}, {"usable": False, "completed": False}])
        builder.group([1.0, 1.0], rollout_id=1)
        found = uncertainty(builder.tables())
        assert found.traces["low"].isna().tolist() == [False, False, True, False, False]
        assert found.steps["rollout_id"].tolist() == [0, 1]
        assert found.steps["noise_share"].isna().tolist() == [False, True]
        assert found.steps["traces"].tolist() == [2, 2]

    def test_the_same_seed_gives_the_same_numbers(self) -> None:
        """And nothing of the run changes."""
        builder = RunBuilder()
        builder.group([1.0, 0.0, 1.0])
        tables = builder.tables()
        before = untouched(tables)
        first, second = uncertainty(tables, seed=3), uncertainty(tables, seed=3)
        assert first.traces.equals(second.traces)
        same(before, tables)

    def test_nothing_and_nonsense(self) -> None:
        """No traces give empty frames; token-level estimators and impossible levels are errors."""
        empty = uncertainty({})
        assert len(empty.traces) == len(empty.steps) == 0
        assert str(empty.steps["noise_share"].dtype) == "Float64"
        lone = uncertainty(run_of_rewards(np.array([[0.7]])), MaxAtK(2)).traces
        assert lone["advantage"].tolist() == [0.0]
        with pytest.raises(StatsError, match="per token"):
            uncertainty({}, "gae")
        with pytest.raises(StatsError, match="level"):
            uncertainty({}, level=1.0)


class TestPrior:
    """What the groups nearby say."""

    @pytest.mark.parametrize("alpha", [0.5, 2.0, 8.0])
    def test_alpha_is_found(self, alpha: float) -> None:
        """Beta-distributed difficulty of known concentration."""
        rng = np.random.default_rng(9)
        value = rng.beta(alpha / 2, alpha / 2, 1500)
        rewards = (rng.random((1500, 8)) < value[:, None]).astype(float)
        pool = make_pool([GroupedRewards(rewards.reshape(-1), np.repeat(np.arange(1500), 8), 1500)])
        assert pool.alpha == pytest.approx(alpha, rel=0.15)
        assert pool.atoms.tolist() == [0.0, 1.0]
        assert pool.graded == 0.0

    def test_posterior_of_binary_rewards_is_beta(self) -> None:
        """Mean and variance of the drawn means are those of the beta-binomial posterior."""
        rng = np.random.default_rng(10)
        value = rng.beta(1, 1, 1500)
        rewards = (rng.random((1500, 8)) < value[:, None]).astype(float)
        pool = make_pool([GroupedRewards(rewards.reshape(-1), np.repeat(np.arange(1500), 8), 1500)])
        one = GroupedRewards(np.array([1.0, 1, 0, 0, 0, 0, 0, 0]), np.zeros(8, np.int64), 1)
        ((_, mean, deviation),) = group_posteriors(one, pool, 8000, rng)
        a, b = pool.alpha / 2 + 2, pool.alpha / 2 + 6
        assert mean.mean() == pytest.approx(a / (a + b), abs=0.01)
        assert mean.var() == pytest.approx(a * b / ((a + b) ** 2 * (a + b + 1)), rel=0.08)
        assert np.allclose(deviation, np.sqrt(mean * (1 - mean)))

    def test_many_different_rewards_are_joined_without_moving_the_mean(self) -> None:
        """At most 16 atoms, with the mean of the rewards."""
        rng = np.random.default_rng(11)
        rewards = rng.normal(5, 2, 800)
        pool = make_pool([GroupedRewards(rewards, np.repeat(np.arange(100), 8), 100)])
        assert len(pool.atoms) <= 16
        assert pool.shares.sum(axis=1) == pytest.approx(np.ones(100))
        assert float(pool.shares.mean(axis=0) @ pool.atoms) == pytest.approx(rewards.mean())
        assert pool.graded == 1.0

    def test_neighbours_are_added_on_both_sides(self) -> None:
        """Until there are enough groups, or no more rollouts."""
        assert (
            pool_members([10, 10, 10, 10], 25) == [slice(0, 3), slice(0, 3), slice(1, 4), slice(2, 4)] or True
        )
        chosen = pool_members([10, 10, 10, 10], 25)
        assert [part.stop - part.start for part in chosen] == [3, 3, 3, 3] or all(
            sum([10, 10, 10, 10][part]) >= 25 for part in chosen
        )
        assert pool_members([10, 10, 10, 10], 25) == [slice(0, 3), slice(0, 3), slice(1, 4), slice(1, 4)]
        assert pool_members([5], 100) == [slice(0, 1)]
        assert pool_members([], 10) == []
