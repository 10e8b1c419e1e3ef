"""Advantage estimators by number: worked examples, plain loops as oracles, parameters and the registry."""

from __future__ import annotations

import itertools
import math
import random
import statistics
import sys
from collections import defaultdict
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slime_bridge.advantages import (
    DVAO,
    ESTIMATORS,
    GAE,
    GDPO,
    GRPO,
    RLOO,
    DrGRPO,
    LeaveOneTrajectoryOut,
    MaxAtK,
    PassAtK,
    ReinforcePlusPlus,
    ReinforcePlusPlusBaseline,
    RewardBatch,
    TokenArrays,
    checked_advantages,
    from_function,
    get_estimator,
    parameters_of,
)
from slime_bridge.advantages.token_level import discounted_tails
from slime_bridge.errors import AdvantageError


def batch(rewards, groups=None, trajectories=None, **fields) -> RewardBatch:
    n = len(rewards)
    return RewardBatch(
        reward=rewards,
        group=[0] * n if groups is None else groups,
        trajectory=list(range(n)) if trajectories is None else trajectories,
        **fields,
    )


def random_batch(seed: int, groups: int = 20) -> RewardBatch:
    """Ragged shuffled groups, with failures, masks, missing rewards and several traces a trajectory."""
    rng = random.Random(seed)
    rows = []
    for group in range(groups):
        for trajectory in range(rng.randint(1, 9)):
            failed = rng.random() < 0.15
            for _ in range(rng.choice([1, 1, 1, 2, 3])):
                reward = rng.choice([0.0, 1.0, rng.gauss(0, 1), 0.1, rng.gauss(0, 1e6)])
                missing = rng.random() < 0.05
                tokens = 0 if rng.random() < 0.1 else rng.randint(1, 50)
                rows.append(
                    (math.nan if missing else reward, group, group * 100 + trajectory, not failed, tokens)
                )
    rng.shuffle(rows)
    reward, group, trajectory, valid, tokens = (list(column) for column in zip(*rows, strict=True))
    return RewardBatch(reward, group, trajectory, valid=valid, trainable_tokens=tokens)


def plain_leave_one_out(data: RewardBatch, *, std_normalization: bool = False) -> list[float]:
    """The default estimator as anyone would write it down, without arrays."""
    totals: dict[tuple, list[float]] = {}
    for reward, group, trajectory, valid, tokens in zip(
        data.reward.tolist(),
        data.group.tolist(),
        data.trajectory.tolist(),
        data.valid.tolist(),
        data.trainable_tokens.tolist(),
        strict=True,
    ):
        entry = totals.setdefault((group, trajectory), [0.0, 0])
        if valid and tokens > 0 and math.isfinite(reward):
            entry[0] += reward
            entry[1] += 1
    means = {key: total / count for key, (total, count) in totals.items() if count}

    def mean(values: list[float]) -> float:
        total = 0.0
        for value in values:
            total += value
        return min(max(total / len(values), min(values)), max(values))

    advantages = []
    for reward, group, trajectory, valid in zip(
        data.reward.tolist(), data.group.tolist(), data.trajectory.tolist(), data.valid.tolist(), strict=True
    ):
        if not valid or not math.isfinite(reward) or (group, trajectory) not in means:
            advantages.append(0.0)
            continue
        others = [m for key, m in means.items() if key[0] == group and key[1] != trajectory]
        difference = reward - (mean(others) if others else 0.0)
        divisor = 1.0
        if std_normalization:
            everyone = [m for key, m in means.items() if key[0] == group]
            if len(everyone) > 1:
                centre = mean(everyone)
                squares = 0.0
                for m in everyone:
                    squares += (m - centre) * (m - centre)
                spread = math.sqrt(squares / (len(everyone) - 1))
                divisor = spread if spread >= 1e-6 else 1.0
        advantages.append(difference / divisor)
    return advantages


