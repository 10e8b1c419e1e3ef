"""Search over texts, ids and reasons, and hits that move the shared selection."""

from __future__ import annotations

import asyncio
import re
import threading
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from ipywidgets.widgets.widget import _instances

from analysis.errors import ExplorerError
from analysis.explorers import text_search
from analysis.explorers.lookup import RunTables
from analysis.explorers.search import SearchExplorer
from analysis.explorers.text_search import HITS, SearchTexts, column_hits, hits_frame, snippet
from analysis.run import Run
from tests.analysis.explorers.made_runs import HOSTILE, no_rows, small_run
from tests.analysis.transcripts.made_sessions import load_sessions, session, trace, turn_messages

LONG = 30.0
"""Seconds after which a search that does not end is an error."""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return load_sessions(
        tmp_path,
        session("ses-1", trace(response=turn_messages("a needle, and a needle"))),
        session("ses-2", trace(), trace(response=turn_messages("Needle\n" + HOSTILE))),
        session("ses-3", trace(), status="ERROR", error="needle in the works"),
    )


@pytest.fixture
def explorer(run: Run):
    made = SearchExplorer(run)
    yield made
    made.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "workbench-search"]


def found(explorer: SearchExplorer, query: str) -> list[tuple[str, str, int]]:
    explorer.search(query)
    assert explorer.wait(LONG)
    frame = explorer.hits.frame
    return list(zip(frame["session_id"], frame["where"], frame["hits"], strict=True))


