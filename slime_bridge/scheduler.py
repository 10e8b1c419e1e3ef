"""Drawing, admission, retry, staleness and delivery of prompt groups as a state machine.

::

             add            admit             accept             take           commit
    (source) ───► QUEUED ─────────► IN_FLIGHT ─────────► BUFFERED ─────► HANDED ──────► DELIVERED
                   ▲ ▲                │   │                │  ▲             │
                   │ └── requeue ─────┘   │                │  └── untake ───┘
                   │                      │                │
                   └─ suspend (refused    ├─ reject ───────┴─ reject_stale ───────────► REJECTED
                      by the server,      └─ requeue after the last attempt ──────────► GIVEN_UP
                      not yet judged)          end, from any live state ──────────────► RETURNED or ABANDONED

The scheduler knows no clock, lock, thread, network or data source: time is an argument (seconds on any
monotonic clock), prompts and results are opaque, and each method is one complete step. It decides:

- how many prompts a call may draw (`Scheduler.to_draw`),
- which groups may be in flight (`Scheduler.admit`; oldest drawn first, never above the caps),
- which policy version a submission carries (the rollout id of the latest call, stamped at every attempt),
- which groups are too old to be trained on (delivering rollout id - stamped version > ``max_staleness``),
- which groups a call gets (accepted ones, oldest drawn first, the whole batch or nothing).

Every change of state is reported to one observer as a `Transition`; the ledger keeps its books from these.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Generic

from slime_bridge.groups import (
    LIVE_STATES,
    Delivery,
    Group,
    GroupState,
    P,
    R,
    RequestNote,
    SchedulerCounts,
    Transition,
)

__all__ = ["Scheduler"]

_by_id = attrgetter("group_id")


@dataclass(slots=True)
class _Call:
    """The call being served."""

    rollout_id: int
    wanted: int
    drawn: int = 0


@dataclass(slots=True, kw_only=True, eq=False)
class Scheduler(Generic[P, R]):
    """The state machine of one worker.

    Parameters
    ----------
    max_groups
        Most groups in flight, at least 1.
    max_sessions
        Most sessions in flight, at least 1; a group that has more runs alone.
    max_staleness
        Largest accepted ``rollout_id - policy_version``, at least 0.
    window
        Groups kept alive across calls. None: a call keeps alive only as many as it asked for.
    max_failures
        After so many failures that count against it a prompt is given up.
    max_deadlines
        As `max_failures`, for failures that used up a whole deadline: these are expensive.
    draw_quantum
        Draw in multiples of this many groups (over-sampling); surplus groups serve the next call.
    observer
        Called with every `Transition`, synchronously.
    """

    max_groups: int
    max_sessions: int
    max_staleness: int
    window: int | None = None
    max_failures: int = 8
    max_deadlines: int = 8
    draw_quantum: int = 1
    observer: Callable[[Transition], None] = lambda transition: None
    version: int | None = field(default=None, init=False)
    """Rollout id of the latest call; None before the first."""
    _call: _Call | None = field(default=None, init=False)
    _live: dict[GroupState, dict[int, Group[P, R]]] = field(init=False)
    _ids: itertools.count[int] = field(default_factory=itertools.count, init=False)
    _sessions: int = field(default=0, init=False)
    _reserved: int = field(default=0, init=False)
    _claimed: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        for name in ("max_groups", "max_sessions", "max_failures", "max_deadlines", "draw_quantum"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)!r}")
        if self.max_staleness < 0:
            raise ValueError(f"max_staleness must be at least 0, not {self.max_staleness!r}")
        self._live = {state: {} for state in LIVE_STATES}

    # Calls

    @property
    def calling(self) -> bool:
        """Whether a call is being served."""
        return self._call is not None

    def request(self, rollout_id: int, wanted: int) -> RequestNote | None:
        """Begin a call: from now on submissions carry this rollout id, and prompts may be drawn.

        The rollout id may jump in either direction; the returned note says so. After a jump back, groups
        under way count as submitted in this call: their own ids say nothing about their age any more.
        `wanted` is how many accepted groups the call needs, at least 1.
        """
        if self._call is not None:
            raise RuntimeError(f"the call for rollout {self._call.rollout_id} has not ended")
        if wanted < 1:
            raise ValueError(f"a call must ask for at least one group, not {wanted!r}")
        previous, self.version = self.version, rollout_id
        self._call = _Call(rollout_id, wanted)
        if previous is None or rollout_id > previous:
            return None
        if rollout_id == previous:
            return RequestNote.REPEATED
        for group in itertools.chain.from_iterable(groups.values() for groups in self._live.values()):
            group.rewind(rollout_id)
        return RequestNote.BACKWARDS

    def end_request(self) -> None:
        """End the call, however it ended; what it was handed and did not commit goes back to the buffer."""
        self._call = None
        for group in list(self._live[GroupState.HANDED].values()):
            self._move(group, GroupState.BUFFERED)

    def to_draw(self) -> int:
        """Tell how many prompts to draw: 0 between calls, and while the window or the slots are full."""
        if self._call is None:
            return 0
        target = max(self.window or 0, self._call.wanted)
        taken = self.pending
        held = len(self._live[GroupState.BUFFERED]) + len(self._live[GroupState.HANDED])
        deficit = -((held + taken - target) // self.draw_quantum) * self.draw_quantum
        return max(0, min(deficit, self.max_groups - taken))

    def add(self, prompts: Iterable[tuple[P, int]], now: float) -> list[Group[P, R]]:
        """Take drawn prompts in.

        `prompts` are pairs of the prompt as drawn and its number of sessions, at least 1. The result is the
        new groups, queued, in the order given.
        """
        added: list[Group[P, R]] = []
        for prompt, sessions in prompts:
            if sessions < 1:
                raise ValueError(f"a group needs at least one session, not {sessions!r}")
            position = 0
            if self._call is not None:
                position, self._call.drawn = self._call.drawn, self._call.drawn + 1
            group = Group[P, R](next(self._ids), prompt, sessions, position, now, now)
            self._live[GroupState.QUEUED][group.group_id] = group
            self.observer(Transition(group.group_id, None, GroupState.QUEUED, sessions))
            added.append(group)
        return added

    # Admission

    def admit(self, now: float, limit: int | None = None) -> list[Group[P, R]]:
        """Put queued groups into flight, oldest drawn first, as far as the caps allow.

        Groups in back-off wait until `now` (seconds) is beyond it. A `limit` below `max_groups` takes its
        place, for a server that is not well. The result is the groups to submit, stamped with the version.
        """
        admitted: list[Group[P, R]] = []
        if self.version is None:
            return admitted
        most = self.max_groups if limit is None else min(limit, self.max_groups)
        for group in sorted(self._live[GroupState.QUEUED].values(), key=_by_id):
            if len(self._live[GroupState.IN_FLIGHT]) >= most:
                break
            if group.suspended or group.ready_at > now:
                continue
            if not self._fits(group.sessions, beside=self._claimed):
                break
            group.admissions += 1
            group.submitted_at = now
            group.policy_version = self.version
            self._sessions += group.sessions
            self._move(group, GroupState.IN_FLIGHT)
            admitted.append(group)
        return admitted

    def next_ready_at(self, now: float) -> float:
        """Tell when (seconds) the next back-off ends; infinity where no queued group is in one."""
        times = (g.ready_at for g in self._live[GroupState.QUEUED].values() if not g.suspended)
        return min((time for time in times if time > now), default=math.inf)

    def restamp(self, group_id: int, now: float) -> int:
        """Stamp a group in flight for a new attempt; the result is the policy version it carries."""
        group = self._live[GroupState.IN_FLIGHT][group_id]
        if self.version is None:
            raise RuntimeError("nothing can be in flight before the first call")
        group.policy_version = self.version
        group.submitted_at = now
        return self.version

    def reserve(self, sessions: int) -> bool:
        """Take session slots for work outside the scheduler; False when they are not free now.

        A refused claim stands until it is granted or withdrawn: new groups leave room for it.
        """
        granted = self._fits(sessions)
        self._claimed = 0 if granted else sessions
        self._reserved += sessions if granted else 0
        return granted

    def release(self, sessions: int) -> None:
        """Give slots taken with `reserve` back, and withdraw a claim that was refused."""
        if not 0 <= sessions <= self._reserved:
            raise ValueError(f"cannot release {sessions} of {self._reserved} reserved sessions")
        self._claimed = 0
        self._reserved -= sessions

    # Outcomes

    @property
    def at_rest(self) -> bool:
        """Whether, with a window, nothing runs or waits to run: all that calls have asked for is accepted."""
        return self.window is not None and not self.pending and not self.to_draw()

    @property
    def pending(self) -> int:
        """How many groups may still come: in flight, or queued and not suspended."""
        # A suspended group is replaced at once: what becomes of the replacement tells who is at fault.
        queued = self._live[GroupState.QUEUED].values()
        return len(self._live[GroupState.IN_FLIGHT]) + sum(not group.suspended for group in queued)

    @property
    def enough(self) -> bool:
        """Whether as many groups are accepted as the running call wants; True between calls."""
        return self._call is None or len(self._live[GroupState.BUFFERED]) >= self._call.wanted

    def in_flight(self, group_id: int) -> bool:
        """Whether this group is in flight; a result for any other group changes nothing."""
        return group_id in self._live[GroupState.IN_FLIGHT]

    def accept(self, group_id: int, result: R, now: float) -> None:
        """Keep the result of a group in flight for delivery."""
        group = self._live[GroupState.IN_FLIGHT][group_id]
        group.result = result
        group.completed_at = now
        group.version_at_completion = self.version
        self._move(group, GroupState.BUFFERED)

    def reject(self, group_id: int, reason: str) -> None:
        """End a group in flight because of its content; a fresh prompt takes its place."""
        self._move(self._live[GroupState.IN_FLIGHT][group_id], GroupState.REJECTED, reason)

    def requeue(
        self, group_id: int, *, reason: str, error: str, ready_at: float, counted: bool, expired: bool = False
    ) -> bool:
        """Put a group back into the queue after a failure that says nothing about its content.

        `reason` and `error` are the short word and the full text. The group is not admitted before `ready_at`
        (seconds). A failure that is `counted` counts against this prompt; an outage does not. One that
        `expired` used up a whole deadline. The result is False when this was the last attempt and the prompt
        is given up.
        """
        group = self._live[GroupState.IN_FLIGHT][group_id]
        group.last_error = error
        group.failures += counted
        group.deadlines += counted and expired
        if group.failures >= self.max_failures or group.deadlines >= self.max_deadlines:
            self._move(group, GroupState.GIVEN_UP, reason)
            return False
        group.ready_at = ready_at
        self._move(group, GroupState.QUEUED, reason)
        return True

    def suspend(self, group_id: int, *, reason: str, error: str) -> None:
        """Hold a group whose request the server refused, until it is known who is at fault."""
        group = self._live[GroupState.IN_FLIGHT][group_id]
        group.last_error = error
        group.suspended = True
        self._move(group, GroupState.QUEUED, reason)

    def give_up_suspended(self, reason: str) -> list[Group[P, R]]:
        """Give up all suspended groups: the server took others meanwhile, so the fault was theirs."""
        suspended = sorted((g for g in self._live[GroupState.QUEUED].values() if g.suspended), key=_by_id)
        for group in suspended:
            self._move(group, GroupState.GIVEN_UP, reason)
        return suspended

    # Delivery

    def reject_stale(self, reason: str) -> list[tuple[Group[P, R], int]]:
        """End what the running call cannot train on any more.

        Groups in flight are among them: their result would be rejected on arrival, so the slot is worth more.

        Returns
        -------
        list of (Group, int)
            The rejected groups with their staleness, oldest first; the caller stops the tasks of those that
            were in flight.
        """
        if self._call is None:
            return []
        submitted = (*self._live[GroupState.BUFFERED].values(), *self._live[GroupState.IN_FLIGHT].values())
        stale = [(g, lag) for g in submitted if (lag := self._lag(g)) > self.max_staleness]
        for group, _ in stale:
            self._move(group, GroupState.REJECTED, reason)
        return sorted(stale, key=lambda pair: pair[0].group_id)

    def take(self) -> list[Delivery[P, R]]:
        """Hand the running call its batch: as many accepted groups as it wants, oldest first, or none yet."""
        call = self._call
        if call is None or self._live[GroupState.HANDED]:
            return []
        fresh = [g for g in self._live[GroupState.BUFFERED].values() if self._lag(g) <= self.max_staleness]
        if len(fresh) < call.wanted:
            return []
        batch = [Delivery.of(group, call.rollout_id) for group in sorted(fresh, key=_by_id)[: call.wanted]]
        for delivery in batch:
            self._move(delivery.group, GroupState.HANDED)
        return batch

    def commit(self) -> int:
        """Make what was handed out final and end the call; the result is the number of groups delivered."""
        self._call = None
        handed = list(self._live[GroupState.HANDED].values())
        for group in handed:
            self._move(group, GroupState.DELIVERED)
        return len(handed)

    def drop(self, group_id: int, reason: str) -> None:
        """Reject an accepted group: in the buffer, or handed out and then without a replacement."""
        state = GroupState.BUFFERED if group_id in self._live[GroupState.BUFFERED] else GroupState.HANDED
        self._move(self._live[state][group_id], GroupState.REJECTED, reason)

    # The end

    def unfinished(self) -> list[Group[P, R]]:
        """List the live groups that no call holds, oldest drawn first."""
        free = (self._live[state].values() for state in LIVE_STATES if state is not GroupState.HANDED)
        return sorted(itertools.chain.from_iterable(free), key=_by_id)

    def end(self, groups: Sequence[Group[P, R]], state: GroupState, reason: str = "") -> None:
        """Close live groups for good: `GroupState.RETURNED` to the source, or `GroupState.ABANDONED`."""
        if state not in (GroupState.RETURNED, GroupState.ABANDONED):
            raise ValueError(f"a live group ends returned or abandoned, not {state}")
        for group in groups:
            self._move(group, state, reason)

    # Numbers

    def counts(self, now: float) -> SchedulerCounts:
        """Count the groups in each live state."""
        queued = self._live[GroupState.QUEUED].values()
        drawn = (g.drawn_at for groups in self._live.values() for g in groups.values())
        return SchedulerCounts(
            queued=len(queued),
            waiting_retry=sum(1 for group in queued if group.admissions and not group.suspended),
            suspended=sum(1 for group in queued if group.suspended),
            in_flight=len(self._live[GroupState.IN_FLIGHT]),
            in_flight_sessions=self._sessions,
            reserved_sessions=self._reserved,
            buffered=len(self._live[GroupState.BUFFERED]),
            handed=len(self._live[GroupState.HANDED]),
            wanted=self._call.wanted if self._call is not None else 0,
            oldest_age=now - min(drawn, default=math.nan),
        )

    # Steps

    def _fits(self, sessions: int, beside: int = 0) -> bool:
        used = self._sessions + self._reserved + beside
        return used == 0 or used + sessions <= self.max_sessions

    def _lag(self, group: Group[P, R]) -> int:
        if self._call is None or group.policy_version is None:
            raise RuntimeError("staleness is defined for submitted groups during a call")
        return self._call.rollout_id - group.policy_version

    def _move(self, group: Group[P, R], after: GroupState, reason: str = "") -> None:
        before = group.state
        del self._live[before][group.group_id]
        if before is GroupState.IN_FLIGHT:
            self._sessions -= group.sessions
        group.state = after
        if after in self._live:
            self._live[after][group.group_id] = group
        self.observer(Transition(group.group_id, before, after, group.sessions, reason))
