"""What a run recorded of its arrivals: how long sessions took, what came of them, what was asked for.

The times that a scheduler cannot change are taken apart from those that it can: per session the service time
and what it waited before it, per group what came on top, per rollout how long the trainer was busy elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from analysis.errors import StatsError
from analysis.stats._outcomes import outcomes_of, session_rows_of
from analysis.stats.columns import Floats, Ints, floats, integers, json_cells, seconds_since, texts
from analysis.stats.configuration import configurations, polar_config
from analysis.stats.frames import Frames
from analysis.stats.sessions import session_seconds
from slime_bridge.acceptance import RejectReason
from slime_bridge.config import PolarSlimeConfig
from slime_bridge.conversion.groups import SessionOutcome

__all__ = ["Arrivals", "Job", "RecordedRollout", "recorded_arrivals", "recorded_slots"]

_WAITS = ("register_to_init_queue_ms", "ready_queue_ms", "postrun_queue_ms")
_QUEUE = "ready_queue_ms"
_SLOT_WAITS = 30
_SLOT_SECONDS = 0.01
_SLOT_SPREAD = 0.2


@dataclass(frozen=True, slots=True)
class Job:
    """One recorded group.

    Parameters
    ----------
    outcomes
        What became of its sessions.
    waits, services
        Shape (n,): seconds that each session waited on its gateway, and took otherwise.
    queued
        Shape (n,): the part of `waits` that was for a free place to run.
    sending
        Seconds from the draw of its prompt to its submission.
    overhead
        Seconds from the last session's end to the verdict.
    lost
        Seconds that earlier attempts took; 0 if the first one came through.
    started
        Seconds of its submission on the run's clock; NaN where nobody knows.
    filtered
        Whether the trainer's filter dropped it.
    """

    outcomes: tuple[SessionOutcome, ...]
    waits: Floats
    services: Floats
    overhead: float
    lost: float
    started: float
    filtered: bool = False
    queued: Floats | None = None
    sending: float = 0.0


@dataclass(frozen=True, slots=True)
class RecordedRollout:
    """One call of the trainer.

    Parameters
    ----------
    rollout_id, wanted
        Its number, and the groups that it asked for.
    requested, delivered
        Seconds on the run's clock.
    """

    rollout_id: int
    wanted: int
    requested: float
    delivered: float


@dataclass(frozen=True, eq=False)
class Arrivals:
    """All that a replay of the scheduler needs of a run.

    Parameters
    ----------
    jobs
        Groups with a verdict, in the order in which they were drawn.
    rollouts
        Calls that were served, in order.
    config
        The settings that the run had.
    """

    jobs: list[Job]
    rollouts: list[RecordedRollout]
    config: PolarSlimeConfig

    @property
    def gaps(self) -> Floats:
        """Seconds from each delivery to the next call, shape (rollouts - 1,)."""
        pairs = zip(self.rollouts[:-1], self.rollouts[1:], strict=True)
        return np.array([max(0.0, after.requested - before.delivered) for before, after in pairs])


def recorded_arrivals(frames: Frames, *, worker: str | None = None) -> Arrivals:
    """Read a run's arrivals.

    Parameters
    ----------
    frames
        The run, with a journal.
    worker
        Which life of the bridge's worker; by default the one with the most groups.

    Raises
    ------
    StatsError
        If no journal tells when groups were submitted and rollouts delivered.
    """
    groups = frames.groups[~frames.groups["evaluation"].fillna(False).to_numpy(dtype=bool)]
    chosen = worker if worker is not None else _busiest(groups)
    mine = (groups["worker"] == chosen).fillna(False).to_numpy(dtype=bool)
    groups = groups[mine & groups["drawn_at"].notna().to_numpy(dtype=bool)]
    groups = groups.sort_values(["drawn_at", "group"], kind="stable").reset_index(drop=True)
    rollouts = _rollouts(frames, chosen, groups)
    jobs = _jobs(frames, groups)
    if not jobs or not rollouts:
        raise StatsError(
            "there are no arrivals to replay: a journal with submitted groups and served rollouts is needed"
        )
    recorded: Mapping[str, Any] | None = configurations(frames).get(chosen)
    config = polar_config(recorded, None if recorded is not None else _guessed(groups, rollouts))
    return Arrivals(jobs, rollouts, config)


def recorded_slots(jobs: list[Job]) -> int | None:
    """Return how many sessions the gateways ran at once where they were full, None where they never were.

    A session that queued for a place began when another one ended: as many as then ran is what there is room
    for. Where the middle half of these numbers is wider than a fifth, something else held sessions back.
    """
    starts = np.concatenate([job.started + job.waits for job in jobs])
    ends = np.concatenate([job.started + job.waits + job.services for job in jobs])
    queued = np.concatenate([np.zeros(len(job.waits)) if job.queued is None else job.queued for job in jobs])
    there = ~np.isnan(starts)
    late = there & (queued > _SLOT_SECONDS)
    if late.sum() < _SLOT_WAITS:
        return None
    moments = starts[late]
    begun = np.searchsorted(np.sort(starts[there]), moments, "right")
    over = np.searchsorted(np.sort(ends[there]), moments, "right")
    low, middle, high = np.quantile(begun - over, (0.25, 0.5, 0.75))
    return round(float(middle)) if high - low <= _SLOT_SPREAD * middle else None


def _busiest(groups: pd.DataFrame) -> str | None:
    counts = groups["worker"].value_counts()
    return None if counts.empty else str(counts.index[0])


def _guessed(groups: pd.DataFrame, rollouts: list[RecordedRollout]) -> dict[str, Any]:
    sessions = int(integers(groups, "expected_sessions", missing=1).max(initial=1))
    wanted = max((rollout.wanted for rollout in rollouts), default=1)
    return {"rollout_batch_size": wanted, "n_samples_per_prompt": max(1, sessions)}


def _rollouts(frames: Frames, worker: str | None, groups: pd.DataFrame) -> list[RecordedRollout]:
    events = frames.events[(frames.events["event"] == "rollout_requested").fillna(False).to_numpy(dtype=bool)]
    events = events[(events["worker"] == worker).fillna(False).to_numpy(dtype=bool)]
    asked = _moments(events, "at")
    delivered = groups[(groups["state"] == "delivered").fillna(False).to_numpy(dtype=bool)]
    ended = seconds_since(delivered, "ended_at")
    table = frames.rollouts[~frames.rollouts["evaluation"].fillna(False).to_numpy(dtype=bool)]
    asked = _moments(table, "requested_at") | asked
    wanted = {
        rollout: cell["wanted"]
        for rollout, cell in zip(
            integers(events, "rollout_id", missing=-1).tolist(), json_cells(events, "data"), strict=True
        )
        if isinstance(cell.get("wanted"), int)
    }
    result = []
    for rollout_id in np.unique(integers(delivered, "rollout_id", missing=-1)):
        mine = integers(delivered, "rollout_id", missing=-1) == rollout_id
        at = asked.get(int(rollout_id), math.nan)
        if rollout_id >= 0 and not math.isnan(at) and not np.isnan(ended[mine]).all():
            handed = float(np.nanmax(ended[mine]))
            number = int(rollout_id)
            asked_for = wanted.get(number, int(mine.sum()))
            result.append(RecordedRollout(number, asked_for, at, handed))
    return sorted(result, key=lambda rollout: rollout.requested)


def _moments(table: pd.DataFrame, name: str) -> dict[int, float]:
    """Return a moment by rollout, in seconds; rollouts without one are left out."""
    rollouts, moments = (
        integers(table, "rollout_id", missing=-1).tolist(),
        seconds_since(table, name).tolist(),
    )
    return {r: moment for r, moment in zip(rollouts, moments, strict=True) if not math.isnan(moment)}


def _jobs(frames: Frames, groups: pd.DataFrame) -> list[Job]:
    outcomes = outcomes_of(frames)
    seconds = session_seconds(frames.sessions)
    waits = np.nansum([floats(frames.sessions, name) for name in _WAITS], axis=0) / 1000.0
    queued = np.nan_to_num(floats(frames.sessions, _QUEUE)) / 1000.0
    submitted, judged = seconds_since(groups, "submitted_at"), seconds_since(groups, "judged_at")
    arrived, took = seconds_since(groups, "result_at"), floats(groups, "result_seconds")
    began = np.where(np.isnan(arrived) | np.isnan(took), submitted, arrived - took)
    ended = np.where(np.isnan(judged), arrived, judged)
    cut = np.where(texts(groups, "reject_reason") == "too_stale", seconds_since(groups, "ended_at"), np.nan)
    sizes = integers(groups, "expected_sessions")
    dropped = texts(groups, "reject_reason") == RejectReason.FILTERED.value
    typical = float(np.nanmedian(seconds)) if not np.isnan(seconds).all() else 0.0
    sending = _sending(seconds_since(groups, "drawn_at"), submitted)
    jobs = []
    for place, rows in enumerate(session_rows_of(frames, groups)):
        total = ended[place] - began[place]
        if len(rows) and not math.isnan(total):
            job = _job(rows, outcomes, seconds, waits, total, began[place], submitted[place])
            jobs.append(
                replace(
                    job,
                    filtered=bool(dropped[place]),
                    queued=np.minimum(queued[rows], job.waits),
                    sending=float(sending[place]),
                )
            )
        elif sizes[place] > 0 and not math.isnan(cut[place] - submitted[place]):
            job = _cut_job(int(sizes[place]), cut[place] - submitted[place], typical, submitted[place])
            jobs.append(replace(job, sending=float(sending[place])))
    return jobs


def _sending(drawn: Floats, submitted: Floats) -> Floats:
    """Return what it took to send each group off, once there was room for it; shape (n,).

    Groups that were held back by a limit were sent later than that; what is usual for the quicker half is
    what no setting can change, and no group is taken to have needed more than twice as much.
    """
    took = np.maximum(submitted - drawn, 0.0)
    there = ~np.isnan(took)
    if not there.any():
        return np.zeros(len(took))
    usual = float(np.median(took[there]))
    return np.minimum(np.where(there, took, usual), 2 * usual)


def _cut_job(size: int, total: float, typical: float, submitted: float) -> Job:
    """Return a group that was stopped in flight: it takes at least as long as it had.

    Without it the longest groups would be missing from the record.
    """
    services = np.full(size, min(typical, total))
    services[0] = total
    outcome = SessionOutcome(0, completed=True, usable=True, trainable_tokens=1, n_traces=1)
    return Job((outcome,) * size, np.zeros(size), services, 0.0, 0.0, submitted)


def _job(
    rows: Ints,
    outcomes: list[SessionOutcome],
    seconds: Floats,
    waits: Floats,
    total: float,
    began: float,
    submitted: float,
) -> Job:
    own = np.minimum(seconds[rows], total)
    # A session that nobody measured is taken to have lasted as long as its group.
    own = np.where(np.isnan(own), total, own)
    waited = np.clip(np.nan_to_num(waits[rows]), 0.0, own)
    return Job(
        outcomes=tuple(outcomes[int(row)] for row in rows),
        waits=waited,
        services=own - waited,
        overhead=max(0.0, total - float(own.max())),
        lost=max(0.0, began - submitted),
        started=float(began),
    )
