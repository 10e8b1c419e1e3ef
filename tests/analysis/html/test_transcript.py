"""Transcripts as HTML: everything is there, long parts open, and nothing that was said acts."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.html import visible
from analysis.html.transcript import session_html, transcript_html, turn_facts
from analysis.transcripts.model import BLOCK_KINDS, Block, Message, SessionTranscript, Tool, Transcript, Turn
from tests.analysis.transcripts.made_sessions import HOSTILE

ALLOWED = {
    "div",
    "article",
    "header",
    "span",
    "pre",
    "details",
    "summary",
    "dl",
    "dt",
    "dd",
    "p",
    "mark",
    "section",
}
ANY_TEXT = st.text(st.characters(min_codepoint=0, max_codepoint=0x10FFFF), max_size=60)


class Page(HTMLParser):
    """Reads HTML as a browser would, and checks that it is closed properly."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(str(html))
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def page(*messages: Message, **options: object) -> Page:
    found = Page(transcript_html(Transcript(0, response=messages), **options))
    assert set(found.tags) <= ALLOWED
    assert found.open == []
    return found


def say(text: str, role: str = "assistant") -> Message:
    return Message(role, (Block("text", text),))


class TestHostileText:
    @pytest.mark.parametrize("kind", BLOCK_KINDS)
    def test_every_kind_of_part_is_inert(self, kind: str) -> None:
        block = Block(kind, HOSTILE, name=HOSTILE, call_id=HOSTILE)
        message = Message(HOSTILE, (block,), name=HOSTILE, call_id=HOSTILE)
        found = page(message, pattern=re.compile("script"))
        assert "<script>hit()" in found.text or kind == "image"
        assert "\u202e" not in found.text
        assert "\x1b" not in found.text

    def test_arguments_tools_and_reasons_are_inert(self) -> None:
        call = Block("tool_call", '{"<b>k": "x\\ny", "b": ["</dd>"]}', name="f")
        transcript = Transcript(
            0,
            response=(Message("assistant", (call,), turn=0),),
            turns=(Turn(0, finish_reason=HOSTILE, weight_versions=(HOSTILE,)),),
            tools=(Tool(HOSTILE, HOSTILE, HOSTILE),),
        )
        found = Page(session_html(SessionTranscript(HOSTILE, HOSTILE, (transcript,))))
        assert set(found.tags) <= ALLOWED | {"section"}
        assert not any(name.startswith("on") for name, _ in found.attributes)

    @settings(max_examples=40)
    @given(ANY_TEXT, ANY_TEXT, st.sampled_from(BLOCK_KINDS))
    def test_any_text_is_shown_and_nothing_else(self, text: str, role: str, kind: str) -> None:
        found = page(Message(role, (Block(kind, text, name="n"),)))
        if kind in ("text", "refusal", "other", "reasoning"):
            shown = visible(text)
            assert shown in found.text or not shown.strip("\n")


class TestLongParts:
    def test_a_long_text_opens_and_loses_nothing(self) -> None:
        lines = [f"line {number}" for number in range(200)]
        found = page(say("\n".join(lines), "tool"))
        assert [
            line for line in lines if line not in found.text.split("\n")[0:] and line not in found.text
        ] == []
        assert "188 more lines" in found.text

    def test_a_line_or_two_are_not_folded_away(self) -> None:
        assert "details" not in page(say("\n".join("abcdefghijklmno"))).tags

    def test_an_enormous_text_is_cut_and_says_so(self) -> None:
        found = page(say("x" * 1_000_000))
        assert len(found.text) < 100_000
        assert re.search(r"9\d\d,\d\d\d more characters are not shown", found.text)

    def test_hundreds_of_calls_open(self) -> None:
        calls = tuple(Block("tool_call", f'{{"n": {number}}}', name="f") for number in range(250))
        found = page(Message("assistant", calls))
        assert "238 more calls" in found.text
        assert found.text.count("f") >= 250

    def test_the_system_prompt_shows_its_first_line(self) -> None:
        transcript = Transcript(0, prompt=(say("first line\nsecond\nthird", "system"),))
        found = Page(transcript_html(transcript))
        assert "details" in found.tags

    def test_what_hides_a_match_is_open(self) -> None:
        text = "\n".join(["line"] * 100 + ["needle"])
        assert ("open", None) in page(say(text), pattern=re.compile("needle")).attributes
        assert ("open", None) not in page(say(text), pattern=re.compile("haystack")).attributes


class TestWhatIsSaid:
    def test_calls_show_their_arguments_by_name(self) -> None:
        call = Block("tool_call", '{"command": "ls\\n-la", "n": 3}', name="bash")
        found = page(Message("assistant", (call,)))
        assert "ls\n-la" in found.text
        assert found.tags.count("dt") == 2

    @pytest.mark.parametrize(
        ("arguments", "note"),
        [('{"a": tru', "arguments are not valid JSON"), ("[1]", "arguments are no JSON object"), ("", "")],
    )
    def test_broken_arguments_are_shown_as_written(self, arguments: str, note: str) -> None:
        found = page(Message("assistant", (Block("tool_call", arguments, name="bash"),)))
        assert arguments in found.text
        assert note in found.text

    def test_an_answer_names_the_tool_it_comes_from(self) -> None:
        call = Block("tool_call", "{}", name="grep", call_id="c")
        html = transcript_html(
            Transcript(
                0,
                response=(Message("assistant", (call,)), Message("tool", (Block("text", "x"),), call_id="c")),
            )
        )
        assert html.count("grep") == 2

    def test_numbers_of_turns(self) -> None:
        turn = Turn(
            0, sampled=1200, trainable=1000, logprob_mean=-0.25, advantage=0.5, weight_versions=("3", "4")
        )
        assert turn_facts(turn) == [
            "1,200 tokens",
            "1,000 trained on",
            "logprob −0.250",
            "advantage +0.500",
            "weights 3 → 4",
        ]
        assert turn_facts(Turn(0)) == []
        assert turn_facts(Turn(0, sampled=1, trainable=0)) == ["1 token", "not trained on"]

    def test_an_unusual_end_stands_out(self) -> None:
        assert "wb-warning" in turn_facts(Turn(0, finish_reason="length"))[0]
        assert turn_facts(Turn(0, finish_reason="stop")) == ["stop"]

    def test_a_part_of_the_messages(self) -> None:
        found = page(say("a0"), say("b1"), say("c2"), messages=slice(1, 2), marked={1})
        assert "b1" in found.text
        assert "a0" not in found.text
        assert "c2" not in found.text
        assert any("wb-msg-marked" in (value or "") for _, value in found.attributes)

    def test_nothing_is_said_to_be_nothing(self) -> None:
        assert "No messages were kept" in page().text
        assert "empty" in page(Message("assistant")).text
        assert "No messages of this session were kept" in session_html(SessionTranscript("s"))

    def test_a_session_of_one_trace_says_what_it_came_to(self) -> None:
        trace = Transcript(0, reward=0.5, response_tokens=1200)
        shown = session_html(SessionTranscript("s", traces=(trace,)))
        assert "Trace 0: 0 messages, 1,200 response tokens, reward 0.500" in shown

    def test_representations_bring_their_style(self) -> None:
        session = SessionTranscript("s", traces=(Transcript(0, response=(say("hello"),)), Transcript(1)))
        for shown in (session, session.traces[0]):
            html = shown._repr_html_()
            assert "<style>" in html
            assert "hello" in html
