"""From a session result to samples: the table of fields, real captures, and what must not be trained on."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slime_bridge._stand_in import Sample
from slime_bridge.adapter import (
    ConversionOptions,
    RolloutLogprobError,
    SampleIdentity,
    SessionReason,
    convert_session,
    placeholder_sample,
    session_result_to_samples,
)
from slime_bridge.errors import ConversionError, MissingRewardError
from slime_bridge.protocol import SessionResult, SessionTiming, Trace, Trajectory, decode_session_result

CAPTURES = Path(__file__).resolve().parents[1] / "data" / "polar"
Status = Sample.Status


def trace(**fields) -> Trace:
    values = {
        "prompt_ids": [1, 10, 11, 3],
        "response_ids": [20, 21, 2, 4, 40],
        "loss_mask": [1, 1, 0, 0, 1],
        "prompt_messages": [{"role": "user", "content": "Say hello."}],
        "response_messages": [
            {"role": "assistant", "content": "hello"},
            {"role": "tool", "content": "a.txt"},
        ],
        "finish_reason": "stop",
        "response_logprobs": [-0.1, 0.0, 0.0, 0.0, -0.4],
        "reward": 1.0,
        "metadata": {"turn": 1},
    }
    return Trace(**{**values, **fields})


def session(
    *traces: Trace, status="COMPLETED", metadata=None, trajectory_metadata=None, **fields
) -> SessionResult:
    trajectory = Trajectory(
        status=fields.pop("trajectory_status", status),
        metadata=trajectory_metadata or {},
        traces=list(traces),
        error=fields.pop("trajectory_error", None),
    )
    return SessionResult(
        session_id="sk-polar-1",
        task_id="t-1",
        status=status,
        trajectory=trajectory,
        metadata=metadata or {},
        **fields,
    )


def convert(result: SessionResult, **options):
    return convert_session(result, SampleIdentity(7, 30), ConversionOptions(**options))


def one(result: SessionResult, **options) -> Sample:
    samples = convert(result, **options).samples
    assert len(samples) == 1
    return samples[0]


class TestTable:
    def test_every_field(self):
        """One trace gives one sample, field for field as documented."""
        result = session(
            trace(),
            metadata={"group_id": 7, "policy_version": 3, "rollout_step": 4},
            trajectory_metadata={"builder": "prefix_merging"},
            node_id="node-1",
            timing=SessionTiming(1.0, 2.0, 3.0, 4.0, {"e2e_ms": 9.0}),
        )
        (sample,) = session_result_to_samples(result, 7, trajectory_index=30)
        assert sample == Sample(
            group_index=7,
            index=30,
            group_id=30,
            prompt=[{"role": "user", "content": "Say hello."}],
            tokens=[1, 10, 11, 3, 20, 21, 2, 4, 40],
            response="[assistant] hello\n\n[tool] a.txt",
            response_length=5,
            reward={"score": 1.0},
            loss_mask=[1, 1, 0, 0, 1],
            rollout_log_probs=[-0.1, 0.0, 0.0, 0.0, -0.4],
            status=Status.COMPLETED,
            session_id="sk-polar-1",
            train_metadata={"policy_staleness": None, "policy_version": 3},
            metadata={
                "polar": {
                    "session_id": "sk-polar-1",
                    "task_id": "t-1",
                    "node_id": "node-1",
                    "session_status": "COMPLETED",
                    "trajectory_status": "COMPLETED",
                    "result_error": None,
                    "trajectory_error": None,
                    "result_metadata": {"group_id": 7, "policy_version": 3, "rollout_step": 4},
                    "trajectory_metadata": {"builder": "prefix_merging"},
                    "trace_metadata": {"turn": 1},
                    "trace_index": 0,
                    "timing": {
                        "register_to_init_queue_ms": 1.0,
                        "init_ms": 2.0,
                        "run_ms": 3.0,
                        "postrun_ms": 4.0,
                        "e2e_ms": 9.0,
                    },
                    "group_id": 7,
                    "policy_version": 3,
                    "rollout_step": 4,
                    "trace_debug": {
                        "finish_reason": "stop",
                        "response_messages": [
                            {"role": "assistant", "content": "hello"},
                            {"role": "tool", "content": "a.txt"},
                        ],
                    },
                }
            },
        )

    def test_traces_share_the_trajectory(self):
        """A session of two traces is one trajectory, also where the second prompt continues nothing."""
        result = session(trace(reward=2.0), trace(prompt_ids=[1, 50], reward=4.0))
        samples = session_result_to_samples(result, 7, trajectory_index=30)
        assert [sample.group_id for sample in samples] == [30, 30]
        assert [sample.index for sample in samples] == [30, 30]
        assert [sample.reward for sample in samples] == [{"score": 2.0}, {"score": 4.0}]
        assert [sample.metadata["polar"]["trace_index"] for sample in samples] == [0, 1]

    def test_the_prompt_samples_label_and_metadata_are_inherited(self):
        """Slime's filters look at a sample's label and metadata, as after its own rollouts."""
        identity = SampleIdentity(7, 30, "42", {"difficulty": "hard"})
        (sample,) = convert_session(session(trace()), identity, ConversionOptions()).samples
        assert sample.label == "42"
        assert sample.metadata["difficulty"] == "hard"
        assert identity.metadata == {"difficulty": "hard"}

    def test_no_messages(self):
        """A trace without messages has an empty prompt, not an empty list."""
        sample = one(session(trace(prompt_messages=[], response_messages=[])))
        assert (sample.prompt, sample.response) == ("", "")

    @pytest.mark.parametrize(
        ("fields", "status"),
        [
            ({}, "COMPLETED"),
            ({"finish_reason": "length"}, "TRUNCATED"),
            ({"finish_reason": None}, "COMPLETED"),
            ({"finish_reason": "tool_calls"}, "COMPLETED"),
        ],
    )
    def test_status_of_a_completed_session(self, fields, status):
        """Only a response cut by its length is truncated."""
        assert one(session(trace(**fields))).status is Status[status]

    @pytest.mark.parametrize(
        ("fields", "status"),
        [
            ({"status": "TIMEOUT", "error": "session execution timeout"}, "ABORTED"),
            ({"status": "ERROR"}, "FAILED"),
            ({"error": "step 1 exited with code 2"}, "FAILED"),
            ({"trajectory_error": "no completions"}, "FAILED"),
            ({"trajectory_status": "ERROR"}, "FAILED"),
            ({"trajectory_status": "TIMEOUT"}, "ABORTED"),
            ({"status": "RUNNING"}, "FAILED"),
            ({"status": "completed"}, "FAILED"),
            ({"status": "VANISHED"}, "FAILED"),
        ],
    )
    def test_failed_sessions_are_kept_and_never_trained_on(self, fields, status):
        """A failed session may come with full masks and a reward: it looks trainable and is not."""
        result = session(trace(finish_reason="length"), **fields)
        sample = one(result)
        assert sample.status is Status[status]
        assert sample.loss_mask == [0] * 5
        assert sample.rollout_log_probs == [-0.1, 0.0, 0.0, 0.0, -0.4]
        assert sample.tokens == [1, 10, 11, 3, 20, 21, 2, 4, 40]
        done = convert(result)
        assert done.trainable_tokens == 0
        assert done.reason == (SessionReason.TIMEOUT if status == "ABORTED" else SessionReason.FAILED)

    def test_an_empty_error_text_is_no_error(self):
        """Servers write "" where there is nothing to say."""
        assert one(session(trace(), error="", trajectory_error="")).status is Status.COMPLETED

    @given(
        prompt=st.lists(st.integers(0, 200_000), min_size=1, max_size=30),
        response=st.lists(
            st.tuples(st.integers(0, 200_000), st.sampled_from([0, 1]), st.floats(-50, 0)), min_size=1
        ),
    )
    def test_tokens_masks_and_logprobs_are_the_servers(self, prompt, response):
        """Never encoded again, appended to or cut, whatever the text would encode to."""
        ids, mask, logprobs = (list(column) for column in zip(*response, strict=True))
        wanted = ([*prompt, *ids], list(mask), list(logprobs))
        given_trace = trace(prompt_ids=prompt, response_ids=ids, loss_mask=mask, response_logprobs=logprobs)
        sample = one(session(given_trace))
        assert (sample.tokens, sample.loss_mask, sample.rollout_log_probs) == wanted
        assert sample.response_length == len(ids)
        assert sum(sample.loss_mask) == sample.effective_response_length


class TestCaptures:
    @pytest.mark.parametrize(
        ("name", "tokens", "response", "trainable", "zeros"),
        [("small", 2883, 149, 119, 0), ("merged", 6755, 3790, 363, 15), ("long", 18768, 15803, 8506, 2119)],
    )
    def test_real_sessions(self, name, tokens, response, trainable, zeros):
        """The numbers of the captures' own description; exact zeros are real logprobs and stay."""
        raw = (CAPTURES / f"session_result.{name}.json").read_bytes()
        wire = decode_session_result(raw).trajectory.traces[0]
        (sample,) = session_result_to_samples(decode_session_result(raw), 0, trajectory_index=0)
        assert (len(sample.tokens), sample.response_length) == (tokens, response)
        assert sum(sample.loss_mask) == trainable
        pairs = zip(sample.rollout_log_probs, sample.loss_mask, strict=True)
        assert sum(logprob == 0.0 and flag for logprob, flag in pairs) == zeros
        assert sample.tokens == wire.prompt_ids + wire.response_ids
        assert sample.loss_mask == wire.loss_mask
        assert sample.rollout_log_probs == wire.response_logprobs
        assert sample.reward == {"score": 0.0}
        assert sample.status is Status.COMPLETED

    def test_a_session_without_token_ids(self):
        """Ten traces of text and no ids: one placeholder, and a reason that names the likely cause."""
        raw = (CAPTURES / "session_result.no_token_ids.json").read_bytes()
        done = convert(decode_session_result(raw))
        assert len(done.samples) == 1
        assert done.samples[0].metadata["polar"]["placeholder"] is True
        assert done.reason is SessionReason.NO_TOKEN_IDS
        assert "engine, or the router" in done.detail
        assert done.dropped_traces == 10


