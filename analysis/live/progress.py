"""How far a run is, from what its journal and a server's events say, record by record.

The same model serves a submission of this process, a training in a child process and a run elsewhere: all
three write the bridge's journal. Server events only refine where a session is; the journal decides what
became of it. Pure: no clock, file or widget. Memory is bounded by what is in flight, and by one number per
rollout and the latest rewards.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["ENDED", "STAGES", "OldestTask", "Point", "RunProgress", "Snapshot"]

STAGES = (
    "SUBMITTED",
    "DISPATCHING",
    "REGISTERED",
    "INITIALIZING",
    "READY",
    "RUNNING",
    "POST_RUN",
    "BUILDING",
    "EVALUATING",
)
"""Where a session can be while it is under way, in order; the first is all that is known without events."""

ENDED = ("COMPLETED", "TIMEOUT", "ERROR", "CANCELLED")
"""How a session can end."""

_KEPT_REWARDS = 4096
_KEPT_STRANGERS = 4096
_BRIDGE_CURVES = {
    "polar/reward_mean_completed": "reward",
    "polar/staleness/mean": "policy lag",
    "polar/wait_seconds": "wait (s)",
}
_TRAINER_CURVES = {"train/ppo_kl": "KL", "train/grad_norm": "gradient norm"}
_GROUP_ENDS = {
    "group_delivered": "accepted",
    "group_rejected": "rejected",
    "group_returned": "returned",
    "group_abandoned": "abandoned",
    "group_given_up": "given up",
}


@dataclass(frozen=True, slots=True)
class Point:
    """One number over the course of a run.

    Attributes
    ----------
    x
        Rollout, or number of the session.
    value
        NaN where there is none.
    """

    x: float
    value: float


@dataclass(frozen=True, slots=True)
class OldestTask:
    """The task that has been under way for longest, and since when (Unix seconds)."""

    task_id: str
    since: float


@dataclass(frozen=True)
class Snapshot:
    """A run at one moment.

    Attributes
    ----------
    sessions
        Sessions under way by stage, and ended ones by how they ended.
    groups
        Groups by state: ``running``, ``waiting`` (for another attempt), and final ones.
    rejections, requeues
        Groups by reason; requeues count attempts.
    rewards
        The latest rewards of completed sessions, in order of arrival.
    rewarded, reward_sum
        Sessions that had a reward, and its sum, over the whole run.
    unrewarded
        Completed sessions without one.
    tokens
        Response tokens of the sessions whose results are here.
    submitted
        Sessions that were submitted, whatever became of them.
    oldest
        None when nothing is under way.
    curves
        By name, one point per rollout.
    rollout
        The rollout that is being collected; None before the first.
    away
        Whether the rollout server cannot be reached at present.
    last_error
        What went wrong last; empty if nothing did.
    dropped_records
        Journal records that were lost.
    closed
        Whether the journal was closed by whoever wrote it.
    first, last
        Unix seconds of the first and the latest record; NaN before any.
    """

    sessions: Mapping[str, int] = field(default_factory=dict)
    groups: Mapping[str, int] = field(default_factory=dict)
    rejections: Mapping[str, int] = field(default_factory=dict)
    requeues: Mapping[str, int] = field(default_factory=dict)
    rewards: tuple[float, ...] = ()
    rewarded: int = 0
    reward_sum: float = 0.0
    unrewarded: int = 0
    tokens: int = 0
    submitted: int = 0
    oldest: OldestTask | None = None
    curves: Mapping[str, tuple[Point, ...]] = field(default_factory=dict)
    rollout: int | None = None
    away: bool = False
    last_error: str = ""
    dropped_records: int = 0
    closed: bool = False
    first: float = math.nan
    last: float = math.nan

    @property
    def reward_mean(self) -> float:
        """Mean reward of completed sessions; NaN without any."""
        return self.reward_sum / self.rewarded if self.rewarded else math.nan

    @property
    def under_way(self) -> int:
        """Sessions that were submitted and have not ended."""
        return sum(count for stage, count in self.sessions.items() if stage in STAGES)


@dataclass(slots=True)
class _Task:
    """A submitted task without a result."""

    group: int
    since: float
    sessions: int
    stages: dict[str, str] = field(default_factory=dict)


class RunProgress:
    """Adds records up; use it from one thread at a time."""

    def __init__(self) -> None:
        self.changes = 0
        self._tasks: dict[str, _Task] = {}
        self._strangers: dict[str, dict[str, str]] = {}
        self._open: dict[int, str] = {}
        self._sizes: dict[int, int] = {}
        self._over: Counter[str] = Counter()
        self._ended: Counter[str] = Counter()
        self._rejections: Counter[str] = Counter()
        self._requeues: Counter[str] = Counter()
        self._rewards: deque[float] = deque(maxlen=_KEPT_REWARDS)
        self._facts: dict[str, Any] = {}
        self._curves: dict[str, dict[int, float]] = {}

    @property
    def tokens(self) -> int:
        """Response tokens of the sessions whose results are here."""
        return int(self._facts.get("tokens", 0))

    # What comes in

    def record(self, record: Mapping[str, Any]) -> None:
        """Take one record of the journal; unknown events and odd fields change nothing."""
        self.changes += 1
        event = record.get("event")
        at = _number(record.get("ts"))
        if not math.isnan(at):
            self._facts.setdefault("first", at)
            self._facts["last"] = at
        group = record.get("group")
        if isinstance(event, str) and isinstance(group, int):
            self._group_record(event, group, record, at)
        elif event == "journal_opened":
            # A process that was killed ended none of its groups; nothing of them will be heard again.
            self._over["lost"] += len(self._open)
            self._ended["LOST"] += sum(task.sessions for task in self._tasks.values())
            self._tasks.clear()
            self._open.clear()
            self._facts |= {"closed": False, "away": False}
        elif event == "journal_closed":
            self._facts["closed"] = True
        elif event == "rollout_requested":
            self._facts["rollout"] = _integer(record.get("rollout_id"))
        elif event in ("rollout_summary", "evaluation_summary"):
            self._summary(record, "training" if event == "rollout_summary" else "evaluation")
        elif event in ("outage", "outage_over"):
            self._facts["away"] = event == "outage"
            self._note_error(record.get("error"))
        elif event == "records_dropped":
            self._facts["dropped"] = self._facts.get("dropped", 0) + (_integer(record.get("count")) or 0)

    def taken_over(self) -> None:
        """Hear that somebody else goes on with what is open: it will be told of again, from its draw on."""
        self.changes += 1
        self._count_submitted(-sum(task.sessions for task in self._tasks.values()))
        self._tasks.clear()
        self._open.clear()

    def metrics(self, record: Mapping[str, Any]) -> None:
        """Take one line of a trainer's metrics; what the journal tells too is taken from there."""
        rollout = _integer(record.get("rollout_id"))
        if rollout is None:
            return
        self.changes += 1
        if record.get("kind") == "evaluation":
            self._summary({"rollout_id": rollout, "metrics": record}, "evaluation")
        for name, curve in _TRAINER_CURVES.items():
            value = _number(record.get(name))
            if not math.isnan(value):
                self._curves.setdefault(curve, {})[rollout] = value

    def event(self, event: Mapping[str, Any]) -> None:
        """Take one event of a server's stream; those of other people's tasks count for nothing."""
        data = event.get("data")
        if event.get("type") != "session.state_changed" or not isinstance(data, Mapping):
            return
        task_id, session_id, status = (data.get(name) for name in ("task_id", "session_id", "status"))
        if not (isinstance(task_id, str) and isinstance(session_id, str) and isinstance(status, str)):
            return
        if (task := self._tasks.get(task_id)) is not None:
            self.changes += 1
            _advance(task.stages, session_id, status)
            return
        # The server tells of a session before it has answered the submit. A stranger stays a stranger.
        _advance(self._strangers.setdefault(task_id, {}), session_id, status)
        if len(self._strangers) > _KEPT_STRANGERS:
            self._strangers.pop(next(iter(self._strangers)))

    # What comes out

    def tasks_under_way(self) -> list[str]:
        """Return the ids of the tasks that have no result yet, in the order of their submits."""
        return list(self._tasks)

    def snapshot(self) -> Snapshot:
        """Return the present state."""
        stages: Counter[str] = Counter()
        for task in self._tasks.values():
            known = list(task.stages.values())[-task.sessions :]
            stages.update(known)
            stages["SUBMITTED"] += task.sessions - len(known)
        ordered = {name: stages[name] for name in STAGES if stages[name]}
        # What the server says has ended before the task's result is here.
        early = {name: count for name, count in stages.items() if name not in STAGES and count}
        ended = Counter(self._ended) + Counter(early)
        groups = Counter(self._open.values()) + self._over
        oldest = min(self._tasks.items(), key=lambda item: item[1].since, default=None)
        facts = self._facts
        return Snapshot(
            sessions={**ordered, **{name: ended[name] for name in (*ENDED, *sorted(ended)) if ended[name]}},
            groups=dict(groups),
            rejections=dict(self._rejections.most_common()),
            requeues=dict(self._requeues.most_common()),
            rewards=tuple(self._rewards),
            rewarded=facts.get("rewarded", 0),
            reward_sum=facts.get("reward_sum", 0.0),
            unrewarded=facts.get("unrewarded", 0),
            tokens=facts.get("tokens", 0),
            submitted=facts.get("submitted", 0),
            oldest=None if oldest is None else OldestTask(oldest[0], oldest[1].since),
            curves={
                name: tuple(Point(x, value) for x, value in sorted(points.items()))
                for name, points in self._curves.items()
            },
            rollout=facts.get("rollout"),
            away=facts.get("away", False),
            last_error=facts.get("last_error", ""),
            dropped_records=facts.get("dropped", 0),
            closed=facts.get("closed", False),
            first=facts.get("first", math.nan),
            last=facts.get("last", math.nan),
        )

    # Records of groups

    def _group_record(self, event: str, group: int, record: Mapping[str, Any], at: float) -> None:
        if event == "group_drawn":
            self._open[group] = "waiting"
            indices = record.get("sample_indices")
            self._sizes[group] = len(indices) if isinstance(indices, list) and indices else 1
        elif event == "task_submitted":
            self._open[group] = "running"
            self._submitted(group, str(record.get("task_id")), at)
        elif event == "task_result":
            task = self._tasks.pop(str(record.get("task_id")), None)
            sessions = record.get("sessions")
            sessions = sessions if isinstance(sessions, list) else []
            self._count_submitted(len(sessions) - (task.sessions if task is not None else 0))
            self._results(sessions)
        elif event == "verdict":
            self._open[group] = "accepted" if record.get("accepted") else "rejected"
        elif event == "group_requeued":
            self._open[group] = "waiting"
            self._requeues[str(record.get("reason"))] += 1
            self._note_error(record.get("detail"))
            self._forget(group, "LOST")
        elif event in _GROUP_ENDS:
            self._open.pop(group, None)
            self._sizes.pop(group, None)
            self._over[_GROUP_ENDS[event]] += 1
            if event == "group_rejected":
                self._rejections[str(record.get("reason"))] += 1
            self._note_error(record.get("last_error"))
            self._forget(group, "CANCELLED")

    def _submitted(self, group: int, task_id: str, at: float) -> None:
        siblings = [task for task in self._tasks.values() if task.group == group]
        for task in siblings:
            # A group has several tasks at a time only when each session is a task of its own.
            self._count_submitted(1 - task.sessions)
            task.sessions = 1
        size = 1 if siblings else self._sizes.get(group, 1)
        self._tasks[task_id] = _Task(group, at, size, self._strangers.pop(task_id, {}))
        self._count_submitted(size)

    def _count_submitted(self, sessions: int) -> None:
        self._facts["submitted"] = self._facts.get("submitted", 0) + sessions

    def _results(self, sessions: Sequence[Any]) -> None:
        facts = self._facts
        for session in sessions:
            if not isinstance(session, Mapping):
                continue
            status = session.get("status")
            self._ended[status if isinstance(status, str) and status else "LOST"] += 1
            facts["tokens"] = facts.get("tokens", 0) + (_integer(session.get("response_tokens")) or 0)
            if not session.get("completed"):
                continue
            reward = _number(session.get("reward"))
            if math.isnan(reward):
                facts["unrewarded"] = facts.get("unrewarded", 0) + 1
            else:
                facts["rewarded"] = facts.get("rewarded", 0) + 1
                facts["reward_sum"] = facts.get("reward_sum", 0.0) + reward
                self._rewards.append(reward)

    def _forget(self, group: int, how: str) -> None:
        for task_id in [name for name, task in self._tasks.items() if task.group == group]:
            self._ended[how] += self._tasks.pop(task_id).sessions

    def _summary(self, record: Mapping[str, Any], kind: str) -> None:
        rollout, metrics = _integer(record.get("rollout_id")), record.get("metrics")
        if rollout is None or not isinstance(metrics, Mapping):
            return
        if kind == "evaluation":
            values = [
                _number(value)
                for name, value in metrics.items()
                if str(name).startswith("polar/eval/") and str(name).endswith("/reward_mean_completed")
            ]
            pairs = {"held-out reward": sum(values) / len(values) if values else math.nan}
        else:
            pairs = {curve: _number(metrics.get(name)) for name, curve in _BRIDGE_CURVES.items()}
        for name, value in pairs.items():
            if not math.isnan(value):
                self._curves.setdefault(name, {})[rollout] = value

    def _note_error(self, text: Any) -> None:
        if isinstance(text, str) and text:
            self._facts["last_error"] = text


def _advance(stages: dict[str, str], session_id: str, status: str) -> None:
    """Note where a session is; two streams tell of the same session, and no session goes back."""
    before = stages.get(session_id)
    if before is None or _place(status) >= _place(before):
        stages[session_id] = status


def _place(status: str) -> int:
    return STAGES.index(status) if status in STAGES else len(STAGES)


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
