"""What a replay of verdicts adds up to: one row per group, sums before and after, and the shift of means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.stats.columns import Floats, Ints, floats, integers, nullable, only, texts
from analysis.stats.frames import GROUP_IDS, ids_of
from analysis.stats.numbers import cluster_bootstrap
from slime_bridge.conversion.groups import SessionOutcome

__all__ = ["Verdict", "groups_frame", "shift_frame", "summary_frame"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """One group judged again; `accepted` is None where it cannot be judged."""

    accepted: bool | None
    reason: str | None = None
    numbers_match: bool | None = None


def groups_frame(
    table: pd.DataFrame,
    verdicts: list[Verdict],
    members: list[list[SessionOutcome]],
    lags: list[int | None],
) -> pd.DataFrame:
    """Return one row per group; see `analysis.stats.replay.Replay`."""
    rejected = (table["state"] == "rejected").fillna(False).to_numpy(dtype=bool)
    accepted = ~rejected & (table["verdict"] != "rejected").fillna(True).to_numpy(dtype=bool)
    reason = only(texts(table, "reject_reason"), ~accepted)
    unknown = np.array([v.accepted is None for v in verdicts], dtype=bool)
    again = np.array([bool(v.accepted) for v in verdicts], dtype=bool)
    why = np.array([v.reason for v in verdicts], dtype=object)
    flipped = ~unknown & ((again != accepted) | (~again & (why != reason)))
    usable = [[s for s in own if s.usable] for own in members]
    rewards = [[s.reward for s in group if np.isfinite(s.reward)] for group in usable]
    numbers = nullable(
        {
            "accepted": accepted,
            "reason": reason,
            "replayed_accepted": pd.Series(again, dtype="boolean").mask(unknown),
            "replayed_reason": why,
            "unknown": unknown,
            "flipped": flipped,
            "numbers_match": pd.Series([v.numbers_match for v in verdicts], dtype="boolean"),
            "sessions": np.array([len(own) for own in members], dtype=np.int64),
            "usable_sessions": np.array([len(group) for group in usable], dtype=np.int64),
            "trainable_tokens": np.array([sum(s.trainable_tokens for s in g) for g in usable], np.int64),
            "response_tokens": np.array([_mean([s.response_tokens for s in g]) for g in usable], float),
            "reward_mean": np.array([_mean(group) for group in rewards], dtype=float),
            "zero_signal": np.array([len(g) < 2 or max(g) - min(g) <= 1e-6 for g in rewards], dtype=bool),
            "staleness": np.array([np.nan if lag is None else float(lag) for lag in lags], dtype=float),
        }
    )
    return pd.concat([ids_of(table, GROUP_IDS), numbers], axis=1)


def _mean(values: list[Any]) -> float:
    return float(np.mean(values)) if values else np.nan


def _kept_twice(groups: pd.DataFrame) -> tuple[Any, Any]:
    """Return which groups were accepted, and which are now; unknown ones keep their historic fate."""
    before = groups["accepted"].to_numpy(dtype=bool)
    after = groups["replayed_accepted"].to_numpy(dtype=bool, na_value=False)
    return before, np.where(groups["unknown"].to_numpy(dtype=bool), before, after)


def summary_frame(groups: pd.DataFrame) -> pd.DataFrame:
    """Return the yield before and after."""
    before, after = _kept_twice(groups)
    counts: dict[str, Floats | Ints] = {
        "groups": np.ones(len(groups)),
        "sessions": integers(groups, "sessions"),
        "usable_sessions": integers(groups, "usable_sessions"),
        "trainable_tokens": integers(groups, "trainable_tokens"),
        "zero_signal_groups": groups["zero_signal"].to_numpy(dtype=float),
    }
    rows = [("judged_groups", float(len(groups)), float(len(groups)))]
    rows += [(name, float(v[before].sum()), float(v[after].sum())) for name, v in counts.items()]
    if len(groups):
        rows.append(("accept_fraction", float(before.mean()), float(after.mean())))
    old, new = np.array([r[1] for r in rows]), np.array([r[2] for r in rows])
    names = np.array([r[0] for r in rows], dtype=object)
    return nullable({"quantity": names, "before": old, "after": new, "difference": new - old})


def shift_frame(groups: pd.DataFrame, replicates: int, seed: int) -> pd.DataFrame:
    """Return how the means of the accepted groups moved, with intervals."""
    before, after = _kept_twice(groups)
    names = ("reward_mean", "response_tokens", "staleness")
    times = cluster_bootstrap(np.arange(len(groups)), replicates, seed)
    rows = []
    for name in names:
        values = floats(groups, name)
        there = ~np.isnan(values)
        own = np.nan_to_num(values)
        old, new = there & before, there & after
        a = _mean(own[old].tolist())
        b = _mean(own[new].tolist())
        with np.errstate(invalid="ignore"):  # a draw without any accepted group has no mean
            drawn = times[:, new] @ own[new] / times[:, new].sum(axis=1)
            drawn = drawn - times[:, old] @ own[old] / times[:, old].sum(axis=1)
        low, high = _interval(drawn)
        rows.append((a, b, b - a, low, high))
    columns = np.array(rows).T if rows else np.zeros((5, 0))
    labels = ("before", "after", "difference", "low", "high")
    return nullable({"quantity": np.array(names, dtype=object), **dict(zip(labels, columns, strict=True))})


def _interval(draws: Floats) -> tuple[float, float]:
    known = draws[~np.isnan(draws)]
    if not len(known):
        return np.nan, np.nan
    low, high = np.quantile(known, [0.025, 0.975])
    return float(low), float(high)