class TestPlaceholder:
    def test_every_field(self):
        """The smallest sample that keeps a trajectory's place without being trained on."""
        sample = one(session(metadata={"policy_version": 2}))
        assert sample.tokens == [0, 0]
        assert (sample.response_length, sample.loss_mask, sample.rollout_log_probs) == (1, [0], [0.0])
        assert sample.remove_sample is True
        assert sample.status is Status.ABORTED
        assert sample.reward == {"score": 0.0}
        assert (sample.group_index, sample.index, sample.group_id) == (7, 30, 30)
        assert sample.session_id == "sk-polar-1"
        assert sample.train_metadata == {"policy_staleness": None, "policy_version": 2}
        polar = sample.metadata["polar"]
        assert polar["placeholder"] is True
        assert polar["placeholder_reason"] == "no_traces"
        assert polar["trace_index"] == -1
        assert set(one(session(trace())).metadata["polar"]) | {"placeholder", "placeholder_reason"} == set(
            polar
        )

    def test_without_any_result(self):
        """A session that the server lost has no id, and the same keys."""
        sample = placeholder_sample(
            SampleIdentity(7, 30), ConversionOptions(reward_key="r"), SessionReason.MISSING
        )
        assert sample.session_id is None
        assert sample.reward == {"r": 0.0}
        assert sample.metadata["polar"]["trace_debug"] == {"finish_reason": None, "response_messages": []}

    @pytest.mark.parametrize("missing", ["prompt_ids", "response_ids"])
    def test_traces_without_ids_are_dropped(self, missing):
        """A trainer needs at least one prompt and one response token; the other traces are kept."""
        empty = trace(**{missing: []}, loss_mask=[] if missing == "response_ids" else [1, 1, 0, 0, 1])
        done = convert(session(empty, trace()))
        assert [s.metadata["polar"]["trace_index"] for s in done.samples] == [1]
        assert (done.dropped_traces, done.reason) == (1, None)
        assert convert(session(empty)).reason is SessionReason.NO_TOKEN_IDS


