"""Bias and variance of an advantage estimator where the truth is known: groups sampled from softmax bandits.

A task is one softmax policy over K actions, and for each action a distribution over reward levels. With
``pi`` the policy, ``q_a`` the expected reward of an action and ``V`` that of the policy, the gradient of the
expected reward by the logits is ``g_a = pi_a (q_a - V)``. A group of n draws with advantages ``A_i``
estimates it by ``1/n sum_i A_i (e_(a_i) - pi)``, the policy gradient of the trainer's loss; this is repeated
many times.

For an objective "best of k" the truth is the gradient of ``E max = sum over levels v of (F(v)^k - F(v-)^k)
v``, with F the distribution function of one reward.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from analysis.errors import StatsError
from analysis.stats.batches import AnyEstimator, resolve
from analysis.stats.columns import Bools, Floats, Ints, nullable
from slime_bridge.advantages import RewardBatch, checked_advantages

__all__ = ["Bandits", "Simulation", "simulate"]

_LEVELS = {"binary": (0.0, 1.0), "graded": (0.0, 0.25, 0.5, 0.75, 1.0)}


@dataclass(frozen=True, eq=False)
class Bandits:
    """Tasks whose truth is known.

    Parameters
    ----------
    policy
        Shape (T, K): probability of each action.
    levels
        Shape (L,): rewards, ascending.
    outcomes
        Shape (T, K, L): probability of each reward, given the action.
    """

    policy: Floats
    levels: Floats
    outcomes: Floats

    @classmethod
    def draw(cls, tasks: int, actions: int, rewards: str, rng: np.random.Generator) -> Bandits:
        """Draw tasks from hopeless to solved: logits are normal, the ease of a task is uniform."""
        levels = np.asarray(_LEVELS[rewards])
        logits = rng.normal(size=(tasks, actions))
        policy = np.exp(logits - logits.max(axis=1, keepdims=True))
        policy /= policy.sum(axis=1, keepdims=True)
        ease = rng.uniform(0.02, 0.98, size=(tasks, 1))
        success = rng.beta(2 * ease, 2 * (1 - ease), size=(tasks, actions))
        # Binomial over the levels: the mean is the action's success, the ends stay reachable.
        steps = len(levels) - 1
        counts = np.arange(steps + 1)
        ways = np.array([math.comb(steps, int(c)) for c in counts], dtype=np.float64)
        outcomes = ways * success[..., None] ** counts * (1 - success[..., None]) ** (steps - counts)
        return cls(policy, levels, outcomes)

    @property
    def value(self) -> Floats:
        """Expected reward V, shape (T,)."""
        value: Floats = (self.policy * (self.outcomes @ self.levels)).sum(axis=1)
        return value

    def gradient(self, k: int = 1) -> Floats:
        """Return the gradient of the expected best of k rewards by the logits, shape (T, K)."""
        given = np.cumsum(self.outcomes, axis=2)  # (T, K, L): distribution function, given the action
        overall = (self.policy[..., None] * given).sum(axis=1, keepdims=True)  # (T, 1, L)
        slope = self.policy[..., None] * (given - overall) * k * overall ** (k - 1)  # (T, K, L)
        before = np.concatenate([np.zeros_like(slope[..., :1]), slope[..., :-1]], axis=2)
        gradient: Floats = (slope - before) @ self.levels
        return gradient

    def sample(self, shape: tuple[int, int], rng: np.random.Generator) -> tuple[Ints, Floats]:
        """Draw actions and rewards, shape (T, *shape) each."""
        tasks = len(self.policy)
        actions = _categorical(self.policy[:, None, None, :], (tasks, *shape), rng)
        chosen = np.take_along_axis(
            self.outcomes[:, None, :, :], actions.reshape(tasks, -1)[:, None, :, None], axis=2
        )
        levels = _categorical(chosen.reshape(tasks, *shape, -1), (tasks, *shape), rng)
        return actions, self.levels[levels]


def _categorical(weights: Floats, shape: tuple[int, ...], rng: np.random.Generator) -> Ints:
    ends = np.cumsum(weights, axis=-1)
    points = rng.random(shape)[..., None] * ends[..., -1:]
    drawn: Ints = np.minimum((points > ends).sum(axis=-1), weights.shape[-1] - 1).astype(np.int64)
    return drawn


@dataclass(frozen=True, eq=False)
class Simulation:
    """What an estimator does to the truth.

    Attributes
    ----------
    summary
        One row: `scale` (length of the mean gradient along the true one), `cosine` (between mean and true
        gradient over all tasks), `bias` (what is left of the mean gradient beside the true direction, over
        its length along it, sampling noise taken off), `variance` (trace of the covariance of a gradient over
        all tasks, over the squared length along the true direction), `advantage_bias`, `advantage_rmse`
        (against reward minus V; missing for an objective other than the mean), `sign_errors` (share of
        advantages with the wrong sign, zeros counted half), `zero_groups` (share of groups without any
        advantage).
    tasks
        One row per task: `task`, `value` (V), `scale`, `share` (of the gradient, against its true share),
        `variance`, `zero_groups`.
    """

    summary: pd.DataFrame
    tasks: pd.DataFrame


def simulate(
    estimator: AnyEstimator,
    *,
    tasks: int = 64,
    group_size: int = 8,
    replicates: int = 200,
    actions: int = 6,
    rewards: Literal["binary", "graded"] = "binary",
    best_of: int | None = None,
    failure_rate: float = 0.0,
    failures: Literal["excluded", "zero"] = "excluded",
    seed: int = 0,
) -> Simulation:
    """Measure an estimator on generated tasks.

    Parameters
    ----------
    estimator
        As in `recompute`; it must give numbers per trace, from the reward alone. One that looks across groups
        sees all of them at once.
    tasks, group_size, replicates, actions
        Tasks, trajectories per group, groups per task, actions per policy.
    rewards
        0 or 1, or five levels from 0 to 1.
    best_of
        The objective whose gradient is the truth: the expected reward for 1, the best of k for k. By default
        the estimator's own ``k``, else 1.
    failure_rate, failures
        Share of trajectories lost to infrastructure at random, and whether they are excluded from their
        groups or count as a reward of 0.
    seed
        Of everything drawn.

    Raises
    ------
    StatsError
        If the estimator gives numbers per token or needs reward components, or a number makes no sense.
    """
    function = resolve(estimator)
    if getattr(function, "level", "trace") == "token" or getattr(function, "components", ()):
        raise StatsError(f"{function!r} needs more than one reward per trace: it cannot be simulated here")
    if min(tasks, group_size, replicates, actions) < 1 or replicates < 2 or not 0 <= failure_rate < 1:
        raise StatsError(
            "tasks, group_size and actions must be at least 1, replicates 2, failure_rate below 1"
        )
    if rewards not in _LEVELS or failures not in ("excluded", "zero"):
        raise StatsError(f"rewards is one of {sorted(_LEVELS)}, failures 'excluded' or 'zero'")
    k = best_of if best_of is not None else int(getattr(function, "k", 1))
    rng = np.random.default_rng(seed)
    bandits = Bandits.draw(tasks, actions, rewards, rng)
    chosen, reward = bandits.sample((replicates, group_size), rng)
    failed = rng.random(reward.shape) < failure_rate
    counted = np.where(failed, 0.0, reward)
    advantage = _estimate(function, counted, ~failed if failures == "excluded" else np.ones_like(failed))
    scores = np.eye(actions)[chosen] - bandits.policy[:, None, None, :]  # (T, R, n, K)
    gradients = (advantage[..., None] * scores).mean(axis=2)  # (T, R, K)
    truth = reward - bandits.value[:, None, None]
    kept = ~failed if failures == "excluded" else np.ones_like(failed)
    return _measure(gradients, bandits.gradient(k), bandits.value, advantage, truth if k == 1 else None, kept)


def _estimate(function: Callable[[RewardBatch], Any], reward: Floats, valid: Bools) -> Floats:
    tasks, replicates, size = reward.shape
    batch = RewardBatch(
        reward=reward.reshape(-1),
        group=np.repeat(np.arange(tasks * replicates), size),
        trajectory=np.arange(reward.size),
        valid=valid.reshape(-1),
    )
    return checked_advantages(function, batch).reshape(reward.shape)


def _measure(
    gradients: Floats, true: Floats, value: Floats, advantage: Floats, truth: Floats | None, kept: Bools
) -> Simulation:
    replicates = gradients.shape[1]
    mean = gradients.mean(axis=1)  # (T, K)
    variance = gradients.var(axis=1, ddof=1).sum(axis=1)  # (T,)
    length = float((true * true).sum())
    scale = float((mean * true).sum()) / length
    noise = float(variance.sum()) / replicates
    beside = max(0.0, float(((mean - scale * true) ** 2).sum()) - noise)
    size = max(0.0, float((mean * mean).sum()) - noise)
    along = scale * scale * length
    zero = (np.abs(advantage).max(axis=2) == 0).mean(axis=1)
    sharp = np.sign(advantage) if truth is None else np.sign(advantage) * np.sign(truth)
    wrong = (sharp < 0) + 0.5 * (advantage == 0)
    summary = {
        "scale": scale,
        "cosine": scale * np.sqrt(length / size) if size > 0 else np.nan,
        "bias": np.sqrt(beside / along) if along > 0 else np.nan,
        "variance": float(variance.sum()) / along if along > 0 else np.nan,
        "advantage_bias": np.nan if truth is None else float((advantage - truth)[kept].mean()),
        "advantage_rmse": np.nan
        if truth is None
        else float(np.sqrt(((advantage - truth)[kept] ** 2).mean())),
        "sign_errors": np.nan if truth is None else float(wrong[kept].mean()),
        "zero_groups": float(zero.mean()),
    }
    squares = (true * true).sum(axis=1)
    own = np.divide((mean * true).sum(axis=1), squares, out=np.full(len(true), np.nan), where=squares > 0)
    tasks = {
        "task": np.arange(len(true)),
        "value": value,
        "scale": own,
        "share": own / scale if scale != 0 else np.full(len(true), np.nan),
        "variance": variance,
        "zero_groups": zero,
    }
    return Simulation(
        nullable({name: np.array([number]) for name, number in summary.items()}), nullable(tasks)
    )
