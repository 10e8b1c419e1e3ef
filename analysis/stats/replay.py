"""Recorded groups judged again, by the bridge's own code, under other acceptance settings or with filters.

Each group's sessions become the outcomes that the bridge judged, `slime_bridge.acceptance.judge` judges them,
and `slime_bridge.acceptance.too_stale` those that are too old. With the settings that the journal holds this
gives every historic verdict again; with others it says which groups flip and what that does to the yield, the
difficulty and the length of what is trained on.

The trainer's dynamic filter is code that is not here: what it dropped stays dropped as long as it is
configured. Complete batches are pruned again (`slime_bridge.filters`), each with the groups that it had.

Two things cannot be replayed: groups that were thrown away before their result came (they stay rejected, as
``unknown``), and what a longer wait would have changed: a group that is no longer too old counts as accepted,
in no batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.stats._outcomes import outcomes_of, session_rows_of
from analysis.stats._replay_tables import Verdict, groups_frame, shift_frame, summary_frame
from analysis.stats.columns import Floats, floats, json_cells, known, texts
from analysis.stats.configuration import configurations, polar_config
from analysis.stats.frames import Frames, as_frames
from slime_bridge.acceptance import Rejected, RejectReason, judge, too_stale
from slime_bridge.adapter import SessionReason
from slime_bridge.config import PolarSlimeConfig
from slime_bridge.conversion.groups import GroupConversion, SessionOutcome
from slime_bridge.filters import TrainerFilters

__all__ = ["Replay", "ReplayedGroup", "all_correct", "all_wrong", "constant_rewards", "replay"]

_PRUNED = (RejectReason.ALL_WRONG, RejectReason.ALL_CORRECT)
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
    members = [[outcomes[int(row)] for row in own] for own in rows]
    dropped = texts(table, "reject_reason") == RejectReason.FILTERED.value
    # Too old while it was in flight: nobody asked for its content.
    early = (texts(table, "reject_reason") == RejectReason.TOO_STALE.value) & ~known(table, "verdict")
    verdicts = []
    for place, worker in enumerate(texts(table, "worker")):
        recorded, wanted = configs.get(worker, configs[None])
        lag = lags[place]
        if early[place] and members[place] and lag is not None and lag > wanted.max_staleness:
            verdict = Verdict(False, str(RejectReason.TOO_STALE))
        else:
            verdict = _again(members[place], lag, recorded, wanted, dict(filters or {}))
        same_filter = recorded.dynamic_sampling_filter_path == wanted.dynamic_sampling_filter_path
        if verdict.accepted and dropped[place] and same_filter:
            verdict = Verdict(False, str(RejectReason.FILTERED))
        match = _numbers_match(numbers[place], members[place], recorded)
        verdicts.append(dataclasses.replace(verdict, numbers_match=match))
    _prune(table, verdicts, members, {worker: wanted for worker, (_, wanted) in configs.items()})
    groups = groups_frame(table, verdicts, members, lags)
    return Replay(groups, summary_frame(groups), shift_frame(groups, replicates, seed))


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


def _prune(
    table: pd.DataFrame,
    verdicts: list[Verdict],
    members: list[list[SessionOutcome]],
    configs: Mapping[str | None, PolarSlimeConfig],
) -> None:
    """Prune complete batches as the bridge does; changes `verdicts`."""
    rollout, worker = floats(table, "rollout_id"), texts(table, "worker")
    handed = (texts(table, "state") == "delivered") | np.isin(
        texts(table, "reject_reason").astype(str), [str(reason) for reason in _PRUNED]
    )
    batches: dict[tuple[str | None, int], list[int]] = {}
    for place in np.lexsort((floats(table, "group"), rollout)).tolist():
        if handed[place] and verdicts[place].accepted and not np.isnan(rollout[place]):
            batches.setdefault((worker[place], int(rollout[place])), []).append(place)
    for (life, number), places in batches.items():
        config = configs.get(life, configs[None])
        if not (config.drop_all_wrong_groups or config.balance_all_correct_groups):
            continue
        # Only the pruning is wanted: the trainer's hooks need not be importable here.
        bare = dataclasses.replace(
            config,
            dynamic_sampling_filter_path=None,
            rollout_sample_filter_path=None,
            rollout_all_samples_process_path=None,
        )
        surplus = TrainerFilters(bare, None).surplus([members[place] for place in places], number)
        for position, rejected in surplus.items():
            place = places[position]
            verdicts[place] = dataclasses.replace(
                verdicts[place], accepted=False, reason=str(rejected.reason)
            )


def _again(
    sessions: list[SessionOutcome],
    lag: int | None,
    recorded: PolarSlimeConfig,
    wanted: PolarSlimeConfig,
    filters: Mapping[str, Filter],
) -> Verdict:
    seen = [_rewritten(session, recorded, wanted) for session in sessions]
    if not seen:
        return Verdict(None)
    verdict = judge(GroupConversion([], seen), settings=wanted)
    if isinstance(verdict, Rejected):
        return Verdict(False, str(verdict.reason))
    if lag is not None and lag > wanted.max_staleness:
        return Verdict(False, str(too_stale(lag, wanted.max_staleness).reason))
    rewards = np.array([s.reward for s in seen if s.usable and not s.early_stopped and np.isfinite(s.reward)])
    group = ReplayedGroup(seen, rewards, lag)
    for reason, objects in filters.items():
        if objects(group):
            return Verdict(False, reason)
    return Verdict(True)


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