class TestValidation:
    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"loss_mask": [1]}, "loss_mask has 1 entries for 5 response ids"),
            ({"loss_mask": [1, 1, 0, 0, 2]}, r"loss_mask\[4\] is 2"),
            ({"response_logprobs": None}, "no logprobs, but 3 trainable tokens"),
            ({"response_logprobs": [-0.1]}, "1 logprobs for 5 response ids"),
            (
                {"response_logprobs": [-0.1, math.nan, 0, 0, 0]},
                "logprob nan at the trainable response position 1",
            ),
            (
                {"response_logprobs": [-0.1, 0, 0, 0, -math.inf]},
                "logprob -inf at the trainable response position 4",
            ),
            (
                {"response_logprobs": [-9999.0, 0, 0, 0, 0]},
                "logprob -9999.0 at the trainable response position 0",
            ),
        ],
    )
    def test_masks_and_logprobs(self, fields, message):
        """The error names session, trace and position."""
        result = session(trace(), trace(**fields))
        with pytest.raises(RolloutLogprobError, match=f"session sk-polar-1, trace 1: {message}"):
            session_result_to_samples(result, 0, trajectory_index=0)

    def test_token_ids(self):
        """A negative id is no logprob problem, and an error all the same."""
        with pytest.raises(
            ConversionError, match=r"session sk-polar-1, trace 0: response_ids\[0\] is -1"
        ) as caught:
            convert(session(trace(response_ids=[-1, 1, 1, 1, 1])))
        assert not isinstance(caught.value, RolloutLogprobError)

    def test_bad_values_at_masked_tokens_do_no_harm(self):
        """Tool output has no logprobs; what stands there must only be finite."""
        sample = one(session(trace(response_logprobs=[-0.1, 0.0, math.nan, -1e9, -0.4])))
        assert sample.rollout_log_probs == [-0.1, 0.0, 0.0, 0.0, -0.4]

    def test_no_logprobs_and_nothing_to_train(self):
        """Zeros stand in, because Slime wants one float per response token."""
        sample = one(session(trace(loss_mask=[0] * 5, response_logprobs=None)))
        assert sample.rollout_log_probs == [0.0] * 5

    @pytest.mark.parametrize("logprobs", [None, [-0.1], [math.nan] * 5])
    def test_logprobs_of_a_failed_session_do_not_matter(self, logprobs):
        """Its reason stays that it failed: nothing of it is trained on anyway."""
        done = convert(session(trace(response_logprobs=logprobs), status="ERROR"))
        assert done.samples[0].rollout_log_probs == [0.0] * 5
        assert done.reason is SessionReason.FAILED

    def test_an_empty_mask_trains_nothing(self):
        """Legal on the wire, but nobody said which tokens the policy sampled."""
        done = convert(session(trace(loss_mask=[])))
        assert done.samples[0].loss_mask == [0] * 5
        assert done.samples[0].status is Status.COMPLETED
        assert done.reason is SessionReason.NO_LOSS_MASK
        assert "no loss mask" in done.detail

    def test_all_zero_mask(self):
        """A session that sampled nothing trainable says so."""
        assert convert(session(trace(loss_mask=[0] * 5))).reason is SessionReason.ZERO_TRAINABLE


