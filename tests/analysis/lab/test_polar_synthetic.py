"""Synthetic sessions: valid for every seed, and the same for the same seed."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.lab.polar_server.models import SessionResult
from analysis.lab.polar_server.synthetic import (
    END_OF_TURN_TOKEN,
    Lognormal,
    SessionIdentity,
    SessionProfile,
    synthetic_result,
)

WHO = SessionIdentity(
    session_id="sk-polar-1",
    task_id="t-1",
    index=2,
    instruction="Say hello.",
    metadata={"group_id": 7, "policy_version": 3, "x": None},
    model_name=None,
    node_id="node-1",
    builder="prefix_merging",
    weight_version=3,
)
SEEDS = st.integers(0, 2**64 - 1)


@given(SEEDS, st.booleans())
def test_every_session_is_a_valid_result(seed: int, separate: bool):
    """Arrays are aligned, sampled tokens have mask 1 and a logprob, interstitial ones neither."""
    profile = SessionProfile(separate_traces=separate)
    result = synthetic_result(profile, WHO, seed)
    SessionResult.model_validate(result)
    traces = result["trajectory"]["traces"]
    turns = result["trajectory"]["metadata"]["record_count"]
    assert len(traces) == (turns if separate else 1)
    for trace in traces:
        assert trace["response_ids"][-1] == END_OF_TURN_TOKEN
        for logprob, bit in zip(trace["response_logprobs"], trace["loss_mask"], strict=True):
            assert logprob <= 0.0
            assert bit == 1 or logprob == 0.0
        assert all(0 <= token < profile.vocab_size for token in trace["prompt_ids"] + trace["response_ids"])
    assert sum(len(t["metadata"]["completion_metadata"]) for t in traces) == turns


@given(SEEDS)
def test_the_same_seed_gives_the_same_session(seed: int):
    """Nothing in a session depends on time or on what was made before."""
    profile = SessionProfile(duration=Lognormal(0.5, 1.0, 8.0), reward="normal")
    assert synthetic_result(profile, WHO, seed) == synthetic_result(profile, WHO, seed)
    assert profile.seconds(seed) == profile.seconds(seed) <= 8.0


def test_separate_traces_continue_each_other():
    """Each turn's prompt begins with the prompt and answer before it."""
    result = synthetic_result(SessionProfile(turns=3, separate_traces=True), WHO, 5)
    traces = result["trajectory"]["traces"]
    for before, after in zip(traces, traces[1:], strict=False):
        seen = before["prompt_ids"] + before["response_ids"]
        assert after["prompt_ids"][: len(seen)] == seen


@pytest.mark.parametrize(
    ("reward", "expected"),
    [(0.25, 0.25), (None, None), (lambda info: info.session_index * 10.0, 20.0), (lambda _: None, None)],
)
def test_reward_rules(reward: Any, expected: float | None):
    """A number, null, or a function of what the session is about."""
    result = synthetic_result(SessionProfile(reward=reward), WHO, 1)
    assert {trace["reward"] for trace in result["trajectory"]["traces"]} == {expected}
    assert result["trajectory"]["metadata"]["evaluation"]["outcome_reward"] == expected


def test_unknown_reward_rule_is_an_error():
    """A misspelt rule is not a reward of null."""
    with pytest.raises(ValueError, match="unknown reward rule 'bernouilli'"):
        synthetic_result(SessionProfile(reward="bernouilli"), WHO, 1)


def test_metadata_goes_where_polar_puts_it():
    """The task's metadata is unchanged on the result, extended in task_metadata, three keys are lifted."""
    result = synthetic_result(SessionProfile(turns=2), WHO, 1)
    assert result["metadata"] == WHO.metadata
    shown = result["trajectory"]["metadata"]
    assert shown["task_metadata"] == {**WHO.metadata, "session_id": "sk-polar-1", "task_id": "t-1"}
    assert (shown["group_id"], shown["policy_version"]) == (7, 3)
    assert "x" not in shown
    (trace,) = result["trajectory"]["traces"]
    assert [m["weight_version"] for m in trace["metadata"]["completion_metadata"]] == ["3", "3"]


def test_sizes_follow_the_profile():
    """Heavy payloads are asked for by number."""
    profile = SessionProfile(prompt_tokens=3000, turns=1, turn_tokens=70000, extra_text=5000, vocab_size=50)
    (trace,) = synthetic_result(profile, WHO, 1)["trajectory"]["traces"]
    assert (len(trace["prompt_ids"]), len(trace["response_ids"])) == (3000, 70000)
    assert len(trace["response_messages"][-1]["content"]) > 5000


def test_lognormal_durations_have_their_median():
    """Half of the sessions take longer than the median, and none longer than the maximum."""
    profile = dataclasses.replace(SessionProfile(), duration=Lognormal(0.5, 1.0, 2.0))
    seconds = sorted(profile.seconds(seed * 2654435761) for seed in range(1, 801))
    assert 0.4 < seconds[400] < 0.6
    assert seconds[-1] == 2.0