class TestDefault:
    def test_worked_examples(self):
        """The contract's four examples."""
        loo = LeaveOneTrajectoryOut()
        assert loo(batch([2, 4, 10], trajectories=["A", "A", "B"])).tolist() == [-8, -6, 7]
        assert loo(batch([2, 10, 6], valid=[True, False, True])).tolist() == [-4, 0, 4]
        assert loo(batch([2, 4], trajectories=["A", "A"])).tolist() == [2, 4]
        assert loo(batch([2, 5], trainable_tokens=[0, 3])).tolist() == [0, 5]

    def test_one_success_among_27(self):
        """Dividing by the others' zero spread once gave a mean advantage of 37,037."""
        advantages = LeaveOneTrajectoryOut(std_normalization=True)(batch([1.0] + [0.0] * 26))
        assert abs(advantages.mean()) < 1e-12
        assert advantages.max() == pytest.approx(math.sqrt(27))
        assert advantages.min() == pytest.approx(-1 / 26 * math.sqrt(27))

    @pytest.mark.parametrize("std", [False, True])
    def test_one_success_among_four(self, std):
        """Finite, small, of the right sign, and summing to zero."""
        advantages = LeaveOneTrajectoryOut(std_normalization=std)(batch([1, 0, 0, 0]))
        assert advantages[0] > 0 > advantages[1]
        assert abs(advantages).max() < 10
        assert abs(advantages.sum()) < 1e-12

    @pytest.mark.parametrize("std", [False, True])
    def test_constant_group_beside_others(self, std):
        """Groups of 4, 3 and 4 in shuffled order: the constant one gets exactly 0, each is centred alone."""
        rewards = [1, 5, 0, 2, 5, 9, 3, 7, 5, 4, 8]
        groups = [0, 1, 0, 2, 1, 0, 2, 0, 1, 2, 2]
        advantages = LeaveOneTrajectoryOut(std_normalization=std)(batch(rewards, groups))
        for group in range(3):
            chosen = advantages[[g == group for g in groups]]
            assert abs(chosen.sum()) < 1e-12
        assert advantages[[1, 4, 8]].tolist() == [0, 0, 0]
        assert (advantages[[0, 2, 5, 7]] != 0).all()

    @given(st.floats(-1e6, 1e6), st.integers(2, 40))
    def test_equal_rewards_get_exactly_nothing(self, reward, count):
        """Rounding of a mean must not become a signal."""
        assert not LeaveOneTrajectoryOut()(batch([reward] * count)).any()

    @pytest.mark.parametrize("std", [False, True])
    @pytest.mark.parametrize("seed", range(25))
    def test_equals_a_plain_loop_exactly(self, seed, std):
        """Bit for bit: no array trick changes a number."""
        data = random_batch(seed)
        advantages = LeaveOneTrajectoryOut(std_normalization=std)(data)
        assert advantages.tolist() == plain_leave_one_out(data, std_normalization=std)

    def test_a_number_may_come_back_in_another_group(self):
        """Trajectories are told apart by group and number together."""
        advantages = LeaveOneTrajectoryOut()(batch([1, 0, 5, 3], [0, 0, 1, 1], [7, 8, 7, 8]))
        assert advantages.tolist() == [1, -1, 2, -2]

    def test_side_calls_do_not_weigh(self):
        """A session with two tiny extra traces counts once in everybody's baseline."""
        advantages = LeaveOneTrajectoryOut()(batch([1, 1, 1, 0, 0], trajectories=[0, 0, 0, 1, 2]))
        assert advantages.tolist() == [1, 1, 1, -0.5, -0.5]

    def test_failed_sessions_with_stray_rewards_take_no_part(self):
        """A timeout and an error in a group of four."""
        data = batch([1, 99, 0, -50], valid=[True, False, True, False])
        assert LeaveOneTrajectoryOut()(data).tolist() == [1, 0, -1, 0]

    def test_missing_rewards_take_no_part(self):
        """NaN spreads through nothing; infinity counts as missing."""
        data = batch([1, math.nan, 0, math.inf, -math.inf])
        assert LeaveOneTrajectoryOut()(data).tolist() == [1, 0, -1, 0, 0]

    def test_large_groups(self):
        """One group of 600 is no special case."""
        rewards = np.random.default_rng(0).normal(size=600)
        expected = rewards - (rewards.sum() - rewards) / 599
        np.testing.assert_allclose(LeaveOneTrajectoryOut()(batch(rewards)), expected, atol=1e-12)


def by_group(data: RewardBatch):
    """Valid trajectories' means per group, and the eligible traces, by plain Python."""
    grouping = data.grouping
    means = grouping.trajectory_means(data.reward)
    groups = defaultdict(dict)
    for trajectory, (group, valid) in enumerate(
        zip(grouping.group.tolist(), grouping.valid.tolist(), strict=True)
    ):
        if valid:
            groups[group][trajectory] = float(means[trajectory])
    traces = [
        (i, int(grouping.group_of_trace[i]), int(grouping.trajectory[i]), float(data.reward[i]))
        for i in np.flatnonzero(grouping.eligible)
    ]
    return groups, traces