class TestReward:
    @pytest.mark.parametrize("reward", [None, math.nan, math.inf])
    def test_missing_becomes_zero_and_is_counted(self, reward):
        """What the trainer gets is a number; that it was missing is not forgotten."""
        done = convert(session(trace(reward=reward), trace(reward=0.5)))
        assert [sample.reward for sample in done.samples] == [{"score": 0.0}, {"score": 0.5}]
        assert done.missing_rewards == 1
        assert done.rewards == [0.5]

    def test_missing_can_reject_the_session(self):
        """Its siblings go on without it."""
        done = convert(session(trace(reward=None), trace()), missing_reward="reject")
        assert done.reason is SessionReason.MISSING_REWARD
        assert len(done.samples) == 1
        assert done.samples[0].metadata["polar"]["placeholder_reason"] == "missing_reward"
        assert (done.missing_rewards, done.dropped_traces, done.trainable_tokens) == (1, 2, 0)

    def test_missing_can_be_an_error(self):
        """For users whose evaluator must never be silent."""
        with pytest.raises(MissingRewardError, match="session sk-polar-1, trace 0: the reward is None"):
            convert(session(trace(reward=None)), missing_reward="error")

    @pytest.mark.parametrize("policy", ["reject", "error"])
    def test_only_trainable_traces_need_one(self, policy):
        """Failed sessions have no reward, as a rule."""
        done = convert(session(trace(reward=None), status="ERROR"), missing_reward=policy)
        assert done.missing_rewards == 0
        assert done.samples[0].reward == {"score": 0.0}

    def test_key(self):
        """The reward is stored under the configured key."""
        assert one(session(trace()), reward_key="acc").reward == {"acc": 1.0}


