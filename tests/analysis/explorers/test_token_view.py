"""The view of tokens without a browser: what is sent at once, what is sent when asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.errors import ExplorerError
from analysis.explorers.token_view import PAGE_SIZE, TokenView, layout_of, texts_of
from analysis.token_overlays import OVERLAYS, levels_of
from analysis.trace_tokens import TraceTokens, read_trace_tokens
from tests.analysis.transcripts.made_sessions import Words, load_sessions, session, trace


@pytest.fixture
def tokens(tmp_path: Path) -> TraceTokens:
    return read_trace_tokens(load_sessions(tmp_path, session("ses-1"), tokenizer=Words()), "ses-1")


@pytest.fixture
def long(tmp_path: Path) -> TraceTokens:
    """A trace of ten pages: 60 prompt tokens, then stretches of 50 sampled and 50 other tokens."""
    response = PAGE_SIZE * 10 - 60
    mask = [int(place % 100 < 50) for place in range(response)]
    one = trace(
        ids=([1] * 60, [place % 9 for place in range(response)]),
        mask=mask,
        response=(),
        response_logprobs=[-0.1] * response,
    )
    return read_trace_tokens(
        load_sessions(tmp_path / "long", session("ses-2", one), tokenizer=Words()), "ses-2"
    )


def answer(view: TokenView, **message: Any) -> list[dict[str, Any]]:
    """What the view sends when the browser says something."""
    sent: list[dict[str, Any]] = []
    view.send = lambda content, buffers=None: sent.append(content)  # type: ignore[method-assign]
    view._handle_custom_msg(message, [])
    return sent


class TestWhatIsSentAtOnce:
    def test_one_byte_per_token_and_overlay(self, tokens: TraceTokens) -> None:
        layout = layout_of(tokens, 7)
        assert (layout["version"], layout["count"], layout["start"]) == (7, 9, 0)
        assert list(layout["cells"]) == [3, 5, 2, 3, 5, 3, 4, 3, 10]
        assert list(layout["breaks"]) == [0, 0, 1, 0, 0, 0, 0, 0, 0]
        assert list(layout["edges"]) == [0, 0, 0, 1, 0, 0, 0, 1, 0]
        for name in OVERLAYS:
            assert list(layout["levels"][name]) == levels_of(tokens, name).tolist()
        assert layout["turns"] == [[3, 2], [7, 2]]

    def test_overlays_say_whether_they_know_something(self, tokens: TraceTokens) -> None:
        known = {overlay["name"]: overlay["known"] for overlay in layout_of(tokens)["overlays"]}
        assert known == {
            "mask": True,
            "logprob": True,
            "difference": False,
            "advantage": False,
            "version": True,
            "place": True,
        }

    def test_the_first_pages_come_along(self, long: TraceTokens) -> None:
        view = TokenView(long)
        assert view.trace["count"] == len(long)
        assert (view.page["start"], len(view.page["texts"])) == (0, 4 * PAGE_SIZE)

    def test_a_view_may_begin_anywhere(self, long: TraceTokens) -> None:
        view = TokenView()
        view.show(long, cursor=PAGE_SIZE * 5 + 3)
        assert (view.cursor, view.page["start"]) == (PAGE_SIZE * 5 + 3, PAGE_SIZE * 5)
        view.show(long, cursor=10**9)
        assert view.cursor == len(long) - 1


class TestTexts:
    def test_pages_are_whole_and_end_with_the_trace(self, long: TraceTokens) -> None:
        page = texts_of(long, PAGE_SIZE + 5, PAGE_SIZE + 6)
        assert (page["start"], len(page["texts"])) == (PAGE_SIZE, 6)
        assert texts_of(long, 10**7, 10**7 + 1)["texts"] == []
        assert len(texts_of(long, 0, 10**7)["texts"]) == len(long)

    def test_texts_and_details_are_those_of_the_tokens(self, tokens: TraceTokens) -> None:
        page = texts_of(tokens, 0, 9)
        assert page["texts"][6:] == ["‹E2›", "<b>", "<|im_end|>"]
        assert dict(page["details"][4])["position"] == "4 of 9"

    def test_the_browser_asks_for_more(self, long: TraceTokens) -> None:
        view = TokenView(long)
        (page,) = answer(
            view, type="texts", version=view.trace["version"], start=PAGE_SIZE * 6, stop=PAGE_SIZE * 7
        )
        assert (page["type"], page["start"], len(page["texts"])) == ("texts", PAGE_SIZE * 6, PAGE_SIZE)

    def test_what_was_asked_about_another_trace_is_not_answered(self, long: TraceTokens) -> None:
        view = TokenView(long)
        assert answer(view, type="texts", version=view.trace["version"] - 1, start=0, stop=1) == []

    @pytest.mark.parametrize(
        "message", [{"type": "texts"}, {"type": "texts", "start": "x", "stop": None}, {}]
    )
    def test_nonsense_is_shown_and_not_raised(self, long: TraceTokens, message: dict[str, Any]) -> None:
        view = TokenView(long)
        assert answer(view, **{"version": view.trace["version"], **message}) == []
        assert bool(view.problem) == bool(message)


class TestStates:
    def test_nothing_to_show(self) -> None:
        view = TokenView()
        assert (view.trace["count"], view.note) == (0, "No trace is chosen.")
        with pytest.raises(ExplorerError, match="no tokens are shown"):
            view.choose(0, 1)

    def test_a_window_is_chosen_and_let_go_with_the_trace(self, tokens: TraceTokens) -> None:
        view = TokenView(tokens)
        view.choose(3, 5)
        assert view.chosen == [3, 5]
        view.choose(7, 100)
        assert view.chosen == [7, 9]
        with pytest.raises(ExplorerError, match="positions go from 0 to 8"):
            view.choose(20, 30)
        view.show(None, note="gone")
        assert (view.chosen, view.note) == ([], "gone")

    def test_only_overlays_that_there_are(self, tokens: TraceTokens) -> None:
        view = TokenView(tokens, overlay="logprob")
        with pytest.raises(ExplorerError, match="no overlay"):
            view.overlay = "heat"
        assert view.overlay == "logprob"

    def test_a_window_of_a_trace_keeps_its_positions(self, tmp_path: Path) -> None:
        run = load_sessions(tmp_path, session("ses-1"))
        view = TokenView(read_trace_tokens(run, "ses-1", window=(4, 8)))
        assert (view.trace["start"], view.cursor) == (4, 4)
        view.choose(5, 7)
        assert view.chosen == [5, 7]

    def test_another_trace_under_the_same_overlay(self, tokens: TraceTokens) -> None:
        view = TokenView(tokens, overlay="logprob")
        before = view.trace["version"]
        view.show(replace(tokens, mask=np.zeros(9, np.int8)))
        assert view.overlay == "logprob"
        assert view.trace["version"] > before
