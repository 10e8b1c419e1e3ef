"""Views of a sample: one answer each, for Slime's samples, the stand-in and the dicts of dumps."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

from slime_bridge import sample_view as view
from slime_bridge._stand_in import Sample
from slime_bridge.errors import ConfigError, ConversionError


def both(**fields):
    """The same sample as an object and as a dump has it."""
    sample = Sample(**fields)
    return [pytest.param(sample, id="object"), pytest.param(sample.to_dict(), id="dict")]


@pytest.mark.parametrize(
    ("reward", "key", "expected"),
    [
        (0.5, None, 0.5),
        (2, "score", 2.0),
        (True, None, 1.0),
        (np.float32(0.25), None, 0.25),
        ({"score": 1.0}, "score", 1.0),
        ({"score": 1.0, "other": 2.0}, "other", 2.0),
        ({"only": 3.0}, None, 3.0),
        (math.inf, None, math.inf),
    ],
)
def test_reward_is_a_float(reward, key, expected):
    """Numbers need no key, mappings are read by it."""
    assert view.reward_value(Sample(reward=reward), key) == expected


@pytest.mark.parametrize(("reward", "key"), [(None, None), ({"score": None}, "score"), (math.nan, "score")])
def test_a_missing_reward_is_nan(reward, key):
    """Missing is not zero."""
    assert math.isnan(view.reward_value(Sample(reward=reward), key))


def test_a_misspelt_key_is_an_error_that_lists_the_names():
    """Slime would die of a KeyError in the middle of a metric."""
    with pytest.raises(ConfigError, match=r"'scroe' is not in .* \['score'\]"):
        view.reward_value(Sample(reward={"score": 1.0}), "scroe")
    with pytest.raises(ConfigError, match="reward_key None"):
        view.reward_value(Sample(reward={"a": 1.0, "b": 2.0}))


@pytest.mark.parametrize("reward", ["1.0", b"1", [1.0], {"score": "high"}])
def test_a_reward_that_is_no_number_is_an_error(reward):
    """A text that looks like a number is still a broken evaluator."""
    with pytest.raises(ConversionError, match="must be a number"):
        view.reward_value(Sample(reward=reward), "score")


def test_components_are_found_where_servers_put_them():
    """The reward's own entries come first, then the trace's metadata, then the evaluation."""
    polar = {
        "trace_metadata": {"format": 0.5, "correctness": 7},
        "trajectory_metadata": {"evaluation": {"speed": 0.25, "report": {}, "format": 9}},
    }
    sample = Sample(reward={"score": 1.0, "correctness": 0.0}, metadata={"polar": polar})
    assert view.reward_component(sample, "correctness") == 0.0
    assert view.reward_component(sample, "format") == 0.5
    assert view.reward_component(sample, "speed") == 0.25
    assert math.isnan(view.reward_component(sample, "report"))
    assert math.isnan(view.reward_component(Sample(reward=1.0), "format"))


@pytest.mark.parametrize("sample", both(response_length=4, loss_mask=[1, 0, 1, 0]))
def test_trainable_and_response_tokens(sample):
    """The mask says what is trained; the response is as long as it is."""
    assert view.trainable_tokens(sample) == 2
    assert view.response_tokens(sample) == 4


@pytest.mark.parametrize("sample", both(response_length=3))
def test_no_mask_trains_everything(sample):
    """Slime fills a missing mask with ones."""
    assert view.trainable_tokens(sample) == 3


@pytest.mark.parametrize("sample", both(response_length=1, loss_mask=[1], remove_sample=True))
def test_a_removed_sample_trains_nothing(sample):
    """Slime zeroes its mask later; counting must not wait for that."""
    assert view.trainable_tokens(sample) == 0


@pytest.mark.parametrize(
    "sample", both(response_length=1, loss_mask=[0], metadata={"polar": {"placeholder": True}})
)
def test_placeholders_have_no_response(sample):
    """The token of a placeholder was never sampled."""
    assert view.is_placeholder(sample)
    assert view.response_tokens(sample) == 0


@pytest.mark.parametrize(
    ("fields", "expected"),
    [({"group_id": 0, "index": 5}, 0), ({"index": 5}, 5), ({}, None), ({"rollout_id": 3, "index": 5}, 3)],
)
def test_trajectory(fields, expected):
    """Whichever key this Slime has, 0 included; the index is what Slime itself falls back to."""
    assert view.trajectory_of(SimpleNamespace(**fields)) == expected
    assert view.trajectory_of(fields) == expected


def test_the_write_only_alias_is_not_read():
    """Reading `rollout_id` on a v0.3.0 sample raises."""
    assert view.trajectory_of(Sample(index=4)) == 4


@pytest.mark.parametrize(
    ("status", "failed"),
    [("PENDING", False), ("COMPLETED", False), ("TRUNCATED", False), ("ABORTED", True), ("FAILED", True)],
)
def test_failed(status, failed):
    """Truncated responses are trained on, aborted ones are not."""
    sample = Sample(status=Sample.Status[status])
    assert view.is_failed(sample) is failed
    assert view.is_failed(sample.to_dict()) is failed
    assert view.status_name(sample) == status.lower()


@pytest.mark.parametrize("metadata", [None, "text", {}, {"polar": None}, {"polar": []}])
def test_samples_from_elsewhere(metadata):
    """Any Slime sample can be looked at."""
    sample = Sample(metadata=metadata)
    assert view.polar_metadata(sample) == {}
    assert view.policy_version(sample) is None
    assert not view.is_placeholder(sample)


def test_group_and_version():
    """Identity comes from the sample, the version from its stamp."""
    sample = Sample(group_index=3, metadata={"polar": {"policy_version": 0}})
    assert view.group_of(sample) == 3
    assert view.policy_version(sample) == 0
