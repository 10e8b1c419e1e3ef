"""A task's results become a group: positions, placeholders with reasons, and an account of each session."""

from __future__ import annotations

import gc
import json
import math
from types import SimpleNamespace

import pytest

from slime_bridge._stand_in import Sample
from slime_bridge.conversion.groups import SessionOutcome, conversion_options, convert_group, mark_delivered
from slime_bridge.errors import DataSourceError, MissingRewardError
from slime_bridge.protocol import (
    MalformedSession,
    SessionResult,
    SessionTiming,
    Trace,
    Trajectory,
    decode_task_payload,
)

CONFIG = SimpleNamespace(
    reward_key="score", max_tokens=None, overlong_traces="drop", aborted_turns="mask", missing_reward="zero"
)


def config(**changes):
    return SimpleNamespace(**{**vars(CONFIG), **changes})


def trace(length=4, **fields) -> Trace:
    values = {
        "prompt_ids": [1, 2, 3],
        "response_ids": list(range(100, 100 + length)),
        "loss_mask": [1] * length,
        "response_logprobs": [-0.5] * length,
        "reward": 1.0,
        "finish_reason": "stop",
    }
    return Trace(**{**values, **fields})


def session(name="s0", *traces: Trace, status="COMPLETED", **fields) -> SessionResult:
    trajectory = Trajectory(
        status=status, traces=list(traces), metadata=fields.pop("trajectory_metadata", {})
    )
    return SessionResult(session_id=name, task_id="t", status=status, trajectory=trajectory, **fields)


def group(count=4, **fields):
    return [
        Sample(group_index=3, index=12 + i, label="l", metadata={"task": "x"}, **fields) for i in range(count)
    ]


def test_positions_and_identity():
    """Result i stands for prompt sample i; the prompt samples themselves stay as they were drawn."""
    prompts = group(2)
    before = [prompt.to_dict() for prompt in prompts]
    done = convert_group([session("a", trace(), trace()), session("b", trace())], prompts, config=CONFIG)
    assert [(s.session_id, s.index, s.group_id, s.group_index) for s in done.samples] == [
        ("a", 12, 12, 3),
        ("a", 12, 12, 3),
        ("b", 13, 13, 3),
    ]
    assert [s.label for s in done.samples] == ["l"] * 3
    assert done.samples[0].metadata["task"] == "x"
    assert [prompt.to_dict() for prompt in prompts] == before


def test_sessions_of_one_task_are_one_group_whatever_their_prompts():
    """Siblings whose harness put a unique path into each prompt are still siblings."""
    results = [session(str(i), trace(prompt_ids=[1, 2, i])) for i in range(4)]
    done = convert_group(results, group(), config=CONFIG)
    assert {sample.group_index for sample in done.samples} == {3}


def test_each_bad_session_becomes_a_placeholder_with_its_own_reason():
    """One bad session never sinks its group."""
    results = [
        session("good", trace()),
        session("nan", trace(response_logprobs=[math.nan] * 4)),
        session("ids", trace(response_ids=[-1, 1, 1, 1])),
        MalformedSession(3, "torn", "not a session result: Expected `object`"),
        session("none"),
        session("empty", trace(response_ids=[], loss_mask=[], response_logprobs=None)),
        session("time", status="TIMEOUT", error="session execution timeout"),
        session("fail", trace(), status="ERROR", error="agent execution failed: boom"),
        session("long", trace(30)),
    ]
    done = convert_group(results, group(10), config=config(max_tokens=20))
    assert [outcome.reason for outcome in done.sessions] == [
        None,
        "logprob_error",
        "invalid_tokens",
        "malformed",
        "no_traces",
        "no_token_ids",
        "timeout",
        "failed",
        "overlong",
        "missing",
    ]
    assert [s.index for s in done.samples] == list(range(12, 22))
    placeholders = [bool(s.metadata["polar"].get("placeholder")) for s in done.samples]
    assert placeholders == [False, True, True, True, True, True, True, False, True, True]
    assert [outcome.usable for outcome in done.sessions] == [True] + [False] * 9
    assert "session nan, trace 0: logprob nan at the trainable response position 0" in done.sessions[1].detail
    assert done.sessions[3].detail == "session torn: not a session result: Expected `object`"
    assert "boom" in done.sessions[7].detail
    assert all(s.loss_mask is not None and len(s.loss_mask) == s.response_length for s in done.samples)
    assert all(len(s.rollout_log_probs) == s.response_length for s in done.samples)


