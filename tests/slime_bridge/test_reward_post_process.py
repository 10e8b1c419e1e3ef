"""The post-process hook: the contract's arithmetic on samples, which estimator runs, and what is counted."""

from __future__ import annotations

import logging
import math
import sys
from types import SimpleNamespace

import pytest

from slime_bridge import reward_post_process as module
from slime_bridge._stand_in import Sample
from slime_bridge.advantages import DVAO, GDPO, GRPO, LeaveOneTrajectoryOut
from slime_bridge.errors import AdvantageError, ConfigError
from slime_bridge.reward_post_process import (
    last_post_process,
    post_process_rewards,
    production_estimator,
    reward_batch,
)

Status = Sample.Status


def sample(reward, trajectory=0, group=0, *, status="COMPLETED", mask=(1, 1), **fields) -> Sample:
    return Sample(
        group_index=group,
        index=trajectory,
        group_id=trajectory,
        reward={"score": reward} if isinstance(reward, float | int) else reward,
        response_length=len(mask),
        loss_mask=list(mask),
        status=Status[status],
        **fields,
    )


def args(**changes):
    values = {
        "advantage_estimator": "grpo",
        "rewards_normalization": True,
        "grpo_std_normalization": False,
        "reward_key": "score",
    }
    return SimpleNamespace(**{**values, **changes})


class TestContract:
    @pytest.mark.parametrize(
        ("samples", "expected"),
        [
            ([sample(2, 0), sample(4, 0), sample(10, 1)], [-8, -6, 7]),
            ([sample(2, 0), sample(10, 1, status="FAILED"), sample(6, 2)], [-4, 0, 4]),
            ([sample(2, 0), sample(10, 1, status="ABORTED"), sample(6, 2)], [-4, 0, 4]),
            ([sample(2, 0), sample(4, 0)], [2, 4]),
            ([sample(2, 0, mask=(0, 0)), sample(5, 1)], [0, 5]),
            ([sample(2, 0, remove_sample=True), sample(5, 1)], [0, 5]),
        ],
    )
    def test_worked_examples(self, samples, expected):
        """Raw rewards as they are, advantages per trajectory."""
        raw, rewards = post_process_rewards(args(), samples)
        assert raw == [s.reward["score"] for s in samples]
        assert rewards == expected
        assert all(type(value) is float for value in raw + rewards)

    def test_groups_in_any_order(self):
        """Interleaved groups of different sizes are centred apart."""
        samples = [sample(1, 0, 0), sample(5, 10, 1), sample(0, 1, 0), sample(9, 11, 1), sample(7, 12, 1)]
        _, rewards = post_process_rewards(args(), samples)
        assert rewards == [1, -3, -1, 3, 0]

    def test_division_by_the_spread_of_all(self):
        """The 27-trajectory case, with Slime's switch on."""
        samples = [sample(float(i == 0), i) for i in range(27)]
        _, rewards = post_process_rewards(args(grpo_std_normalization=True), samples)
        assert abs(sum(rewards)) < 1e-9
        assert max(rewards) == pytest.approx(math.sqrt(27))

    @pytest.mark.parametrize("estimator", ["grpo", "gspo", "reinforce_plus_plus_baseline"])
    def test_which_estimators_divide(self, estimator):
        """Only grpo and gspo do."""
        _, rewards = post_process_rewards(
            args(advantage_estimator=estimator, grpo_std_normalization=True), [sample(2, 0), sample(4, 1)]
        )
        spread = math.sqrt(2) if estimator in ("grpo", "gspo") else 1.0
        assert rewards == pytest.approx([-2 / spread, 2 / spread])

    @pytest.mark.parametrize(
        "changes",
        [
            {"rewards_normalization": False},
            {"advantage_estimator": "ppo"},
            {"advantage_estimator": "reinforce_plus_plus"},
        ],
    )
    def test_raw_rewards_unchanged(self, changes):
        """Those estimators take the reward itself."""
        samples = [sample(2, 0), sample(10, 1, status="FAILED")]
        raw, rewards = post_process_rewards(args(**changes), samples)
        assert raw == rewards == [2, 10]
        assert raw is not rewards

    def test_an_empty_args_object(self):
        """Slime's own contract test: no keys at all, float rewards, no group, no trajectory key."""
        samples = [
            Sample(
                index=i,
                reward=0.5 + i,
                tokens=[i, i + 1],
                response_length=2,
                loss_mask=[1, 1],
                status=Status.COMPLETED,
            )
            for i in range(2)
        ]
        raw, rewards = post_process_rewards(type("Args", (), {})(), samples)
        assert raw == [0.5, 1.5]
        assert rewards == [0.5, 1.5]

    def test_samples_without_any_number(self):
        """Each stands for itself, not all for one."""
        raw, rewards = post_process_rewards(
            args(), [Sample(reward=1.0, response_length=1), Sample(reward=3.0)]
        )
        assert (raw, rewards) == ([1, 3], [1, 0])

    def test_nothing(self):
        """No samples, no rewards."""
        assert post_process_rewards(args(), []) == ([], [])

    def test_placeholders(self):
        """They keep their place and get nothing."""
        placeholder = sample(
            0.0, 2, status="ABORTED", mask=(0,), remove_sample=True, metadata={"polar": {"placeholder": True}}
        )
        _, rewards = post_process_rewards(args(), [sample(1, 0), sample(0, 1), placeholder])
        assert rewards == [1, -1, 0]

    def test_missing_rewards(self, caplog):
        """Nobody learns from a reward that nobody gave, and it moves no baseline."""
        raw, rewards = post_process_rewards(args(), [sample(1, 0), sample(0, 1), sample({"score": None}, 2)])
        assert raw == [1, 0, 0]
        assert rewards == [1, -1, 0]
        assert last_post_process().missing_rewards == 1
        assert "1 samples without a finite reward" in caplog.text

    def test_a_misspelt_key(self):
        """Named before anything is computed."""
        with pytest.raises(ConfigError, match="'scroe'"):
            post_process_rewards(args(reward_key="scroe"), [sample(1)])

    def test_the_bridges_own_key(self):
        """`polar_reward_key` wins over Slime's."""
        raw, _ = post_process_rewards(
            args(polar_reward_key="acc"), [sample({"score": 1.0, "acc": 7.0}, 0), sample({"acc": 8.0}, 1)]
        )
        assert raw == [7, 8]


