"""The arithmetic of one group: every number can be followed, every absence has its reason, nothing runs."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

from analysis.errors import StatsError
from analysis.stats.advantages import autopsy, recompute
from slime_bridge.advantages import LeaveOneTrajectoryOut
from tests.analysis.stats.builder import RunBuilder, same, untouched

HOSTILE = "<script>alert('x')</script>\x00\u202e\"&"


def _builder() -> RunBuilder:
    builder = RunBuilder()
    builder.group([0.0, 0.0])
    lists = {"response": [11, 12, 13], "mask": [1, 0, 1], "logprob": [-1.0, 0.0, -1.0]}
    builder.group(
        [1.0, 0.0, None, None],
        prompt=HOSTILE,
        expected_sessions=6,
        sessions=[
            {
                "traces": [
                    {"reward": 1.0, "trainable_tokens": 2, "lists": lists},
                    {"reward": 0.0, "trainable_tokens": 6},
                ]
            },
            {},
            {
                "usable": False,
                "completed": False,
                "status": "TIMEOUT",
                "reason": "timeout",
                "detail": HOSTILE,
            },
            {"usable": False, "completed": False, "early_stopped": True, "status": "CANCELLED"},
        ],
    )
    return builder


class TestArithmetic:
    """From rewards to the tokens that they weigh."""

    def test_each_step_is_a_column(self) -> None:
        """Leave-one-out: the baseline is the mean of the others, the spread is 1."""
        found = autopsy(_builder().tables(), 1)
        counted = found.trajectories[found.trajectories["counted"]]
        assert counted["reward"].tolist() == [0.5, 0.0]
        assert counted["baseline"].tolist() == [0.0, 0.5]
        assert counted["spread"].tolist() == [1.0, 1.0]
        assert counted["advantage"].tolist() == [0.5, -0.5]
        assert counted["arithmetic"].tolist() == ["0.5 − 0 = 0.5", "0 − 0.5 = −0.5"]
        assert counted["trainable_tokens"].tolist() == [8, 10]
        assert found.facts["counted"] == 2
        assert found.facts["expected"] == 6
        assert found.facts["mean"] == 0.25
        assert found.facts["deviation"] == pytest.approx(np.sqrt(0.125))

    def test_traces_weigh_their_tokens(self) -> None:
        """Each token of a trajectory gets the trace's advantage over the trajectory's trainable tokens."""
        found = autopsy(_builder().tables(), 1)
        traces = found.traces[found.traces["in_mean"]]
        assert traces["advantage"].tolist() == [1.0, 0.0, -0.5]
        assert traces["token_weight"].tolist() == [1 / 8, 0.0, -0.05]
        assert traces["pull"].tolist() == [2 / 8, 0.0, -0.5]
        assert found.tokens["weight"].tolist() == [1 / 8, 0.0, 1 / 8]
        assert found.tokens["token_id"].tolist() == [11, 12, 13]
        assert found.tokens["position"].tolist() == [0, 1, 2]

    @pytest.mark.parametrize("estimator", ["loo", "rloo", "grpo", "dr_grpo", "gspo"])
    def test_steps_give_the_advantage(self, estimator: str) -> None:
        """For estimators that compare siblings, (reward - baseline) / spread is what they return."""
        tables = _builder().tables()
        found = autopsy(tables, 1, estimator)
        counted = found.traces[found.traces["in_mean"]]
        by_hand = (counted["reward"] - counted["baseline"]) / counted["spread"]
        assert np.allclose(by_hand.astype(float), counted["advantage"].astype(float))
        table = tables["trace"]
        everything = recompute(table, estimator)["advantage"][table["group"] == 1]
        assert found.traces["advantage"].tolist() == everything.tolist()

    @pytest.mark.parametrize("estimator", ["reinforce_plus_plus_baseline", "max_at_k"])
    def test_other_estimators_show_their_formula(self, estimator: str) -> None:
        """Without such steps the advantage stands with the estimator's own formula, for the whole rollout."""
        tables = _builder().tables()
        found = autopsy(tables, 1, estimator)
        assert found.trajectories["baseline"].isna().all()
        assert found.formula
        table = tables["trace"]
        assert (
            found.traces["advantage"].tolist()
            == recompute(table, estimator)["advantage"][table["group"] == 1].tolist()
        )

    @pytest.mark.parametrize("divided", [False, True])
    def test_the_estimator_in_use_is_found(self, divided: bool) -> None:
        """The journal does not say whether the default divides by the spread: the dumps do."""
        builder = RunBuilder(advantage_estimator=None)
        builder.group([1.0, 0.0, 0.0, 0.0])
        tables = builder.tables()
        raw = recompute(tables["trace"], LeaveOneTrajectoryOut(std_normalization=divided))["advantage"]
        tables["trace"] = tables["trace"].assign(advantage_raw=raw)
        assert autopsy(tables, 0).estimator == repr(LeaveOneTrajectoryOut(std_normalization=divided))
        named = RunBuilder(advantage_estimator="max_at_k", advantage_estimator_kwargs={"k": 2})
        named.group([1.0, 0.0])
        assert autopsy(named.tables(), 0).estimator == "MaxAtK(k=2)"
        foreign = RunBuilder(advantage_estimator="subprocess:Popen", advantage_estimator_kwargs={"args": 1})
        foreign.group([1.0, 0.0])
        assert autopsy(foreign.tables(), 0).estimator == repr(LeaveOneTrajectoryOut())

    def test_what_was_trained_stands_beside(self) -> None:
        """A difference to the train dump is shown per trace."""
        builder = RunBuilder()
        builder.group([1.0, 0.0], sessions=[{"traces": [{"advantage_raw": 0.75}]}, {}])
        found = autopsy(builder.tables(), 0, "loo")
        assert found.traces["difference"].tolist()[0] == -0.25
        assert found.traces["trained"].isna().tolist() == [False, True]


