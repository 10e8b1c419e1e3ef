"""How far each advantage may be from the true one: intervals, wrong signs, and the share that is noise.

The true advantage of a trace is its reward minus the *expected* reward of its prompt under the policy (over
the true deviation, where an estimator divides by one). The trainer gets an estimate from a handful of
siblings. Here the prompt's reward distribution is drawn again and again from what the siblings and the groups
nearby say about it (`analysis.stats._posterior`), and the true advantage computed for each draw.

- The interval of an advantage holds the middle of these draws. Where all siblings have the same reward and
  nothing in the pool lies beyond it, the interval reaches from that reward to one side only.
- ``p_sign_wrong`` is the share of draws in which the true advantage has the other sign.
- ``noise_share`` of a step is ``E[(A - A_true)^2] / A^2``, both weighted like the loss weighs traces. For
  leave-one-out in groups of n it is about ``1/n``.

It covers the luck of the sampled siblings. It knows nothing about rewards that are wrong, and takes the
trajectories of a group to be independent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.errors import StatsError
from analysis.stats._augmented import Atoms, atoms_of, augmented_draws
from analysis.stats._posterior import GroupedRewards, Pool, group_posteriors, make_pool, pool_members, stretch
from analysis.stats.batches import AnyEstimator, Batch, MissingReward, batches, resolve
from analysis.stats.columns import Floats, Ints, nullable
from analysis.stats.frames import TRACE_IDS, as_frames, ids_of
from analysis.stats.numbers import weighted_mean
from analysis.stats.recomputation import gradient_weights
from slime_bridge.advantages import (
    GRPO,
    GSPO,
    RLOO,
    SPREAD_FLOOR,
    DrGRPO,
    LeaveOneTrajectoryOut,
    RewardBatch,
    checked_advantages,
)

__all__ = ["Uncertainty", "uncertainty"]

_TRACE_NUMBERS = ("advantage", "low", "high", "deviation", "p_sign_wrong", "error_squared")
_STEP_TYPES = {
    "run": "string",
    "rollout_id": "Int64",
    "groups": "Int64",
    "traces": "Int64",
    "signal": "Float64",
    "noise": "Float64",
    "noise_share": "Float64",
    "p_sign_wrong": "Float64",
    "alpha": "Float64",
    "pool_groups": "Int64",
}
_CENTRED = (LeaveOneTrajectoryOut, RLOO, GRPO, GSPO, DrGRPO)
_MOST_CALLS = 200


@dataclass(frozen=True, eq=False)
class Uncertainty:
    """Advantages with what is known about them.

    Attributes
    ----------
    traces
        One row per trace of the delivered groups: ids, `advantage` (what the estimator gives), `low` and
        `high` (interval of the true one), `deviation` (standard deviation of the true one), `p_sign_wrong`
        (missing for an advantage of 0), `error_squared` (expected square of the error). Missing for traces
        that get no advantage.
    steps
        One row per rollout: `run`, `rollout_id`, `groups`, `traces` (with an advantage), `signal` (mean
        square of the advantages), `noise` (mean square of their errors), `noise_share`, `p_sign_wrong` (mean
        over advantages other than 0), all weighted like the loss; `alpha` and `pool_groups` of the prior.
    level
        Probability that an interval is to hold the true advantage.
    """

    traces: pd.DataFrame
    steps: pd.DataFrame
    level: float


def uncertainty(
    run: Any,
    estimator: AnyEstimator = "loo",
    *,
    level: float = 0.95,
    replicates: int = 1000,
    min_pool_groups: int = 128,
    missing_reward: MissingReward = "zero",
    seed: int = 0,
) -> Uncertainty:
    """Say how certain each advantage is.

    Parameters
    ----------
    run
        A loaded run or a mapping of frames.
    estimator
        As in `recompute`; it must give numbers per trace.
    level
        Of the intervals, between 0 and 1.
    replicates
        Draws per group. For estimators other than leave-one-out, RLOO, GRPO, Dr. GRPO and GSPO at most 200
        are taken, since each one calls the estimator.
    min_pool_groups
        The prior of a rollout is estimated from its groups and those of the rollouts around it, until there
        are so many.
    missing_reward
        As in `recompute`.
    seed
        Of the draws.

    Raises
    ------
    StatsError
        If the estimator gives numbers per token, or `level` is no probability.
    """
    function = resolve(estimator)
    if getattr(function, "level", "trace") == "token":
        raise StatsError(f"{function!r} gives numbers per token: intervals are for numbers per trace")
    if not 0 < level < 1 or replicates < 1:
        raise StatsError(
            f"level must be between 0 and 1 and replicates at least 1, got {level}, {replicates}"
        )
    frames = as_frames(run)
    table = frames.traces[frames.traces["accepted"].fillna(True).to_numpy(dtype=bool)].reset_index(drop=True)
    found = list(
        batches(
            table,
            sessions=frames.sessions,
            components=getattr(function, "components", ()),
            missing_reward=missing_reward,
        )
    )
    found.sort(key=lambda batch: _order(table, batch))
    pooled = _Pooled.of(found, function, min_pool_groups)
    rng = np.random.default_rng(seed)
    numbers = np.full((len(_TRACE_NUMBERS), len(table)), np.nan)
    steps = []
    for place, batch in enumerate(found):
        numbers[:, batch.rows] = _trace_numbers(
            function, batch.rewards, pooled, place, level, replicates, rng
        )
        steps.append(_step(table, batch, numbers[:, batch.rows], pooled.pools[place]))
    traces = pd.concat(
        [ids_of(table, TRACE_IDS), nullable(dict(zip(_TRACE_NUMBERS, numbers, strict=True)))], axis=1
    )
    return Uncertainty(traces, _steps_frame(steps), level)


def _order(table: pd.DataFrame, batch: Batch) -> tuple[str, int]:
    row = table.iloc[int(batch.rows[0])]
    return str(row["run"]), -1 if pd.isna(row["rollout_id"]) else int(row["rollout_id"])


@dataclass(frozen=True, eq=False)
class _Pooled:
    """Every batch's trajectories, and the prior that each batch gets from its neighbours."""

    atoms: list[Atoms]
    grouped: list[GroupedRewards]
    neighbours: list[slice]
    pools: list[Pool]

    @classmethod
    def of(cls, found: Sequence[Batch], function: Callable[[RewardBatch], Any], least: int) -> _Pooled:
        names = getattr(function, "components", ())
        atoms = [atoms_of(batch.rewards, names) for batch in found]
        grouped = [
            GroupedRewards(_total(part), part.group, batch.rewards.grouping.n_groups)
            for part, batch in zip(atoms, found, strict=True)
        ]
        neighbours = pool_members([int(np.count_nonzero(g.sizes)) for g in grouped], least)
        return cls(atoms, grouped, neighbours, [make_pool(grouped[part]) for part in neighbours])