def doubled(rewards, groups, trajectories):
    return rewards * 2


class TestEstimator:
    @pytest.mark.parametrize(
        ("changes", "expected"),
        [
            ({}, LeaveOneTrajectoryOut()),
            ({"grpo_std_normalization": True}, LeaveOneTrajectoryOut(std_normalization=True)),
            (
                {"grpo_std_normalization": True, "advantage_estimator": "reinforce_plus_plus_baseline"},
                LeaveOneTrajectoryOut(),
            ),
            ({"polar_advantage_estimator": "grpo"}, GRPO()),
            (
                {"polar_advantage_estimator": "grpo", "polar_advantage_estimator_kwargs": {"epsilon": 1}},
                GRPO(epsilon=1),
            ),
            ({"gdpo_reward_keys": ["a", "b"]}, GDPO(keys=("a", "b"))),
            ({"dvao_reward_keys": ["a", "b"]}, DVAO(keys=("a", "b"))),
            ({"polar_advantage_estimator": "gdpo", "gdpo_reward_keys": ["a", "b"]}, GDPO(keys=("a", "b"))),
        ],
    )
    def test_which_one_runs(self, changes, expected):
        """Chosen by the keys alone, equal to what a notebook would build."""
        assert production_estimator(args(**changes)) == expected

    def test_without_the_switch_nothing_is_divided(self):
        """Arguments that never heard of the switch did not ask for a division."""
        assert production_estimator(SimpleNamespace()) == LeaveOneTrajectoryOut()

    def test_a_chosen_estimator_gives_the_advantages(self):
        """The same numbers as in a notebook."""
        samples = [sample(1, 0), sample(0, 1), sample(0, 2), sample(5, 3, status="FAILED")]
        _, rewards = post_process_rewards(args(polar_advantage_estimator="dr_grpo"), samples)
        assert rewards == pytest.approx([2 / 3, -1 / 3, -1 / 3, 0])

    def test_a_users_function(self, monkeypatch):
        """A path is enough."""
        monkeypatch.setitem(sys.modules, "my_estimators", sys.modules[__name__])
        _, rewards = post_process_rewards(
            args(polar_advantage_estimator="my_estimators:doubled"),
            [sample(1, 0), sample(3, 1, status="FAILED")],
        )
        assert rewards == [2, 0]

    def test_several_reward_components(self):
        """Read from the reward mapping, the trace's metadata or the evaluation."""

        def with_parts(trajectory, a, b):
            polar = {"trajectory_metadata": {"evaluation": {"b": b}}}
            return sample({"score": 0.0, "a": a}, trajectory, metadata={"polar": polar})

        samples = [with_parts(0, 1.0, 10.0), with_parts(1, 0.0, 20.0), with_parts(2, 0.0, 10.0)]
        _, rewards = post_process_rewards(args(dvao_reward_keys=["a", "b"]), samples)
        batch = reward_batch(samples, [0.0] * 3, components=["a", "b"])
        assert rewards == DVAO(keys=("a", "b"))(batch).tolist()
        assert any(rewards)

    @pytest.mark.parametrize(
        ("changes", "hint"),
        [
            ({"polar_advantage_estimator": "gae"}, "--advantage-estimator ppo"),
            (
                {
                    "polar_advantage_estimator": "reinforce_plus_plus",
                    "polar_advantage_estimator_kwargs": {"gamma": 0.9},
                },
                "--advantage-estimator reinforce_plus_plus",
            ),
        ],
    )
    def test_numbers_per_token_cannot_reach_slime(self, changes, hint):
        """The error says who can compute them."""
        with pytest.raises(AdvantageError, match=hint):
            post_process_rewards(args(**changes), [sample(1)])

    def test_unknown_names(self):
        """Before the first sample is looked at."""
        with pytest.raises(AdvantageError, match="unknown advantage estimator"):
            post_process_rewards(args(polar_advantage_estimator="nope"), [])

    def test_a_choice_without_effect_is_said_once(self, caplog):
        """No key is silently without effect."""
        module._warn_without_effect.cache_clear()
        chosen = args(polar_advantage_estimator="rloo", advantage_estimator="ppo")
        for _ in range(3):
            assert post_process_rewards(chosen, [sample(1)])[1] == [1]
        assert caplog.text.count("has no effect") == 1