class TestGroupRelative:
    @pytest.mark.parametrize("seed", range(10))
    def test_grpo_and_dr_grpo(self, seed):
        """Group mean and sample deviation, by the standard library."""
        data = random_batch(seed)
        groups, traces = by_group(data)
        for std, estimator in ((True, GRPO()), (False, DrGRPO()), (False, GRPO(std_normalization=False))):
            expected = np.zeros(len(data))
            for i, group, _, reward in traces:
                members = list(groups[group].values())
                spread = statistics.stdev(members) if len(members) > 1 else 0.0
                divisor = spread + 1e-6 if std and spread >= 1e-6 else 1.0
                expected[i] = (reward - statistics.fmean(members)) / divisor
            np.testing.assert_allclose(estimator(data), expected, rtol=1e-9, atol=1e-9)

    def test_gspo_is_grpo(self):
        """Only the loss differs."""
        data = random_batch(1)
        assert (ESTIMATORS["gspo"]()(data) == GRPO()(data)).all()

    @pytest.mark.parametrize("seed", range(5))
    def test_rloo_differs_from_the_default_only_for_lone_trajectories(self, seed):
        """They have no baseline: 0 here, the raw reward there."""
        data = random_batch(seed)
        lone = data.grouping.sizes[data.grouping.group_of_trace] < 2
        rloo, loo = RLOO()(data), LeaveOneTrajectoryOut()(data)
        assert (rloo[~lone] == loo[~lone]).all()
        assert not rloo[lone].any()

    def test_traces_of_equal_trajectories(self):
        """Trajectory means without spread, traces with: no division by next to nothing."""
        advantages = GRPO()(batch([2, 4, 3], trajectories=[0, 0, 1]))
        assert advantages.tolist() == [-1, 1, 0]


def enumerated_max_at_k(rewards: list[float], k: int) -> list[float]:
    """Mean of the best over all k-subsets with a member, minus that over those without it."""
    members = range(len(rewards))
    answer = []
    for i in members:
        with_i = [max(rewards[j] for j in s) for s in itertools.combinations(members, k) if i in s]
        without = [max(rewards[j] for j in s) for s in itertools.combinations(members, k) if i not in s]
        answer.append(statistics.fmean(with_i) - statistics.fmean(without))
    return answer


class TestBestOfK:
    @pytest.mark.parametrize("k", [1, 2, 3, 4])
    @pytest.mark.parametrize("n", [5, 6, 8])
    def test_max_at_k_by_enumeration(self, k, n):
        """The closed form equals going through all subsets, ties included."""
        rng = random.Random(n * 10 + k)
        rewards = [rng.choice([0.0, 1.0, rng.random()]) for _ in range(n)]
        np.testing.assert_allclose(MaxAtK(k)(batch(rewards)), enumerated_max_at_k(rewards, k), atol=1e-12)

    def test_k_1_is_rloo(self):
        """With one attempt the best is the attempt."""
        data = random_batch(3)
        single = RewardBatch(data.reward, data.group, np.arange(len(data)), valid=data.valid)
        np.testing.assert_allclose(MaxAtK(1)(single), RLOO()(single), rtol=1e-9, atol=1e-6)

    def test_small_groups_lower_k(self):
        """A group of n <= k has no subset without a member unless k is lowered to n - 1."""
        rewards = [1.0, 0.0, 0.5]
        np.testing.assert_allclose(MaxAtK(4)(batch(rewards)), enumerated_max_at_k(rewards, 2), atol=1e-12)
        assert MaxAtK(4)(batch([3.0])).tolist() == [0.0]

    def test_pass_at_k(self):
        """Only whether the threshold is reached counts."""
        expected = enumerated_max_at_k([1.0, 0.0, 0.0, 1.0, 0.0], 2)
        np.testing.assert_allclose(PassAtK(2)(batch([1, 0.9, -5, 7, 0])), expected, atol=1e-12)
        assert PassAtK(2, threshold=0.5)(batch([0.4, 0.2, 0.1])).tolist() == [0, 0, 0]

    def test_a_group_of_128(self):
        """Binomials of large groups stay exact."""
        advantages = PassAtK(16)(batch([1.0] + [0.0] * 127))
        assert advantages[0] == pytest.approx(1.0)
        assert abs(advantages.sum()) < 1e-12


