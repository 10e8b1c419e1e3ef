"""Reward per rollout and per evaluation, of all usable sessions and of completed ones, with intervals.

Sessions of one prompt group are alike, so that the interval counts groups: with ``r_i`` the rewards, ``m``
their mean, ``n`` their number and ``G`` groups, the standard error is that of a ratio of sums,
``sqrt(G / (G - 1) * sum over groups of (sum of r_i - m)**2) / n``, and the interval reaches as far as
Student's quantile with ``G - 1`` degrees of freedom says.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import numpy as np
import pandas as pd

from analysis.errors import StatsError
from analysis.stats.columns import Bools, Floats, Ints, codes, flags, floats, nullable, sums, texts
from analysis.stats.frames import as_frames, group_codes
from analysis.stats.sessions import fates

__all__ = ["rewards"]

_FEWEST_GROUPS = 4
"""With fewer an interval says more about the formula than about the run."""


def rewards(run: Any, *, level: float = 0.95) -> pd.DataFrame:
    """Measure the reward of each training rollout, and of each data set of an evaluation.

    Parameters
    ----------
    run
        A loaded run or a mapping of frames.
    level
        Of the intervals, between 0 and 1.

    Returns
    -------
    DataFrame
        One row per rollout, and per evaluation and data set: `run`, `rollout_id`, `evaluation`, `dataset`,
        `groups`, `sessions` (usable ones with a reward, in training those of delivered groups),
        `reward_mean`, `reward_std` (population), `reward_low`, `reward_high` (an interval of the mean;
        missing for fewer than four groups), `completed_sessions` (of these), `reward_mean_completed`.

    Raises
    ------
    StatsError
        If the level makes no sense.
    """
    if not 0 < level < 1:
        raise StatsError(f"level must lie between 0 and 1, got {level}")
    frames = as_frames(run)
    sessions, fate = frames.sessions, fates(frames)
    reward = floats(sessions, "reward")
    counts = (fate == "trained") | ((fate == "evaluation") & flags(sessions, "usable"))
    chosen = np.flatnonzero(counts & ~np.isnan(reward) & sessions["rollout_id"].notna().to_numpy())
    table, values = sessions.iloc[chosen].reset_index(drop=True), reward[chosen]
    table = table.assign(evaluation=flags(table, "evaluation"), dataset=_datasets(table))
    row = codes(table.fillna({"dataset": ""}), ("run", "rollout_id", "evaluation", "dataset"))
    rows = int(row.max(initial=-1)) + 1
    first = np.unique(row, return_index=True)[1]
    columns = _moments(values, row, group_codes(table)[0], rows, level)
    columns |= _completed(values, row, flags(table, "completed"), rows)
    ids = table.iloc[first][["run", "rollout_id", "evaluation", "dataset"]].reset_index(drop=True)
    found = pd.concat([ids.astype({"evaluation": "boolean"}), nullable(columns)], axis=1)
    order = ["run", "evaluation", "rollout_id", "dataset"]
    return found.sort_values(order, kind="stable", ignore_index=True)


def _datasets(sessions: pd.DataFrame) -> Any:
    names = texts(sessions, "dataset")
    names[~flags(sessions, "evaluation")] = None  # training prompts are drawn from one mixture
    return pd.array(names, dtype="string")


def _moments(values: Floats, row: Ints, group: Ints, rows: int, level: float) -> dict[str, Any]:
    count = sums(row, rows)
    mean = sums(row, rows, values) / count
    off = values - mean[row]
    clusters, owner = np.unique(np.stack([row, group]), axis=1, return_inverse=True)
    owner = owner.reshape(-1).astype(np.int64)
    of_cluster = clusters[0].astype(np.int64)
    groups = sums(of_cluster, rows)
    squares = sums(of_cluster, rows, sums(owner, len(of_cluster), off) ** 2)
    enough = groups >= _FEWEST_GROUPS
    half = np.full(rows, np.nan)
    spread = np.sqrt(groups[enough] / (groups[enough] - 1) * squares[enough]) / count[enough]
    half[enough] = spread * np.array([_student(level, int(number) - 1) for number in groups[enough]])
    return {
        "groups": groups.astype(np.int64),
        "sessions": count.astype(np.int64),
        "reward_mean": mean,
        "reward_std": np.sqrt(sums(row, rows, off**2) / count),
        "reward_low": mean - half,
        "reward_high": mean + half,
    }


def _completed(values: Floats, row: Ints, completed: Bools, rows: int) -> dict[str, Any]:
    count = sums(row, rows, completed)
    total = sums(row, rows, values * completed)
    return {
        "completed_sessions": count.astype(np.int64),
        "reward_mean_completed": np.divide(total, count, out=np.full(rows, np.nan), where=count > 0),
    }


def _student(level: float, freedom: int) -> float:
    """Return Student's quantile for a two-sided interval, within 1 % from three degrees of freedom on.

    References
    ----------
    Hill 1970, Communications of the ACM 13, 619-620: the expansion about the normal quantile.
    """
    z = NormalDist().inv_cdf(0.5 + level / 2)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + math.fsum(term / freedom ** (power + 1) for power, term in enumerate(terms))
