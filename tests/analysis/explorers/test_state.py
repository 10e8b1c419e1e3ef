"""The shared selection: what may be selected, and how the levels follow each other."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from analysis.errors import ExplorerError
from analysis.explorers.lookup import GroupKey
from analysis.explorers.state import SelectionState
from slime_bridge.advantages import ESTIMATORS, GRPO
from tests.analysis.explorers.made_runs import no_rows, one_group, small_run


@pytest.fixture
def state() -> SelectionState:
    return SelectionState(small_run())


class TestLinks:
    def test_a_session_brings_its_group(self, state: SelectionState) -> None:
        state.session_id = "s-2-1"
        assert state.group.group == 2

    def test_a_group_outside_of_the_brush_lifts_it(self, state: SelectionState) -> None:
        state.rollouts = [0]
        state.group = 4
        assert state.rollouts is None

    def test_a_group_inside_of_the_brush_leaves_it(self, state: SelectionState) -> None:
        state.rollouts = [1, 2]
        state.group = 4
        assert state.rollouts == (1, 2)

    def test_a_brush_elsewhere_lets_go_of_all_that_is_inside(self, state: SelectionState) -> None:
        state.select(session_id="s-0-0", trace_index=0, window=(0, 3))
        state.rollouts = [2]
        assert state.values() == {
            "rollouts": (2,),
            "group": None,
            "session_id": None,
            "trace_index": None,
            "window": None,
            "estimator": None,
            "query": "",
        }

    def test_another_group_lets_go_of_the_session(self, state: SelectionState) -> None:
        state.session_id = "s-0-0"
        state.group = 1
        assert state.session_id is None

    def test_another_session_of_the_group_keeps_it_and_lets_go_of_the_trace(
        self, state: SelectionState
    ) -> None:
        state.select(session_id="s-0-0", trace_index=0)
        state.session_id = "s-0-1"
        assert (state.group.group, state.trace_index) == (0, None)

    def test_an_observer_sees_levels_that_agree(self, state: SelectionState) -> None:
        seen = []

        def look(change: object) -> None:
            session = None if state.session_id is None else int(state.session_id.split("-")[1])
            assert session is None or state.group.group == session
            assert state.rollouts is None or state.group is None or state.group.rollout_id in state.rollouts
            seen.append(state.session_id)

        state.observe(look, ["rollouts", "group", "session_id"])
        state.session_id = "s-0-0"
        state.rollouts = [1]
        state.session_id = "s-5-1"
        state.group = 0
        assert "s-5-1" in seen
        assert seen[-1] is None


class TestValues:
    @pytest.mark.parametrize(
        ("name", "value", "what"),
        [
            ("rollouts", [77], "none of the rollouts"),
            ("rollouts", "0", "collection of rollout ids"),
            ("rollouts", [0.5], "integer"),
            ("group", 77, "no group has the number 77"),
            ("group", "0", "a group is a number"),
            ("group", {"group": 77}, "no group with"),
            ("group", {}, "none of"),
            ("session_id", "nobody", "no session 'nobody'"),
            ("session_id", 3, "no session 3"),
            ("trace_index", 0, "select the session first"),
            ("window", (0, 1), "select the trace first"),
            ("window", (3, 1), "does not end before"),
            ("window", "ab", "window is"),
            ("window", 5, "window is"),
            ("estimator", "gppo", "no estimator is called 'gppo'"),
        ],
    )
    def test_what_is_not_there_cannot_be_selected(
        self, state: SelectionState, name: str, value: object, what: str
    ) -> None:
        before = state.values()
        with pytest.raises(ExplorerError, match=what):
            setattr(state, name, value)
        assert state.values() == before

    def test_a_trace_that_the_session_lacks(self, state: SelectionState) -> None:
        state.session_id = "s-0-0"
        with pytest.raises(ExplorerError, match="none is number 5"):
            state.trace_index = 5

    def test_rollouts_are_sorted_and_those_of_other_runs_left_out(self, state: SelectionState) -> None:
        state.rollouts = np.array([2, 0, 2, 99])
        assert state.rollouts == (0, 2)

    def test_no_rollouts_are_all(self, state: SelectionState) -> None:
        state.rollouts = []
        assert state.rollouts is None

    @pytest.mark.parametrize("kind", ["number", "row", "mapping", "key"])
    def test_a_group_has_several_names(self, state: SelectionState, kind: str) -> None:
        row = state.tables.groups.iloc[3]
        wanted = {"number": 3, "row": row, "mapping": {"group_index": 3}, "key": state.tables.group_keys[3]}
        state.group = wanted[kind]
        assert state.group == GroupKey("run", 1, False, "journal.jsonl#0", 3, 3)

    def test_a_name_of_several_groups_names_none(self) -> None:
        tables = small_run()
        tables["group"] = pd.concat([tables["group"]] * 2).assign(worker=["a"] * 6 + ["b"] * 6)
        with pytest.raises(ExplorerError, match="2 groups have group 0"):
            SelectionState(tables).group = 0

    def test_an_unknown_attribute_is_refused(self, state: SelectionState) -> None:
        with pytest.raises(ExplorerError, match="nothing to select is called 'grup'"):
            state.select(grup=1)


class TestFrames:
    def test_the_innermost_selection_is_the_frame(self, state: SelectionState) -> None:
        assert len(state.selection()) == 3  # all rollouts
        state.rollouts = [1, 2]
        assert list(state.selection()["rollout_id"]) == [1, 2]
        state.group = 3
        assert list(state.selection()["reject_reason"]) == ["low_complete_fraction"]
        state.session_id = "s-3-2"
        assert list(state.selection()["reward"]) == [1.0]
        state.trace_index = 0
        assert list(state.selection()["trace_index"]) == [0]

    @pytest.mark.parametrize(
        ("selected", "counts"),
        [
            ({}, (6, 14, 14)),
            ({"rollouts": [0]}, (2, 5, 5)),
            ({"group": 0}, (1, 3, 3)),
            ({"session_id": "s-0-1"}, (1, 1, 1)),
        ],
    )
    def test_rows_of_each_level_belong_to_the_selection(
        self, state: SelectionState, selected: dict, counts: tuple[int, ...]
    ) -> None:
        state.select(**selected)
        assert tuple(len(state.rows(grain)) for grain in ("group", "session", "trace")) == counts

    def test_runs_without_rows_have_selections_without_rows(self) -> None:
        state = SelectionState(no_rows())
        assert state.selection().empty
        assert state.rows("trace").empty

    def test_a_run_of_one_group(self) -> None:
        state = SelectionState(one_group(), group=0)
        assert len(state.rows("session")) == 2


class TestEstimators:
    def test_all_of_the_bridge_can_be_chosen(self, state: SelectionState) -> None:
        assert state.estimator_labels == tuple(ESTIMATORS)

    def test_no_choice_is_the_run_s_own(self, state: SelectionState) -> None:
        assert state.resolved_estimator() is None

    def test_own_ones_by_label_and_as_a_list(self) -> None:
        state = SelectionState(
            one_group(), estimators={"mine": lambda rewards, groups, trajectories: rewards}
        )
        assert state.estimator_labels[-1] == "mine"
        state = SelectionState(one_group(), estimators=[GRPO(epsilon=0.5)])
        state.estimator = state.estimator_labels[-1]
        assert state.resolved_estimator() == GRPO(epsilon=0.5)

    def test_one_that_replaces_another_is_announced(self, state: SelectionState) -> None:
        seen = []
        state.add_estimator("mine", GRPO())
        state.observe(lambda change: seen.append(state.resolved_estimator()), "estimator")
        state.add_estimator("mine", GRPO(epsilon=0.5))
        assert seen[-1] == GRPO(epsilon=0.5)


class TestRestoring:
    def test_what_another_state_had(self, state: SelectionState) -> None:
        state.select(
            session_id="s-2-0", trace_index=0, window=(1, 4), estimator="grpo", query="x", rollouts=[1]
        )
        other = SelectionState(small_run())
        other.restore(state.values())
        assert other.values() == state.values()

    def test_what_the_run_no_longer_has_is_left_out(self, state: SelectionState) -> None:
        state.select(session_id="s-2-0", estimator="grpo")
        other = SelectionState(one_group())
        other.restore(state.values())
        assert (other.session_id, other.estimator) == (None, "grpo")

    def test_clear_lets_go_of_all_but_the_estimator(self, state: SelectionState) -> None:
        state.select(rollouts=[0], session_id="s-0-0", estimator="rloo", query="x")
        state.clear()
        assert [name for name, value in state.values().items() if value] == ["estimator"]