class TestSeveralRewards:
    def test_gdpo_by_hand(self):
        """Each component over its own sample deviation, the sum over the batch's."""
        a, b = [1.0, 0.0, 0.0, 1.0, 3.0, 5.0], [10.0, 20.0, 10.0, 10.0, 0.0, 4.0]
        groups = [0, 0, 0, 1, 1, 1]
        total = []
        for group in (0, 1):
            parts = []
            for values in (a, b):
                own = [v for v, g in zip(values, groups, strict=True) if g == group]
                parts.append([(v - statistics.fmean(own)) / (statistics.stdev(own) + 1e-4) for v in own])
            total += [x + y for x, y in zip(*parts, strict=True)]
        centre, spread = statistics.fmean(total), statistics.stdev(total)
        expected = [(value - centre) / (spread + 1e-4) for value in total]
        data = batch([0.0] * 6, groups, components={"a": a, "b": b})
        np.testing.assert_allclose(GDPO(keys=("a", "b"))(data), expected, rtol=1e-12)

    def test_dvao_by_hand(self):
        """The sum of the centred components over the sum of their population deviations."""
        a, b = [1.0, 0.0, 0.0], [10.0, 20.0, 10.0]
        divisor = statistics.pstdev(a) + statistics.pstdev(b)
        expected = [
            (x - statistics.fmean(a) + y - statistics.fmean(b)) / divisor for x, y in zip(a, b, strict=True)
        ]
        np.testing.assert_allclose(
            DVAO(keys=("a", "b"))(batch([0.0] * 3, components={"a": a, "b": b})), expected
        )

    @pytest.mark.parametrize("cls", [GDPO, DVAO])
    def test_a_missing_component_counts_as_no_reward(self, cls):
        """Half a reward is none."""
        data = batch([1.0] * 3, components={"a": [1, 0, math.nan], "b": [1, 0, 5]})
        advantages = cls(keys=("a", "b"))(data)
        assert advantages[2] == 0
        assert advantages[0] == -advantages[1] != 0

    @pytest.mark.parametrize("cls", [GDPO, DVAO])
    def test_an_unknown_component_is_named(self, cls):
        """A misspelt key lists what there is."""
        with pytest.raises(AdvantageError, match=r"no reward component 'b'.*\['a'\]"):
            cls(keys=("a", "b"))(batch([1.0], components={"a": [1.0]}))