def test_outcome_of_a_good_session():
    """Every number of the account."""
    result = session(
        "a",
        trace(4, loss_mask=[1, 0, 0, 1], reward=0.5, metadata={"policy_version": 3}),
        trace(40),
        trace(3, reward=1.0, metadata={"weight_version": "8"}),
        node_id="node-1",
        timing=SessionTiming(run_ms=5.0),
        metadata={"policy_version": 3},
    )
    done = convert_group([result], group(1), config=config(max_tokens=20))
    assert done.sessions == [
        SessionOutcome(
            position=0,
            session_id="a",
            node_id="node-1",
            status="COMPLETED",
            completed=True,
            usable=True,
            trainable_tokens=5,
            response_tokens=7,
            n_traces=2,
            dropped_traces=1,
            dropped_tokens=43,
            reward=0.75,
            timing=result.timing,
            weight_versions=("8", "8"),
            policy_version=3,
        )
    ]


def test_outcome_of_missing_and_malformed_sessions():
    """Without a result there is no status, no time and no reward."""
    done = convert_group([MalformedSession(0, None, "torn")], group(2), config=CONFIG)
    malformed, missing = done.sessions
    assert (malformed.status, malformed.timing, malformed.completed) == ("", None, False)
    assert malformed.detail == "session of unknown id: torn"
    assert missing.session_id is None
    assert math.isnan(missing.reward)
    assert missing.detail == "the server returned no result for it"


def test_a_rejected_session_accounts_for_its_tokens():
    """Waste must add up: what a logprob error cost is counted."""
    result = session("a", trace(), trace(response_logprobs=None))
    (outcome,) = convert_group([result], group(1), config=CONFIG).sessions
    assert (outcome.dropped_traces, outcome.dropped_tokens, outcome.n_traces) == (2, 14, 0)
    assert outcome.completed
    assert not outcome.usable


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (session("a", trace(reward=0.5), trace(reward=None)), 0.5),
        (session("a", trace(loss_mask=[0] * 4, reward=0.25), trace(loss_mask=[0] * 4, reward=None)), 0.25),
        (session("a", trajectory_metadata={"evaluation": {"outcome_reward": 1}}), 1.0),
        (session("a", trajectory_metadata={"evaluation": {"outcome_reward": "pass"}}), math.nan),
        (session("a", trajectory_metadata={"evaluation": None}), math.nan),
        (session("a", trace(reward=None)), math.nan),
        (session("a", trace(reward=math.inf)), math.nan),
        (session("a", trace(reward=0.0), status="ERROR"), 0.0),
    ],
)
def test_session_reward(result, expected):
    """Trainable traces first, then whatever the server said; nobody's word is NaN, never 0."""
    reward = convert_group([result], group(1), config=CONFIG).sessions[0].reward
    assert reward == expected or (math.isnan(reward) and math.isnan(expected))


def test_missing_rewards():
    """Counted by default, rejected or raised where the user asked for it."""
    results = [session("a", trace(reward=None)), session("b", trace())]
    done = convert_group(results, group(2), config=CONFIG)
    assert [outcome.missing_rewards for outcome in done.sessions] == [1, 0]
    done = convert_group(results, group(2), config=config(missing_reward="reject"))
    assert [outcome.reason for outcome in done.sessions] == ["missing_reward", None]
    with pytest.raises(MissingRewardError, match="session a"):
        convert_group(results, group(2), config=config(missing_reward="error"))


def test_early_stopped_sessions_are_told_apart():
    """Surplus, not failure."""
    result = session("a", status="ERROR", error="cancelled", metadata={"early_stop_cancelled": True})
    (outcome,) = convert_group([result], group(1), config=CONFIG).sessions
    assert outcome.early_stopped
    assert outcome.reason == "early_stopped"


