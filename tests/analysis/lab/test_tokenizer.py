"""The tokenizer: exact round trips, cheap calls, a template whose mask and prefixes can be trusted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from analysis.lab.checkpoint import task_texts
from analysis.lab.task_shelf import ShelfTask, ToolCall
from analysis.lab.tokenizer import TAG_TOKENS, build_tokenizer, save_tokenizer


def build() -> PreTrainedTokenizerFast:
    return build_tokenizer(task_texts(), vocab_size=448, max_length=1024)


TOKENIZER = build()
CONVERSATION: list[dict[str, Any]] = [
    {"role": "user", "content": 'How many boxes are on shelf "B"?'},
    {"role": "assistant", "content": ToolCall("count", {"shelf": "B"}).to_text()},
    {"role": "tool", "tool_call_id": "call_1_0", "content": "7"},
    {"role": "assistant", "content": "Answer: 7"},
]


@given(st.text())
def test_any_text_round_trips(text: str) -> None:
    """Every byte is a symbol: decoding what was encoded gives the text back, whatever it is."""
    assert TOKENIZER.decode(TOKENIZER.encode(text, add_special_tokens=False)) == text


@pytest.mark.parametrize("argument", ["lamp", "rope", "B", "F"])
def test_a_call_costs_few_tokens(argument: str) -> None:
    """The JSON scaffold of a call is one token, so a call costs five and its text stays plain Hermes JSON."""
    name, key = ("count", "shelf") if len(argument) == 1 else ("find", "item")
    text = ToolCall(name, {key: argument}).to_text()
    ids = TOKENIZER.encode(text, add_special_tokens=False)
    assert len(ids) == 5
    assert TOKENIZER.decode(ids[1]) == f'{{"name": "{name}", "arguments": {{"{key}": "'


def test_the_argument_is_the_same_token_in_question_and_call() -> None:
    """Copying an argument means copying one token id."""
    (word,) = TOKENIZER.encode("lamp", add_special_tokens=False)
    for text in ('the "lamp"?', ToolCall("find", {"item": "lamp"}).to_text()):
        assert word in TOKENIZER.encode(text, add_special_tokens=False)


def test_digits_stand_alone() -> None:
    """Numbers are read digit by digit."""
    assert len(TOKENIZER.encode("1234", add_special_tokens=False)) == 4


def test_tags_survive_skipping_special_tokens_and_turn_marks_do_not() -> None:
    """A gateway that decodes with skip_special_tokens must still see the call."""
    text = "".join(TAG_TOKENS) + "<|im_start|>x<|im_end|><|endoftext|>"
    assert TOKENIZER.decode(TOKENIZER.encode(text), skip_special_tokens=True) == "".join(TAG_TOKENS) + "x"


def test_template_renders_chatml_with_tools_and_tool_results() -> None:
    """The whole rendering, spelled out; two tool results in a row share one user turn."""
    messages = [
        {"role": "system", "content": "Be brief."},
        *CONVERSATION[:3],
        {"role": "tool", "content": "8"},
    ]
    text = TOKENIZER.apply_chat_template(
        messages, tools=ShelfTask().tools, add_generation_prompt=True, tokenize=False
    )
    assert text == (
        "<|im_start|>system\nBe brief.\nTools: find(item), count(shelf)<|im_end|>\n"
        '<|im_start|>user\nHow many boxes are on shelf "B"?<|im_end|>\n'
        '<|im_start|>assistant\n<tool_call>{"name": "count", "arguments": {"shelf": "B"}}</tool_call>'
        "<|im_end|>\n"
        "<|im_start|>user\n<tool_response>7</tool_response><tool_response>8</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("arguments", [{"shelf": "B"}, '{"shelf": "B"}'])
def test_structured_tool_calls_render_like_their_text(arguments: Any) -> None:
    """An agent that sends tool_calls instead of text gets the same prompt."""
    structured = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"type": "function", "function": {"name": "count", "arguments": arguments}}],
    }
    with_text = TOKENIZER.apply_chat_template(CONVERSATION[:2], tokenize=False)
    assert TOKENIZER.apply_chat_template([CONVERSATION[0], structured], tokenize=False) == with_text


def test_mask_covers_what_the_assistant_samples_and_nothing_else() -> None:
    """Content and end-of-turn are trained; role marks and the newline after a turn are not."""
    encoded = TOKENIZER.apply_chat_template(
        CONVERSATION, tools=ShelfTask().tools, return_dict=True, return_assistant_tokens_mask=True
    )
    pairs = zip(encoded["input_ids"], encoded["assistant_masks"], strict=True)
    trained = TOKENIZER.decode([token for token, mask in pairs if mask])
    assert trained == f"{CONVERSATION[1]['content']}<|im_end|>{CONVERSATION[3]['content']}<|im_end|>"


def test_each_prompt_begins_with_the_one_before() -> None:
    """Turns can be merged into one trace only when rendering is stable under appending."""

    def prompt(count: int) -> list[int]:
        return list(
            TOKENIZER.apply_chat_template(
                CONVERSATION[:count],
                tools=ShelfTask().tools,
                add_generation_prompt=True,
                return_dict=False,
            )
        )

    first, second = prompt(1), prompt(3)
    assert second[: len(first)] == first


def test_saved_tokenizer_is_read_back_and_names_what_older_readers_know(tmp_path: Path) -> None:
    """Transformers 4 refuses version 5's class name and its list of extra tokens."""
    save_tokenizer(TOKENIZER, tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert config["additional_special_tokens"] == ["<|im_start|>"]
    assert "extra_special_tokens" not in config
    assert config["chat_template"] == (tmp_path / "chat_template.jinja").read_text()
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.eos_token == "<|im_end|>"
    assert loaded.pad_token == "<|endoftext|>"
    assert set(loaded.all_special_tokens) == {"<|im_end|>", "<|im_start|>", "<|endoftext|>"}
    assert loaded.apply_chat_template(CONVERSATION) == TOKENIZER.apply_chat_template(CONVERSATION)


def test_equal_texts_give_an_equal_tokenizer() -> None:
    """A checkpoint can be made again, token for token."""
    assert build().backend_tokenizer.to_str() == TOKENIZER.backend_tokenizer.to_str()