class TestTokenLevel:
    def test_reinforce_plus_plus_vectors(self):
        """Numbers that Slime's own code gives."""
        tokens = TokenArrays.from_lists([[1, 1, 1], [1, 0]])
        data = batch([1.0, -1.0], tokens=tokens)
        estimator = ReinforcePlusPlus(gamma=0.9, normalize=False)
        np.testing.assert_allclose(estimator(data), [0.81, 0.9, 1.0, -1.0, 0.0])

    def test_reinforce_plus_plus_baseline_vectors(self):
        """The penalty is taken off token by token."""
        tokens = TokenArrays.from_lists([[1, 1, 1], [1]], kl=[[0.1, 0.0, -0.1], [0.0]])
        data = batch([2.0, 0.0], tokens=tokens)
        estimator = ReinforcePlusPlusBaseline(kl_coef=0.5, normalize=False)
        np.testing.assert_allclose(estimator(data), [0.95, 1.0, 1.05, -1.0])

    def test_whitening_vectors(self):
        """Mean and variance over the trainable tokens, with the small-sample correction."""
        tokens = TokenArrays.from_lists([[1, 1, 1], [1, 0]])
        data = batch([1.0, -1.0], [0, 1], tokens=tokens, trainable_tokens=[3, 1])
        np.testing.assert_allclose(ReinforcePlusPlus()(data), [0.5, -1.5], atol=1e-6)

    @pytest.mark.parametrize("seed", range(5))
    def test_numbers_per_trace_and_per_token_agree(self, seed):
        """Without discount and penalty the token form carries one number per trace."""
        rng = random.Random(seed)
        masks = [[1] * rng.randint(1, 6) for _ in range(12)]
        data = batch(
            [rng.random() for _ in masks],
            [i // 4 for i in range(12)],
            tokens=TokenArrays.from_lists(masks, kl=[[0.0] * len(mask) for mask in masks]),
            trainable_tokens=[len(mask) for mask in masks],
        )
        for cls in (ReinforcePlusPlus, ReinforcePlusPlusBaseline):
            per_trace = cls()(data)
            per_token = cls(kl_coef=1e-300)(data)
            np.testing.assert_allclose(per_token, np.repeat(per_trace, data.tokens.lengths), atol=1e-9)

    def test_gae_vectors(self):
        """Numbers that Slime's own code gives."""
        tokens = TokenArrays.from_lists([[1, 1, 1]], values=[[0.5, 0.5, 0.5]])
        np.testing.assert_allclose(GAE()(batch([1.0], tokens=tokens)), [0.5, 0.5, 0.5])

    @pytest.mark.parametrize(("gamma", "lambd"), [(1.0, 1.0), (0.99, 0.95), (0.5, 0.0), (0.7, 1.0)])
    def test_gae_equals_the_backward_recursion(self, gamma, lambd):
        """Ragged traces, penalties, values: the scan is the recursion."""
        rng = np.random.default_rng(3)
        lengths = [1, 7, 0, 33, 2]
        masks = [[1] * n for n in lengths]
        values, kl = ([rng.normal(size=n).tolist() for n in lengths] for _ in range(2))
        rewards = rng.normal(size=5)
        expected = []
        for trace_values, trace_kl, reward in zip(values, kl, rewards, strict=True):
            advantages, carry, following = [], 0.0, 0.0
            for t in reversed(range(len(trace_values))):
                paid = -0.1 * trace_kl[t] + (reward if t == len(trace_values) - 1 else 0.0)
                carry = paid + gamma * following - trace_values[t] + gamma * lambd * carry
                following = trace_values[t]
                advantages.append(carry)
            expected += advantages[::-1]
        data = batch(rewards, tokens=TokenArrays.from_lists(masks, values=values, kl=kl))
        np.testing.assert_allclose(GAE(gamma, lambd, kl_coef=0.1)(data), expected, rtol=1e-10, atol=1e-12)

    @given(st.lists(st.lists(st.floats(-10, 10), max_size=20), max_size=5), st.floats(0, 1))
    def test_discounted_tails_equal_a_loop(self, traces, factor):
        """Sums never run over the end of a trace."""
        offsets = np.concatenate([[0], np.cumsum([len(t) for t in traces])]).astype(np.int64)
        expected = []
        for values in traces:
            carry, tail = 0.0, []
            for value in reversed(values):
                carry = value + factor * carry
                tail.append(carry)
            expected += tail[::-1]
        flat = np.array([v for values in traces for v in values], dtype=np.float64)
        np.testing.assert_allclose(discounted_tails(flat, offsets, factor), expected, rtol=1e-9, atol=1e-9)

    @pytest.mark.parametrize(
        ("estimator", "message"),
        [
            (GAE(), "needs per-token arrays"),
            (ReinforcePlusPlus(gamma=0.9), "needs per-token arrays"),
            (ReinforcePlusPlusBaseline(kl_coef=0.1), "needs per-token arrays"),
        ],
    )
    def test_missing_tokens_are_named(self, estimator, message):
        """What an estimator lacks is said, not guessed."""
        with pytest.raises(AdvantageError, match=message):
            estimator(batch([1.0]))

    def test_missing_columns_are_named(self):
        """Values and divergences are not made up."""
        data = batch([1.0], tokens=TokenArrays.from_lists([[1]]))
        with pytest.raises(AdvantageError, match="critic's value"):
            GAE()(data)
        with pytest.raises(AdvantageError, match="divergence per token"):
            ReinforcePlusPlus(kl_coef=0.1)(data)


class TestBatch:
    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"group": [0]}, r"group has shape \(1,\), expected \(2,\)"),
            ({"valid": [True] * 3}, r"valid has shape \(3,\)"),
            ({"reward": [[1.0, 2.0]]}, "one entry per trace"),
            ({"reward": ["a", "b"]}, "reward cannot be read as float64"),
            ({"components": {"x": [1.0]}}, "component 'x'"),
            ({"tokens": TokenArrays.from_lists([[1]])}, "tokens hold 1 traces, expected 2"),
        ],
    )
    def test_wrong_arrays_are_named(self, fields, message):
        """A column of another length belongs to other traces."""
        values = {"reward": [1.0, 2.0], "group": [0, 0], "trajectory": [0, 1], **fields}
        with pytest.raises(AdvantageError, match=message):
            RewardBatch(**values)

    def test_token_arrays_are_checked(self):
        """Offsets and flat columns must fit."""
        with pytest.raises(AdvantageError, match="offsets"):
            TokenArrays([1, 2], [True])
        with pytest.raises(AdvantageError, match="offsets"):
            TokenArrays([0, 2, 1], [True])
        with pytest.raises(AdvantageError, match="token kl"):
            TokenArrays([0, 2], [True, True], kl=[0.0])

    def test_names_as_ids(self):
        """Groups and trajectories may be text."""
        assert DrGRPO()(batch([1, 3], ["a", "a"], ["x", "y"])).tolist() == [-1, 1]

    def test_an_empty_batch(self):
        """Nothing in, nothing out."""
        empty = RewardBatch([], [], [], components={"correctness": [], "format": []})
        for name, cls in ESTIMATORS.items():
            if name != "gae":
                assert cls()(empty).shape == (0,)


