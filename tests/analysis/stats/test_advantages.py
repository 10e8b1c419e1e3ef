"""Advantages from recorded rewards equal plain loops over the same rewards, whatever the frames look like."""

from __future__ import annotations

import math
import random
import statistics

import numpy as np
import pandas as pd
import pytest

from analysis.errors import StatsError
from analysis.stats.advantages import AS_TRAINED, compare, gradient_weights, kish_size, recompute
from slime_bridge.advantages import GRPO, LeaveOneTrajectoryOut, MaxAtK, ReinforcePlusPlus
from slime_bridge.errors import AdvantageError
from tests.analysis.stats.builder import RunBuilder, frame, same, untouched


def _loop_leave_one_out(groups: list[list[list[float]]]) -> list[float]:
    """Trace rewards per group and trajectory to advantages, with nothing but Python."""
    result = []
    for group in groups:
        means = [sum(traces) / len(traces) for traces in group]
        for place, traces in enumerate(group):
            others = [mean for other, mean in enumerate(means) if other != place]
            baseline = sum(others) / len(others) if others else 0.0
            result += [reward - baseline for reward in traces]
    return result


def _ragged(seed: int) -> list[list[list[float]]]:
    rng = random.Random(seed)
    return [
        [[rng.gauss(0, 1) for _ in range(rng.choice([1, 1, 3]))] for _ in range(rng.randint(1, 6))]
        for _ in range(7)
    ]


def _run(groups: list[list[list[float]]]) -> RunBuilder:
    builder = RunBuilder()
    for group in groups:
        builder.group(
            [sum(traces) / len(traces) for traces in group],
            sessions=[{"traces": [{"reward": reward} for reward in traces]} for traces in group],
        )
    return builder


class TestRecompute:
    """What an estimator gives for the rewards in a table of traces."""

    @pytest.mark.parametrize("seed", range(5))
    def test_default_equals_a_plain_loop(self, seed: int) -> None:
        """Ragged groups with several traces per trajectory, exactly."""
        groups = _ragged(seed)
        table = _run(groups).tables()["trace"]
        answer = recompute(table, "loo")
        assert np.allclose(
            answer["advantage"].to_numpy(float), _loop_leave_one_out(groups), atol=1e-12, rtol=0
        )
        assert answer.index.equals(table.index)
        assert answer["counted"].all()

    def test_worked_examples_of_the_contract(self) -> None:
        """A(2, 4), B(10) gives -8, -6, 7; a failed B is not there; a lone A keeps its rewards."""
        builder = _run([[[2, 4], [10]], [[2, 4]]])
        builder.group(
            [2.0, None, 6.0], sessions=[{}, {"completed": False, "usable": False, "status": "ERROR"}, {}]
        )
        answer = recompute(builder.tables()["trace"], LeaveOneTrajectoryOut())["advantage"].tolist()
        assert answer == [-8, -6, 7, 2, 4, -4, 0, 4]

    def test_rollouts_are_batches_of_their_own(self) -> None:
        """An estimator that whitens over the batch sees one rollout at a time, and rejected groups apart."""
        builder = RunBuilder()
        for rollout, rewards in enumerate([[1.0, 0.0], [5.0, 1.0]]):
            builder.group(rewards, rollout_id=rollout)
        builder.group([9.0, 1.0], rollout_id=1, accepted=False, reject_reason="too_stale")
        answer = recompute(builder.tables()["trace"], "reinforce_plus_plus")["advantage"].to_numpy(float)
        assert np.allclose(answer[:2], answer[2:4])
        assert np.allclose(answer[2:4], answer[4:])

    def test_missing_rewards_follow_the_stated_rule(self) -> None:
        """As handed over, a missing reward is 0; excluded, it takes no part and its trace gets 0."""
        builder = RunBuilder()
        builder.group([1.0, None, 0.5])
        table = builder.tables()["trace"]
        assert recompute(table, "loo")["advantage"].tolist() == [0.75, -0.75, 0.0]
        assert recompute(table, "loo", missing_reward="exclude")["advantage"].tolist() == [0.5, 0.0, -0.5]
        with pytest.raises(StatsError, match="missing_reward"):
            recompute(table, "loo", missing_reward="skip")

    def test_results_that_nobody_used_take_no_part(self) -> None:
        """Where the samples of a group are in a dump, traces that are only in Polar's files do not count."""
        builder = RunBuilder()
        builder.group([1.0, 0.0, 7.0], sessions=[{}, {}, {"traces": [{"sample_status": None}]}])
        answer = recompute(builder.tables()["trace"], "loo")["advantage"]
        assert answer.isna().tolist() == [False, False, True]
        assert answer.tolist()[:2] == [1.0, -1.0]

    def test_sessions_tell_failures_where_there_is_no_dump(self) -> None:
        """From Polar's files alone, the traces of a session that did not complete get no advantage."""
        builder = RunBuilder()
        own = {"traces": [{"sample_status": None}]}
        failed = {"completed": False, "usable": True, "status": "ERROR", **own}
        builder.group([1.0, 0.0, 7.0], sessions=[own, own, failed])
        tables = builder.tables()
        answer = recompute(tables["trace"], "loo", sessions=tables["session"])["advantage"]
        assert answer.tolist() == [1.0, -1.0, 0.0]

    def test_evaluations_have_no_advantages(self) -> None:
        """Rows of an evaluation are missing, not 0."""
        builder = RunBuilder()
        builder.group([1.0, 0.0])
        table = builder.tables()["trace"].assign(evaluation=True)
        assert recompute(table, "grpo")["advantage"].isna().all()

    def test_token_level_estimators_use_the_token_arrays(self) -> None:
        """A discount per token gives the mean over a trace's tokens, with its smallest and largest."""
        builder = RunBuilder()
        lists = {"response": [1, 2, 3], "mask": [1, 1, 1]}
        builder.group([1.0, 0.0], sessions=[{"traces": [{"lists": lists}]}, {"traces": [{"lists": lists}]}])
        tables = builder.tables()
        estimator = ReinforcePlusPlus(gamma=0.5, normalize=False)
        answer = recompute(tables["trace"], estimator, tokens=tables["tokens"])
        assert answer["advantage"].tolist() == pytest.approx([(0.25 + 0.5 + 1.0) / 3, 0.0])
        assert answer["advantage_min"].tolist() == [0.25, 0.0]
        assert answer["advantage_max"].tolist() == [1.0, 0.0]
        with pytest.raises(AdvantageError, match="per-token"):
            recompute(tables["trace"], estimator)

    def test_components_come_from_the_reward_or_the_report(self) -> None:
        """Further rewards are looked up in the trace's reward first, then in the evaluator's report."""
        builder = RunBuilder()
        parts = [{"correctness": 1.0, "format": 0.0}, {"correctness": 0.0, "format": 1.0}]
        builder.group(
            [1.0, 0.0],
            sessions=[
                {
                    "traces": [{"reward_components": f'{{"correctness": {p["correctness"]}}}'}],
                    "evaluation_report": f'{{"format": {p["format"]}, "correctness": 9}}',
                }
                for p in parts
            ],
        )
        tables = builder.tables()
        answer = recompute(tables["trace"], "dvao", sessions=tables["session"])["advantage"].tolist()
        assert answer == [0.0, 0.0]  # the two components cancel

    def test_a_plain_function_is_an_estimator(self) -> None:
        """A function of (rewards, groups, trajectories) needs no wrapping."""
        builder = RunBuilder()
        builder.group([1.0, 0.0])
        table = builder.tables()["trace"]
        assert recompute(table, lambda rewards, groups, trajectories: rewards * 2)["advantage"].tolist() == [
            2,
            0,
        ]

    def test_empty_and_unknown(self) -> None:
        """No traces give no rows and all columns; an unknown name and a number are typed errors."""
        empty = recompute(frame("trace", []), "loo")
        assert len(empty) == 0
        assert str(empty["advantage"].dtype) == "Float64"
        with pytest.raises(AdvantageError, match="unknown"):
            recompute(frame("trace", []), "lou")
        with pytest.raises(StatsError, match="estimator"):
            recompute(frame("trace", []), 3)


