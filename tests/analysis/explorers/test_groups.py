"""The table of groups and the autopsy below it, against the tables and the estimators themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import analysis
from analysis.explorers.advantages import advantages_of_traces, autopsy_of, largest_by_group
from analysis.explorers.autopsy import (
    AutopsyExplorer,
    absent_html,
    heading_html,
    trajectory_rows,
    weight_text,
)
from analysis.explorers.group_table import SCOPES, rewards_by_group, scope
from analysis.explorers.groups import GroupExplorer
from analysis.explorers.lookup import RunTables
from analysis.explorers.state import SelectionState
from analysis.html.prompts import prompt_text
from analysis.lab.run_folder import RunFolder
from analysis.stats.autopsy import autopsy
from slime_bridge.advantages import ESTIMATORS
from tests.analysis.explorers.made_runs import HOSTILE, many_traces, no_rows, one_group, small_run


def doubled(rewards: Any, groups: Any, trajectories: Any) -> Any:
    """An estimator of the user's own."""
    return 2.0 * np.asarray(rewards)


class TestTable:
    def test_each_group_with_its_fate_and_rewards(self) -> None:
        explorer = GroupExplorer(small_run())
        frame = explorer.table.frame
        assert list(frame["number"]) == [0, 1, 2, 3, 4, 5]
        assert list(frame["fate"])[2:4] == ["delivered", "rejected"]
        assert list(frame["rewards"])[3] == [0.0, None, 1.0]
        explorer.close()

    def test_only_what_is_brushed(self) -> None:
        explorer = GroupExplorer(small_run())
        explorer.state.rollouts = [1]
        assert list(explorer.table.frame["number"]) == [2, 3]
        assert list(explorer.selection["group"]) == [2, 3]
        explorer.close()

    @pytest.mark.parametrize(
        ("wanted", "numbers"),
        [("all", [0, 1, 2, 3, 4, 5]), ("delivered", [0, 1, 2, 4, 5]), ("rejected", [3]), ("unfinished", [])],
    )
    def test_scopes(self, wanted: str, numbers: list[int]) -> None:
        explorer = GroupExplorer(small_run())
        explorer.scope.value = wanted
        assert list(explorer.table.frame["number"]) == numbers
        assert [label for label, _ in explorer.scope.options] == [
            "all 6", "delivered 5", "rejected 1", "unfinished 0", "evaluation 0",
        ]  # fmt: skip
        explorer.close()

    def test_scopes_of_a_real_run_share_it_out(self, embedded: RunFolder) -> None:
        tables = RunTables(analysis.load(embedded.root))
        rows = np.arange(len(tables.groups))
        parts = {name: scope(tables, rows, name) for name in SCOPES}
        assert len(parts["evaluation"]) == 3
        assert sorted([*parts["all"], *parts["evaluation"]]) == list(rows)
        inner = [*parts["delivered"], *parts["rejected"], *parts["unfinished"]]
        assert sorted(inner) == sorted(parts["all"])
        assert len(parts["rejected"])

    def test_rewards_of_a_real_run_are_those_of_the_last_attempt(self, embedded: RunFolder) -> None:
        tables = RunTables(analysis.load(embedded.root))
        found = rewards_by_group(tables)
        sessions = tables.sessions
        for row, key in enumerate(tables.group_keys):
            own = sessions[(sessions["group_index"] == key.group_index).fillna(False)]
            own = own[own["evaluation"].fillna(False) == key.evaluation]
            own = own[own["attempt"].fillna(0) == own["attempt"].fillna(0).max()].sort_values("position")
            assert found[row] == [None if value != value else value for value in own["reward"].astype(float)]

    def test_picking_selects_and_selecting_picks(self) -> None:
        explorer = GroupExplorer(small_run())
        explorer.table.selected = [3]
        assert explorer.state.group.group == 3
        explorer.state.session_id = "s-5-0"
        assert explorer.table.selected == [5]
        assert list(explorer.selection["group"]) == [5]
        explorer.state.group = None
        assert explorer.table.selected == []
        explorer.table.selected = [1]
        explorer.table.selected = []
        assert explorer.state.group is None
        explorer.close()

    def test_a_group_out_of_scope_widens_it(self) -> None:
        explorer = GroupExplorer(small_run())
        explorer.scope.value = "rejected"
        explorer.state.group = 4
        assert explorer.scope.value == "all"
        assert explorer.table.selected == [4]
        explorer.close()

    def test_several_are_picked_and_the_last_is_taken_apart(self) -> None:
        explorer = GroupExplorer(small_run())
        explorer.table.selected = [1, 2]
        assert explorer.state.group.group == 2
        assert list(explorer.selection["group"]) == [1, 2]
        explorer.close()

    @pytest.mark.parametrize(
        ("preview", "text"),
        [
            ('[{"role":"system","content":"be kind"},{"role":"user","content":"hi \\"you\\""}]', 'hi "you"'),
            ('[{"role":"user","content":"cut in the mid', "cut in the mid"),
            ('[{"role":"user","content":"cut after a backslash\\', "cut after a backslash"),
            ("plain", "plain"),
            ("[1, 2]", "[1, 2]"),
            ('{"a": 1}', '{"a": 1}'),
            (None, None),
        ],
    )
    def test_prompts(self, preview: str | None, text: str | None) -> None:
        assert prompt_text(preview) == text


