"""Polar's trajectory builders: the reference's worked examples, and what must hold for any conversation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.lab.polar_server.builders import (
    BuilderError,
    PerRequestBuilder,
    PrefixMergingBuilder,
    make_builder,
)
from analysis.lab.polar_server.models import CompletionRecord, CompletionSession

E = 2
FIRST = ([1, 10, 11, 3], [20, 21, E], "stop")
SECOND = ([1, 10, 11, 3, 20, 21, E, 4, 30, 31, 5, 3], [40, E], "stop")


def _record(
    number: int, prompt: list[int], response: list[int], finish: str | None, **extra: Any
) -> CompletionRecord:
    logprobs = extra.get("logprobs", [-0.1 * (index + 1) for index in range(len(response))])
    choice: dict[str, Any] = {
        "index": 0,
        "finish_reason": finish,
        "input_token_ids": prompt,
        "token_ids": response,
    }
    choice["message"] = {"role": "assistant", "content": f"answer {number}"}
    if logprobs is not None:
        content = [{"token_id": i, "logprob": p} for i, p in zip(response, logprobs, strict=True)]
        choice["logprobs"] = {"content": content}
    messages: list[dict[str, Any]] = [{"role": "user", "content": "question"}]
    for turn in range(number):
        messages += [
            {"role": "assistant", "content": f"answer {turn}"},
            {"role": "tool", "content": f"tool {turn}"},
        ]
    return CompletionRecord(
        completion_id=f"msg_{number:012x}",
        timestamp=f"2026-01-01T00:00:{number:02d}.000000+00:00",
        request={"messages": extra.get("messages", messages)},
        response={"choices": [choice]},
        metadata={"session_id": "s", "task_id": "t", "turn": number},
    )


def _session(*turns: tuple[Any, ...], **extra: Any) -> CompletionSession:
    records = [
        _record(number, *turn[:3], **(turn[3] if len(turn) > 3 else {})) for number, turn in enumerate(turns)
    ]
    return CompletionSession(
        session_id="s",
        task_id="t",
        api_type="openai_chat",
        model_requested="m",
        model_used="served",
        completions=records,
        **extra,
    )


def _merge(*turns: tuple[Any, ...], end: int | None = None) -> dict[str, Any]:
    return PrefixMergingBuilder(end).build(_session(*turns), {})


MERGED_RESPONSE = [20, 21, E, 4, 30, 31, 5, 3, 40, E]
MERGED_MASK = [1, 1, 1, 0, 0, 0, 0, 0, 1, 1]


def test_example_a_natural_turns_become_one_trace():
    """Example A: sampled tokens keep mask and logprobs, what stands between them is masked."""
    built = _merge(FIRST, SECOND)
    (trace,) = built["traces"]
    assert trace["prompt_ids"] == [1, 10, 11, 3]
    assert trace["response_ids"] == MERGED_RESPONSE
    assert trace["loss_mask"] == MERGED_MASK
    assert trace["response_logprobs"] == pytest.approx([-0.1, -0.2, -0.3, 0, 0, 0, 0, 0, -0.1, -0.2])
    assert trace["finish_reason"] == "stop"
    assert [m["content"] for m in trace["response_messages"]] == ["answer 0", "tool 0", "answer 1"]
    assert trace["prompt_messages"] == [{"role": "user", "content": "question"}]
    assert [m["turn"] for m in trace["metadata"]["completion_metadata"]] == [0, 1]
    assert trace["metadata"]["turn"] == 0


def test_example_b_keeps_the_sampled_tokens_of_a_retokenised_answer():
    """Example B: the server's own tokenisation of the first answer is ignored."""
    built = _merge(FIRST, ([1, 10, 11, 3, 22, E, 4, 30, 31, 5, 3], [40, E], "stop"))
    assert built["traces"][0]["response_ids"] == MERGED_RESPONSE
    assert built["traces"][0]["loss_mask"] == MERGED_MASK


