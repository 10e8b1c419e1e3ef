"""Policy lag: how old what was trained on was, where the age came from, and what went with it.

Lag is counted in rollouts: the rollout that took a group minus the policy version that was stamped on its
submission. It has two parts, in flight (submission to result) and in queue (result to delivery). Where
engines report weight versions, `behind` counts in weight pushes: the newest version that served anything up
to that rollout minus the oldest that served the session. That newest version may itself be behind the
trainer, so it is a lower bound of the true lag.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.stats.columns import (
    Floats,
    Ints,
    flags,
    floats,
    integers,
    json_cells,
    known,
    nullable,
    sums,
    texts,
)
from analysis.stats.configuration import configurations, polar_config
from analysis.stats.frames import GROUP_IDS, SESSION_IDS, Frames, as_frames, group_rows, ids_of
from analysis.stats.numbers import wilson_interval
from analysis.stats.sessions import fates

__all__ = ["Lag", "lag", "version_numbers"]

_RELATION_COLUMNS = (
    "lag",
    "candidates",
    "rejected",
    "rejected_share",
    "low",
    "high",
    "reward_mean",
    "reward_stderr",
    "response_tokens",
)


@dataclass(frozen=True, eq=False)
class Lag:
    """Policy lag of a run.

    Attributes
    ----------
    groups
        One row per group with a lag: ids, `accepted`, `lag`, `in_flight`, `in_queue`, `bound` (largest that
        the settings accept), `within`, `policy_version`, `reward_mean`, `response_tokens` (mean per session).
        For groups that were found too old the lag is the one that they were rejected for.
    sessions
        One row per session of a delivered group: ids, `lag`, `in_flight`, `in_queue`, `trainable_tokens`,
        `reward`, `version_oldest`, `version_newest` (numbers), `versions_spanned` (newest - oldest: 0 if one
        served it all), `behind`.
    histogram
        One row per lag: `lag`, and for ``total``, ``in_flight``, ``in_queue`` (column `part`) the `groups`,
        `sessions`, `tokens` (trainable) and their shares.
    rollouts
        One row per rollout: `run`, `rollout_id`, `groups`, `lag_mean`, `lag_min`, `lag_max`,
        `in_flight_mean`, `in_queue_mean`, `token_lag_mean` (weighted by trainable tokens), `behind_mean`
        (over sessions), `mixed_share` (sessions served by several versions), `bound`.
    relations
        One row per lag: `lag`, `candidates` (groups with that lag), `rejected`, `rejected_share` with `low`,
        `high` (Wilson, 95 %), `reward_mean` and `reward_stderr` (over groups), `response_tokens`.
    """

    groups: pd.DataFrame
    sessions: pd.DataFrame
    histogram: pd.DataFrame
    rollouts: pd.DataFrame
    relations: pd.DataFrame


def lag(run: Any) -> Lag:
    """Measure the policy lag of a run.

    Parameters
    ----------
    run
        A loaded run or a mapping of frames.
    """
    frames = as_frames(run)
    groups = _group_lags(frames)
    sessions = _session_lags(frames, groups)
    return Lag(
        groups=groups,
        sessions=sessions,
        histogram=_histogram(groups, sessions),
        rollouts=_rollouts(groups, sessions),
        relations=_relations(groups),
    )


def version_numbers(versions: np.ndarray) -> Floats:
    """Return weight versions as numbers: as they are if all are integers, else in order of appearance; NaN.

    Parameters
    ----------
    versions
        Shape (n,): texts, None where missing.
    """
    there = ~pd.isna(versions)
    result = np.full(len(versions), np.nan)
    try:
        result[there] = [int(str(version)) for version in versions[there]]
    except ValueError:  # names of checkpoints, digests: only their order is known
        result[there] = pd.factorize(versions[there])[0]
    return result


def _bounds(frames: Frames, table: pd.DataFrame) -> Floats:
    bounds = {worker: polar_config(c).max_staleness for worker, c in configurations(frames).items()}
    return np.array([bounds.get(worker, np.nan) for worker in texts(table, "worker")], dtype=np.float64)


def _group_lags(frames: Frames) -> pd.DataFrame:
    training = ~flags(frames.groups, "evaluation")
    table = frames.groups[training].reset_index(drop=True)
    age = floats(table, "staleness")
    noted = [cell.get("staleness") for cell in json_cells(table, "verdict_numbers")]
    stale = np.array([float(n) if isinstance(n, int) else np.nan for n in noted], dtype=np.float64)
    age = np.where(np.isnan(age), stale, age)
    bound = _bounds(frames, table)
    owner = group_rows(table, frames.sessions)
    count = len(table)
    length = np.divide(
        sums(owner, count, np.nan_to_num(floats(frames.sessions, "response_tokens"))),
        sums(owner, count, known(frames.sessions, "response_tokens")),
        out=np.full(count, np.nan),
        where=sums(owner, count, known(frames.sessions, "response_tokens")) > 0,
    )
    numbers = nullable(
        {
            "accepted": flags(table, "accepted"),
            "lag": age,
            "in_flight": floats(table, "staleness_in_flight"),
            "in_queue": floats(table, "staleness_in_queue"),
            "bound": bound,
            "within": pd.Series(age <= bound, dtype="boolean").mask(np.isnan(age) | np.isnan(bound)),
            "policy_version": table["policy_version"],
            "reward_mean": floats(table, "reward_mean"),
            "response_tokens": length,
        }
    )
    whole = pd.concat([ids_of(table, GROUP_IDS), numbers], axis=1)
    return whole[~np.isnan(age)].reset_index(drop=True)


def _session_lags(frames: Frames, groups: pd.DataFrame) -> pd.DataFrame:
    table = frames.sessions[np.isin(fates(frames), ["trained", "unusable"])].reset_index(drop=True)
    rows = group_rows(groups, table) if len(groups) else np.full(len(table), -1, dtype=np.int64)

    def of(name: str, group_name: str) -> Floats:
        own = floats(table, name)
        theirs = np.full(len(own), np.nan)
        theirs[rows >= 0] = floats(groups, group_name)[rows[rows >= 0]]
        return np.where(np.isnan(own), theirs, own)

    both = np.concatenate([texts(table, "weight_version_oldest"), texts(table, "weight_version_newest")])
    oldest, newest = np.split(version_numbers(both), 2)
    numbers = nullable(
        {
            "lag": of("staleness", "lag"),
            "in_flight": of("staleness_in_flight", "in_flight"),
            "in_queue": of("staleness_in_queue", "in_queue"),
            "trainable_tokens": integers(table, "trainable_tokens"),
            "reward": floats(table, "reward"),
            "version_oldest": oldest,
            "version_newest": newest,
            "versions_spanned": newest - oldest,
            "behind": _newest_so_far(table, newest) - oldest,
        }
    )
    return pd.concat([ids_of(table, SESSION_IDS), numbers], axis=1)


def _newest_so_far(table: pd.DataFrame, newest: Floats) -> Floats:
    """Return the newest version that served anything up to each session's rollout, per run."""
    result = np.full(len(table), np.nan)
    rollout = floats(table, "rollout_id")
    for name in pd.unique(texts(table, "run")):
        mine = texts(table, "run") == name if name is not None else pd.isna(texts(table, "run"))
        order = np.flatnonzero(mine & ~np.isnan(rollout))
        order = order[np.argsort(rollout[order], kind="stable")]
        if not len(order):
            continue
        ids, inverse = np.unique(rollout[order], return_inverse=True)
        top = np.full(len(ids), -np.inf)
        np.maximum.at(top, inverse.reshape(-1), np.nan_to_num(newest[order], nan=-np.inf))
        top = np.maximum.accumulate(top)
        result[order] = np.where(np.isfinite(top), top, np.nan)[inverse.reshape(-1)]
    return result


