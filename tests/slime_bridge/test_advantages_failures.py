"""Estimators that raise, leave, or answer nonsense: one typed error with their name, no process ends."""

from __future__ import annotations

import math
import sys
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from slime_bridge._stand_in import Sample
from slime_bridge.advantages import (
    RewardBatch,
    checked_advantages,
    estimator_name,
    from_function,
    get_estimator,
)
from slime_bridge.errors import AdvantageError
from slime_bridge.reward_post_process import post_process_rewards

BATCH = RewardBatch(reward=np.array([1.0, 0.0]), group=np.array([0, 0]), trajectory=np.array([0, 1]))


def leaves(rewards, groups, trajectories):
    sys.exit(3)


def divides(rewards, groups, trajectories, by=0):
    return [1 // by for _ in rewards]


def not_a_number(rewards, groups, trajectories):
    return [math.nan, 1.0]


def endless(rewards, groups, trajectories):
    return [1.0, math.inf]


def one_short(rewards, groups, trajectories):
    return rewards[:-1]


def stopped(rewards, groups, trajectories):
    raise KeyboardInterrupt


class Leaves:
    def __init__(self, at_once: bool = False) -> None:
        if at_once:
            raise SystemExit("no")

    level = "trace"

    def __call__(self, batch):
        raise SystemExit("enough")


class Fussy(Leaves):
    def __init__(self, factor: float = 0.0) -> None:
        raise ValueError(f"factor must be above 0, got {factor}")


class TestNames:
    def test_functions_have_their_own_name_and_classes_theirs(self):
        assert estimator_name(from_function(leaves)) == "leaves"
        assert estimator_name(from_function(partial(divides, by=2))) == "divides"
        assert estimator_name(Leaves()) == "Leaves"
        assert estimator_name(get_estimator("rloo")) == "RLOO"


class TestCalls:
    @pytest.mark.parametrize(
        ("function", "message"),
        [
            (leaves, "leaves failed: SystemExit: 3"),
            (divides, "divides failed: ZeroDivisionError"),
            (not_a_number, "not_a_number returned nan at 0"),
            (endless, "endless returned inf at 1"),
            (one_short, r"one_short returned shape \(1,\), expected \(2,\)"),
        ],
    )
    def test_one_error_with_the_name(self, function, message):
        with pytest.raises(AdvantageError, match=message):
            checked_advantages(from_function(function), BATCH)
        with pytest.raises(AdvantageError, match="Leaves failed: SystemExit: enough"):
            checked_advantages(Leaves(), BATCH)

    def test_ctrl_c_is_no_error_of_the_estimator(self):
        with pytest.raises(KeyboardInterrupt):
            checked_advantages(from_function(stopped), BATCH)


class TestMaking:
    @pytest.mark.parametrize(
        ("name", "kwargs", "message"),
        [
            ("Leaves", {"at_once": True}, "Leaves cannot be made: SystemExit: no"),
            ("Fussy", {"factor": -1.0}, "Fussy cannot be made: ValueError: factor must be above 0, got -1.0"),
        ],
    )
    def test_a_class_that_cannot_be_made(self, name, kwargs, message):
        with pytest.raises(AdvantageError, match=message):
            get_estimator(f"{__name__}:{name}", kwargs)

    def test_a_module_that_leaves_when_it_is_imported(self, tmp_path, monkeypatch):
        (tmp_path / "leaving_estimator.py").write_text("import sys\nsys.exit('bye')\n")
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(AdvantageError, match="'leaving_estimator:Mine': SystemExit: bye"):
            get_estimator("leaving_estimator:Mine")


@pytest.mark.parametrize("name", ["leaves", "not_a_number", "one_short", "Leaves"])
def test_in_the_hook_the_trainer_gets_a_typed_error(name):
    """`SystemExit` would end Slime's rollout process without a word."""
    samples = [
        Sample(
            group_index=0,
            index=number,
            group_id=number,
            reward=float(number),
            response_length=1,
            loss_mask=[1],
            status=Sample.Status.COMPLETED,
        )
        for number in range(2)
    ]
    args = SimpleNamespace(
        advantage_estimator="grpo",
        rewards_normalization=True,
        grpo_std_normalization=False,
        reward_key=None,
        polar_advantage_estimator=f"{__name__}:{name}",
    )
    with pytest.raises(AdvantageError, match=name):
        post_process_rewards(args, samples)