def test_example_c_closes_a_truncated_answer_untrained():
    """Example C: the closing token of a cut answer is interstitial, learnt from a later turn."""
    built = _merge(
        ([1, 10, 11, 3], [20, 21], "length"), ([1, 10, 11, 3, 20, 21, E, 4, 30, 5, 3], [40, E], "stop")
    )
    (trace,) = built["traces"]
    assert trace["response_ids"] == [20, 21, E, 4, 30, 5, 3, 40, E]
    assert trace["loss_mask"] == [1, 1, 0, 0, 0, 0, 0, 1, 1]


@pytest.mark.parametrize(("end", "merged"), [(None, 1), (E, 2)])
def test_example_d_needs_a_known_end_of_turn(end: int | None, merged: int):
    """Example D: with every answer cut and no configured token, later turns are lost and counted."""
    built = _merge(
        ([1, 10, 11, 3], [20, 21], "length"),
        ([1, 10, 11, 3, 20, 21, E, 4, 30, 5, 3], [40, 41], "length"),
        end=end,
    )
    stats = built["metadata"]["reconstruction_stats"]
    assert (stats["completions_total"], stats["completions_merged"]) == (2, merged)
    assert stats["chains_reconstructed_truncated"] == (1 if merged == 1 else 0)
    expected = [20, 21] if merged == 1 else [20, 21, E, 4, 30, 5, 3, 40, 41]
    assert built["traces"][0]["response_ids"] == expected
    assert built["status"] == "COMPLETED"


def test_example_e_starts_a_new_trace_for_a_rewritten_history():
    """Example E: a prompt that continues nothing opens a chain of its own."""
    built = _merge(FIRST, SECOND, ([1, 10, 50, 3], [60, E], "stop"))
    assert [t["response_ids"] for t in built["traces"]] == [MERGED_RESPONSE, [60, E]]
    assert built["traces"][1]["prompt_ids"] == [1, 10, 50, 3]
    assert built["metadata"]["trace_count"] == 2


def test_example_f_loses_what_follows_an_identical_retry():
    """Example F: a retry with the same prompt has no tail, so merging stops there."""
    built = _merge(
        FIRST, ([1, 10, 11, 3], [23, E], "stop"), ([1, 10, 11, 3, 23, E, 4, 30, 5, 3], [40, E], "stop")
    )
    assert [t["response_ids"] for t in built["traces"]] == [[20, 21, E]]
    assert built["metadata"]["reconstruction_stats"] == {
        "chains_total": 1,
        "chains_reconstructed_full": 0,
        "chains_reconstructed_truncated": 1,
        "completions_total": 3,
        "completions_merged": 1,
    }


def test_example_g_splits_where_the_template_adds_glue():
    """Example G: tokens that stand only before the last answer break the prefix."""
    built = _merge(([1, 10, 3, 90, 91], [20, E], "stop"), ([1, 10, 3, 20, E, 4, 3, 90, 91], [21, E], "stop"))
    assert [t["response_ids"] for t in built["traces"]] == [[20, E], [21, E]]


def test_example_h_drops_all_logprobs_when_one_turn_has_none():
    """Example H: tokens merge, but a partly known logprob list is no list."""
    built = _merge(FIRST, (*SECOND, {"logprobs": None}))
    assert built["traces"][0]["response_ids"] == MERGED_RESPONSE
    assert built["traces"][0]["response_logprobs"] is None


def test_an_end_token_inside_the_answer_splits_at_the_first():
    """The tail is cut at its first end-of-turn token, wherever the sampled answer ended."""
    built = _merge(([1, 3], [20, E, 21, E], "stop"), ([1, 3, 20, E, 21, E, 4, 3], [40, E], "stop"))
    assert built["traces"][0]["response_ids"] == [20, E, 21, E, 21, E, 4, 3, 40, E]
    assert built["traces"][0]["loss_mask"] == [1, 1, 1, 1, 0, 0, 0, 0, 1, 1]


