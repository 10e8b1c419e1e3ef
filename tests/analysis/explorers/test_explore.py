"""All explorers together, as `analysis.explore` gives them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ipywidgets.widgets.widget import _instances

import analysis
from analysis.errors import ExplorerError, StatsError
from analysis.explorers.explore import RunView
from analysis.lab.run_folder import RunFolder
from tests.analysis.explorers.made_runs import FramesAsRun, no_rows, one_group, small_run
from tests.analysis.transcripts.made_sessions import load_sessions, session, trace, turn_messages


def test_a_selection_is_a_frame_at_each_level(embedded: RunFolder) -> None:
    run = analysis.load(embedded.root)
    explorer = analysis.explore(run)
    assert len(explorer.selection) == len(run.rollouts())
    explorer.overview.chart.brush = [1, 2]
    assert list(explorer.selection["rollout_id"]) == [1, 2]
    explorer.groups.table.selected = [0]
    assert len(explorer.selection) == 1
    assert explorer.selection["group"][0] == explorer.state.group.group
    explorer.groups.autopsy.sessions.selected = [0]
    assert list(explorer.selection["session_id"]) == [explorer.state.session_id]
    explorer.groups.autopsy.traces.selected = [0]
    assert list(explorer.selection["trace_index"]) == [explorer.state.trace_index]
    explorer.state.window = (0, 5)
    assert len(explorer.selection) == 5
    assert list(explorer.selection["position"]) == [0, 1, 2, 3, 4]
    explorer.close()


def test_a_selection_from_outside_goes_through_all_parts() -> None:
    explorer = analysis.explore(small_run(), session_id="s-3-2", estimator="rloo")
    assert explorer.groups.table.selected == [3]
    assert explorer.groups.estimator.value == "rloo"
    assert explorer.groups.autopsy.sessions.selected == [2]
    explorer.close()


def test_what_is_not_there_leaves_nothing_open() -> None:
    before = len(_instances)
    with pytest.raises(ExplorerError, match="no session"):
        analysis.explore(small_run(), session_id="nobody")
    assert len(_instances) == before


@pytest.mark.parametrize("tables", [one_group(), no_rows()], ids=["one group", "empty"])
def test_there_may_be_little_to_explore(tables: dict) -> None:
    explorer = analysis.explore(tables)
    assert explorer.error_text() == ""
    assert explorer.selection.empty
    explorer.close()


def test_a_cell_that_runs_ten_times_gets_back_what_it_had_and_leaves_nothing() -> None:
    before = len(_instances)
    run = FramesAsRun(small_run())
    explorer = analysis.explore(run, name="cell")
    explorer.overview.chart.brush = [1, 2]
    explorer.groups.scope.value = "rejected"
    explorer.groups.table.sort = [["reward_std", True]]
    explorer.groups.table.query = "divide"
    explorer.groups.table.selected = [0]
    explorer.tabs.selected_index = 2
    widgets = len(_instances)
    for _ in range(10):
        explorer = analysis.explore(run, name="cell")
    assert len(_instances) == widgets
    assert explorer.overview.chart.brush == [1, 2]
    assert explorer.groups.scope.value == "rejected"
    assert (explorer.groups.table.sort, explorer.groups.table.query) == ([["reward_std", True]], "divide")
    assert explorer.state.group.group == 3
    assert explorer.groups.table.selected == [0]
    assert explorer.tabs.selected_index == 2
    assert explorer.search is not None
    explorer.close()
    assert len(_instances) == before


def test_comparison_and_search_are_made_when_they_are_shown() -> None:
    explorer = analysis.explore(small_run())
    assert explorer.compare is explorer.search is None
    explorer.tabs.selected_index = 1
    explorer.tabs.selected_index = 2
    assert explorer.compare is not None
    assert explorer.search is not None
    assert explorer.compare.state is explorer.search.state is explorer.state
    assert explorer.error_text() == ""
    explorer.close()
    assert explorer.compare.closed


def test_a_run_that_grew_is_shown_after_a_refresh(embedded: RunFolder) -> None:
    journal = embedded.bridge / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    later = [path for path in embedded.root.rglob("*") if path.is_file() and path != journal]
    contents = {path: path.read_bytes() for path in later}
    for path in later:
        path.unlink()
    journal.write_bytes(b"".join(lines[: len(lines) // 2]))
    run = analysis.load(embedded.root)
    explorer = analysis.explore(run, group=0)
    before = len(explorer.groups.table.frame)
    journal.write_bytes(b"".join(lines))
    for path, content in contents.items():
        path.write_bytes(content)
    run.refresh()
    explorer.refresh()
    assert len(explorer.groups.table.frame) == (~run.groups()["evaluation"]).sum() > before
    assert explorer.state.group.group == 0
    assert explorer.groups.table.selected
    explorer.close()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"sessions": [1]}, "'sessions' is a list"),
        ({"group": {"group": 1}}, "'group' is a dict"),
        ({"traces": None}, "'traces' is a NoneType"),
        ({"turns": [1]}, "no table 'turns'"),
        ("runs/x", "analysis.load"),
    ],
)
def test_what_is_no_run_is_refused_in_words(given: object, told: str) -> None:
    before = len(_instances)
    with pytest.raises((ExplorerError, StatsError), match=told):
        analysis.explore(given)
    assert len(_instances) == before


class TestHits:
    """A hit of the search leads to where it is."""

    @pytest.fixture
    def run(self, tmp_path: Path) -> analysis.Run:
        said = turn_messages("first"), turn_messages("a needle")
        report = {"evaluation": {"why": "a needle in a report"}}
        reported = {"status": "COMPLETED", "metadata": report, "traces": [trace()]}
        return load_sessions(
            tmp_path,
            session("ses-1", trace(response=[*said[0], *said[1]]), trace(response=turn_messages("other"))),
            session("ses-2", trajectory=reported),
        )

    @pytest.fixture
    def explorer(self, run: analysis.Run) -> Iterator[RunView]:
        explorer = analysis.explore(run)
        explorer.tabs.selected_index = 2
        assert explorer.search is not None
        explorer.search.search("needle")
        assert explorer.search.wait(30.0)
        yield explorer
        assert explorer.error_text() == explorer.session.error_text() == explorer.search.error_text() == ""
        explorer.close()

    def pick(self, explorer: RunView, where: str) -> None:
        assert explorer.search is not None
        frame = explorer.search.hits.frame
        explorer.search.hits.selected = [frame.index[frame["where"] == where][0]]

    def test_its_session_is_open_at_the_message(self, explorer: RunView) -> None:
        revealed: list[dict] = []
        explorer.session.transcript.send = lambda content, **_: revealed.append(content)
        explorer.session.open_tab("Time")
        self.pick(explorer, "assistant")
        assert explorer.tabs.selected_index == 0
        assert (explorer.state.session_id, explorer.state.trace_index) == ("ses-1", 0)
        assert explorer.session.tabs.get_title(explorer.session.tabs.selected_index) == "Transcript"
        assert "<mark>needle</mark>" in explorer.session.transcript.html
        turn = explorer.search.hits.frame.query("where == 'assistant'")["turn"].iloc[0]
        assert explorer.session.transcript.focus == turn
        assert revealed == [{"type": "reveal"}]

    def test_one_in_an_evaluation_is_shown_there(self, explorer: RunView) -> None:
        self.pick(explorer, "evaluation_report")
        assert explorer.tabs.selected_index == 0
        assert explorer.state.session_id == "ses-2"
        assert explorer.session.tabs.get_title(explorer.session.tabs.selected_index) == "Evaluation"

    def test_it_leads_there_again(self, explorer: RunView) -> None:
        self.pick(explorer, "assistant")
        explorer.state.clear()
        explorer.tabs.selected_index = 2
        assert explorer.search.hits.selected == []
        self.pick(explorer, "assistant")
        assert explorer.tabs.selected_index == 0
        assert explorer.state.session_id == "ses-1"


def test_without_the_notebooks_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "analysis.explorers.explore", raising=False)
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install .*\[notebooks\]"):
        _ = analysis.explore