def _histogram(groups: pd.DataFrame, sessions: pd.DataFrame) -> pd.DataFrame:
    delivered = groups[groups["accepted"].to_numpy(dtype=bool)]
    parts = []
    for part, name in (("total", "lag"), ("in_flight", "in_flight"), ("in_queue", "in_queue")):
        ages, of_sessions = floats(delivered, name), floats(sessions, name)
        values = np.unique(np.concatenate([ages[~np.isnan(ages)], of_sessions[~np.isnan(of_sessions)]]))
        tokens = floats(sessions, "trainable_tokens")
        counts = {
            "groups": np.array([(ages == v).sum() for v in values], dtype=np.float64),
            "sessions": np.array([(of_sessions == v).sum() for v in values], dtype=np.float64),
            "tokens": np.array([tokens[of_sessions == v].sum() for v in values], dtype=np.float64),
        }
        columns: dict[str, Any] = {"part": np.full(len(values), part, dtype=object), "lag": values}
        for label, numbers in counts.items():
            columns[label] = numbers.astype(np.int64)
            columns[f"{label[:-1]}_share"] = numbers / max(numbers.sum(), 1.0)
        parts.append(nullable(columns))
    return pd.concat(parts, ignore_index=True)


def _rollouts(groups: pd.DataFrame, sessions: pd.DataFrame) -> pd.DataFrame:
    delivered = groups[groups["accepted"].to_numpy(dtype=bool)]
    names = ["run", "rollout_id"]
    whole = pd.concat([delivered[names], sessions[names]]).drop_duplicates().dropna(subset=["rollout_id"])
    whole = whole.sort_values(names, kind="stable").reset_index(drop=True)
    own, theirs = _rollout_owners(whole, delivered), _rollout_owners(whole, sessions)
    count = len(whole)
    tokens = floats(sessions, "trainable_tokens")
    spanned = floats(sessions, "versions_spanned")
    age = floats(delivered, "lag")
    low, high = np.full(count, np.nan), np.full(count, np.nan)
    np.fmin.at(low, own[own >= 0], age[own >= 0])
    np.fmax.at(high, own[own >= 0], age[own >= 0])
    numbers = nullable(
        {
            "groups": sums(own, count).astype(np.int64),
            "lag_mean": _means(own, count, age),
            "lag_min": low,
            "lag_max": high,
            "in_flight_mean": _means(own, count, floats(delivered, "in_flight")),
            "in_queue_mean": _means(own, count, floats(delivered, "in_queue")),
            "token_lag_mean": _means(theirs, count, floats(sessions, "lag"), tokens),
            "behind_mean": _means(theirs, count, floats(sessions, "behind")),
            "mixed_share": _means(theirs, count, np.where(np.isnan(spanned), np.nan, spanned > 0)),
            "bound": _means(own, count, floats(delivered, "bound")),
        }
    )
    return pd.concat([whole, numbers], axis=1)