class TestTrainingFilter:
    def test_masked_traces(self):
        """A newer server's verdict: worth nothing, trained on nothing, removed."""
        verdict = {"masked": True, "reason": "session_error", "original_reward": 1.0}
        done = convert(session(trace(metadata={"training_filter": verdict}), trace()))
        masked, good = done.samples
        assert (masked.status, masked.reward, masked.remove_sample) == (Status.FAILED, {"score": 0.0}, True)
        assert masked.loss_mask == [0] * 5
        assert (good.status, good.remove_sample) == (Status.COMPLETED, False)
        only = convert(session(trace(metadata={"training_filter": verdict})))
        assert only.reason is SessionReason.MASKED

    def test_agent_timeout_is_trained_on(self):
        """The agent ran out of its own time: what it did until then counts, with reward 0."""
        verdict = {"masked": False, "trainable": True, "reason": "agent_timeout", "original_reward": 0.7}
        result = session(
            trace(metadata={"training_filter": verdict}, reward=0.7), status="TIMEOUT", error="agent timeout"
        )
        done = convert(result, missing_reward="error")
        sample = done.samples[0]
        assert sample.status is Status.TRUNCATED
        assert sample.loss_mask == [1, 1, 0, 0, 1]
        assert sample.reward == {"score": 0.0}
        assert (done.reason, done.trainable_tokens) == (None, 3)

    def test_other_traces_of_that_session_are_not(self):
        """Only the traces that the server vouches for."""
        vouched = trace(metadata={"training_filter": {"trainable": True}})
        unaligned = trace(metadata={"training_filter": {"masked": True, "reason": "agent_timeout_unaligned"}})
        done = convert(session(vouched, unaligned, trace(), status="TIMEOUT"))
        assert [s.status for s in done.samples] == [Status.TRUNCATED, Status.ABORTED, Status.ABORTED]
        assert done.trainable_tokens == 3

    def test_invalid_tool_call(self):
        """Trained on as a mistake: the mask stays, the reward is 0."""
        verdict = {"trainable": True, "reason": "parser_invalid_tool_call", "original_reward": 1.0}
        sample = one(session(trace(metadata={"training_filter": verdict})))
        assert (sample.status, sample.reward) == (Status.COMPLETED, {"score": 0.0})
        assert sum(sample.loss_mask) == 3

    def test_an_error_is_never_trained_on(self):
        """No server vouches for a session that ended in an error."""
        sample = one(session(trace(metadata={"training_filter": {"trainable": True}}), status="ERROR"))
        assert (sample.status, sum(sample.loss_mask)) == (Status.FAILED, 0)

    @pytest.mark.parametrize("verdict", [None, "masked", [], {}, {"masked": False}])
    def test_no_verdict(self, verdict):
        """Anything else in that place changes nothing."""
        assert sum(one(session(trace(metadata={"training_filter": verdict}))).loss_mask) == 3

    def test_early_stopped(self):
        """A surplus session is a placeholder with a reason of its own, not a failure."""
        result = session(
            status="ERROR", error="cancelled", trajectory_metadata={"early_stop_cancelled": True}
        )
        done = convert(result)
        assert done.reason is SessionReason.EARLY_STOPPED
        assert done.samples[0].metadata["polar"]["placeholder"] is True


