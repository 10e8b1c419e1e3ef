"""The simulation's truth is the truth, and known properties of estimators come out of it."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from analysis.errors import StatsError
from analysis.stats.advantages import simulate
from analysis.stats.simulation import Bandits
from slime_bridge.advantages import MaxAtK, PassAtK


def _bandits(rewards: str = "graded", seed: int = 0) -> Bandits:
    return Bandits.draw(3, 4, rewards, np.random.default_rng(seed))


class TestTruth:
    """Values and gradients against brute force."""

    def test_value_is_the_sum_over_actions_and_rewards(self) -> None:
        """V by a plain double loop."""
        bandits = _bandits()
        for task in range(3):
            expected = sum(
                bandits.policy[task, a] * bandits.outcomes[task, a, level] * bandits.levels[level]
                for a in range(4)
                for level in range(5)
            )
            assert bandits.value[task] == pytest.approx(expected)
        assert bandits.outcomes.sum(axis=2) == pytest.approx(np.ones((3, 4)))

    @pytest.mark.parametrize("k", [1, 2, 3])
    def test_gradient_equals_finite_differences(self, k: int) -> None:
        """The derivative of the expected best of k by each logit, from enumeration of all k draws."""
        bandits = _bandits()

        def objective(logits: np.ndarray, task: int) -> float:
            policy = np.exp(logits) / np.exp(logits).sum()
            of_level = policy @ bandits.outcomes[task]
            return sum(
                math.prod(of_level[i] for i in draw) * max(bandits.levels[i] for i in draw)
                for draw in itertools.product(range(5), repeat=k)
            )

        gradient = bandits.gradient(k)
        for task, action in itertools.product(range(3), range(4)):
            logits = np.log(bandits.policy[task])
            up, down = logits.copy(), logits.copy()
            up[action] += 1e-5
            down[action] -= 1e-5
            slope = (objective(up, task) - objective(down, task)) / 2e-5
            assert gradient[task, action] == pytest.approx(slope, abs=1e-8)

    def test_samples_follow_the_probabilities(self) -> None:
        """Frequencies of actions and mean rewards of many draws."""
        bandits = _bandits()
        actions, rewards = bandits.sample((2000, 10), np.random.default_rng(1))
        for task in range(3):
            shares = np.bincount(actions[task].reshape(-1), minlength=4) / 20000
            assert shares == pytest.approx(bandits.policy[task], abs=0.015)
            assert rewards[task].mean() == pytest.approx(bandits.value[task], abs=0.015)


class TestEstimators:
    """What theory says about them."""

    def test_leave_one_out_is_unbiased(self) -> None:
        """Scale 1, nothing beside the true direction, advantages off by nothing on average."""
        row = simulate("loo", replicates=800).summary.iloc[0]
        assert row["scale"] == pytest.approx(1.0, abs=0.05)
        assert row["cosine"] == pytest.approx(1.0, abs=0.005)
        assert row["bias"] < 0.06
        assert row["advantage_bias"] == pytest.approx(0.0, abs=0.01)

    def test_the_group_mean_shortens_the_gradient(self) -> None:
        """Dr. GRPO's baseline holds the trajectory itself: (n - 1) / n of leave-one-out, same direction."""
        one, other = (simulate(name, group_size=4).summary.iloc[0] for name in ("loo", "dr_grpo"))
        assert other["scale"] / one["scale"] == pytest.approx(3 / 4)
        assert other["variance"] == pytest.approx(one["variance"])

    def test_dividing_by_the_spread_favours_extreme_prompts(self) -> None:
        """GRPO's share of the gradient grows where a prompt is nearly always or nearly never solved."""
        tasks = simulate("grpo", tasks=200, replicates=200).tasks
        edge = (tasks["value"] - 0.5).abs() > 0.35
        middle = (tasks["value"] - 0.5).abs() < 0.15
        assert tasks["share"][edge].median() > 1.15 * tasks["share"][middle].median()
        flat = simulate("loo", tasks=200, replicates=200).tasks
        assert flat["share"][edge].median() == pytest.approx(flat["share"][middle].median(), rel=0.15)

    @pytest.mark.parametrize(("estimator", "rewards"), [(PassAtK(3), "binary"), (MaxAtK(3), "graded")])
    def test_best_of_k_estimators_follow_their_own_objective(self, estimator: MaxAtK, rewards: str) -> None:
        """Their gradient is that of the best of k over k; against the mean reward they are biased."""
        own = simulate(estimator, rewards=rewards, replicates=600).summary.iloc[0]
        assert own["scale"] == pytest.approx(1 / 3, rel=0.06)
        assert own["bias"] < 0.08
        other = simulate(estimator, rewards=rewards, replicates=600, best_of=1).summary.iloc[0]
        assert other["bias"] > 0.2
        assert own.isna()["advantage_bias"]

    def test_more_siblings_less_variance(self) -> None:
        """Eight times the group: about an eighth of the variance."""
        small, large = (simulate("loo", group_size=n).summary.iloc[0]["variance"] for n in (4, 32))
        assert 6 < small / large < 13

    def test_failures_as_zeros_contaminate(self) -> None:
        """Lost trajectories that count as 0 add variance that leaving them out does not."""
        left_out = simulate("loo", failure_rate=0.3).summary.iloc[0]
        as_zero = simulate("loo", failure_rate=0.3, failures="zero").summary.iloc[0]
        assert as_zero["variance"] > 1.3 * left_out["variance"]
        assert as_zero["advantage_rmse"] > 1.5 * left_out["advantage_rmse"]


class TestInput:
    """Edges."""

    def test_nonsense_is_refused(self) -> None:
        """Per-token and multi-reward estimators, impossible numbers and words."""
        for wrong, text in (
            ({"estimator": "gae"}, "more than one"),
            ({"estimator": "gdpo"}, "more than one"),
            ({"estimator": "loo", "tasks": 0}, "at least 1"),
            ({"estimator": "loo", "failure_rate": 1.0}, "below 1"),
            ({"estimator": "loo", "rewards": "gold"}, "binary"),
        ):
            with pytest.raises(StatsError, match=text):
                simulate(**wrong)

    def test_lone_members_and_an_estimator_that_says_nothing(self) -> None:
        """Groups of one under RLOO, and a constant 0: numbers that do not exist are missing."""
        lone = simulate("rloo", group_size=1, tasks=4, replicates=10).summary.iloc[0]
        assert lone["zero_groups"] == 1.0
        assert lone.isna()["bias"]
        silent = simulate(lambda rewards, groups, trajectories: rewards * 0, tasks=2, replicates=5)
        assert silent.tasks["share"].isna().all()

    def test_the_same_seed_gives_the_same_numbers(self) -> None:
        """And another one others."""
        first, second, other = (simulate("grpo", tasks=4, replicates=8, seed=s).tasks for s in (1, 1, 2))
        assert first.equals(second)
        assert not first.equals(other)
