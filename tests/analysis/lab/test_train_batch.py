"""Samples become training data by Slime's rules, with the hook's advantages."""

from __future__ import annotations

import argparse
from typing import Any

import pytest
import torch

from analysis.lab.train_batch import TrainDataError, make_train_batch
from slime_bridge._slime import sample_class, trajectory_key

ARGS = argparse.Namespace(
    advantage_estimator="grpo", rewards_normalization=True, grpo_std_normalization=False, reward_key="score"
)


def _sample(index: int, reward: float, **changes: Any) -> Any:
    cls = sample_class()
    sample = cls(
        group_index=0,
        index=index,
        tokens=[1, 2, 3, 4, 5],
        response_length=3,
        reward={"score": reward},
        loss_mask=[1, 0, 1],
        rollout_log_probs=[-0.5, 0.0, -1.5],
        status=cls.Status.COMPLETED,
    )
    setattr(sample, trajectory_key(cls), index)
    for name, value in changes.items():
        setattr(sample, name, value)
    return sample


def test_advantages_are_the_hooks() -> None:
    """Groups of trajectories A(2, 4) and B(10) give -8, -6 and 7; raw rewards stay beside them."""
    batch = make_train_batch(ARGS, [[_sample(0, 2.0), _sample(0, 4.0)], [_sample(1, 10.0)]])
    assert batch.rewards == pytest.approx([-8.0, -6.0, 7.0])
    assert batch.raw_rewards == [2.0, 4.0, 10.0]
    assert batch.group_ids == [0, 0, 1]
    assert batch.num_groups == 2
    assert batch.group_mask_sums.tolist() == [4.0, 4.0, 2.0]
    assert batch.trainable_tokens == 6


def test_masks_follow_slime() -> None:
    """No mask means all ones, a removed sample all zeros; a masked trajectory still counts as one."""
    samples = [_sample(0, 1.0, loss_mask=None), _sample(1, 0.0, remove_sample=True), _sample(2, 0.0)]
    batch = make_train_batch(ARGS, samples)
    assert [mask.tolist() for mask in batch.loss_masks] == [[1, 1, 1], [0, 0, 0], [1, 0, 1]]
    assert batch.loss_masks[0].dtype == torch.int32
    assert batch.rewards[1] == 0.0
    assert batch.num_groups == 3
    assert [batch.carries_gradient(i) for i in range(3)] == [True, False, True]


def test_a_placeholder_passes() -> None:
    """The smallest sample that keeps a trajectory's place carries no gradient and breaks nothing."""
    placeholder = _sample(
        1,
        0.0,
        tokens=[0, 0],
        response_length=1,
        loss_mask=[0],
        rollout_log_probs=[0.0],
        remove_sample=True,
        status=sample_class().Status.ABORTED,
    )
    batch = make_train_batch(ARGS, [_sample(0, 1.0), placeholder])
    assert not batch.carries_gradient(1)
    assert batch.truncated == [0, 0]


def test_truncated_samples_are_marked() -> None:
    """A sample that stopped at its length limit is trained on and marked."""
    batch = make_train_batch(ARGS, [_sample(0, 0.0, status=sample_class().Status.TRUNCATED), _sample(1, 1.0)])
    assert batch.truncated == [1, 0]
    assert batch.carries_gradient(0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss_mask": [1, 1]}, "2 mask entries for 3 response tokens"),
        ({"rollout_log_probs": None}, "no rollout log-probs for 3"),
        ({"rollout_log_probs": [0.0]}, "1 rollout log-probs for 3"),
        ({"response_length": 5}, "5 tokens with response_length 5"),
        ({"response_length": 0}, "at least one prompt and one response token"),
    ],
)
def test_what_does_not_fit_is_named(changes: dict[str, Any], message: str) -> None:
    """A misaligned sample is an error that says which sample and session it is."""
    bad = _sample(7, 1.0, session_id="ses-7", **changes)
    with pytest.raises(TrainDataError, match=message) as error:
        make_train_batch(ARGS, [_sample(0, 0.0), bad])
    assert "index 7, session ses-7" in str(error.value)


def test_an_empty_batch_is_an_error() -> None:
    """A rollout function that returned nothing is reported as such."""
    with pytest.raises(TrainDataError, match="empty batch"):
        make_train_batch(ARGS, [[], []])


def test_a_trajectory_needs_a_key() -> None:
    """Without a trajectory key and an index the votes cannot be counted."""
    lost = _sample(0, 1.0)
    lost.index = None
    setattr(lost, trajectory_key(sample_class()), None)
    with pytest.raises(TrainDataError, match="trajectory key None"):
        make_train_batch(ARGS, [lost])