class TestWeights:
    """How hard a trace pulls."""

    def test_gradient_weights_equal_a_loop(self) -> None:
        """|A| times the trace's share of its trajectory's tokens, or times its tokens."""
        advantage = np.array([1.0, -2.0, np.nan, 0.5])
        tokens, trajectory = np.array([2, 6, 4, 0]), np.array([0, 0, 1, 1])
        assert gradient_weights(advantage, tokens, trajectory).tolist() == [0.25, 1.5, 0.0, 0.0]
        assert gradient_weights(advantage, tokens, trajectory, "token").tolist() == [2.0, 12.0, 0.0, 0.0]
        assert gradient_weights(np.zeros(0), np.zeros(0, int), np.zeros(0, int)).tolist() == []
        with pytest.raises(StatsError, match="reduction"):
            gradient_weights(advantage, tokens, trajectory, "mean")

    def test_kish_size_counts_equal_weights_as_they_are(self) -> None:
        """Four equal weights are four; one that outweighs all others is one; none is missing."""
        weights = np.array([2.0, 2, 2, 2, 1, 0, 0, 0])
        sizes = kish_size(weights, np.array([0, 0, 0, 0, 1, 1, 2, 2]), 4)
        assert sizes[:2].tolist() == [4.0, 1.0]
        assert np.isnan(sizes[2:]).all()


