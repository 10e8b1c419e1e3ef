"""Messages as agents and servers write them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.transcripts.model import BLOCK_KINDS, Block, Message
from analysis.transcripts.parsing import messages_of, tools_of

JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
NAMES = st.sampled_from(
    [
        "role",
        "content",
        "type",
        "text",
        "tool_calls",
        "function",
        "name",
        "arguments",
        "reasoning",
        "input",
        "id",
    ]
)
ODD_MESSAGE = st.dictionaries(
    NAMES, JSON | st.sampled_from(["assistant", "tool_use", "thinking", "function"])
)


def one(message: object) -> Message:
    (found,) = messages_of([message])
    return found


def kinds(message: Message) -> list[tuple[str, str]]:
    return [(block.kind, block.text) for block in message.blocks]


class TestOpenAI:
    def test_a_plain_message_is_its_text(self) -> None:
        assert one({"role": "user", "content": "hello\n"}) == Message("user", (Block("text", "hello\n"),))

    def test_tool_calls_keep_their_arguments_as_written(self) -> None:
        call = {"id": "c", "type": "function", "function": {"name": "bash", "arguments": '{"a": tru'}}
        message = one({"role": "assistant", "content": None, "tool_calls": [call]})
        assert message.blocks == (Block("tool_call", '{"a": tru', name="bash", call_id="c"),)
        assert message.text == 'bash({"a": tru)'

    def test_arguments_that_are_no_text_become_json(self) -> None:
        call = {"function": {"name": "f", "arguments": {"x": [1, None]}}}
        assert json.loads(one({"role": "assistant", "tool_calls": [call]}).tool_calls[0].text) == {
            "x": [1, None]
        }

    def test_an_answer_names_its_call(self) -> None:
        message = one({"role": "tool", "tool_call_id": "c", "name": "bash", "content": "ok"})
        assert (message.call_id, message.name, message.text) == ("c", "bash", "ok")

    def test_images_are_described_and_not_kept(self) -> None:
        parts = [
            {"type": "text", "text": "look"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 5000}},
        ]
        assert kinds(one({"role": "user", "content": parts})) == [
            ("text", "look"),
            ("image", "image/png, 5,022 characters of data"),
        ]

    def test_a_refusal_is_told_apart(self) -> None:
        assert kinds(one({"role": "assistant", "content": None, "refusal": "No."})) == [("refusal", "No.")]

    def test_items_of_the_responses_api_are_messages(self) -> None:
        found = messages_of(
            [
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": "7"},
            ]
        )
        assert [(m.role, kinds(m), m.call_id) for m in found] == [
            ("assistant", [("reasoning", "hm")], ""),
            ("assistant", [("tool_call", "{}")], ""),
            ("tool", [("text", "7")], "c"),
        ]


class TestAnthropic:
    def test_blocks_of_one_message(self) -> None:
        content = [
            {"type": "thinking", "thinking": "first think"},
            {"type": "text", "text": "then talk"},
            {"type": "tool_use", "id": "t", "name": "grep", "input": {"q": "x"}},
        ]
        message = one({"role": "assistant", "content": content})
        assert kinds(message) == [
            ("reasoning", "first think"),
            ("text", "then talk"),
            ("tool_call", '{"q":"x"}'),
        ]
        assert message.tool_calls[0].call_id == "t"

    def test_a_result_names_the_call_that_it_answers(self) -> None:
        part = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "found"}]}
        message = one({"role": "user", "content": [part]})
        assert (message.text, message.call_id) == ("found", "t")


class TestWrittenIntoTheText:
    def test_thoughts_in_tags(self) -> None:
        found = kinds(one({"role": "assistant", "content": "<think>\na\n</think>\n\nb"}))
        assert found == [("reasoning", "a"), ("text", "b")]

    def test_thoughts_whose_opening_tag_the_template_wrote(self) -> None:
        assert kinds(one({"role": "assistant", "content": "a</think>b"})) == [
            ("reasoning", "a"),
            ("text", "b"),
        ]

    def test_thoughts_that_never_end(self) -> None:
        assert kinds(one({"role": "assistant", "content": "<think>a, b"})) == [("reasoning", "a, b")]

    def test_only_the_model_thinks(self) -> None:
        assert kinds(one({"role": "tool", "content": "<think>a</think>"})) == [("text", "<think>a</think>")]

    def test_calls_in_tags_stand_where_they_were(self) -> None:
        text = 'before <tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call> after'
        message = one({"role": "assistant", "content": text})
        assert kinds(message) == [("text", "before "), ("tool_call", '{"a":1}'), ("text", " after")]
        assert message.tool_calls[0].written

    @pytest.mark.parametrize("inner", ["{not json}", '{"arguments": {}}', '{"name": 3}'])
    def test_what_no_parser_would_take_stays_text(self, inner: str) -> None:
        text = f"<tool_call>{inner}</tool_call>"
        assert kinds(one({"role": "assistant", "content": text})) == [("text", text)]


class TestOddities:
    def test_none_and_bare_texts(self) -> None:
        assert messages_of(None) == []
        assert messages_of("ask") == [Message("user", (Block("text", "ask"),))]

    def test_half_surrogate_pairs_become_replacement_characters(self) -> None:
        assert one({"role": "user", "content": "a\ud800b"}).text == "a\ufffdb"

    def test_parts_that_nobody_knows_are_kept_as_json(self) -> None:
        message = one({"role": "user", "content": [{"type": "hologram", "x": 1}, 7]})
        assert [(b.kind, b.name) for b in message.blocks] == [("other", "hologram"), ("other", "")]
        assert json.loads(message.blocks[0].text) == {"type": "hologram", "x": 1}

    @given(st.lists(ODD_MESSAGE | JSON, max_size=3))
    def test_anything_becomes_messages_of_known_parts(self, values: list) -> None:
        for message in messages_of(values):
            assert isinstance(message.role, str)
            assert all(block.kind in BLOCK_KINDS for block in message.blocks)
            message.text.encode()  # valid Unicode


def test_tools_by_either_form() -> None:
    openai = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"p": 1}}}
    anthropic = {"name": "g", "input_schema": {"q": 2}}
    tools = tools_of([openai, anthropic, "no tool", {}])
    assert [(t.name, t.description, t.parameters) for t in tools] == [
        ("f", "d", '{"p":1}'),
        ("g", "", '{"q":2}'),
    ]
    assert tools_of(None) == ()