def _rollout_owners(rollouts: pd.DataFrame, table: pd.DataFrame) -> Ints:
    names = ["run", "rollout_id"]
    both = pd.concat([rollouts[names], table[names]]).astype(object)
    numbers = pd.factorize(pd.MultiIndex.from_frame(both.where(both.notna(), None)))[0]
    place = np.full(len(both) + 1, -1, dtype=np.int64)
    place[numbers[: len(rollouts)]] = np.arange(len(rollouts))
    return np.asarray(place[numbers[len(rollouts) :]], dtype=np.int64)


def _means(owner: Ints, count: int, values: Floats, weights: Floats | None = None) -> Floats:
    there = ~np.isnan(values)
    weight = np.where(there, 1.0 if weights is None else np.nan_to_num(weights), 0.0)
    total = sums(owner, count, weight)
    added = sums(owner, count, np.nan_to_num(values) * weight)
    result: Floats = np.divide(added, total, out=np.full(count, np.nan), where=total > 0)
    return result


def _relations(groups: pd.DataFrame) -> pd.DataFrame:
    age, accepted = floats(groups, "lag"), groups["accepted"].to_numpy(dtype=bool)
    rewards, length = floats(groups, "reward_mean"), floats(groups, "response_tokens")
    values = np.unique(age)
    rows = []
    for value in values:
        mine = age == value
        lost = int((mine & ~accepted).sum())
        low, high = wilson_interval(lost, int(mine.sum()))
        own, lengths = rewards[mine & ~np.isnan(rewards)], length[mine & ~np.isnan(length)]
        error = float(own.std(ddof=1) / np.sqrt(len(own))) if len(own) > 1 else np.nan
        share = lost / int(mine.sum())
        mean = float(own.mean()) if len(own) else np.nan
        tokens = float(lengths.mean()) if len(lengths) else np.nan
        rows.append((value, mine.sum(), lost, share, low, high, mean, error, tokens))
    names = _RELATION_COLUMNS
    columns = np.array(rows, dtype=np.float64).T if rows else np.zeros((len(names), 0))
    frame = dict(zip(names, columns, strict=True))
    whole = {name: frame[name].astype(np.int64) for name in ("candidates", "rejected")}
    return nullable({**frame, **whole})