def test_calls_without_prompt_ids_are_never_chained():
    """An engine that omits prompt ids costs every turn its own trace."""
    built = _merge(([], [20, E], "stop"), ([], [21, E], "stop"))
    assert [t["prompt_ids"] for t in built["traces"]] == [[], []]


def test_interleaved_agents_land_in_separate_chains():
    """The longest matching tip wins, so two conversations do not mix."""
    other = ([7, 8], [70, E], "stop")
    built = _merge(FIRST, other, SECOND, ([7, 8, 70, E, 9], [71, E], "stop"))
    assert [t["response_ids"] for t in built["traces"]] == [MERGED_RESPONSE, [70, E, 9, 71, E]]


def test_per_request_gives_one_trace_per_call_and_ignores_config():
    """`per_request` keeps order, mask all 1, and accepts any configuration."""
    built = make_builder("per_request", {"anything": 1}).build(
        _session(FIRST, SECOND), {"group_id": "g", "x": 1}
    )
    assert [t["response_ids"] for t in built["traces"]] == [[20, 21, E], [40, E]]
    assert all(set(t["loss_mask"]) == {1} for t in built["traces"])
    assert built["metadata"] == {
        "builder": "per_request",
        "session_id": "s",
        "task_id": "t",
        "api_type": "openai_chat",
        "model_requested": "m",
        "model_used": "served",
        "record_count": 2,
        "task_metadata": {"group_id": "g", "x": 1, "session_id": "s", "task_id": "t"},
        "trace_count": 2,
        "group_id": "g",
    }
    assert built["traces"][0]["metadata"] == {"session_id": "s", "task_id": "t", "turn": 0}


@pytest.mark.parametrize("builder", [PerRequestBuilder(), PrefixMergingBuilder()])
def test_a_session_without_calls_is_an_error(builder: Any):
    """No captured call: ERROR with Polar's text, and no `task_id` in the metadata."""
    built = builder.build(_session(), {"policy_version": 4})
    assert (built["status"], built["error"], built["traces"]) == ("ERROR", "no completions", [])
    assert built["metadata"] == {
        "builder": builder.name,
        "session_id": "s",
        "record_count": 0,
        "task_metadata": {"policy_version": 4},
        "policy_version": 4,
    }


@pytest.mark.parametrize(
    ("strategy", "config", "text"),
    [
        ("nope", {}, "unknown trajectory builder 'nope'"),
        ("prefix_merging", {"other": 1}, "cannot be constructed"),
        ("no.such.module:Class", {}, "cannot be constructed"),
        ("analysis.lab.polar_server.builders:Nope", {}, "cannot be constructed"),
    ],
)
def test_unusable_builders_are_named(strategy: str, config: dict[str, Any], text: str):
    """A misspelt builder or configuration says so, instead of building something else."""
    with pytest.raises(BuilderError, match=text):
        make_builder(strategy, config)


def test_a_builder_plug_in_is_imported():
    """`module:Class` names a builder of one's own."""
    builder = make_builder(
        "analysis.lab.polar_server.builders:PrefixMergingBuilder", {"end_of_turn_token_id": 9}
    )
    assert builder == PrefixMergingBuilder(9)


def test_prompt_ids_that_are_no_integers_are_refused():
    """Broken engine data fails the session instead of reaching a trainer."""
    with pytest.raises(BuilderError, match="invalid token data"):
        PerRequestBuilder().build(_session((["a"], [20], "stop")), {})


def test_calls_are_taken_in_answer_order():
    """Builders get the calls sorted by (timestamp, completion id), whatever order they were captured in."""
    session = _session(FIRST, SECOND)
    shuffled = CompletionSession(session_id="s", task_id="t", completions=list(reversed(session.completions)))
    assert PrefixMergingBuilder().build(shuffled, {})["traces"][0]["response_ids"] == MERGED_RESPONSE