class TestEstimators:
    @pytest.mark.parametrize("name", sorted(ESTIMATORS))
    def test_each_shows_advantages_or_says_why_not(self, name: str) -> None:
        explorer = GroupExplorer(small_run())
        explorer.state.group = 0
        explorer.estimator.value = name
        assert explorer.state.estimator == name
        assert explorer.error_text() == explorer.autopsy.error_text() == ""
        if name in ("gae", "gdpo", "dvao"):
            assert explorer.note.value
            assert "Group 0" in explorer.autopsy.heading.value or "group 0" in explorer.autopsy.heading.value
            assert explorer.autopsy.selection.empty
        else:
            expected = autopsy(small_run(), 0, name).trajectories["advantage"].abs().max()
            assert explorer.table.frame["advantage"][0] == pytest.approx(expected)
            assert explorer.autopsy.selection["advantage"].abs().max() == pytest.approx(expected)
        explorer.close()

    def test_one_of_the_user_s_own(self) -> None:
        explorer = GroupExplorer(small_run(), estimators={"doubled": doubled})
        explorer.state.group = 0
        explorer.estimator.value = "doubled"
        assert explorer.table.frame["advantage"][0] == 2.0
        assert list(explorer.autopsy.selection["advantage"]) == [2.0, 0.0, 2.0]
        explorer.close()

    def test_one_that_is_added_later_is_offered_and_selected(self) -> None:
        explorer = GroupExplorer(small_run())
        explorer.state.add_estimator("mine", doubled)
        assert explorer.estimator.value == "mine"
        explorer.state.add_estimator("mine", lambda rewards, groups, trajectories: 3.0 * np.asarray(rewards))
        assert explorer.table.frame["advantage"][0] == 3.0
        explorer.close()

    def test_the_largest_of_each_group_by_a_plain_loop(self) -> None:
        state = SelectionState(small_run(), estimator="grpo")
        values, why = advantages_of_traces(state)
        assert why == ""
        owner = state.tables.group_of_trace
        expected = [
            max((abs(v) for v, o in zip(values, owner, strict=True) if o == row and v == v), default=np.nan)
            for row in range(6)
        ]
        np.testing.assert_allclose(largest_by_group(state.tables, values), expected)

    def test_what_was_trained_with_is_read_from_the_dumps(self, embedded: RunFolder) -> None:
        state = SelectionState(analysis.load(embedded.root))
        values, why = advantages_of_traces(state)
        assert why == ""
        traces = state.tables.traces
        raw = traces["advantage"].fillna(traces["advantage_raw"]).to_numpy(dtype=float, na_value=np.nan)
        np.testing.assert_array_equal(values, raw)
        assert np.isfinite(values).any()

    def test_without_dumps_it_is_said(self) -> None:
        explorer = GroupExplorer(small_run())
        assert "choose an estimator" in explorer.note.value
        assert "advantage" not in [column["name"] for column in explorer.table.head]
        explorer.close()