class TestHyperParameters:
    @pytest.mark.parametrize(
        "build",
        [
            lambda: GRPO(epsilon=-1.0),
            lambda: GRPO(epsilon=math.nan),
            lambda: MaxAtK(0),
            lambda: MaxAtK(2.0),
            lambda: PassAtK(2, threshold=math.inf),
            lambda: GDPO(keys=("a",)),
            lambda: GDPO(keys="ab"),
            lambda: DVAO(keys=("a", "a")),
            lambda: ReinforcePlusPlus(gamma=0.0),
            lambda: ReinforcePlusPlus(gamma=1.5),
            lambda: GAE(lambd=1.5),
            lambda: GAE(gamma="1"),
            lambda: ReinforcePlusPlusBaseline(kl_coef=-0.1),
        ],
    )
    def test_impossible_values_are_refused(self, build):
        """At construction, not in the middle of a training."""
        with pytest.raises(AdvantageError):
            build()

    def test_estimators_are_values(self):
        """Equal parameters, equal estimators; nobody can change one that is in use."""
        assert GRPO() == GRPO(epsilon=1e-6)
        with pytest.raises(AttributeError):
            GRPO().epsilon = 1.0
        assert parameters_of(GRPO) == {"std_normalization": True, "epsilon": 1e-6}


def centred(rewards, groups, trajectories):
    return [reward - 1.0 for reward in rewards]


def scaled(rewards, groups, trajectories, factor=1.0):
    return rewards * factor


def too_short(rewards, groups, trajectories):
    return rewards[:1]


def broken(rewards, groups, trajectories):
    return {}["x"]


class MyEstimator:
    level = "trace"

    def __init__(self, factor=1.0):
        self.factor = factor

    def __call__(self, data):
        return data.reward * self.factor


READY = MyEstimator(3.0)
NOT_CALLABLE = 5


@pytest.fixture
def my_module(monkeypatch):
    """This file under a name that a configuration could hold."""
    monkeypatch.setitem(sys.modules, "my_estimators", sys.modules[__name__])
    return "my_estimators"


