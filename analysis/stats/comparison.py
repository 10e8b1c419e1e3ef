"""Several advantage estimators on the same recorded rewards, side by side."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.stats.batches import AnyEstimator, MissingReward, labelled
from analysis.stats.columns import Bools, Floats, Ints, floats, nullable
from analysis.stats.frames import (
    GROUP_IDS,
    TRACE_IDS,
    Frames,
    as_frames,
    group_codes,
    ids_of,
    trajectory_codes,
)
from analysis.stats.numbers import correlation, mean_or_nan, ranks
from analysis.stats.recomputation import Reduction, gradient_weights, kish_size, recompute, trainable_tokens
from analysis.stats.token_tables import TokenTable
from slime_bridge.advantages import RewardBatch
from slime_bridge.errors import AdvantageError

__all__ = ["AS_TRAINED", "Comparison", "compare"]

AS_TRAINED = "as trained"
"""Label of the advantages that the train dumps hold."""

_TINY = 1e-12
_PAIR_COLUMNS: dict[str, type] = {
    "first": object,
    "second": object,
    "traces": int,
    "sign_flips": int,
    "zero_flips": int,
    "sign_flip_share": float,
    "zero_flip_share": float,
    "pearson": float,
    "spearman": float,
    "max_abs_difference": float,
}


@dataclass(frozen=True, eq=False)
class Comparison:
    """Several estimators on the same rewards.

    Attributes
    ----------
    traces
        One row per trace and estimator: ids, `estimator`, `reward`, `trainable_tokens`, `advantage`,
        `weight` (gradient weight) and `weight_share` (of the rollout's).
    groups
        One row per group and estimator: ids, `estimator`, `traces`, `trajectories` (with an advantage),
        `advantage_mean`, `advantage_std` (population), `advantage_abs_max`, `effective_trajectories` (Kish,
        by gradient weight; missing without any), `weight_share` (of the rollout's).
    pairs
        One row per two estimators: `first`, `second`, `traces` (both have an advantage), `sign_flips`
        (opposite signs), `zero_flips` (exactly one is 0), their shares, `pearson`, `spearman`,
        `max_abs_difference`.
    lengths
        One row per estimator and length bin: `length_low`, `length_high` (trainable tokens, both included),
        `traces`, `token_share`, `weight_share`.
    summary
        One row per estimator: `traces`, `advantage_mean`, `advantage_std`, `advantage_abs_max`, `zero_share`,
        `effective_trajectories` (mean over rollouts), `trajectories` (mean over rollouts).
    failed
        One row per estimator that gave no numbers: `estimator`, `why`. It is in no other table.
    """

    traces: pd.DataFrame
    groups: pd.DataFrame
    pairs: pd.DataFrame
    lengths: pd.DataFrame
    summary: pd.DataFrame
    failed: pd.DataFrame


def compare(
    run: Any,
    estimators: Sequence[AnyEstimator] | Mapping[str, AnyEstimator] = ("loo", "grpo", "dr_grpo"),
    *,
    reduction: Reduction = "trajectory",
    length_bins: int = 4,
    missing_reward: MissingReward = "zero",
    accepted_only: bool = True,
) -> Comparison:
    """Put estimators side by side on a run's rewards.

    An estimator that fails is left out with a warning and a row in `Comparison.failed`; the others are
    compared. Numbers per token are compared as their means over each trace's trainable tokens.

    Parameters
    ----------
    run
        A loaded run or a mapping of frames.
    estimators
        Names, estimators or functions; a mapping gives them labels. What the train dumps hold is added as
        ``"as trained"`` where it is there.
    reduction
        How the trainer's loss weights tokens.
    length_bins
        Number of length bins with equally many traces.
    missing_reward
        As in `recompute`.
    accepted_only
        Leave rejected groups out.

    Raises
    ------
    AdvantageError
        If an estimator is unknown, or none of them gives numbers.
    StatsError
        If `run` is none of these, or two estimators have one label.
    """
    frames = as_frames(run)
    table = frames.traces
    if accepted_only:
        table = table[table["accepted"].fillna(True).to_numpy(dtype=bool)]
    table = table.reset_index(drop=True)
    columns, failed = _all_advantages(frames, table, labelled(estimators), missing_reward)
    group = group_codes(table)[0]
    trajectory = trajectory_codes(table, group)
    trainable = trainable_tokens(table)
    parts = [
        _one_estimator(table, label, values, group, trajectory, trainable, reduction)
        for label, values in columns.items()
    ]
    return Comparison(
        traces=pd.concat([part[0] for part in parts], ignore_index=True),
        groups=pd.concat([part[1] for part in parts], ignore_index=True),
        pairs=_pairs(columns),
        lengths=pd.concat(
            [
                _lengths(label, part[0], trainable, length_bins)
                for label, part in zip(columns, parts, strict=True)
            ],
            ignore_index=True,
        ),
        summary=pd.concat([part[2] for part in parts], ignore_index=True),
        failed=nullable(
            {
                "estimator": np.array(list(failed), dtype=object),
                "why": np.array([str(error) for error in failed.values()], dtype=object),
            }
        ),
    )


def _all_advantages(
    frames: Frames,
    table: pd.DataFrame,
    estimators: Mapping[str, Callable[[RewardBatch], Any]],
    missing_reward: MissingReward,
) -> tuple[dict[str, Floats], dict[str, AdvantageError]]:
    wants_tokens = any(getattr(e, "level", "trace") == "token" for e in estimators.values())
    tokens = frames.tokens if wants_tokens else None
    if tokens is not None and len(table) != len(frames.traces):
        kept = np.full(len(frames.traces), -1, dtype=np.int64)
        accepted = frames.traces["accepted"].fillna(True).to_numpy(dtype=bool)
        kept[accepted] = np.arange(int(accepted.sum()))
        tokens = tokens.select(kept[tokens.rows] >= 0)
        tokens = TokenTable(kept[tokens.rows], tokens.arrays)
    columns: dict[str, Floats] = {}
    failed: dict[str, AdvantageError] = {}
    for label, estimator in estimators.items():
        try:
            found = recompute(
                table, estimator, sessions=frames.sessions, tokens=tokens, missing_reward=missing_reward
            )
        except AdvantageError as error:
            failed[label] = error
        else:
            columns[label] = floats(found, "advantage")
    if not columns:
        raise next(iter(failed.values()))
    for label, reason in failed.items():
        warnings.warn(f"{label} is left out of the comparison: {reason}", RuntimeWarning, stacklevel=3)
    trained = floats(table, "advantage")
    trained = np.where(np.isnan(trained), floats(table, "advantage_raw"), trained)
    if not np.isnan(trained).all() and AS_TRAINED not in columns:
        columns[AS_TRAINED] = trained
    return columns, failed


def _rollout_codes(table: pd.DataFrame) -> Ints:
    keys = table[["run", "rollout_id"]].astype(object)
    return np.asarray(
        pd.factorize(pd.MultiIndex.from_frame(keys.where(keys.notna(), None)))[0], dtype=np.int64
    )


def _one_estimator(
    table: pd.DataFrame,
    label: str,
    values: Floats,
    group: Ints,
    trajectory: Ints,
    trainable: Ints,
    reduction: Reduction,
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    weight = gradient_weights(values, trainable, trajectory, reduction)
    rollout = _rollout_codes(table)
    totals = np.bincount(rollout, weights=weight) if len(weight) else np.zeros(0)
    share = np.divide(weight, totals[rollout], out=np.full(len(weight), np.nan), where=totals[rollout] > 0)
    there = ~np.isnan(values)
    traces = pd.concat(
        [
            ids_of(table, TRACE_IDS),
            nullable(
                {
                    "estimator": np.full(len(table), label, dtype=object),
                    "reward": floats(table, "reward"),
                    "trainable_tokens": trainable,
                    "advantage": values,
                    "weight": np.where(there, weight, np.nan),
                    "weight_share": np.where(there, share, np.nan),
                }
            ),
        ],
        axis=1,
    )
    groups = _group_summary(table, label, values, group, trajectory, weight, share)
    return traces, groups, _summary(label, values, trajectory, rollout, weight)


def _group_summary(
    table: pd.DataFrame,
    label: str,
    values: Floats,
    group: Ints,
    trajectory: Ints,
    weight: Floats,
    share: Floats,
) -> pd.DataFrame:
    there = ~np.isnan(values)
    count = int(group.max(initial=-1)) + 1
    numbers = np.bincount(group[there], minlength=count)
    sums = np.bincount(group[there], weights=values[there], minlength=count)
    mean = np.divide(sums, numbers, out=np.full(count, np.nan), where=numbers > 0)
    off = values[there] - mean[group[there]]
    squares = np.bincount(group[there], weights=off * off, minlength=count)
    top = np.full(count, np.nan)
    np.fmax.at(top, group[there], np.abs(values[there]))
    per_trajectory, owners = _trajectory_weights(weight, trajectory, group, there)
    first = np.unique(group, return_index=True)[1]
    numbers_of = {
        "estimator": np.full(count, label, dtype=object),
        "traces": numbers,
        "trajectories": np.bincount(owners, minlength=count),
        "advantage_mean": mean,
        "advantage_std": np.sqrt(np.divide(squares, numbers, out=np.full(count, np.nan), where=numbers > 0)),
        "advantage_abs_max": top,
        "effective_trajectories": kish_size(per_trajectory, owners, count),
        "weight_share": np.bincount(group, weights=np.nan_to_num(share), minlength=count),
    }
    ids = ids_of(table.iloc[first], GROUP_IDS).reset_index(drop=True)
    return pd.concat([ids, nullable(numbers_of)], axis=1)


def _trajectory_weights(weight: Floats, trajectory: Ints, owner: Ints, there: Bools) -> tuple[Floats, Ints]:
    """Return each trajectory's weight and owner, for trajectories that have an advantage."""
    count = int(trajectory.max(initial=-1)) + 1
    sums: Floats = np.bincount(trajectory[there], weights=weight[there], minlength=count).astype(np.float64)
    owners = np.full(count, -1, dtype=np.int64)
    owners[trajectory[there]] = owner[there]
    present = owners >= 0
    return sums[present], owners[present]


def _summary(label: str, values: Floats, trajectory: Ints, rollout: Ints, weight: Floats) -> pd.DataFrame:
    there = ~np.isnan(values)
    kept = values[there]
    count = int(rollout.max(initial=-1)) + 1
    per_trajectory, owners = _trajectory_weights(weight, trajectory, rollout, there)
    effective = kish_size(per_trajectory, owners, count)
    numbers = np.bincount(owners, minlength=count)
    return nullable(
        {
            "estimator": np.array([label], dtype=object),
            "traces": np.array([len(kept)]),
            "advantage_mean": np.array([mean_or_nan(kept)]),
            "advantage_std": np.array([float(np.std(kept)) if len(kept) else np.nan]),
            "advantage_abs_max": np.array([np.max(np.abs(kept), initial=np.nan if not len(kept) else 0.0)]),
            "zero_share": np.array([mean_or_nan(np.abs(kept) <= _TINY)]),
            "effective_trajectories": np.array([mean_or_nan(effective[~np.isnan(effective)])]),
            "trajectories": np.array([mean_or_nan(numbers[numbers > 0])]),
        }
    )


def _pairs(columns: Mapping[str, Floats]) -> pd.DataFrame:
    labels = list(columns)
    rows = []
    for place, first in enumerate(labels):
        for second in labels[place + 1 :]:
            both = ~np.isnan(columns[first]) & ~np.isnan(columns[second])
            a, b = columns[first][both], columns[second][both]
            zero_a, zero_b = np.abs(a) <= _TINY, np.abs(b) <= _TINY
            flips = int((~zero_a & ~zero_b & (np.sign(a) != np.sign(b))).sum())
            vanish = int((zero_a != zero_b).sum())
            rows.append(
                {
                    "first": first,
                    "second": second,
                    "traces": len(a),
                    "sign_flips": flips,
                    "zero_flips": vanish,
                    "sign_flip_share": flips / len(a) if len(a) else np.nan,
                    "zero_flip_share": vanish / len(a) if len(a) else np.nan,
                    "pearson": correlation(a, b),
                    "spearman": correlation(ranks(a), ranks(b)),
                    "max_abs_difference": float(np.max(np.abs(a - b))) if len(a) else np.nan,
                }
            )
    return nullable(
        {name: np.array([row[name] for row in rows], dtype=kind) for name, kind in _PAIR_COLUMNS.items()}
    )


def _lengths(label: str, traces: pd.DataFrame, trainable: Ints, bins: int) -> pd.DataFrame:
    weight, there = np.nan_to_num(floats(traces, "weight")), trainable > 0
    there = there & ~np.isnan(floats(traces, "advantage"))
    edges: Floats = np.zeros(0)
    if there.any():
        edges = np.unique(np.quantile(trainable[there], np.linspace(0, 1, bins + 1)))
    place = (
        np.searchsorted(edges[1:-1], trainable, side="left") if len(edges) else np.zeros(len(trainable), int)
    )
    count = max(len(edges) - 1, 1) if len(edges) else 0
    chosen = [there & (place == number) for number in range(count)]
    total, tokens = weight.sum(), trainable[there].sum()
    return nullable(
        {
            "estimator": np.full(count, label, dtype=object),
            "length_low": np.array([trainable[c].min() if c.any() else 0 for c in chosen], dtype=np.int64),
            "length_high": np.array([trainable[c].max() if c.any() else 0 for c in chosen], dtype=np.int64),
            "traces": np.array([c.sum() for c in chosen], dtype=np.int64),
            "token_share": np.array([trainable[c].sum() / tokens for c in chosen], dtype=np.float64),
            "weight_share": np.array(
                [weight[c].sum() / total if total > 0 else np.nan for c in chosen], dtype=np.float64
            ),
        }
    )
