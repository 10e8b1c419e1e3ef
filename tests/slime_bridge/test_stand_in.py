"""The stand-in sample: fields, round trip and behaviour of Slime v0.3.0's."""

from __future__ import annotations

import copy
import dataclasses
from types import SimpleNamespace

import pytest

from slime_bridge._stand_in import RolloutFnEvalOutput, RolloutFnTrainOutput, Sample

FIELDS = [
    "group_index", "index", "group_id", "prompt", "tokens", "multimodal_inputs", "multimodal_train_inputs",
    "response", "response_length", "label", "reward", "loss_mask", "weight_versions", "rollout_log_probs",
    "rollout_routed_experts", "remove_sample", "teacher_log_probs", "status", "metadata",
    "generate_function_path", "train_metadata", "session_id", "non_generation_time", "spec_info",
    "prefix_cache_info",
]  # fmt: skip


def test_fields_are_slimes_in_order():
    """Dumps list a sample's keys in this order."""
    assert [field.name for field in dataclasses.fields(Sample)] == FIELDS
    assert list(Sample().to_dict()) == FIELDS


def test_round_trip_keeps_everything():
    """What a dump holds comes back equal, extra attributes included."""
    sample = Sample(
        group_index=1,
        index=2,
        group_id=3,
        prompt=[{"role": "user", "content": "hi"}],
        tokens=[1, 2],
        response="[assistant] x",
        response_length=1,
        reward={"score": 1.0},
        loss_mask=[1],
        rollout_log_probs=[-0.5],
        weight_versions=["4"],
        status=Sample.Status.TRUNCATED,
        metadata={"polar": {"a": None}},
        session_id="s",
    )
    sample.spec_info.add({"spec_accept_token_num": 3, "spec_draft_token_num": 4, "spec_verify_ct": 2})
    sample.prefix_cache_info.add({"cached_tokens": 5, "prompt_tokens": 10})
    sample.trace = {"version": 1}
    plain = sample.to_dict()
    assert plain["status"] == "truncated"
    assert plain["trace"] == {"version": 1}
    again = Sample.from_dict(plain)
    assert again == sample
    assert again.trace == {"version": 1}
    assert again.spec_info.spec_accept_rate == 0.75
    assert again.prefix_cache_info.prefix_cache_hit_rate == 0.5


def test_to_dict_shares_containers():
    """Dumping a rollout must not copy its tokens."""
    sample = Sample(tokens=[1])
    assert sample.to_dict()["tokens"] is sample.tokens


def test_a_status_is_required_and_known():
    """A dump without a status, or with an unknown one, is not a sample."""
    with pytest.raises(KeyError):
        Sample.from_dict({})
    with pytest.raises(ValueError, match="lost"):
        Sample.from_dict({"status": "lost"})


def test_counters_may_be_absent():
    """Dumps of older releases have no counters."""
    sample = Sample.from_dict({"status": "pending"})
    assert sample.spec_info.spec_accept_length == 0.0
    assert sample.prefix_cache_info.prefix_cache_hit_rate == 0.0


@pytest.mark.parametrize(("given", "expected"), [({}, 7), ({"group_id": None}, 7), ({"group_id": 3}, 3)])
def test_older_dumps_name_the_trajectory_rollout_id(given, expected):
    """The legacy key fills the trajectory only where there is none."""
    assert Sample.from_dict({"status": "completed", "rollout_id": 7, **given}).group_id == expected


def test_rollout_id_is_a_write_only_alias():
    """Slime v0.3.0 takes the old name with a warning and never gives it back."""
    sample = Sample()
    with pytest.warns(DeprecationWarning, match="group_id"):
        sample.rollout_id = 5
    sample.rollout_id = None
    assert sample.group_id == 5
    assert not hasattr(sample, "rollout_id")
    with pytest.raises(TypeError):
        Sample(rollout_id=1)


def test_reward_value_follows_the_key():
    """A key needs a mapping; without a key the reward is returned as it is."""
    assert Sample(reward=0.5).get_reward_value(SimpleNamespace(reward_key=None)) == 0.5
    assert Sample(reward={"score": 2.0}).get_reward_value(SimpleNamespace(reward_key="score")) == 2.0
    with pytest.raises(TypeError):
        Sample(reward=0.5).get_reward_value(SimpleNamespace(reward_key="score"))
    with pytest.raises(KeyError):
        Sample(reward={}).get_reward_value(SimpleNamespace(reward_key="score"))


def test_effective_length_counts_the_mask():
    """Without a mask every response token is trained."""
    assert Sample(response_length=3).effective_response_length == 3
    assert Sample(response_length=3, loss_mask=[1, 0, 1]).effective_response_length == 2


@pytest.mark.parametrize(
    ("finish", "status"),
    [("length", "TRUNCATED"), ("abort", "ABORTED"), ("stop", "COMPLETED"), ("tool_calls", "PENDING")],
)
def test_meta_info_sets_the_status(finish, status):
    """Engine answers are taken over as Slime does."""
    sample = Sample()
    args = SimpleNamespace(sglang_speculative_algorithm=None)
    sample.update_from_meta_info(args, {"finish_reason": {"type": finish}, "weight_version": "3"})
    assert sample.status is Sample.Status[status]
    assert sample.weight_versions == ["3"]


def test_copies():
    """A deep copy shares nothing, which the data source relies on."""
    sample = Sample(metadata={"a": [1]})
    deep = copy.deepcopy(sample)
    deep.metadata["a"].append(2)
    assert sample.metadata == {"a": [1]}
    assert copy.copy(sample).metadata is sample.metadata


def test_outputs_default_to_no_metrics():
    """The outputs are built with or without metrics."""
    assert RolloutFnTrainOutput(samples=[]).metrics is None
    assert RolloutFnEvalOutput(data={}, metrics={"a": 1}).metrics == {"a": 1}
