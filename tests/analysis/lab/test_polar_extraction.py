"""Which ids and logprobs the gateway reads out of an engine's answer, and what it makes of gaps."""

from __future__ import annotations

from typing import Any

import pytest

from analysis.lab.polar_server.extraction import extract, normalise_response


def _content(*pairs: tuple[int | None, float | None]) -> dict[str, Any]:
    entries = [{"token": "x", "token_id": i, "logprob": p} for i, p in pairs]
    return {"content": [{k: v for k, v in entry.items() if v is not None} for entry in entries]}


def _read(choice: dict[str, Any], response: dict[str, Any] | None = None) -> tuple[Any, Any, Any]:
    turn = extract({"response": {"choices": [choice], **(response or {})}})
    return turn.prompt_ids, turn.response_ids, turn.logprobs


@pytest.mark.parametrize(
    ("choice", "response", "expected"),
    [
        ({"input_token_ids": [1], "prompt_token_ids": [2]}, {"prompt_token_ids": [3]}, [1]),
        ({"input_token_ids": [], "prompt_token_ids": [2]}, {"prompt_token_ids": [3]}, [2]),
        ({}, {"prompt_token_ids": [3]}, [3]),
        ({"input_token_ids": "abc"}, {"prompt_token_ids": [3]}, []),
        ({}, {}, []),
    ],
)
def test_prompt_ids_come_from_the_first_non_empty_source(choice: Any, response: Any, expected: list[int]):
    """Choice before response; a non-list hides the rest."""
    assert _read(choice, response)[0] == expected


@pytest.mark.parametrize(
    ("choice", "response", "ids", "logprobs"),
    [
        ({"token_ids": [5, 6], "logprobs": _content((5, -0.1), (6, -0.2))}, {}, [5, 6], [-0.1, -0.2]),
        ({"token_ids": [5, 6], "logprobs": _content((5, -0.1), (7, -0.2))}, {}, [5, 6], None),
        ({"token_ids": [5, 6], "logprobs": _content((5, -0.1))}, {}, [5, 6], None),
        ({"token_ids": [], "logprobs": _content((5, -0.1))}, {}, [], None),
        ({"token_ids": ["5", 6]}, {}, [5, 6], None),
        ({"token_ids": None, "logprobs": _content((5, -0.1))}, {"token_ids": [9]}, [5], [-0.1]),
        ({"logprobs": _content((5, -0.1))}, {"token_ids": [9]}, [9], None),
        ({"logprobs": _content((5, -0.1), (None, -0.2))}, {}, [], None),
        ({"logprobs": _content((5, None))}, {}, [], None),
        (
            {"meta_info": {"output_token_logprobs": [[-0.1, 5, "a"], [-0.2, 6, None]]}},
            {},
            [5, 6],
            [-0.1, -0.2],
        ),
        ({"meta_info": {"output_token_logprobs": [{"token_id": 5, "token_logprob": -0.3}]}}, {}, [5], [-0.3]),
        ({"token_ids": [5], "meta_info": {"output_token_logprobs": [[-0.1, 5, "a"]]}}, {}, [5], [-0.1]),
        ({"logprobs": {"content": [{"id": 5, "logprob": -0.1}]}}, {}, [], None),
        ({}, {}, [], None),
    ],
)
def test_response_ids_and_their_logprobs(
    choice: Any, response: Any, ids: list[int], logprobs: list[float] | None
):
    """An id list wins over paired sources, and only logprobs that belong to exactly these ids are kept."""
    assert _read(choice, response)[1:] == (ids, logprobs)


def test_no_choice_is_an_empty_turn():
    """`choices` empty or missing: nothing sampled, no finish reason, no message."""
    for response in ({}, {"choices": []}, {"choices": None}, {"choices": ["x"]}):
        turn = extract(
            {"response": response, "request": {"messages": [{"role": "user", "content": "q"}, "odd"]}}
        )
        assert (turn.response_ids, turn.finish_reason, turn.message) == ([], None, None)
        assert turn.prompt_messages == [{"role": "user", "content": "q"}]


def test_stored_records_are_read_like_live_ones():
    """Files say `transformed_request` where the live form says `request`."""
    tools = [{"type": "function", "function": {"name": "f"}}]
    turn = extract({"transformed_request": {"messages": [{"role": "user"}], "tools": tools}, "response": {}})
    assert (turn.prompt_messages, turn.tools) == ([{"role": "user"}], tools)
    assert extract({"request": {"tools": []}}).tools is None


def test_sglang_answers_are_normalised():
    """Prompt ids get their canonical name, ids come from meta_info, entries are named, meta_info goes."""
    response = {
        "choices": [
            {
                "prompt_token_ids": [1, 2],
                "meta_info": {"output_token_logprobs": [[-0.1, 5, "a"], [-0.2, 6, None]]},
                "logprobs": {"content": [{"logprob": -0.1}, {"logprob": -0.2, "token_id": 60}]},
            }
        ]
    }
    (choice,) = normalise_response(response)["choices"]
    assert choice["input_token_ids"] == [1, 2]
    assert choice["token_ids"] == [5, 6]
    assert [entry["token_id"] for entry in choice["logprobs"]["content"]] == [5, 60]
    assert "meta_info" not in choice
    assert "meta_info" in response["choices"][0], "the engine's answer itself is left alone"


def test_sglang_items_without_an_id_are_skipped():
    """The baseline skips them, so that lengths diverge and no logprobs remain."""
    choice = {
        "meta_info": {"output_token_logprobs": [[-0.1, 5, "a"], [-0.2, None, "b"]]},
        "logprobs": {"content": [{"logprob": -0.1}, {"logprob": -0.2}]},
    }
    (normal,) = normalise_response({"choices": [choice]})["choices"]
    assert normal["token_ids"] == [5]
    assert _read(normal)[1:] == ([5], None)


def test_an_existing_id_list_is_kept():
    """Ids that the engine gave under the canonical name are the authority."""
    choice = {
        "token_ids": [7],
        "meta_info": {"output_token_logprobs": [[-0.1, 5, "a"]]},
        "response_token_ids": [8],
    }
    assert normalise_response({"choices": [choice]})["choices"][0]["token_ids"] == [7]


def test_upstream_sglang_names_are_understood():
    """Engines that call the sampled ids `response_token_ids` and give no meta_info lose nothing."""
    choice = {"response_token_ids": [5], "logprobs": {"content": [{"logprob": -0.5}]}}
    (normal,) = normalise_response({"choices": [choice]})["choices"]
    assert _read(normal)[1:] == ([5], [-0.5])


def test_vllm_answers_are_normalised():
    """`reasoning` becomes `reasoning_content`; ids and meta_info stay where they are."""
    choice = {
        "token_ids": [5],
        "message": {"role": "assistant", "content": "hi", "reasoning": "because"},
        "logprobs": {"content": [{"logprob": -0.5}]},
    }
    (normal,) = normalise_response({"choices": [choice]}, "vllm")["choices"]
    assert normal["message"]["reasoning_content"] == "because"
    assert normal["logprobs"]["content"] == [{"logprob": -0.5, "token_id": 5}]
    assert "input_token_ids" not in normal


@pytest.mark.parametrize("response", [{}, {"choices": None}, {"choices": [None, 3]}])
def test_odd_answers_pass_unchanged(response: dict[str, Any]):
    """Whatever an engine sends, normalising does not raise."""
    assert normalise_response(response) == response
