"""The overview of rollouts: its numbers against the tables, and its brush in both directions."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pandas as pd
import pytest

import analysis
from analysis.explorers.lookup import RunTables
from analysis.explorers.overview_chart import evaluations, overview, panels, rejections
from analysis.explorers.runs import RunExplorer
from analysis.explorers.state import SelectionState
from analysis.html.style import TOKENS
from analysis.lab.run_folder import RunFolder
from tests.analysis.explorers.made_runs import no_rows, one_group, small_run


def drawn(tables: Any) -> tuple[list[int], dict[str, dict[str, Any]], list[dict[str, Any]]]:
    """What the chart of a run draws, by panel."""
    run = RunTables(tables)
    ids, shown, legend = panels(overview(run.rollouts), evaluations(run.rollouts), rejections(run.groups))
    return ids, {panel["label"]: panel for panel in shown}, legend


class TestNumbers:
    def test_yield_is_what_was_delivered_of_what_was_judged(self) -> None:
        numbers = overview(RunTables(small_run()).rollouts)
        assert list(numbers["yield"]) == [1.0, 0.5, 1.0]

    def test_rejections_by_reason(self) -> None:
        counts = rejections(RunTables(small_run()).groups)
        assert counts.to_dict("records") == [
            {"rollout_id": 1, "reason": "low_complete_fraction", "groups": 1}
        ]

    def test_an_evaluation_after_the_last_update_is_no_rollout(self) -> None:
        tables = small_run()
        last = tables["rollout"].iloc[[-1]].assign(rollout_id=3, evaluation=True, reward_mean=0.9)
        tables["rollout"] = pd.concat([tables["rollout"], last], ignore_index=True)
        explorer = RunExplorer(tables)
        assert explorer.chart.ids == [0, 1, 2, 3]
        assert explorer.chart.trained == [0, 1, 2]
        explorer.close()

    def test_a_missing_number_is_a_gap(self) -> None:
        ids, shown, _ = drawn(small_run())
        assert ids == [0, 1, 2]
        assert shown["reward"]["series"][0]["y"] == [0.5, 0.6, None]
        assert shown["reward"]["readout"] == ["0.5 ±0.1", "0.6 ±0.1", ""]

    def test_columns_stand_where_they_were_rejected(self) -> None:
        _, shown, _ = drawn(small_run())
        [series] = shown["rejected groups"]["series"]
        assert series["y"] == [0.0, 1.0, 0.0]
        assert shown["rejected groups"]["readout"] == ["none", "1 low complete fraction", "none"]

    def test_many_reasons_become_few(self) -> None:
        rejected = pd.DataFrame(
            {
                "rollout_id": np.arange(9),
                "reason": [f"reason {k}" for k in range(9)],
                "groups": np.arange(9, 0, -1),
            }
        )
        empty = overview(RunTables(no_rows()).rollouts)
        _, shown, _ = panels(empty, empty, rejected)
        labels = [series["label"] for series in shown[3]["series"]]
        assert labels == ["reason 0", "reason 1", "reason 2", "reason 3", "reason 4", "other"]
        assert shown[3]["series"][-1]["y"] == [0, 0, 0, 0, 0, 4, 3, 2, 1]

    def test_several_runs_have_a_colour_each(self) -> None:
        one, two = small_run()["rollout"], small_run()["rollout"].assign(run="other")
        numbers = overview(pd.concat([one, two], ignore_index=True))
        _, shown, legend = panels(numbers, numbers.iloc[:0], rejections(RunTables(no_rows()).groups))
        assert [entry["label"] for entry in legend] == ["other", "run"]
        assert len({series["colour"] for series in shown[0]["series"]}) == 2
        assert shown[0]["readout"][0] == "other 0.5 ±0.1   run 0.5 ±0.1"

    @pytest.mark.parametrize(
        "tables", [small_run(), one_group(), no_rows()], ids=["small", "one group", "empty"]
    )
    def test_it_is_json_and_every_colour_is_known(self, tables: dict) -> None:
        _, shown, _ = drawn(tables)
        text = json.dumps(shown, allow_nan=False)
        assert set(re.findall(r'"colour": "(\w+)"', text)) <= set(TOKENS)

    def test_of_a_real_run(self, embedded: RunFolder) -> None:
        run = analysis.load(embedded.root)
        ids, shown, _ = drawn(run)
        rollouts = run.rollouts()
        training = rollouts[~rollouts["evaluation"]]
        assert shown["reward"]["series"][0]["y"][:3] == pytest.approx(list(training["reward_mean"]))
        assert [point["x"] for point in shown["reward"]["points"]] == [3]
        rejected = run.groups()["state"].eq("rejected").sum()
        assert sum(sum(s["y"]) for s in shown["rejected groups"]["series"]) == rejected > 0
        assert ids == [0, 1, 2, 3]


class TestBrush:
    def test_brushing_selects_and_selecting_brushes(self) -> None:
        explorer = RunExplorer(small_run())
        explorer.chart.brush = [1, 2]
        assert explorer.state.rollouts == (1, 2)
        assert list(explorer.selection["rollout_id"]) == [1, 2]
        assert "1 rejected" in explorer.text.value
        explorer.state.rollouts = [0]
        assert explorer.chart.brush == [0, 0]
        explorer.chart.brush = None
        assert explorer.state.rollouts is None
        explorer.close()

    def test_a_brush_that_another_explorer_lifts(self) -> None:
        state = SelectionState(small_run())
        explorer = RunExplorer(state.run, state=state)
        explorer.chart.brush = [0, 0]
        state.session_id = "s-4-0"
        assert explorer.chart.brush is None
        explorer.close()

    def test_rollouts_that_are_no_range_stay_as_they_were_chosen(self) -> None:
        explorer = RunExplorer(small_run())
        explorer.state.rollouts = [0, 2]
        assert explorer.chart.brush == [0, 2]
        assert explorer.state.rollouts == (0, 2)
        explorer.close()

    @pytest.mark.parametrize("tables", [one_group(), no_rows()], ids=["one group", "empty"])
    def test_there_may_be_little_to_draw(self, tables: dict) -> None:
        explorer = RunExplorer(tables)
        assert explorer.error_text() == ""
        assert explorer.selection.empty
        explorer.close()

    def test_the_line_below_counts_what_is_brushed(self) -> None:
        explorer = RunExplorer(small_run())
        explorer.chart.brush = [2, 2]
        assert "2 groups · 2 delivered · 0 rejected · 4 sessions" in explorer.text.value
        assert "1 group without a difference in reward" in explorer.text.value
        explorer.close()