def test_a_real_completion_record_is_read(captures: Path):
    """A file that a real gateway wrote gives one trace, although its engine gave no usable ids."""
    stored = json.loads((captures / "completion_record.json").read_text())
    record = CompletionRecord(
        **{("request" if k == "transformed_request" else k): v for k, v in stored.items()}
    )
    session = CompletionSession(session_id="s", task_id="t", completions=[record])
    (trace,) = PrefixMergingBuilder().build(session, {})["traces"]
    assert trace["response_messages"][0]["role"] == "assistant"
    assert trace["prompt_messages"][0]["role"] == "system"
    assert len(trace["loss_mask"]) == len(trace["response_ids"])


@pytest.fixture
def captures() -> Path:
    """The folder with files of real runs."""
    return Path(__file__).parents[2] / "data" / "polar"


TOKEN = st.integers(10, 60)


@st.composite
def conversations(draw: st.DrawFn) -> list[tuple[list[int], list[int], str]]:
    """Prefix-stable conversations whose answers may be cut, re-tokenised in the history, or both."""
    prompt = [1, *draw(st.lists(TOKEN, max_size=4)), 3]
    turns = []
    for _ in range(draw(st.integers(1, 5))):
        body = draw(st.lists(TOKEN, max_size=5))
        cut = bool(body) and draw(st.booleans())
        answer = body if cut else [*body, E]
        turns.append((prompt, answer, "length" if cut else "stop"))
        seen = draw(st.lists(TOKEN, max_size=5)) if draw(st.booleans()) else body
        prompt = [*prompt, *seen, E, *draw(st.lists(TOKEN, max_size=4)), 3]
    return turns


@given(conversations())
def test_merging_keeps_every_sampled_token(turns: list[tuple[list[int], list[int], str]]):
    """With E known, one trace holds exactly the sampled tokens at mask 1, in order, with their logprobs."""
    built = _merge(*turns, end=E)
    (trace,) = built["traces"]
    sampled = [token for _, answer, _ in turns for token in answer]
    kept = [t for t, bit in zip(trace["response_ids"], trace["loss_mask"], strict=True) if bit]
    assert kept == sampled
    assert trace["prompt_ids"] == turns[0][0]
    if sampled:
        pairs = zip(trace["response_logprobs"], trace["loss_mask"], strict=True)
        assert all((bit == 0) == (logprob == 0.0) for logprob, bit in pairs)
    stats = built["metadata"]["reconstruction_stats"]
    assert stats["completions_merged"] == stats["completions_total"] == len(turns)
    assert len(trace["metadata"]["completion_metadata"]) == len(turns)


@given(
    st.lists(
        st.tuples(
            st.lists(TOKEN, max_size=4),
            st.lists(TOKEN, max_size=3),
            st.sampled_from(["stop", "length", "abort"]),
        ),
        max_size=6,
    )
)
def test_any_set_of_calls_gives_aligned_traces(turns: list[tuple[list[int], list[int], str]]):
    """Whatever the calls are, arrays are aligned and every call is merged or counted as lost."""
    built = _merge(*turns)
    if not turns:
        assert built["status"] == "ERROR"
        return
    stats = built["metadata"]["reconstruction_stats"]
    for trace in built["traces"]:
        assert len(trace["loss_mask"]) == len(trace["response_ids"])
        assert trace["response_logprobs"] is None or len(trace["response_logprobs"]) == len(
            trace["response_ids"]
        )
    merged = sum(len(trace["metadata"]["completion_metadata"]) for trace in built["traces"])
    assert merged == stats["completions_merged"] <= stats["completions_total"] == len(turns)
    assert stats["chains_total"] == len(built["traces"])
    full, truncated = stats["chains_reconstructed_full"], stats["chains_reconstructed_truncated"]
    assert full + truncated == stats["chains_total"]
