"""From the hook's samples to what the trainer consumes, with Slime's rules and Slime's key names.

Rewards come from the post-process hook, masks from the samples (all ones where there is none, all zeros where
the sample is to be removed), and every trajectory is one aggregation group. Knows nothing about the model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from analysis.lab.dumps import flatten_samples
from slime_bridge.reward_post_process import post_process_rewards
from slime_bridge.sample_view import status_name, trajectory_of

__all__ = ["TrainBatch", "TrainDataError", "make_train_batch"]


class TrainDataError(ValueError):
    """Raised when samples cannot be trained on: misaligned arrays, a reward that is not finite, no group."""


@dataclass(frozen=True)
class TrainBatch:
    """One rollout's samples as arrays; every list has one entry per sample, in training order.

    Attributes
    ----------
    tokens
        int64 tensors ``[prompt + response]``.
    response_lengths
        Number of response tokens, the last ones of `tokens`.
    loss_masks
        int32 tensors ``[response]``; 1 where a token was sampled and counts.
    rollout_log_probs
        float32 tensors ``[response]``: log-probabilities under the policy that sampled; 0 where nothing was
        sampled.
    rewards
        Post-processed scalars: the advantage of every token of the sample.
    raw_rewards
        Scalars as the task gave them.
    truncated
        1 where generation stopped at the length limit.
    sample_indices
        `Sample.index`.
    group_ids
        The trajectory of each sample; siblings share it.
    group_mask_sums
        float32 tensor ``[samples]``: trainable tokens of the sample's whole trajectory.
    """

    tokens: list[torch.Tensor]
    response_lengths: list[int]
    loss_masks: list[torch.Tensor]
    rollout_log_probs: list[torch.Tensor]
    rewards: list[float]
    raw_rewards: list[float]
    truncated: list[int]
    sample_indices: list[int | None]
    group_ids: list[int]
    group_mask_sums: torch.Tensor

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def num_groups(self) -> int:
        """Number of trajectories: the loss is a mean over them, masked ones included."""
        return len(set(self.group_ids))

    @property
    def trainable_tokens(self) -> int:
        """Number of tokens with mask 1."""
        return int(sum(int(mask.sum()) for mask in self.loss_masks))

    def carries_gradient(self, position: int) -> bool:
        """Say whether the sample can move the weights: a trainable token and an advantage other than zero."""
        return self.rewards[position] != 0.0 and bool(self.loss_masks[position].any())


def make_train_batch(args: Any, samples: Sequence[Any]) -> TrainBatch:
    """Convert a rollout's samples.

    Parameters
    ----------
    args
        The trainer's namespace, as the post-process hook reads it.
    samples
        Samples, flat or nested.

    Raises
    ------
    TrainDataError
        If the samples do not fit together; the message names the sample.
    """
    flat = flatten_samples(samples)
    if not flat:
        raise TrainDataError("no samples to train on: the rollout function returned an empty batch")
    raw_rewards, rewards = post_process_rewards(args, flat)
    if not len(raw_rewards) == len(rewards) == len(flat):
        raise TrainDataError(
            f"{len(flat)} samples but {len(raw_rewards)} raw and {len(rewards)} processed rewards"
        )
    for position, value in enumerate(rewards):
        if not math.isfinite(value):
            raise TrainDataError(
                f"{_where(flat, position)}: the processed reward is {value}, it must be finite"
            )
    tokens = [_tokens(flat, position) for position in range(len(flat))]
    masks = [_loss_mask(flat, position) for position in range(len(flat))]
    group_ids = [_group_id(flat, position) for position in range(len(flat))]
    sums: dict[int, int] = {}
    for group, mask in zip(group_ids, masks, strict=True):
        sums[group] = sums.get(group, 0) + int(mask.sum())
    return TrainBatch(
        tokens=tokens,
        response_lengths=[int(sample.response_length) for sample in flat],
        loss_masks=masks,
        rollout_log_probs=[_log_probs(flat, position) for position in range(len(flat))],
        rewards=[float(value) for value in rewards],
        raw_rewards=[float(value) for value in raw_rewards],
        truncated=[int(status_name(sample) == "truncated") for sample in flat],
        sample_indices=[sample.index for sample in flat],
        group_ids=group_ids,
        group_mask_sums=torch.tensor([sums[group] for group in group_ids], dtype=torch.float32),
    )


def _where(samples: Sequence[Any], position: int) -> str:
    sample = samples[position]
    return f"sample {position} (index {sample.index}, session {getattr(sample, 'session_id', None)})"


def _tokens(samples: Sequence[Any], position: int) -> torch.Tensor:
    sample = samples[position]
    if not 1 <= sample.response_length < len(sample.tokens):
        raise TrainDataError(
            f"{_where(samples, position)}: {len(sample.tokens)} tokens with response_length "
            f"{sample.response_length}; at least one prompt and one response token are needed"
        )
    return torch.tensor(sample.tokens, dtype=torch.int64)


def _loss_mask(samples: Sequence[Any], position: int) -> torch.Tensor:
    sample = samples[position]
    length = int(sample.response_length)
    mask = [1] * length if sample.loss_mask is None else sample.loss_mask
    if len(mask) != length:
        raise TrainDataError(
            f"{_where(samples, position)}: {len(mask)} mask entries for {length} response tokens"
        )
    if sample.remove_sample:
        mask = [0] * length
    return torch.tensor(mask, dtype=torch.int32)


def _log_probs(samples: Sequence[Any], position: int) -> torch.Tensor:
    sample = samples[position]
    given = sample.rollout_log_probs
    if given is None or len(given) != sample.response_length:
        count = "no" if given is None else len(given)
        raise TrainDataError(
            f"{_where(samples, position)}: {count} rollout log-probs for "
            f"{sample.response_length} response tokens"
        )
    return torch.tensor(given, dtype=torch.float32)


def _group_id(samples: Sequence[Any], position: int) -> int:
    trajectory = trajectory_of(samples[position])
    if not isinstance(trajectory, int):
        raise TrainDataError(
            f"{_where(samples, position)}: trajectory key {trajectory!r}, an integer is needed"
        )
    return trajectory