class TestSearching:
    def test_texts_ids_and_reasons(self, explorer: SearchExplorer) -> None:
        assert found(explorer, "needle") == [
            ("ses-3", "error", 1),
            ("ses-1", "assistant", 2),
            ("ses-2", "assistant", 1),
        ]
        assert "3 hits in 3 sessions" in explorer.said.value

    def test_only_texts_or_only_columns(self, explorer: SearchExplorer) -> None:
        explorer.where.value = "columns"
        assert found(explorer, "needle") == [("ses-3", "error", 1)]
        explorer.where.value = "texts"
        assert len(found(explorer, "needle ")) == 2

    def test_capitals_and_expressions(self, explorer: SearchExplorer) -> None:
        explorer.case.value = True
        assert [name for name, _, _ in found(explorer, "Needle")] == ["ses-2"]
        explorer.case.value = False
        assert found(explorer, "/needle, .* needle/") == [("ses-1", "assistant", 1)]
        explorer.regex.value = True
        assert found(explorer, "^needle in") == [("ses-3", "error", 1)]
        assert explorer.state.query == "/^needle in/"

    def test_arguments_of_calls_are_texts(self, explorer: SearchExplorer) -> None:
        assert [where for _, where, _ in found(explorer, "ls\\n-la")] == ["assistant"] * 4

    def test_a_part_of_the_run(self, run: Run) -> None:
        frames = small_run()
        explorer = SearchExplorer(frames)
        explorer.scope.value = "selected"
        explorer.state.rollouts = [1]
        assert {where for _, where, _ in found(explorer, "low_complete")} == {"reject_reason"}
        explorer.state.rollouts = [0]
        assert found(explorer, "low_complete") == []
        explorer.close()

    def test_nothing_to_look_for(self, explorer: SearchExplorer) -> None:
        found(explorer, "needle")
        assert found(explorer, " ") == []
        assert explorer.state.query == ""

    def test_what_is_no_expression_is_shown(self, explorer: SearchExplorer) -> None:
        explorer.search("/(/")
        assert "is no regular expression" in explorer.error_text()
        explorer.search("needle")
        assert explorer.error_text() == ""
        explorer.wait(LONG)

    def test_an_expression_without_end_is_given_up(self, tmp_path: Path) -> None:
        text = "a" * 60 + "b"
        run = load_sessions(tmp_path, session("ses-1", trace(response=turn_messages(text)), error=text))
        explorer = SearchExplorer(run)
        explorer.where.value = "texts"
        explorer.search("/(a|aa)+$/")  # Python's own engine would never come back, nor let go of the kernel
        with pytest.raises(ExplorerError, match="takes more than"):
            explorer.wait(LONG)
        explorer.where.value = "columns"
        with pytest.raises(ExplorerError, match="takes more than"):
            explorer.search()
        assert found(explorer, "aab") == [("ses-1", "error", 1)]
        explorer.close()

    def test_a_run_without_anything(self) -> None:
        explorer = SearchExplorer(no_rows())
        assert found(explorer, "needle") == []
        explorer.close()

    def test_too_many_hits_stop_the_search(
        self, explorer: SearchExplorer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("analysis.explorers.search.MOST_HITS", 1)
        assert len(found(explorer, "needle")) == 1
        assert "stopped at so many" in explorer.said.value


class TestLinks:
    def test_a_hit_moves_the_selection(self, explorer: SearchExplorer) -> None:
        found(explorer, "needle")
        explorer.hits.pick([2])
        assert (explorer.state.session_id, explorer.state.trace_index) == ("ses-2", 1)
        assert explorer.state.query == "needle"
        assert explorer.selection["session_id"].tolist() == ["ses-2"]
        explorer.hits.pick([0])
        assert (explorer.state.session_id, explorer.state.trace_index) == ("ses-3", None)

    def test_the_selection_is_a_frame_of_hits(self, explorer: SearchExplorer) -> None:
        found(explorer, "needle")
        frame = explorer.selection
        assert list(frame.columns) == list(HITS)
        assert frame["message"].tolist() == [pd.NA, 3, 3]
        assert frame["hit"].tolist() == ["needle", "needle", "Needle"]


class TestRunning:
    def test_a_search_can_be_ended(self, explorer: SearchExplorer, monkeypatch: pytest.MonkeyPatch) -> None:
        reading, go_on = threading.Event(), threading.Event()
        real = SearchTexts.of

        def slow(store: SearchTexts, session_id: str, run: str | None = None):
            reading.set()
            assert go_on.wait(LONG)
            return real(store, session_id, run)

        monkeypatch.setattr(SearchTexts, "of", slow)
        explorer.search("needle")
        assert reading.wait(LONG)
        assert explorer.running
        assert not explorer.stop.disabled
        assert len(explorer.hits.frame) == 1  # ids and reasons are there at once
        threading.Timer(0.01, go_on.set).start()
        explorer.stop.click()
        assert not explorer.running
        assert explorer.stop.disabled

    def test_in_a_running_loop_hits_come_by_themselves(self, run: Run) -> None:
        async def main() -> SearchExplorer:
            explorer = SearchExplorer(run)
            ended = asyncio.Event()
            explorer.search("needle")
            explorer.stop.observe(lambda change: ended.set() if change["new"] else None, "disabled")
            await ended.wait()
            return explorer

        explorer = asyncio.run(_within(main()))
        assert len(explorer.hits.frame) == 3
        explorer.close()

    def test_what_goes_wrong_in_the_thread_is_shown(
        self, explorer: SearchExplorer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(store: SearchTexts, session_id: str, run: str | None = None):
            raise OSError("the disk is gone")

        monkeypatch.setattr(SearchTexts, "of", broken)
        explorer.search("needle")
        with pytest.raises(OSError, match="the disk is gone"):
            explorer.wait(LONG)

    def test_ten_searches_leave_nothing(self, run: Run) -> None:
        before = set(_instances)
        for _ in range(10):
            explorer = SearchExplorer(run)
            explorer.search("needle")
            explorer.close()
        assert set(_instances) == before


class TestTexts:
    def test_texts_are_read_once_and_forgotten_at_the_limit(
        self, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        reads: list[str] = []
        real = text_search.read_transcript

        def counted(run: Run, session_id: str, **options: object):
            reads.append(session_id)
            return real(run, session_id, **options)

        monkeypatch.setattr(text_search, "read_transcript", counted)
        store = SearchTexts(run, limit=200)
        sizes = [sum(len(item.text) for item in store.of(name)) for name in ("ses-1", "ses-1", "ses-3")]
        assert reads == ["ses-1", "ses-3"]
        assert store.kept_characters == sizes[0] + sizes[2]
        store.of("ses-2")  # more than the limit by itself
        assert store.kept_characters == sum(len(item.text) for item in store.of("ses-2"))
        store.of("ses-1")
        assert reads == ["ses-1", "ses-3", "ses-2", "ses-1"]

    def test_distinct_texts_are_looked_through_once(self) -> None:
        sessions = RunTables(small_run()).sessions
        hits = column_hits(
            sessions, np.arange(len(sessions)), re.compile("completed", re.IGNORECASE), ["status"]
        )
        assert len(hits) == int((sessions["status"] == "COMPLETED").sum())

    def test_snippets(self) -> None:
        assert snippet("nothing", re.compile("x")) is None
        assert snippet("abc", re.compile("")) is None  # empty matches are none
        assert snippet("a\nxx\tb", re.compile("xx")) == (1, "a↵", "xx", "⇥b")
        count, before, hit, after = snippet("y" * 100 + "x" * 500 + "z" * 100, re.compile("x+"))
        assert (count, len(before), len(hit), len(after)) == (1, 61, 161, 61)
        assert snippet("\u202ex", re.compile("x"))[1] == "‹U+202E›"

    def test_a_frame_without_hits_has_its_types(self) -> None:
        frame = hits_frame(RunTables(no_rows()), [])
        assert {name: str(frame[name].dtype) for name in ("turn", "reward")} == {
            "turn": "Int64",
            "reward": "Float64",
        }


async def _within(work):
    async with asyncio.timeout(LONG):
        return await work
