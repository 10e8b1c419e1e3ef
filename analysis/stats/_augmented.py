"""True advantages of any estimator: each group gets so many siblings that its statistics are the prompt's.

The siblings of one draw are a systematic sample of one draw from the posterior (`analysis.stats._posterior`):
trajectories of the group itself and of the groups nearby, with all their reward components. Calling the
estimator on the enlarged batch gives the actual traces the advantage that they would have had among them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.stats.columns import Floats, Ints
from slime_bridge.advantages import RewardBatch, checked_advantages

__all__ = ["Atoms", "atoms_of", "augmented_draws"]

SIBLINGS = 128
"""Added to each group; a systematic sample of so many has the moments of what it is drawn from."""


@dataclass(frozen=True, eq=False)
class Atoms:
    """The valid trajectories of one batch.

    Parameters
    ----------
    reward
        Shape (T,): mean rewards.
    components
        Further mean rewards by name.
    tokens
        Shape (T,): mean trainable tokens per trace, at least 1.
    group
        Shape (T,): group within the batch.
    """

    reward: Floats
    components: dict[str, Floats]
    tokens: Ints
    group: Ints


def atoms_of(batch: RewardBatch, names: Sequence[str]) -> Atoms:
    """Return a batch's trajectories; with `names`, those that have all of these components."""
    grouping = batch.grouping
    means = {name: grouping.trajectory_means(batch.component(name)) for name in names}
    reward = grouping.trajectory_means(batch.reward)
    there = grouping.valid & np.logical_and.reduce([np.isfinite(reward), *map(np.isfinite, means.values())])
    assert batch.trainable_tokens is not None
    tokens = grouping.trajectory_means(batch.trainable_tokens.astype(np.float64))
    return Atoms(
        reward=reward[there],
        components={name: values[there] for name, values in means.items()},
        tokens=np.maximum(1, np.rint(tokens[there])).astype(np.int64),
        group=grouping.group[there],
    )


def augmented_draws(
    function: Callable[[RewardBatch], Any],
    batch: RewardBatch,
    own: Atoms,
    pool: Sequence[Atoms],
    alpha: Floats,
    base: Floats,
    rng: np.random.Generator,
) -> Floats:
    """Draw the true advantage of every trace of a batch.

    Parameters
    ----------
    function
        The estimator.
    batch
        The traces.
    own
        Their trajectories.
    pool
        Trajectories of the batches that the prior is estimated from, `own` among them.
    alpha
        Shape (B,): how many observations the prior is worth.
    base
        Shape (B, g): weights of the pool's groups, those without a trajectory left out.
    rng
        Source of the draws.

    Returns
    -------
    array
        Shape (B, n); 0 for traces that get no advantage.
    """
    names = list(own.components)
    reward = np.concatenate([own.reward, *(part.reward for part in pool)])
    columns = {n: np.concatenate([own.components[n], *(p.components[n] for p in pool)]) for n in names}
    tokens = np.concatenate([own.tokens, *(part.tokens for part in pool)])
    mine = np.zeros((batch.grouping.n_groups, len(own.reward)))
    mine[own.group, np.arange(len(own.reward))] = 1.0
    group, share = _pooled_groups(pool)
    order = np.argsort(reward, kind="stable")
    draws = np.zeros((len(alpha), len(batch)))
    for number in range(len(alpha)):
        prior = alpha[number] * base[number][group] * share
        rows = np.broadcast_to(prior, (len(mine), len(prior)))
        gammas = rng.standard_gamma(np.concatenate([mine, rows], axis=1))
        offset = rng.random(len(gammas))
        chosen = np.stack([_systematic(w[order], u) for w, u in zip(gammas, offset, strict=True)])
        draws[number] = _advantages(
            function, batch, reward, columns, tokens, order[chosen] if len(order) else chosen
        )
    return draws


def _pooled_groups(pool: Sequence[Atoms]) -> tuple[Ints, Floats]:
    """Return the group of each of the pool's trajectories, and its share in that group; shape (M,) each."""
    groups, start = [np.zeros(0, dtype=np.int64)], 0
    for part in pool:
        numbers, inverse = np.unique(part.group, return_inverse=True)
        groups.append(inverse.reshape(-1) + start)
        start += len(numbers)
    group = np.concatenate(groups)
    return group, 1.0 / np.bincount(group, minlength=1)[group] if len(group) else np.zeros(0)


def _systematic(weights: Floats, offset: float) -> Ints:
    """Return `SIBLINGS` places, each drawn as often as its weight says up to rounding."""
    ends = np.cumsum(weights)
    if not len(ends) or ends[-1] <= 0:
        return np.zeros(SIBLINGS, dtype=np.int64)
    points = (np.arange(SIBLINGS) + offset) / SIBLINGS * ends[-1]
    places: Ints = np.minimum(np.searchsorted(ends, points), len(ends) - 1).astype(np.int64)
    return places


def _advantages(
    function: Callable[[RewardBatch], Any],
    batch: RewardBatch,
    reward: Floats,
    columns: dict[str, Floats],
    tokens: Ints,
    chosen: Ints,
) -> Floats:
    """Call the estimator with `chosen` (shape (G, K)) as further siblings; the actual traces come first."""
    groups, siblings = chosen.shape
    if not len(reward):
        return checked_advantages(function, batch)
    added = chosen.reshape(-1)
    n, extra = len(batch), groups * siblings
    assert batch.valid is not None
    assert batch.trainable_tokens is not None
    assert batch.response_tokens is not None
    grown = RewardBatch(
        reward=np.concatenate([batch.reward, reward[added]]),
        group=np.concatenate([batch.grouping.group_of_trace, np.repeat(np.arange(groups), siblings)]),
        trajectory=np.concatenate([batch.grouping.trajectory, len(batch.grouping.group) + np.arange(extra)]),
        valid=np.concatenate([batch.valid, np.ones(extra, dtype=bool)]),
        trainable_tokens=np.concatenate([batch.trainable_tokens, tokens[added]]),
        response_tokens=np.concatenate([batch.response_tokens, tokens[added]]),
        components={
            name: np.concatenate([batch.component(name), values[added]]) for name, values in columns.items()
        },
    )
    return checked_advantages(function, grown)[:n]