class TestLength:
    def test_the_limit_itself_fits(self):
        """Limit kept, limit + 1 dropped with its own count, the session's other traces kept."""
        nine, ten = trace(), trace(prompt_ids=[1, 2, 3, 4, 5])
        done = convert(session(nine, ten), max_tokens=9)
        assert [len(sample.tokens) for sample in done.samples] == [9]
        assert (done.dropped_traces, done.dropped_tokens, done.reason) == (1, 10, None)

    def test_a_session_of_only_too_long_traces(self):
        """It becomes one placeholder whose reason says why."""
        done = convert(session(trace()), max_tokens=8)
        assert done.reason is SessionReason.OVERLONG
        assert done.samples[0].metadata["polar"]["placeholder_reason"] == "overlong"
        (sample,) = session_result_to_samples(session(trace()), 0, trajectory_index=0, max_tokens=8)
        assert sample.remove_sample

    def test_clipping_keeps_a_prefix(self):
        """Prompt whole, response cut at the end, arrays of one length, marked as truncated."""
        done = convert(session(trace()), max_tokens=6, overlong_traces="clip")
        (sample,) = done.samples
        assert sample.tokens == [1, 10, 11, 3, 20, 21]
        assert (sample.response_length, sample.loss_mask, sample.rollout_log_probs) == (
            2,
            [1, 1],
            [-0.1, 0.0],
        )
        assert sample.status is Status.TRUNCATED
        assert sample.metadata["polar"]["clipped"] == {"response_tokens": 5, "kept": 2}
        assert (done.clipped_traces, done.trainable_tokens, done.response_tokens) == (1, 2, 2)

    @pytest.mark.parametrize(
        ("fields", "limit"),
        [({}, 4), ({}, 3), ({"loss_mask": [0, 0, 0, 0, 1]}, 8)],
        ids=["no room", "prompt too long", "nothing trainable left"],
    )
    def test_clipping_to_nothing_drops(self, fields, limit):
        """A clipped trace must have a trainable token left."""
        done = convert(session(trace(**fields)), max_tokens=limit, overlong_traces="clip")
        assert done.reason is SessionReason.OVERLONG
        assert done.dropped_traces == 1

    def test_lengths_are_checked_before_clipping(self):
        """A misaligned array is not made right by cutting it."""
        with pytest.raises(RolloutLogprobError, match="4 logprobs for 5"):
            convert(session(trace(response_logprobs=[-1.0] * 4)), max_tokens=6, overlong_traces="clip")

    def test_a_failed_session_is_not_clipped(self):
        """Nothing of it is trained on."""
        done = convert(session(trace(), status="ERROR"), max_tokens=6, overlong_traces="clip")
        assert (done.reason, done.dropped_traces) == (SessionReason.FAILED, 1)