class TestStatistics:
    def test_counts(self, caplog):
        """Lone, constant and empty groups are counted, so that a metric can show them."""
        samples = [
            sample(1, 0, 0),
            sample(0, 1, 0),
            sample(1, 2, 1),
            sample(1, 3, 1),
            sample(1, 3, 1),
            sample(4, 4, 2),
            sample(4, 5, 2, status="FAILED"),
            sample(4, 6, 3, status="ABORTED"),
        ]
        with caplog.at_level(logging.INFO, logger="slime_bridge"):
            post_process_rewards(args(), samples)
        stats = last_post_process()
        assert stats.estimator == "LeaveOneTrajectoryOut(std_normalization=False)"
        assert (stats.traces, stats.groups, stats.trajectories, stats.valid_trajectories) == (8, 4, 7, 5)
        assert (stats.lone_groups, stats.degenerate_groups, stats.empty_groups) == (1, 1, 1)
        assert "degenerate_groups=1" in caplog.text

    def test_the_batch_holds_what_samples_say(self):
        """Staleness and token counts travel along for estimators and analysis."""
        one = sample(1, 4, 2, mask=(1, 0, 1), metadata={"polar": {"policy_staleness": 3}})
        batch = reward_batch([one, sample(0, 5, 2)], [1.0, 0.0])
        assert batch.trainable_tokens.tolist() == [2, 2]
        assert batch.response_tokens.tolist() == [3, 2]
        assert batch.staleness[0] == 3
        assert math.isnan(batch.staleness[1])