def _total(atoms: Atoms) -> Floats:
    """Return the reward that groups differ by; for several components, their sum."""
    return np.sum(list(atoms.components.values()), axis=0) if atoms.components else atoms.reward


def _trace_numbers(
    function: Callable[[RewardBatch], Any],
    batch: RewardBatch,
    pooled: _Pooled,
    place: int,
    level: float,
    replicates: int,
    rng: np.random.Generator,
) -> Floats:
    """Return `_TRACE_NUMBERS` for the traces of one batch, shape (6, n)."""
    answer = checked_advantages(function, batch)
    result = np.full((len(_TRACE_NUMBERS), len(batch)), np.nan)
    result[0] = np.where(batch.grouping.eligible, answer, np.nan)
    constant, edge = _edges(pooled.grouped[place], pooled.pools[place])
    group = batch.grouping.group_of_trace
    tail = (1 - level) / 2
    for rows, drawn in _draws(function, batch, pooled, place, replicates, rng):
        factors = stretch(pooled.grouped[place], pooled.pools[place], len(drawn), rng)[:, group[rows]]
        centre = drawn.mean(axis=0)
        draws = centre + factors * (drawn - centre)
        own, side = answer[rows], edge[group[rows]]
        # Where every reward is the lowest known, the expected one can only be higher: one tail, closed at 0.
        at_rest = np.where(batch.reward[rows] == constant[group[rows]], 0.0, np.nan)
        low, high, one_low, one_high = np.quantile(draws, [tail, 1 - tail, 2 * tail, 1 - 2 * tail], axis=0)
        top, bottom = np.fmax(draws.max(axis=0), at_rest), np.fmin(draws.min(axis=0), at_rest)
        result[1, rows] = np.where(side == 0, low, np.where(side < 0, one_low, bottom))
        result[2, rows] = np.where(side == 0, high, np.where(side < 0, top, one_high))
        result[3, rows] = draws.std(axis=0)
        wrong = (draws * own < 0).mean(axis=0) + 0.5 * (draws == 0).mean(axis=0)
        result[4, rows] = np.where(own == 0, np.nan, wrong)
        result[5, rows] = ((drawn - own) ** 2).mean(axis=0)
    return result