def merged(*entries, **fields) -> Trace:
    """Three turns: tokens 0-1, 3 and 5."""
    values = {
        "response_ids": [20, 21, 4, 30, 5, 40],
        "loss_mask": [1, 1, 0, 1, 0, 1],
        "response_logprobs": [-0.5] * 6,
        "metadata": {"completion_metadata": list(entries)},
    }
    return trace(**{**values, **fields})


class TestWeights:
    def test_turns_under_different_weights_are_told_apart(self):
        """The versions per turn reach the sample, with the tokens of each turn."""
        done = convert(session(merged(*({"weight_version": v} for v in "334"))), aborted_turns="keep")
        (sample,) = done.samples
        assert sample.weight_versions == ["3", "3", "4"]
        assert [(t["start"], t["end"]) for t in sample.metadata["polar"]["turns"]] == [(0, 2), (3, 4), (5, 6)]
        assert done.weight_versions == ("3", "4")

    def test_a_turn_that_changed_weights_shows_both(self):
        """A push in place cuts nothing: all tokens are kept, and both versions reach sample and session."""
        spans = [{"version": "3", "start": 0, "end": 1}, {"version": "4", "start": 1, "end": 2}]
        calls = ({"weight_versions": spans}, {"weight_version": "4"}, {"weight_version": "4"})
        done = convert(session(merged(*calls)))
        (sample,) = done.samples
        assert sample.loss_mask == [1, 1, 0, 1, 0, 1]
        assert sample.weight_versions == ["3", "4", "4", "4"]
        assert done.weight_versions == ("3", "4")
        assert sample.metadata["polar"]["turns"][0]["weight_versions"] == spans

    def test_clipping_cuts_the_spans_too(self):
        """What was cut away was sampled by nobody."""
        spans = [{"version": "3", "start": 0, "end": 1}, {"version": "4", "start": 1, "end": 2}]
        calls = ({"weight_versions": spans}, {"weight_version": "4"}, {"weight_version": "4"})
        done = convert(session(merged(*calls, prompt_ids=[1, 2, 3])), max_tokens=4, overlong_traces="clip")
        (sample,) = done.samples
        assert sample.tokens == [1, 2, 3, 20]
        assert sample.metadata["polar"]["turns"][0]["weight_versions"] == spans[:1]

    def test_the_turn_before_a_jump_is_masked(self):
        """A push in the middle may have cut it, and the agent cannot tell."""
        done = convert(session(merged(*({"weight_version": v} for v in "334"))))
        (sample,) = done.samples
        assert sample.loss_mask == [1, 1, 0, 0, 0, 1]
        assert sample.metadata["polar"]["aborted_turns"] == {
            "action": "mask",
            "turns": [1],
            "aborted": [],
            "before_jump": [1],
            "located": True,
            "masked_tokens": 1,
        }
        assert done.masked_tokens == 1

    def test_a_barrier_makes_jumps_harmless(self):
        """Where pushes wait for turns, a change of version between two turns cuts none."""
        done = convert(session(merged(*({"weight_version": v} for v in "334"))), pushes_wait_for_turns=True)
        assert done.samples[0].loss_mask == [1, 1, 0, 1, 0, 1]
        assert "aborted_turns" not in done.samples[0].metadata["polar"]

    def test_an_aborted_turn_is_masked_even_behind_a_barrier(self):
        """An abort is an abort."""
        result = session(merged({"finish_reason": "abort"}, {}, {}))
        assert convert(result, pushes_wait_for_turns=True).samples[0].loss_mask == [0, 0, 0, 1, 0, 1]

    def test_a_masked_turn_needs_no_logprobs(self):
        """What the push cut may have come without."""
        logprobs = [-0.5, -0.5, 0, -0.5, 0, math.nan]
        result = session(merged({}, {}, {}, finish_reason="abort", response_logprobs=logprobs))
        sample = one(result)
        assert sample.loss_mask == [1, 1, 0, 1, 0, 0]
        assert sample.rollout_log_probs[-1] == 0.0

    def test_an_aborted_trace_of_one_turn(self):
        """Nothing is left of it, and the session says why."""
        done = convert(session(trace(finish_reason="abort")))
        assert done.samples[0].loss_mask == [0] * 5
        assert done.reason is SessionReason.ABORTED_TURNS

    def test_turns_that_cannot_be_located(self):
        """If nobody knows which tokens were cut, none is trained on."""
        result = session(merged({}, {}, finish_reason="abort"))
        sample = one(result)
        assert sum(sample.loss_mask) == 0
        assert sample.metadata["polar"]["aborted_turns"]["located"] is False

    def test_drop(self):
        """The whole trace goes, the session's others stay."""
        done = convert(session(merged({}, {}, {}, finish_reason="abort"), trace()), aborted_turns="drop")
        assert [s.metadata["polar"]["trace_index"] for s in done.samples] == [1]
        only = convert(session(merged({}, {}, {}, finish_reason="abort")), aborted_turns="drop")
        assert only.reason is SessionReason.ABORTED_TURNS
        assert only.samples[0].metadata["polar"]["placeholder"] is True

    def test_keep(self):
        """Marked, and trained on as it is."""
        sample = one(session(trace(finish_reason="abort")), aborted_turns="keep")
        assert sum(sample.loss_mask) == 3
        assert sample.metadata["polar"]["aborted_turns"]["action"] == "keep"

    def test_clipped_turns(self):
        """Turn borders follow the cut."""
        result = session(merged(*({"weight_version": "3"},) * 3))
        sample = one(result, max_tokens=7, overlong_traces="clip")
        assert [(t["start"], t["end"]) for t in sample.metadata["polar"]["turns"]] == [(0, 2), (3, 3), (3, 3)]

    @pytest.mark.parametrize("place", ["result", "trajectory", "task_metadata", "trace"])
    def test_the_stamped_version_is_found_wherever_the_server_echoes_it(self, place):
        """Servers copy the task's metadata to different places; one of them is enough."""
        stamps = {"policy_version": 5, "group_id": "g", "rollout_step": 6}
        places = {
            "result": {"metadata": stamps},
            "trajectory": {"trajectory_metadata": stamps},
            "task_metadata": {"trajectory_metadata": {"task_metadata": stamps}},
        }
        result = session(trace(metadata=stamps if place == "trace" else {}), **places.get(place, {}))
        sample = one(result)
        polar = sample.metadata["polar"]
        assert (polar["policy_version"], polar["group_id"], polar["rollout_step"]) == (5, "g", 6)
        assert sample.train_metadata["policy_version"] == 5

    def test_the_submitted_version_comes_first(self):
        """A live version that overrides the stamp in the trace is a measurement, not the stamp."""
        result = session(trace(metadata={"policy_version": 9}), metadata={"policy_version": 0})
        sample = one(result, aborted_turns="keep")
        assert sample.metadata["polar"]["policy_version"] == 0
        assert sample.weight_versions == ["9"]


@dataclasses.dataclass
class LaterSample:
    """The few fields that matter of a release that calls the trajectory key `rollout_id`."""

    Status = Status
    index: int | None = None
    rollout_id: int | None = None


def test_the_other_name_of_the_trajectory_key():
    """On later releases of Slime the traces of a session share `rollout_id`, and there is no `group_id`."""
    result = session(trace(), trace())
    done = convert_session(result, SampleIdentity(7, 30), ConversionOptions(), LaterSample)
    assert [(sample.index, sample.rollout_id) for sample in done.samples] == [(30, 30), (30, 30)]
    placeholder = placeholder_sample(
        SampleIdentity(7, 31), ConversionOptions(), SessionReason.MISSING, None, LaterSample
    )
    assert placeholder.rollout_id == 31
    assert not any(hasattr(sample, "group_id") for sample in [*done.samples, placeholder])
