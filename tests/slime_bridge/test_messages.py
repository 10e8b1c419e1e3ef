import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slime_bridge._messages import flatten_content, messages_to_text, prompt_to_instruction_text

CAPTURES = Path(__file__).parents[1] / "data" / "polar"


def user(content):
    return {"role": "user", "content": content}


class TestFlattenContent:
    @pytest.mark.parametrize(
        ("content", "text"),
        [
            (None, ""),
            ("", ""),
            ("hello", "hello"),
            ([], ""),
            ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb"),
            (["a", {"type": "text", "text": None}, "b"], "a\n[text]\nb"),
            ([{"type": "image_url", "image_url": {"url": "data:..."}}], "[image_url]"),
            ({"type": "text", "text": "one part"}, "one part"),
            ([{"type": "tool_result", "content": [{"type": "text", "text": "deep"}]}], "deep"),
            ([{"type": "refusal", "refusal": "no"}], "no"),
            ({"odd": 1}, '{"odd": 1}'),
            (7, "7"),
            (np.array(["a", "b"]), "a\nb"),
        ],
    )
    def test_every_form_of_content(self, content, text):
        """Null, text, parts and odd objects all become text; none raises."""
        assert flatten_content(content) == text


class TestPromptToInstruction:
    @pytest.mark.parametrize(
        ("prompt", "text"),
        [
            ("Say hello.", "Say hello."),
            (None, ""),
            ("", ""),
            ([], ""),
            ([user("one")], "one"),
            ([user("one"), user("two")], "one\n\ntwo"),
            ([user("one"), user(None), user("two")], "one\n\ntwo"),
            (
                [
                    {"role": "system", "content": "Be brief."},
                    user("one"),
                    user([{"type": "text", "text": "two"}]),
                ],
                "[system] Be brief.\n\n[user] one\n\n[user] two",
            ),
            (user("a single message"), "a single message"),
            ([{"content": "no role"}], "no role"),
            (np.array([user("from"), user("Parquet")], dtype=object), "from\n\nParquet"),
        ],
    )
    def test_forms_of_a_prompt(self, prompt, text):
        """A string is the instruction; one role is joined by blank lines; several become blocks."""
        assert prompt_to_instruction_text(prompt) == text

    @given(st.text())
    def test_a_string_is_never_changed(self, prompt):
        """Whatever a prompt's text looks like, it is the instruction as it is."""
        assert prompt_to_instruction_text(prompt) == prompt

    @given(st.lists(st.text(min_size=1), min_size=1))
    def test_one_role_keeps_every_message(self, contents):
        """No message of a prompt is lost."""
        assert prompt_to_instruction_text([user(text) for text in contents]) == "\n\n".join(contents)


class TestMessagesToText:
    def test_blocks(self):
        """Messages become role and content, with blank lines between them."""
        messages = [{"role": "assistant", "content": "Hi."}, {"role": "tool", "content": "a.txt"}]
        assert messages_to_text(messages) == "[assistant] Hi.\n\n[tool] a.txt"

    def test_tool_calls_are_not_empty_turns(self):
        """A turn with null content shows what it called."""
        message = {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c1", "function": {"name": "bash", "arguments": '{"cmd": "ls"}'}},
                {"id": "c2", "function": {"name": "read", "arguments": {"path": "ä"}}},
                {"id": "c3", "function": {"name": None, "arguments": None}},
                {"odd": 1},
            ],
        }
        assert messages_to_text([message]) == (
            '[assistant] bash({"cmd": "ls"})\nread({"path": "ä"})\ntool()\n{"odd": 1}'
        )

    def test_content_comes_before_tool_calls_and_reasoning_only_stands_in(self):
        """The text of a turn is its content; reasoning shows where there is nothing else."""
        call = {"function": {"name": "f", "arguments": "{}"}}
        turns = [
            {"role": "assistant", "content": "text", "tool_calls": [call], "reasoning_content": "hidden"},
            {"role": "assistant", "content": None, "tool_calls": None, "reasoning_content": "thought"},
            {"role": "assistant", "content": "", "reasoning": "other"},
            {"role": "assistant", "content": None},
        ]
        assert messages_to_text(turns).split("\n\n") == [
            "[assistant] text\nf({})",
            "[assistant] thought",
            "[assistant] other",
            "[assistant]",
        ]

    def test_nothing_is_interpreted(self):
        """Markup and placeholders in model output stay text."""
        text = "<script>{sample.prompt}</script> ${HOME}"
        assert messages_to_text([user(text)]) == f"[user] {text}"

    @pytest.mark.parametrize("name", ["small", "merged", "long", "no_token_ids"])
    def test_real_conversations(self, name):
        """Every message of a real trace has a block, in order."""
        session = json.loads((CAPTURES / f"session_result.{name}.json").read_text())
        for trace in session["trajectory"]["traces"]:
            messages = trace["response_messages"]
            text = messages_to_text(messages)
            position = 0
            for message in messages:
                position = text.index(f"[{message['role']}]", position) + 1
                if isinstance(message.get("content"), str):
                    assert message["content"].rstrip() in text