class TestAbsence:
    """Why somebody is not there."""

    def test_every_expected_session_has_a_row_and_a_reason(self) -> None:
        """Timed out, stopped as surplus, never recorded: each says so."""
        found = autopsy(_builder().tables(), 1)
        absent = found.trajectories[~found.trajectories["counted"]]
        assert len(found.trajectories) == 6
        reasons = absent["absent"].tolist()
        assert reasons[0].startswith("it ran out of time")
        assert reasons[1] == "the server stopped it as surplus"
        assert reasons[2:] == ["nothing is recorded of it"] * 2

    def test_a_missing_reward_is_named(self) -> None:
        """A usable trajectory whose reward is missing shows what it was counted as."""
        builder = RunBuilder()
        builder.group([1.0, None])
        found = autopsy(builder.tables(), 0)
        assert "missing reward counts as 0" in found.trajectories["arithmetic"].tolist()[1]
        left_out = autopsy(builder.tables(), 0, missing_reward="exclude")
        assert left_out.facts["signal"].startswith("a lone trajectory")

    def test_attempts_that_nobody_used(self) -> None:
        """A session of an earlier attempt is listed as such."""
        builder = RunBuilder()
        builder.group([1.0, 0.0, 1.0], sessions=[{}, {}, {"attempt": 0, "traces": []}])
        found = autopsy(builder.tables(), 0)
        assert "its attempt was not used" in found.trajectories["absent"].dropna().tolist()

    @pytest.mark.parametrize(
        ("rewards", "signal"),
        [([1.0, 1.0], "none: all 2 rewards are 1"), ([0.5], "a lone"), ([], "none: no")],
    )
    def test_groups_without_a_signal_say_so(self, rewards: list[float], signal: str) -> None:
        """Equal rewards, one member, no member at all."""
        builder = RunBuilder()
        builder.group(rewards, expected_sessions=2)
        assert autopsy(builder.tables(), 0).facts["signal"].startswith(signal)


class TestText:
    """As text and as HTML."""

    def test_text_shows_the_arithmetic(self) -> None:
        """Plain text for logs: no control characters, every member, the formula."""
        text = autopsy(_builder().tables(), 1).text()
        assert "0.5 − 0 = 0.5, over 8 tokens" in text
        assert "not counted: it ran out of time" in text
        assert "mean of m_j over j != own" in text
        assert "\x00" not in text
        assert "\u202e" not in text

    def test_html_escapes_everything(self) -> None:
        """Whatever a prompt or an error holds is text in the page, never markup."""
        page = autopsy(_builder().tables(), 1)._repr_html_().split("</style>")[1]
        assert "<script" not in page
        assert "&lt;script&gt;" in page
        assert set(re.findall(r"</?(\w+)", page)) <= {
            "div",
            "span",
            "style",
            "p",
            "br",
            "code",
            "table",
            "caption",
            "thead",
            "tbody",
            "tr",
            "th",
            "td",
        }


class TestChoice:
    """Which group is meant."""

    def test_ambiguous_and_unknown_groups_are_errors(self) -> None:
        """A number that two workers used needs the rollout or the worker; the error lists them."""
        builder = _builder()
        builder.worker = "journal.jsonl#1"
        builder._groups = iter([0])
        builder.group([1.0, 0.0], rollout_id=4)
        tables = builder.tables()
        with pytest.raises(StatsError, match=r"journal\.jsonl#1"):
            autopsy(tables, 0)
        assert autopsy(tables, 0, rollout_id=4).facts["counted"] == 2
        assert autopsy(tables, 0, worker="journal.jsonl#0").trajectories["reward"].tolist() == [0.0, 0.0]
        with pytest.raises(StatsError, match="no group"):
            autopsy(tables, 99)
        with pytest.raises(StatsError, match="group_index"):
            autopsy(tables, 0, by="prompt")

    def test_traces_alone_are_enough(self) -> None:
        """Without tables of groups and sessions the traces name the groups."""
        tables = _builder().tables()
        before = untouched(tables)
        found = autopsy({"trace": tables["trace"]}, 1, by="group_index")
        assert found.facts["counted"] == 2
        assert found.tokens.empty
        autopsy(tables, 1)
        same(before, tables)

    def test_a_group_without_a_trace_is_all_absence(self) -> None:
        """Given up before any result: columns are there, members are not."""
        builder = RunBuilder()
        builder.group([], accepted=None, expected_sessions=2)
        found = autopsy(builder.tables(), 0)
        assert len(found.traces) == 0
        assert found.trajectories["absent"].tolist() == ["nothing is recorded of it"] * 2
        assert isinstance(found.text(), str)
        assert str(found.trajectories["advantage"].dtype) == "Float64"
        assert pd.isna(found.facts["mean"])
