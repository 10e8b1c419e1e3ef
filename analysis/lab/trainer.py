"""A plain PyTorch policy-gradient step that consumes samples the way Slime's trainer does.

The policy that sampled is the old policy (its log-probabilities came with the samples), the importance ratio
is clipped, and the reduction gives **one vote per trajectory**: a token-weighted mean inside each trajectory,
then a mean over all trajectories of the batch, masked ones included. One optimiser step per rollout,
accumulated over micro-batches that share one constant normaliser, so that the split into micro-batches
changes nothing.

    L = 1/G * sum_i sum_t m[i,t] / max(M_g(i), 1) * max(-rho A_i, -clip(rho, 1 - eps, 1 + eps_high) A_i)
    rho[i,t] = exp(log p_theta(t) - log p_rollout(t))
    M_g = trainable tokens of trajectory g,  G = number of trajectories

Knows nothing about rollouts, engines or files other than the weights it saves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from analysis.lab.settings import TrainerSettings
from analysis.lab.train_batch import TrainBatch

__all__ = ["Policy", "TrainStep", "Trainer", "clipped_policy_loss"]


class Policy(Protocol):
    """What can be trained: a causal language model."""

    def parameters(self) -> Iterable[torch.nn.Parameter]:
        """Give the weights that the optimiser owns."""
        ...

    def log_probs(self, tokens: torch.Tensor, *, temperature: float) -> torch.Tensor:
        """Give the log-probability of `tokens[:, 1:]`, shape ``[rows, length - 1]``, with its graph.

        Parameters
        ----------
        tokens
            Token ids ``[rows, length]``, padded on the right with any id.
        temperature
            Divides the logits.
        """
        ...


@dataclass(frozen=True)
class TrainStep:
    """What one step did.

    Attributes
    ----------
    metrics
        Numbers under Slime's names (``train/loss``, ``train/grad_norm``, ...); reductions weigh trajectories
        equally.
    rollout_data
        The content of a train dump: Slime's per-sample keys, with the log-probs of the policy before the
        step.
    """

    metrics: dict[str, float]
    rollout_data: dict[str, Any]


def clipped_policy_loss(
    log_probs: torch.Tensor,
    old_log_probs: torch.Tensor,
    advantages: torch.Tensor,
    eps_clip: float,
    eps_clip_high: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the per-token clipped loss, and where the clipped branch is the strictly larger one.

    All arrays have one shape; the results have it too.
    """
    ratio = torch.exp(log_probs - old_log_probs)
    plain = -ratio * advantages
    clipped = -ratio.clamp(1.0 - eps_clip, 1.0 + eps_clip_high) * advantages
    return torch.maximum(plain, clipped), clipped > plain


@dataclass(frozen=True)
class _MicroBatch:
    """Padded rows; per-token arrays are aligned to the predicted token, zero where nothing counts."""

    rows: list[int]
    tokens: torch.Tensor
    weights: torch.Tensor
    old: torch.Tensor
    advantages: torch.Tensor


