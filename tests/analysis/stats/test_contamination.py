"""Zeros that the infrastructure gave are told from the task's, and their effect on siblings is exact."""

from __future__ import annotations

import pandas as pd
import pytest

from analysis.errors import StatsError
from analysis.stats.rejections import CAUSES, contamination
from tests.analysis.stats.builder import RunBuilder, same, untouched

PLANTED = {
    "missing_reward": (None, {"missing_rewards": 1}, "certain"),
    "reward_discarded": (0.0, {"reward_discarded": True}, "certain"),
    "error": (0.0, {"status": "ERROR", "error": "node died"}, "certain"),
    "timeout": (0.0, {"status": "TIMEOUT", "timeout_source": "session"}, "certain"),
    "evaluator_error": (0.0, {"evaluation_report": '{"error": "grader crashed"}'}, "certain"),
    "lost_calls": (
        0.0,
        {"completions_total": 5, "completions_merged": 3, "completions_excluded": 0},
        "suspected",
    ),
    "sandbox": (0.0, {"runtime_exec_exception_count": 2}, "suspected"),
    "aborted_turn": (0.0, {"aborted_masked_tokens": 4}, "suspected"),
    "task": (0.0, {}, "no"),
}


class TestCauses:
    """One cause per zero."""

    @pytest.mark.parametrize("cause", PLANTED)
    def test_each_planted_cause_is_found(self, cause: str) -> None:
        """With its verdict, whether it counted, and what points at it."""
        reward, fields, verdict = PLANTED[cause]
        builder = RunBuilder()
        builder.group([1.0, reward], sessions=[{}, fields])
        row = contamination(builder.tables(), "loo").sessions
        assert row["cause"].tolist() == [cause]
        assert row["verdict"].tolist() == [verdict]
        assert row["counted"].tolist() == [True]
        assert row["evidence"].isna().tolist() == [cause in ("task", "timeout")]

    def test_all_causes_are_planted(self) -> None:
        """The list of causes and this test agree."""
        assert set(PLANTED) == set(CAUSES)

    def test_an_agent_that_ran_out_of_its_own_time_is_only_suspected(self) -> None:
        """The agent's own limit may be the policy's slowness."""
        builder = RunBuilder()
        builder.group([1.0, 0.0], sessions=[{}, {"status": "TIMEOUT", "timeout_source": "agent"}])
        assert contamination(builder.tables(), "loo").sessions["verdict"].tolist() == ["suspected"]

    def test_a_trace_that_ended_in_an_abort_counts_as_cut(self) -> None:
        """Finish reason `abort` of any of its traces, even without masked tokens."""
        builder = RunBuilder()
        builder.group([1.0, 0.0], sessions=[{}, {"traces": [{"finish_reason": "abort"}]}])
        assert contamination(builder.tables(), "loo").sessions["cause"].tolist() == ["aborted_turn"]

    def test_positive_rewards_are_no_suspects(self) -> None:
        """A success in spite of trouble is a success."""
        builder = RunBuilder()
        builder.group([1.0, 0.5], sessions=[{"runtime_exec_exception_count": 3}, {}])
        assert contamination(builder.tables(), "loo").sessions.empty


class TestEffect:
    """How far baselines and advantages moved."""

    def test_shifts_equal_the_arithmetic(self) -> None:
        """Rewards 1, 0, 0, the last one lost: without it the second is worse than the trainer was told."""
        builder = RunBuilder()
        builder.group([1.0, 0.0, 0.0], sessions=[{}, {}, {"reward_discarded": True}])
        found = contamination(builder.tables(), "loo")
        assert found.traces["advantage"].tolist() == [1.0, -0.5, -0.5]
        assert found.traces["advantage_without"].tolist()[:2] == [1.0, -1.0]
        assert pd.isna(found.traces["advantage_without"].iloc[2])
        assert found.traces["shift"].tolist()[:2] == [0.0, -0.5]
        group = found.groups.iloc[0]
        assert (group["contaminated"], group["counted"]) == (1, 3)
        assert group["shift"] == pytest.approx(0.5 - 1 / 3)
        effect = found.effect.iloc[0]
        assert effect["affected_traces"] == 2
        assert effect["mean_shift"] == pytest.approx(0.25)
        assert effect["relative_shift"] == pytest.approx(0.25 / (2 / 3))

    def test_signs_that_flip_are_counted(self) -> None:
        """0.4 beside 0.5 and a lost zero was above its siblings, and is below them without it."""
        builder = RunBuilder()
        builder.group([0.4, 0.5, 0.0], sessions=[{}, {}, {"reward_discarded": True}])
        found = contamination(builder.tables(), "loo")
        assert found.traces["sign_flip"].tolist() == [True, False, False]
        assert found.effect["sign_flips"].iloc[0] == 1

    def test_what_never_counted_moves_nothing(self) -> None:
        """A failed session with a mask of zeros is listed, but its siblings are as they were."""
        builder = RunBuilder()
        builder.group(
            [1.0, 0.0, 0.0], sessions=[{}, {}, {"status": "ERROR", "completed": False, "usable": False}]
        )
        found = contamination(builder.tables(), "loo")
        assert found.sessions["counted"].tolist() == [True, False]
        assert found.effect["affected_groups"].iloc[0] == 0
        assert found.traces.empty

    def test_only_certain_ones_if_wanted(self) -> None:
        """Suspicions can be kept out of the effect."""
        builder = RunBuilder()
        builder.group([1.0, 0.0, 0.0], sessions=[{}, {}, {"runtime_exec_timeout_count": 1}])
        tables = builder.tables()
        assert contamination(tables, "loo").effect["affected_groups"].iloc[0] == 1
        assert contamination(tables, "loo", verdicts=["certain"]).effect["affected_groups"].iloc[0] == 0
        with pytest.raises(StatsError, match="verdicts"):
            contamination(tables, verdicts=["likely"])

    def test_several_traces_and_empty_runs(self) -> None:
        """All traces of a lost session leave together; nothing gives empty frames; nothing is changed."""
        builder = RunBuilder()
        builder.group([1.0, 0.0], sessions=[{}, {"reward_discarded": True, "traces": [{}, {}]}])
        tables = builder.tables()
        before = untouched(tables)
        found = contamination(tables)
        same(before, tables)
        assert found.traces["contaminated"].tolist() == [False, True, True]
        assert found.groups["contaminated_traces"].tolist() == [2]
        empty = contamination({})
        assert len(empty.sessions) == len(empty.groups) == len(empty.traces) == 0
        assert empty.summary["sessions"].sum() == 0
        assert empty.effect["mean_shift"].isna().all()