class TestAutopsy:
    def test_it_is_that_of_the_statistics(self, embedded: RunFolder) -> None:
        run = analysis.load(embedded.root)
        state = SelectionState(run)
        training = [key for key in state.tables.group_keys if not key.evaluation]
        fates = dict(zip(state.tables.groups["state"], training, strict=False))
        for key, estimator in [
            (fates["delivered"], None),
            (fates["rejected"], "grpo"),
            (training[1], "rloo"),
        ]:
            state.estimator = estimator
            assert autopsy_of(state, key).text() == autopsy(run, key.group, estimator).text()

    def test_its_rows_select_sessions_and_traces_and_follow_them(self) -> None:
        explorer = AutopsyExplorer(small_run(), group=0)
        explorer.sessions.selected = [1]
        assert explorer.state.session_id == "s-0-1"
        explorer.traces.selected = [2]
        assert (explorer.state.session_id, explorer.state.trace_index) == ("s-0-2", 0)
        assert explorer.sessions.selected == [2]
        explorer.state.session_id = "s-0-0"
        assert (explorer.sessions.selected, explorer.traces.selected) == ([0], [])
        explorer.state.group = 1
        assert explorer.sessions.selected == []
        explorer.close()

    def test_who_is_missing_and_why(self) -> None:
        explorer = AutopsyExplorer(small_run(), group=3)
        assert "ended as ERROR" in explorer.absent.value
        assert "s-3-1" in explorer.absent.value
        explorer.state.group = 0
        assert explorer.absent.value == ""
        explorer.close()

    def test_rewards_are_drawn_from_their_baselines(self) -> None:
        explorer = AutopsyExplorer(small_run(), group=0)
        explorer.state.estimator = "loo"
        assert explorer.autopsy is not None
        frame, columns = trajectory_rows(explorer.autopsy)
        assert list(frame["way"]) == [[0.5, 1.0], [1.0, 0.0], [0.5, 1.0]]  # the mean of the two others
        assert "dumbbell" in [column.kind for column in columns]
        explorer.close()

    def test_which_tokens_carry_the_weight(self) -> None:
        state = SelectionState(small_run(), estimator="loo")
        # Advantages 0.5, -1, 0.5 over 10 tokens each: the second trace alone pulls as much as both others.
        assert "1 of 3 traces: 10 of 30 trainable tokens (33%)" in weight_text(
            autopsy_of(state, state.tables.group_keys[0])
        )
        assert "All 2 advantages are 0" in weight_text(autopsy_of(state, state.tables.group_keys[5]))

    def test_nothing_is_picked(self) -> None:
        explorer = AutopsyExplorer(small_run())
        assert "Pick a group" in explorer.heading.value
        assert explorer.selection.empty
        explorer.close()

    def test_an_evaluation_has_sessions_and_no_weights(self, embedded: RunFolder) -> None:
        state = SelectionState(analysis.load(embedded.root))
        key = next(key for key in state.tables.group_keys if key.evaluation)
        state.group = key
        explorer = AutopsyExplorer(state.run, state=state)
        assert explorer.error_text() == ""
        assert "No trace of this group took part" in explorer.weight.value
        explorer.close()

    def test_text_of_a_model_is_inert(self) -> None:
        tables = small_run(prompt=HOSTILE)
        state = SelectionState(tables)
        found = autopsy_of(state, state.tables.group_keys[0])
        for html in (heading_html(found), absent_html(found)):
            assert "<script" not in html
            assert "<img" not in html
        assert "&lt;script&gt;" in heading_html(found)


class TestRuns:
    @pytest.mark.parametrize("tables", [one_group(), no_rows()], ids=["one group", "empty"])
    def test_there_may_be_little_to_list(self, tables: dict) -> None:
        explorer = GroupExplorer(tables)
        for name in SCOPES:
            explorer.scope.value = name
        assert explorer.error_text() == ""
        explorer.close()

    def test_fifty_thousand_traces(self) -> None:
        explorer = GroupExplorer(many_traces(6250, 8))
        explorer.state.rollouts = [3, 4, 5]
        assert explorer.table.total == 750
        explorer.estimator.value = "grpo"
        explorer.table.sort = [["advantage", True]]
        explorer.table.query = "question 12"
        explorer.table.selected = [int(explorer.table.order[0])]
        assert explorer.autopsy.selection["advantage"].abs().max() > 0
        assert explorer.error_text() == explorer.autopsy.error_text() == ""
        explorer.close()
