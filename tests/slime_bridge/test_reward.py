"""The reward hook: what Slime gets for a sample, a list, and a reward that is not there."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
from types import SimpleNamespace

import pytest

from slime_bridge import reward as reward_module
from slime_bridge._stand_in import Sample
from slime_bridge.errors import ConfigError, MissingRewardError
from slime_bridge.reward import reward_func


@pytest.fixture(autouse=True)
def not_warned_yet():
    reward_module._warn_once.cache_clear()


def ask(sample, **args):
    return asyncio.run(reward_func(SimpleNamespace(**args), sample))


def test_signature_is_what_slime_calls():
    """Slime passes args and the sample by position, and may add keywords."""
    parameters = inspect.signature(reward_func).parameters
    assert list(parameters)[:2] == ["args", "sample"]
    assert inspect.iscoroutinefunction(reward_func)
    assert asyncio.run(reward_func(SimpleNamespace(), Sample(reward=1.0), evaluation=True)) == 1.0


@pytest.mark.parametrize(
    ("reward", "args", "expected"),
    [
        (0.5, {}, 0.5),
        (0.5, {"reward_key": None}, 0.5),
        (0.5, {"reward_key": "score"}, {"score": 0.5}),
        ({"score": 1.0}, {}, 1.0),
        ({"score": 1.0}, {"reward_key": "score"}, {"score": 1.0}),
        ({"acc": 1.0, "len": 3}, {"polar_reward_key": "acc"}, 1.0),
        ({"acc": 1.0, "len": 3}, {"reward_key": "acc"}, {"acc": 1.0, "len": 3}),
        ({"acc": 2.0}, {"polar_reward_key": "acc", "reward_key": "r"}, {"acc": 2.0, "r": 2.0}),
    ],
)
def test_a_number_or_what_reward_key_needs(reward, args, expected):
    """Slime reads `reward[reward_key]` where the key is set, and a plain number where it is not."""
    assert ask(Sample(reward=reward), **args) == expected


def test_a_list_gives_a_list():
    """Rollouts that split hand over all samples at once."""
    samples = [Sample(reward=1.0), Sample(reward={"score": 2.0})]
    assert ask(samples) == [1.0, 2.0]
    assert ask([]) == []


@pytest.mark.parametrize("reward", [None, math.nan, {"score": None}, {"score": math.inf}])
def test_missing_is_zero_with_one_warning(reward, caplog):
    """The hook must give a number; that it made one up is said, once."""
    with caplog.at_level(logging.WARNING):
        assert ask([Sample(reward=reward)] * 3) == [0.0] * 3
    assert len(caplog.records) == 1


def test_missing_can_be_an_error():
    """Where the user wants every session rewarded."""
    with pytest.raises(MissingRewardError, match="sample 7 has the reward nan"):
        ask(Sample(index=7), polar_missing_reward="error")


def test_a_misspelt_key_is_an_error():
    """Named at the first sample."""
    with pytest.raises(ConfigError, match="'scroe'"):
        ask(Sample(reward={"score": 1.0}), reward_key="scroe")