def _edges(grouped: GroupedRewards, pool: Pool) -> tuple[Floats, Ints]:
    """Return the one reward of each constant group (else NaN), and -1 or 1 where it is the pool's edge."""
    low, high = np.full(grouped.count, np.inf), np.full(grouped.count, -np.inf)
    np.minimum.at(low, grouped.group, grouped.values)
    np.maximum.at(high, grouped.group, grouped.values)
    constant = np.where(low == high, low, np.nan)
    edge = np.where(constant == pool.low, -1, 0) + np.where(constant == pool.high, 1, 0)
    return constant, edge.astype(np.int64)


def _draws(
    function: Callable[[RewardBatch], Any],
    batch: RewardBatch,
    pooled: _Pooled,
    place: int,
    replicates: int,
    rng: np.random.Generator,
) -> Iterator[tuple[Ints, Floats]]:
    """Draw true advantages: rows of the batch, and an array of shape (B, rows)."""
    grouped, pool, grouping = pooled.grouped[place], pooled.pools[place], batch.grouping
    eligible = np.flatnonzero(grouping.eligible)
    if type(function) not in _CENTRED:
        if len(eligible):
            most = min(replicates, _MOST_CALLS)
            alpha, base = pool.draw_alpha(most, rng), pool.draw_base(most, rng)
            near = pooled.atoms[pooled.neighbours[place]]
            draws = augmented_draws(function, batch, pooled.atoms[place], near, alpha, base, rng)
            yield eligible, draws[:, eligible]
        return
    group = grouping.group_of_trace
    column = np.full(grouping.n_groups, -1, dtype=np.int64)
    for groups, mean, deviation in group_posteriors(grouped, pool, replicates, rng):
        column[:] = -1
        column[groups] = np.arange(len(groups))
        rows = eligible[column[group[eligible]] >= 0]
        places = column[group[rows]]
        if len(rows):
            divisor = _divisor(function, deviation)[:, places]
            yield rows, (batch.reward[rows] - mean[:, places]) / divisor


def _divisor(function: Callable[[RewardBatch], Any], deviation: Floats) -> Floats:
    if isinstance(function, DrGRPO | RLOO) or not getattr(function, "std_normalization", False):
        return np.ones_like(deviation)
    epsilon = function.epsilon if isinstance(function, GRPO) else 0.0
    return np.where(deviation < SPREAD_FLOOR, 1.0, deviation + epsilon)


def _step(table: pd.DataFrame, batch: Batch, numbers: Floats, pool: Pool) -> dict[str, Any]:
    advantage, wrong, error = numbers[0], numbers[4], numbers[5]
    assert batch.rewards.trainable_tokens is not None
    # An advantage of 1 everywhere leaves what the loss gives a trace by its length alone.
    weight = gradient_weights(
        np.ones(len(advantage)), batch.rewards.trainable_tokens, batch.rewards.grouping.trajectory
    )
    there = ~np.isnan(advantage)
    signal = weighted_mean(advantage**2, weight)
    noise = weighted_mean(error, weight)
    return {
        "run": table.iloc[int(batch.rows[0])]["run"],
        "rollout_id": table.iloc[int(batch.rows[0])]["rollout_id"],
        "groups": batch.rewards.grouping.n_groups,
        "traces": int(there.sum()),
        "signal": signal,
        "noise": noise,
        "noise_share": noise / signal if signal > 0 else np.nan,
        "p_sign_wrong": weighted_mean(wrong, weight * np.abs(np.nan_to_num(advantage))),
        "alpha": pool.alpha,
        "pool_groups": pool.groups,
    }


def _steps_frame(steps: Sequence[dict[str, Any]]) -> pd.DataFrame:
    frame = pd.DataFrame(list(steps), columns=list(_STEP_TYPES))
    return frame.astype(_STEP_TYPES)