class Trainer:
    """Owns the optimiser of a policy and steps it on batches of samples.

    Parameters
    ----------
    policy
        What is trained.
    settings
        Hyper-parameters.
    total_steps
        Number of steps over which the learning rate falls; None keeps it constant after the ramp.
    """

    def __init__(
        self, policy: Policy, settings: TrainerSettings | None = None, *, total_steps: int | None = None
    ) -> None:
        self.policy = policy
        self.settings = settings or TrainerSettings()
        self.steps = 0
        self._total_steps = total_steps
        self._parameters = list(policy.parameters())
        self._optimizer = torch.optim.AdamW(
            self._parameters,
            lr=self.settings.learning_rate,
            betas=self.settings.betas,
            weight_decay=self.settings.weight_decay,
        )

    def learning_rate(self) -> float:
        """Return the rate of the next step."""
        ramp = self.settings.ramp_steps
        rate = self.settings.learning_rate * (min(1.0, (self.steps + 1) / ramp) if ramp else 1.0)
        if self._total_steps is None:
            return rate
        done = min(1.0, self.steps / max(1, self._total_steps - 1))
        return rate * (1.0 - (1.0 - self.settings.final_fraction) * done)

    def step(self, batch: TrainBatch) -> TrainStep:
        """Train on one rollout.

        A batch in which no sample carries a gradient leaves the weights alone (momentum included) and says so
        in ``train/trained_samples``.
        """
        log_probs: list[torch.Tensor] = [torch.empty(0)] * len(batch)
        sums = _Sums()
        self._optimizer.zero_grad(set_to_none=True)
        learning = [i for i in range(len(batch)) if batch.carries_gradient(i)]
        still = [i for i in range(len(batch)) if not batch.carries_gradient(i)]
        splits = [*self._split(batch, learning), *self._split(batch, still)]
        for rows in splits:
            micro = self._collate(batch, rows)
            with torch.set_grad_enabled(batch.carries_gradient(rows[0])):
                new = self.policy.log_probs(micro.tokens, temperature=self.settings.temperature)
                loss, clipped = clipped_policy_loss(
                    new, micro.old, micro.advantages, self.settings.eps_clip, self.settings.eps_clip_high
                )
                total = (micro.weights * loss).sum()
            if total.requires_grad:
                total.backward()
            sums.add(micro, new.detach(), float(total.detach()), clipped)
            for row, own in zip(rows, new.detach(), strict=True):
                log_probs[row] = _response_part(own, batch, row)
        rate = self.learning_rate()
        norm = self._update(rate) if learning else 0.0
        metrics = {
            **sums.metrics(),
            "train/grad_norm": norm,
            "train/lr-pg_0": rate,
            "train/global_batch_size": float(batch.num_groups),
            "train/trained_samples": float(len(learning)),
            "train/trainable_tokens": float(batch.trainable_tokens),
        }
        return TrainStep(metrics, _rollout_data(batch, log_probs, splits))

    def _update(self, rate: float) -> float:
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        norm = torch.nn.utils.clip_grad_norm_(
            self._parameters, self.settings.max_grad_norm, error_if_nonfinite=True
        )
        self._optimizer.step()
        self.steps += 1
        return float(norm)

    def _split(self, batch: TrainBatch, rows: Sequence[int]) -> Iterator[list[int]]:
        # Rows of similar length share a micro-batch: less padding, same sum.
        ordered = sorted(rows, key=lambda row: len(batch.tokens[row]))
        size = self.settings.micro_batch_size
        for start in range(0, len(ordered), size):
            yield ordered[start : start + size]

    def _collate(self, batch: TrainBatch, rows: list[int]) -> _MicroBatch:
        width = max(len(batch.tokens[row]) for row in rows)
        tokens = torch.zeros(len(rows), width, dtype=torch.int64)
        weights, old, advantages = (torch.zeros(len(rows), width - 1) for _ in range(3))
        for line, row in enumerate(rows):
            length, response = len(batch.tokens[row]), batch.response_lengths[row]
            tokens[line, :length] = batch.tokens[row]
            part = slice(length - 1 - response, length - 1)
            normaliser = batch.num_groups * max(float(batch.group_mask_sums[row]), 1.0)
            weights[line, part] = batch.loss_masks[row] / normaliser
            old[line, part] = batch.rollout_log_probs[row]
            advantages[line, part] = batch.rewards[row]
        return _MicroBatch(rows, tokens, weights, old, advantages)


class _Sums:
    """Trajectory-weighted sums over the micro-batches."""

    def __init__(self) -> None:
        self.loss = self.clipped = self.kl = self.difference = self.largest = 0.0

    def add(self, micro: _MicroBatch, new: torch.Tensor, loss: float, clipped: torch.Tensor) -> None:
        counted = micro.weights > 0
        kappa = torch.where(counted, micro.old - new, 0.0)
        self.loss += loss
        self.clipped += float((micro.weights * clipped).sum())
        self.kl += float((micro.weights * kappa).sum())
        self.difference += float((micro.weights * kappa.abs()).sum())
        self.largest = max(self.largest, float(kappa.abs().max()))

    def metrics(self) -> dict[str, float]:
        return {
            "train/loss": self.loss,
            "train/pg_loss": self.loss,
            "train/pg_clipfrac": self.clipped,
            "train/ppo_kl": self.kl,
            "train/train_rollout_logprob_abs_diff": self.difference,
            "train/train_rollout_logprob_abs_diff_max": self.largest,
        }


def _response_part(own: torch.Tensor, batch: TrainBatch, row: int) -> torch.Tensor:
    length, response = len(batch.tokens[row]), batch.response_lengths[row]
    return own[length - 1 - response : length - 1].clone()


def _rollout_data(
    batch: TrainBatch, log_probs: list[torch.Tensor], splits: list[list[int]]
) -> dict[str, Any]:
    advantages = [
        torch.full((length,), reward)
        for length, reward in zip(batch.response_lengths, batch.rewards, strict=True)
    ]
    return {
        "tokens": batch.tokens,
        "response_lengths": batch.response_lengths,
        "total_lengths": [len(tokens) for tokens in batch.tokens],
        "rewards": batch.rewards,
        "raw_reward": batch.raw_rewards,
        "truncated": batch.truncated,
        "sample_indices": batch.sample_indices,
        "group_ids": batch.group_ids,
        "loss_masks": batch.loss_masks,
        "group_mask_sums": batch.group_mask_sums,
        "global_batch_sizes": [batch.num_groups],
        "num_microbatches": [len(splits)],
        "micro_batch_indices": splits,
        "rollout_log_probs": batch.rollout_log_probs,
        "log_probs": log_probs,
        "kl": [torch.zeros(length) for length in batch.response_lengths],
        "advantages": advantages,
        "returns": advantages,
    }