class TestCompare:
    """Several estimators side by side."""

    def _tables(self) -> dict:
        builder = RunBuilder()
        rng = random.Random(3)
        for rollout in range(3):
            for _ in range(4):
                size = rng.randint(2, 5)
                builder.group(
                    [float(rng.random() < 0.4) for _ in range(size)],
                    rollout_id=rollout,
                    sessions=[{"traces": [{"trainable_tokens": rng.randint(1, 50)}]} for _ in range(size)],
                )
        builder.group([1.0, 0.0], rollout_id=2, accepted=False, reject_reason="too_stale")
        return builder.tables()

    def test_numbers_equal_plain_python(self) -> None:
        """Group statistics, shares, flips and correlations, computed again with loops."""
        tables = self._tables()
        answer = compare(tables, ["loo", "grpo", MaxAtK(2)])
        traces = answer.traces
        assert set(traces["estimator"]) == {"loo", "grpo", "MaxAtK(k=2)"}
        for (label, rollout), part in traces.groupby(["estimator", "rollout_id"]):
            expected = [
                abs(a) for a in part["advantage"].astype(float)
            ]  # one trace per trajectory: all of it
            total = sum(expected)
            assert np.allclose(part["weight_share"].astype(float), [w / total for w in expected]), (
                label,
                rollout,
            )
        for row in answer.groups.to_dict("records"):
            part = traces[(traces["estimator"] == row["estimator"]) & (traces["group"] == row["group"])]
            values = part["advantage"].astype(float).tolist()
            assert row["traces"] == row["trajectories"] == len(values)
            assert row["advantage_mean"] == pytest.approx(statistics.fmean(values), abs=1e-12)
            assert row["advantage_std"] == pytest.approx(statistics.pstdev(values), abs=1e-12)
            squares = sum(v * v for v in values)
            if squares:
                assert row["effective_trajectories"] == pytest.approx(sum(map(abs, values)) ** 2 / squares)
            else:
                assert pd.isna(row["effective_trajectories"])
        wide = traces.pivot_table(index="session_id", columns="estimator", values="advantage").astype(float)
        pair = answer.pairs.set_index(["first", "second"]).loc[("loo", "grpo")]
        assert pair["pearson"] == pytest.approx(
            statistics.correlation(wide["loo"].tolist(), wide["grpo"].tolist())
        )
        assert pair["sign_flips"] == 0
        assert pair["zero_flips"] == 0
        assert pair["spearman"] == pytest.approx(
            statistics.correlation(wide["loo"].rank().tolist(), wide["grpo"].rank().tolist())
        )

    def test_rejected_groups_are_left_out_unless_asked_for(self) -> None:
        """The comparison is about what is trained on."""
        tables = self._tables()
        accepted, everything = compare(tables), compare(tables, accepted_only=False)
        assert len(everything.traces) - len(accepted.traces) == 2 * 3
        assert accepted.traces["advantage"].notna().all()

    def test_what_was_trained_is_compared_as_well(self) -> None:
        """Advantages in the train dumps show up as an estimator, the raw ones where the final are missing."""
        builder = RunBuilder()
        builder.group(
            [1.0, 0.0],
            sessions=[
                {"traces": [{"advantage": -1.0, "advantage_raw": 5.0}]},
                {"traces": [{"advantage_raw": 1.0}]},
            ],
        )
        answer = compare(builder.tables(), {"mine": "loo"})
        pair = answer.pairs.iloc[0]
        assert (pair["first"], pair["second"]) == ("mine", AS_TRAINED)
        assert pair["sign_flips"] == 2
        assert pair["sign_flip_share"] == 1.0

    def test_length_bins_cover_all_traces_once(self) -> None:
        """Bins hold every trainable trace, and their shares sum to one."""
        answer = compare(self._tables(), ["loo"], length_bins=3)
        lengths = answer.lengths
        assert lengths["traces"].sum() == len(answer.traces)
        assert lengths["token_share"].sum() == pytest.approx(1.0)
        assert lengths["weight_share"].sum() == pytest.approx(1.0)
        assert (lengths["length_low"] <= lengths["length_high"]).all()

    def test_constant_groups_and_nothing_at_all(self) -> None:
        """Without a signal shares are missing and nothing warns; without traces every frame is empty."""
        builder = RunBuilder()
        builder.group([1.0, 1.0])
        flat = compare(builder.tables(), ["loo", GRPO()])
        assert flat.traces["weight_share"].isna().all()
        assert flat.groups["effective_trajectories"].isna().all()
        assert flat.pairs["pearson"].isna().all()
        assert flat.summary["zero_share"].tolist() == [1.0, 1.0]
        nothing = compare({}, ["loo", "grpo"])
        assert len(nothing.traces) == len(nothing.groups) == len(nothing.lengths) == 0
        assert nothing.summary["traces"].tolist() == [0, 0]
        assert len(nothing.pairs) == 1

    def test_labels_must_tell_estimators_apart(self) -> None:
        """The same estimator twice, and no list at all, are errors that say what to do."""
        with pytest.raises(StatsError, match="mapping"):
            compare({}, ["loo", "loo"])
        with pytest.raises(StatsError, match="list"):
            compare({}, "loo")

    def test_the_run_is_left_alone(self) -> None:
        """No frame of the run changes."""
        tables = self._tables()
        before = untouched(tables)
        compare(tables)
        same(before, tables)
        assert not math.isnan(float(compare(tables).summary["advantage_std"].iloc[0]))