def test_duplicates_and_surplus_are_ignored(caplog):
    """A session listed twice must not be trained on twice."""
    results = [session("a", trace()), session("a", trace(9)), session("b", trace()), session("c", trace())]
    done = convert_group(results, group(2), config=CONFIG)
    assert [outcome.session_id for outcome in done.sessions] == ["a", "b"]
    assert done.samples[0].response_length == 4
    assert "1 surplus" in caplog.text


def test_groups_without_identity_are_refused():
    """Trajectories without an index would all be one trajectory to Slime."""
    with pytest.raises(DataSourceError, match="sample 1 has no `index`"):
        convert_group([], [Sample(index=0), Sample()], config=CONFIG)
    with pytest.raises(DataSourceError, match="without samples"):
        convert_group([], [], config=CONFIG)


def test_a_group_without_a_number():
    """A data source need not number its groups."""
    done = convert_group([session("a", trace())], [Sample(index=0)], config=CONFIG)
    assert done.samples[0].group_index is None


def test_outcomes_are_json():
    """The journal writes them; NaN and tuples are not JSON."""
    results = [
        session("a", trace(reward=None), timing=SessionTiming(extra={"runtime_exec_count": 3, "x": math.inf}))
    ]
    done = convert_group(results, group(2), config=CONFIG)
    texts = [json.dumps(outcome.to_dict(), allow_nan=False) for outcome in done.sessions]
    first = json.loads(texts[0])
    assert first["reward"] is None
    assert first["timing"]["runtime_exec_count"] == 3
    assert first["timing"]["x"] is None
    assert first["timing"]["init_ms"] is None
    assert json.loads(texts[1])["reason"] == "missing"


def test_mark_delivered():
    """What is only known at delivery reaches every sample, placeholders included."""
    done = convert_group([session("a", trace(), metadata={"policy_version": 1})], group(2), config=CONFIG)
    mark_delivered(done.samples, rollout_id=5, policy_version=2, staleness=3, scheduler_group_id=9)
    for sample in done.samples:
        polar = sample.metadata["polar"]
        assert (polar["accepted_rollout_id"], polar["policy_staleness"]) == (5, 3)
        assert (polar["policy_version"], polar["scheduler_group_id"]) == (2, 9)
        assert sample.train_metadata == {"policy_staleness": 3, "policy_version": 2}
    mark_delivered(done.samples, rollout_id=5, policy_version=None, staleness=None, scheduler_group_id=9)
    assert done.samples[0].metadata["polar"]["policy_version"] == 2


def test_options_follow_the_configuration():
    """Every conversion key of the configuration arrives."""
    options = conversion_options(
        config(
            reward_key="r",
            max_tokens=9,
            overlong_traces="clip",
            aborted_turns="keep",
            missing_reward="reject",
        ),
        pushes_wait_for_turns=True,
    )
    assert (options.reward_key, options.max_tokens, options.overlong_traces) == ("r", 9, "clip")
    assert (options.aborted_turns, options.missing_reward, options.pushes_wait_for_turns) == (
        "keep",
        "reject",
        True,
    )


def test_from_the_wire():
    """A decoded task with a torn session inside converts in one go, and the collector is on again after."""
    good = {
        "session_id": "a",
        "task_id": "t",
        "status": "COMPLETED",
        "trajectory": {
            "status": "COMPLETED",
            "traces": [
                {
                    "prompt_ids": [1],
                    "response_ids": [2, 3],
                    "loss_mask": [1, 0],
                    "response_logprobs": [None, -1.0],
                },
                {
                    "prompt_ids": [1],
                    "response_ids": [2],
                    "loss_mask": [1],
                    "response_logprobs": [-0.1],
                    "reward": 1,
                },
            ],
        },
    }
    body = json.dumps(
        {"task_id": "t", "status": "completed", "results": [good, {"session_id": "b"}]}
    ).encode()
    done = convert_group(decode_task_payload(body).results, group(2), config=CONFIG)
    assert [outcome.reason for outcome in done.sessions] == ["logprob_error", "malformed"]
    assert "trace 0: logprob nan at the trainable response position 0" in done.sessions[0].detail
    assert gc.isenabled()