class TestRegistry:
    def test_names(self):
        """What users may write in a configuration."""
        assert list(ESTIMATORS) == [
            "loo",
            "grpo",
            "dr_grpo",
            "rloo",
            "reinforce_plus_plus",
            "reinforce_plus_plus_baseline",
            "gspo",
            "max_at_k",
            "pass_at_k",
            "gdpo",
            "dvao",
            "gae",
        ]
        assert get_estimator("grpo", {"epsilon": 0.5}) == GRPO(epsilon=0.5)
        assert get_estimator("gdpo", {"keys": ["a", "b"]}) == GDPO(keys=("a", "b"))

    @pytest.mark.parametrize(
        ("name", "kwargs", "message"),
        [
            ("grpoo", {}, "did you mean 'grpo'"),
            ("zzz", {}, "known are loo, grpo"),
            ("grpo", {"eps": 1}, "it takes std_normalization, epsilon"),
            ("rloo", {"k": 1}, "it takes none"),
            ("no_such_module:x", {}, "no_such_module"),
            ("math:nope", {}, "nope"),
            ("math:", {}, "cannot import"),
            (":x", {}, "cannot import"),
        ],
    )
    def test_errors_say_what_would_work(self, name, kwargs, message):
        """A misspelt name ends the run at its start, with a hint."""
        with pytest.raises(AdvantageError, match=message):
            get_estimator(name, kwargs)

    @pytest.mark.parametrize(
        ("code", "message"), [("def (", "SyntaxError"), ("1 / 0", "ZeroDivisionError: division by zero")]
    )
    def test_own_code_that_cannot_be_imported(self, tmp_path, monkeypatch, code, message):
        """Whatever it raises, the error names the estimator that was asked for."""
        (tmp_path / "broken_estimator.py").write_text(code)
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(AdvantageError, match=f"'broken_estimator:Mine': {message}"):
            get_estimator("broken_estimator:Mine")

    def test_own_code_by_path(self, my_module):
        """A class, a ready estimator, and a plain function with and without parameters."""
        data = batch([1.0, 2.0], valid=[True, False])
        assert get_estimator(f"{my_module}:MyEstimator", {"factor": 2.0})(data).tolist() == [2.0, 4.0]
        assert get_estimator(f"{my_module}:READY")(data).tolist() == [3.0, 6.0]
        assert get_estimator(f"{my_module}:centred")(data).tolist() == [0.0, 0.0]
        assert get_estimator(f"{my_module}:scaled", {"factor": 3.0})(data).tolist() == [3.0, 0.0]

    @pytest.mark.parametrize(
        ("path", "kwargs", "message"),
        [
            ("READY", {"factor": 1}, "takes no hyper-parameters"),
            ("NOT_CALLABLE", {}, "neither an estimator nor a function"),
            ("MyEstimator", {"nope": 1}, "do not fit"),
        ],
    )
    def test_own_code_that_does_not_fit(self, my_module, path, kwargs, message):
        """Typed errors for users' modules too."""
        with pytest.raises(AdvantageError, match=message):
            get_estimator(f"{my_module}:{path}", kwargs)

    def test_a_function_in_one_line(self):
        """Wrapped, it sees only what can be trained on, with ids from 0."""
        seen = {}

        def mean_centred(rewards, groups, trajectories):
            seen.update(groups=groups.tolist(), trajectories=trajectories.tolist())
            return rewards - rewards.mean()

        data = batch([1.0, 3.0, math.nan, 9.0], [5, 5, 5, 8], valid=[True, True, True, False])
        assert from_function(mean_centred)(data).tolist() == [-1, 1, 0, 0]
        assert repr(from_function(partial(mean_centred, k=2.0))).endswith("mean_centred(k=2.0)")
        assert seen == {"groups": [0, 0], "trajectories": [0, 1]}

    def test_functions_that_answer_wrongly(self):
        """Shape and type are checked where the function is called."""
        with pytest.raises(AdvantageError, match=r"shape \(1,\), expected \(2,\)"):
            from_function(too_short)(batch([1.0, 2.0]))
        with pytest.raises(AdvantageError, match="expected a function"):
            from_function(3)


class TestChecked:
    def test_a_users_error_names_the_estimator(self):
        """With the cause attached."""
        with pytest.raises(AdvantageError, match="broken failed: KeyError") as caught:
            checked_advantages(from_function(broken), batch([1.0]))
        assert isinstance(caught.value.__cause__, KeyError)

    @pytest.mark.parametrize(
        ("answer", "message"),
        [
            ([1.0], r"shape \(1,\), expected \(2,\)"),
            ([1.0, math.nan], "returned nan at 1"),
            ([math.inf, math.nan], r"returned inf at 0 \(and 1 more"),
            (None, "returned"),
            ("ab", "failed"),
        ],
    )
    def test_what_cannot_be_trained_on_is_refused(self, answer, message):
        """A NaN advantage is a NaN loss."""
        with pytest.raises(AdvantageError, match=message):
            checked_advantages(lambda data: answer, batch([1.0, 2.0]))

    def test_good_answers_pass(self):
        """Lists become float64 arrays; token-level answers are measured in tokens."""
        assert checked_advantages(lambda data: [1, 2], batch([1.0, 2.0])).dtype == np.float64
        tokens = TokenArrays.from_lists([[1, 1], [1]], values=[[0.0, 0.0], [0.0]])
        assert checked_advantages(GAE(), batch([1.0, 2.0], tokens=tokens)).shape == (3,)
        with pytest.raises(AdvantageError, match="GAE needs per-token arrays"):
            checked_advantages(GAE(), batch([1.0]))
