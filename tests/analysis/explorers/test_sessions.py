"""A session from every side, linked with the shared selection in both directions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from ipywidgets.widgets.widget import _instances

from analysis.errors import ExplorerError
from analysis.explorers.queries import compiled, query_pattern
from analysis.explorers.session_parts import evaluation_html, session_facts, stages_html, stages_of
from analysis.explorers.sessions import SessionExplorer
from analysis.explorers.state import SelectionState
from analysis.explorers.transcript_view import jumps_of
from analysis.run import Run
from analysis.schema import empty_frame
from analysis.transcripts import read_transcript
from tests.analysis.explorers.made_runs import HOSTILE, no_rows, one_group, small_run
from tests.analysis.transcripts.made_sessions import Words, load_sessions, session, trace, turn_messages

LATE = session(
    "ses-2", trace(reward=None), trace(response=turn_messages("needle")), status="TIMEOUT", error="slow"
)
BARE = session("ses-3", trace(ids=((), ()), mask=[], response_logprobs=None, reward=None))
SILENT = session("ses-4", trace(prompt=(), response=()))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return load_sessions(tmp_path / "run", session("ses-1"), LATE, BARE, SILENT, tokenizer=Words())


@pytest.fixture
def explorer(run: Run):
    made = SessionExplorer(run)
    yield made
    assert made.error_text() == ""
    made.close()


class TestLinks:
    def test_the_state_decides_what_is_shown(self, explorer: SessionExplorer) -> None:
        explorer.state.session_id = "ses-2"
        assert "ses-2" in explorer.head.value
        assert "TIMEOUT" in explorer.head.value
        assert [value for _, value in explorer.trace.options] == [0, 1]
        assert explorer.sessions.selection["session_id"].tolist() == ["ses-2"]
        assert explorer.selection["session_id"].tolist() == ["ses-2"]

    def test_a_row_that_is_picked_is_selected(self, explorer: SessionExplorer) -> None:
        names = explorer.sessions.frame["session_id"].tolist()
        explorer.sessions.pick([names.index("ses-3")])
        assert explorer.state.session_id == "ses-3"
        explorer.sessions.selected = []
        assert explorer.state.session_id is None

    def test_traces_in_both_directions(self, explorer: SessionExplorer) -> None:
        explorer.state.session_id = "ses-2"
        assert explorer.state.trace_index is None  # the first one is shown without being chosen
        explorer.trace.value = 1
        assert explorer.state.trace_index == 1
        assert "needle" in explorer.transcript.html
        explorer.state.trace_index = 0
        assert explorer.trace.value == 0
        assert "needle" not in explorer.transcript.html
        explorer.open_tab("Traces")
        explorer.traces.pick([1])
        assert explorer.state.trace_index == 1
        assert explorer.selection["trace_index"].tolist() == [1]

    def test_a_window_in_both_directions(self, explorer: SessionExplorer) -> None:
        explorer.state.session_id = "ses-1"
        explorer.open_tab("Tokens")
        explorer.tokens.chosen = [3, 5]
        assert explorer.state.values() | {"group": None} == {
            "rollouts": None,
            "group": None,
            "session_id": "ses-1",
            "trace_index": 0,
            "window": (3, 5),
            "estimator": None,
            "query": "",
        }
        assert explorer.tokens.chosen == [3, 5]
        assert explorer.selection["position"].tolist() == [3, 4]
        assert explorer.transcript.focus == 0
        explorer.state.window = (7, 9)
        assert explorer.tokens.chosen == [7, 9]
        assert explorer.transcript.focus == 1
        explorer.tokens.chosen = []
        assert explorer.state.window is None

    def test_a_turn_of_the_transcript_leads_to_its_tokens(self, explorer: SessionExplorer) -> None:
        explorer.state.session_id = "ses-1"
        explorer.transcript._handle_custom_msg({"type": "turn", "turn": 1}, [])
        assert explorer.state.window == (7, 9)
        assert explorer.tokens.chosen == [7, 9]
        assert explorer.view()["tab"] == 1

    def test_a_query_is_marked(self, explorer: SessionExplorer) -> None:
        explorer.state.session_id = "ses-1"
        explorer.state.query = "DONE"
        assert "<mark>done</mark>" in explorer.transcript.html
        explorer.state.query = "/it is (/"  # no expression: marks nothing
        assert "<mark>" not in explorer.transcript.html

    def test_the_estimator_changes_the_advantages(self) -> None:
        explorer = SessionExplorer(small_run())
        explorer.state.group = 0
        assert explorer.sessions.frame["advantage"].isna().all()  # nothing was dumped
        explorer.state.estimator = "loo"
        assert explorer.sessions.frame["advantage"].tolist() == pytest.approx([0.5, -1.0, 0.5])
        explorer.state.session_id = explorer.sessions.frame["session_id"][1]
        assert "−1" in explorer.head.value
        explorer.open_tab("Traces")
        assert explorer.traces.frame["advantage"].tolist() == [-1.0]
        explorer.close()

    def test_the_group_and_the_brush_decide_what_is_offered(self) -> None:
        explorer = SessionExplorer(small_run())
        assert len(explorer.sessions.frame) == 14
        explorer.state.rollouts = [1]
        assert len(explorer.sessions.frame) == 5
        explorer.state.group = 3
        assert len(explorer.sessions.frame) == 3
        explorer.state.session_id = explorer.sessions.frame["session_id"][0]
        assert len(explorer.sessions.frame) == 3  # its siblings stay
        explorer.close()


class TestWhatIsMissing:
    def test_no_token_ids(self, explorer: SessionExplorer) -> None:
        explorer.state.session_id = "ses-3"
        assert "List the files." in explorer.transcript.html
        explorer.open_tab("Tokens")
        assert (explorer.tokens.trace["count"], explorer.tokens.note) == (
            0,
            "No token ids of this trace were kept.",
        )

    def test_no_messages_but_tokens(self, explorer: SessionExplorer) -> None:
        explorer.state.session_id = "ses-4"
        assert "Made from token ids" in explorer.transcript.html

    def test_no_messages_at_all(self) -> None:
        explorer = SessionExplorer(small_run())
        explorer.state.session_id = explorer.sessions.frame["session_id"][0]
        assert "No messages of this session were kept" in explorer.transcript.html
        for title in ("Tokens", "Evaluation", "Time", "Traces"):
            explorer.open_tab(title)
        assert explorer.error_text() == ""
        explorer.close()

    @pytest.mark.parametrize("source", [no_rows(), one_group()])
    def test_empty_runs(self, source: dict[str, Any]) -> None:
        explorer = SessionExplorer(source)
        assert explorer.error_text() == ""
        assert (
            "No session is chosen" if len(explorer.state.tables.sessions) else "The run has no sessions"
        ) in explorer.head.value
        explorer.close()

    def test_a_turn_whose_tokens_nobody_knows_is_an_error_that_is_seen(self, run: Run) -> None:
        explorer = SessionExplorer(run)
        explorer.state.session_id = "ses-3"
        explorer.transcript._handle_custom_msg({"type": "turn", "turn": 0}, [])
        assert "nobody knows which tokens turn 0 sampled" in explorer.error_text()
        explorer.close()

    def test_a_file_that_is_gone_is_told(self, run: Run, tmp_path: Path) -> None:
        for path in (tmp_path / "run").rglob("ses_ses-1.json"):
            path.unlink()
        explorer = SessionExplorer(run)
        explorer.state.session_id = "ses-1"
        assert "messages cannot be read" in explorer.transcript.html
        explorer.close()


class TestLife:
    def test_ten_explorers_leave_nothing(self, run: Run) -> None:
        state = SelectionState(run)
        before, observers = (
            set(_instances),
            len(state._trait_notifiers.get("session_id", {}).get("change", [])),
        )
        for _ in range(10):
            explorer = SessionExplorer(run, state=state)
            state.session_id = "ses-1"
            explorer.open_tab("Tokens")
            explorer.close()
            state.session_id = None
        assert set(_instances) == before
        assert len(state._trait_notifiers.get("session_id", {}).get("change", [])) == observers

    def test_a_successor_shows_what_was_shown(self, run: Run) -> None:
        first = SessionExplorer(run, name="cell")
        first.state.session_id = "ses-2"
        first.open_tab("Tokens")
        first.tokens.overlay = "logprob"
        second = SessionExplorer(run, name="cell")
        assert first.closed
        assert second.state.session_id == "ses-2"
        assert second.view() == {"tab": 1, "overlay": "logprob"}
        second.close()

    def test_a_tab_that_is_not_there(self, explorer: SessionExplorer) -> None:
        with pytest.raises(ExplorerError, match="no tab is called 'Tokenz'"):
            explorer.open_tab("Tokenz")


def rows(**cells: Any) -> pd.DataFrame:
    frame = empty_frame("session").reindex(range(1))
    for name, value in cells.items():
        frame[name] = pd.Series([value]).astype(frame[name].dtype)
    return frame


def row(**cells: Any) -> pd.Series:
    return rows(**cells).iloc[0]


class TestParts:
    def test_facts_of_a_session_of_which_nothing_is_known(self) -> None:
        html = session_facts(row(), "", (float("nan"), "as trained"))
        assert "no result" in html
        assert "nan" not in html.lower().replace("wb-", "")

    def test_hostile_texts_are_inert(self) -> None:
        hostile = rows(
            session_id=HOSTILE, status=HOSTILE, error=HOSTILE, reason=HOSTILE, node_id=HOSTILE, run_ms=1.0
        )
        report = json.dumps({HOSTILE: HOSTILE, "deep": {HOSTILE: [HOSTILE]}})
        for html in (
            session_facts(hostile.iloc[0], HOSTILE, (1.0, HOSTILE)),
            evaluation_html(row(evaluation_report=report, evaluator=HOSTILE)),
            evaluation_html(row(evaluation_report=HOSTILE)),
            stages_html(hostile, HOSTILE),
        ):
            assert "<script" not in html
            assert "<img" not in html

    def test_a_report(self) -> None:
        html = evaluation_html(
            row(evaluation_report='{"detail": "wrong answer", "passed": false, "n": null}')
        )
        assert "wrong answer" in html
        assert "No report" in evaluation_html(row())

    def test_stages_follow_each_other(self) -> None:
        frame = empty_frame("session").reindex(range(2))
        frame["register_to_init_queue_ms"] = pd.array([20.0, None], dtype="Float64")
        frame["run_ms"] = pd.array([470.0, 100.0], dtype="Float64")
        frame["submitted_at"] = pd.to_datetime(["2026-01-01T00:00:01.0Z", "2026-01-01T00:00:00.5Z"])
        stages = stages_of(frame)
        assert stages[["place", "stage"]].to_numpy().tolist() == [[0, "queue"], [0, "run"], [1, "run"]]
        assert np.allclose(stages[["start", "end"]], [[0.5, 0.52], [0.52, 0.99], [0.0, 0.1]])

    def test_no_times(self) -> None:
        assert "No times" in stages_html(empty_frame("session"))

    def test_turns_to_jump_to(self, run: Run) -> None:
        only = read_transcript(run, "ses-1").traces[0]
        assert jumps_of(only) == [[0, "turn 0: bash"], [1, "turn 1: It is done."]]


class TestQueries:
    def test_plain_and_expressions(self) -> None:
        assert compiled("a.c").search("xA.Cx")
        assert compiled("a.c", case=True).search("xA.Cx") is None
        assert compiled("/a.c/").search("abc")
        assert compiled("a.c", regex=True).search("abc")
        assert compiled("  ") is None

    @pytest.mark.parametrize("query", ["/(/", "x" * 2000])
    def test_what_cannot_be_looked_for(self, query: str) -> None:
        with pytest.raises(ExplorerError):
            compiled(query)
        assert query_pattern(query) is None

    def test_an_expression_without_end_marks_nothing_more(self) -> None:
        pattern = query_pattern("/(a|aa)+$|b/")
        assert pattern is not None
        assert [match[0] for match in pattern.finditer("xb")] == ["b"]
        assert pattern.search("a" * 60 + "c") is None
        assert list(pattern.finditer("xb")) == []
