"""Recorded groups judged again, by the bridge's own code, under other acceptance settings or with filters.

Each group's sessions become the outcomes that the bridge judged, `slime_bridge.acceptance.judge` judges them,
and `slime_bridge.acceptance.too_stale` those that are too old. With the settings that the journal holds this
gives every historic verdict again; with others it says which groups flip and what that does to the yield, the
difficulty and the length of what is trained on.

Two things cannot be replayed: groups that were thrown away before their result came (they stay rejected, as
``unknown``), and what a longer wait would have changed: a group that is no longer too old counts as accepted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.stats._columns import Floats, Ints, floats, integers, json_cells, known, nullable, only, texts
from analysis.stats._config import configurations, polar_config
from analysis.stats._frames import GROUP_IDS, Frames, as_frames, ids_of
from analysis.stats._numbers import cluster_bootstrap
from analysis.stats._outcomes import outcomes_of, session_rows_of
from slime_bridge.acceptance import Rejected, RejectReason, judge, too_stale
from slime_bridge.adapter import SessionReason
from slime_bridge.config import PolarSlimeConfig
from slime_bridge.group_conversion import GroupConversion, SessionOutcome

__all__ = ["Replay", "ReplayedGroup", "all_correct", "all_wrong", "constant_rewards", "replay"]

_COMPARED = (
    "sessions",
    "early_stopped",
    "completed",
    "usable",
    "complete_usable",
    "required",
    "traceless",
    "trainable_tokens",
    "reasons",
)


@dataclass(frozen=True, eq=False)
class ReplayedGroup:
    """What a filter sees of a group.

    Parameters
    ----------
    sessions
        What became of each session.
    rewards
        Shape (n,): rewards of the usable sessions that have one.
    staleness
        In rollouts at delivery; None where it was not delivered.
    """

    sessions: list[SessionOutcome]
    rewards: Floats
    staleness: int | None


Filter = Callable[[ReplayedGroup], bool]


def constant_rewards(group: ReplayedGroup) -> bool:
    """Object to groups whose usable sessions all have the same reward: they teach nothing."""
    return len(group.rewards) > 0 and bool(np.ptp(group.rewards) <= 1e-6)


def all_wrong(group: ReplayedGroup) -> bool:
    """Object to groups in which no usable session has a reward of at least 1."""
    return not bool((group.rewards >= 1.0).any())


def all_correct(group: ReplayedGroup) -> bool:
    """Object to groups in which every usable session has a reward of at least 1."""
    return bool(len(group.rewards) > 0 and (group.rewards >= 1.0).all())


@dataclass(frozen=True, eq=False)
class Replay:
    """History under other settings.

    Attributes
    ----------
    groups
        One row per judged group: ids; `accepted`, `reason` (historic); `replayed_accepted`,
        `replayed_reason` (missing where it cannot be judged: `unknown` is true); `flipped`; `numbers_match`
        (the numbers that decided are the recorded ones; missing where none are recorded); `reward_mean`,
        `response_tokens` (per session), `sessions`, `trainable_tokens`, `zero_signal`, `staleness`.
    summary
        One row per quantity: `quantity`, `before`, `after`, `difference`: groups judged and accepted,
        sessions, trainable tokens, groups without a signal, accept fraction.
    shift
        One row per quantity of the accepted groups (`reward_mean`, `response_tokens`, `staleness`): mean
        `before`, `after`, `difference` with the interval `low`, `high` (95 %, groups drawn with replacement).
    mismatches
        Groups whose verdict differs from history; with the original settings there must be none.
    """

    groups: pd.DataFrame
    summary: pd.DataFrame
    shift: pd.DataFrame

    @property
    def mismatches(self) -> pd.DataFrame:
        """Groups whose verdict is another one than in history."""
        return self.groups[self.groups["flipped"].fillna(False).to_numpy(dtype=bool)].reset_index(drop=True)

    @property
    def exact(self) -> bool:
        """Whether every group that can be judged has its historic verdict."""
        return bool(self.mismatches.empty)


def replay(
    run: Any,
    settings: PolarSlimeConfig | Mapping[str, Any] | None = None,
    *,
    filters: Mapping[str, Filter] | None = None,
    replicates: int = 1000,
    seed: int = 0,
) -> Replay:
    """Judge the recorded groups again.

    Parameters
    ----------
    run
        A loaded run or a mapping of frames.
    settings
        A configuration, or values that replace those in the journal, such as
        ``{"min_complete_accept_fraction": 0.5, "max_async_level": 4}``. None keeps the journal's.
        ``missing_reward`` counts too; how overlong traces were treated cannot be undone.
    filters
        Further predicates by the reason that they give; one that returns true rejects the group. Asked after
        the bridge's own, in order.
    replicates, seed
        Of the bootstrap behind `Replay.shift`.

    Raises
    ------
    StatsError
        If a setting is unknown.
    """
    frames = as_frames(run)
    table = _judged(frames.groups)
    configs = _configs(frames, settings)
    outcomes = outcomes_of(frames)
    rows = session_rows_of(frames, table)
    numbers = json_cells(table, "verdict_numbers")
    lags = _lags(table, numbers)
    verdicts = []
    for worker, own, lag, cells in zip(texts(table, "worker"), rows, lags, numbers, strict=True):
        recorded, wanted = configs.get(worker, configs[None])
        sessions = [outcomes[int(row)] for row in own]
        match = _numbers_match(cells, sessions, recorded)
        verdict = _again(sessions, lag, recorded, wanted, dict(filters or {}))
        verdicts.append(dataclasses.replace(verdict, numbers_match=match))
    groups = _groups_frame(table, verdicts, [[outcomes[int(r)] for r in own] for own in rows], lags)
    return Replay(groups, _summary(groups), _shift(groups, replicates, seed))


def _judged(groups: pd.DataFrame) -> pd.DataFrame:
    training = ~groups["evaluation"].fillna(False).to_numpy(dtype=bool)
    rejected = (groups["state"] == "rejected").fillna(False).to_numpy(dtype=bool)
    return groups[training & (known(groups, "verdict") | rejected)].reset_index(drop=True)


def _configs(
    frames: Frames, settings: PolarSlimeConfig | Mapping[str, Any] | None
) -> dict[str | None, tuple[PolarSlimeConfig, PolarSlimeConfig]]:
    """Return the recorded and the wanted configuration per worker; under None where none is recorded."""
    recorded: dict[str | None, Mapping[str, Any] | None] = {None: None, **configurations(frames)}
    if isinstance(settings, PolarSlimeConfig):
        return {worker: (polar_config(values), settings) for worker, values in recorded.items()}
    return {
        worker: (polar_config(values), polar_config(values, settings)) for worker, values in recorded.items()
    }


@dataclass(frozen=True, slots=True)
class _Verdict:
    """One group judged again; `accepted` is None where it cannot be judged."""

    accepted: bool | None
    reason: str | None = None
    numbers_match: bool | None = None


def _again(
    sessions: list[SessionOutcome],
    lag: int | None,
    recorded: PolarSlimeConfig,
    wanted: PolarSlimeConfig,
    filters: Mapping[str, Filter],
) -> _Verdict:
    seen = [_rewritten(session, recorded, wanted) for session in sessions]
    if not seen:
        return _Verdict(None)
    verdict = judge(GroupConversion([], seen), settings=wanted)
    if isinstance(verdict, Rejected):
        return _Verdict(False, str(verdict.reason))
    if lag is not None and lag > wanted.max_staleness:
        return _Verdict(False, str(too_stale(lag, wanted.max_staleness).reason))
    rewards = np.array([s.reward for s in seen if s.usable and not s.early_stopped and np.isfinite(s.reward)])
    group = ReplayedGroup(seen, rewards, lag)
    for reason, objects in filters.items():
        if objects(group):
            return _Verdict(False, reason)
    return _Verdict(True)


def _rewritten(
    session: SessionOutcome, recorded: PolarSlimeConfig, wanted: PolarSlimeConfig
) -> SessionOutcome:
    """Return the session as it would have been converted under another rule for missing rewards."""
    if recorded.missing_reward == wanted.missing_reward:
        return session
    if wanted.missing_reward == "reject" and session.missing_rewards and session.usable:
        reason = str(SessionReason.MISSING_REWARD)
        return dataclasses.replace(session, usable=False, trainable_tokens=0, reason=reason)
    if recorded.missing_reward == "reject" and session.reason == SessionReason.MISSING_REWARD:
        # Its samples were not kept; that it had a token to train on is all that is known.
        return dataclasses.replace(session, usable=True, trainable_tokens=1, reason=None)
    return session


def _numbers_match(
    cells: Mapping[str, Any], sessions: list[SessionOutcome], recorded: PolarSlimeConfig
) -> bool | None:
    """Compare the recorded numbers with those counted again; None where none are recorded."""
    if "sessions" not in cells or not sessions:
        return None
    again = judge(GroupConversion([], sessions), settings=recorded).numbers
    return all(again[name] == cells[name] for name in _COMPARED if name in cells)


def _lags(table: pd.DataFrame, numbers: list[Mapping[str, Any]]) -> list[int | None]:
    """Return each group's staleness at delivery, or when it was found too old; None where it was neither."""
    delivered = floats(table, "staleness")
    stale = texts(table, "reject_reason") == RejectReason.TOO_STALE.value
    result: list[int | None] = []
    for lag, old, cells in zip(delivered.tolist(), stale, numbers, strict=True):
        noted = cells.get("staleness") if old else None
        result.append(noted if isinstance(noted, int) else None if np.isnan(lag) else int(lag))
    return result


def _groups_frame(
    table: pd.DataFrame,
    verdicts: list[_Verdict],
    members: list[list[SessionOutcome]],
    lags: list[int | None],
) -> pd.DataFrame:
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


def _summary(groups: pd.DataFrame) -> pd.DataFrame:
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


def _shift(groups: pd.DataFrame, replicates: int, seed: int) -> pd.DataFrame:
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
