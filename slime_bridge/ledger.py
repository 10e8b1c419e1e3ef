"""Conservation: every drawn group and session ends in exactly one final state, and the books can prove it.

The ledger hears each `Transition` of the scheduler and keeps its own record of where every live group is. It
does not look into the scheduler: a change that does not fit its record (a group delivered twice, a final
group that moves again, a group that nobody drew) is an error at once, and `Ledger.check` compares both sides
at any time. At every step, for groups and for sessions::

    drawn = delivered + rejected (by reason) + returned + abandoned + given up (by reason)
            + queued + in flight + buffered + handed

Memory grows with the live groups only.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from slime_bridge.errors import ConservationError
from slime_bridge.groups import LIVE_STATES, GroupState, SchedulerCounts, Transition

__all__ = ["Ledger", "LedgerSnapshot"]

_ALLOWED: dict[GroupState | None, frozenset[GroupState]] = {
    None: frozenset({GroupState.QUEUED}),
    GroupState.QUEUED: frozenset(
        {GroupState.IN_FLIGHT, GroupState.GIVEN_UP, GroupState.RETURNED, GroupState.ABANDONED}
    ),
    GroupState.IN_FLIGHT: frozenset(
        {
            GroupState.QUEUED,
            GroupState.BUFFERED,
            GroupState.REJECTED,
            GroupState.GIVEN_UP,
            GroupState.RETURNED,
            GroupState.ABANDONED,
        }
    ),
    GroupState.BUFFERED: frozenset(
        {GroupState.HANDED, GroupState.REJECTED, GroupState.RETURNED, GroupState.ABANDONED}
    ),
    GroupState.HANDED: frozenset({GroupState.BUFFERED, GroupState.DELIVERED, GroupState.REJECTED}),
}


@dataclass(frozen=True, slots=True)
class LedgerSnapshot:
    """The books at one moment; each count is of groups unless it says sessions.

    Parameters
    ----------
    drawn
        Taken from the data source.
    delivered
        Given to the trainer.
    rejected, given_up
        Ended for their content, and after too many failures, by reason.
    returned
        Handed back to the data source.
    abandoned
        Neither finished nor handed back when the worker ended.
    queued, in_flight, buffered, handed
        Live groups by state.
    submissions
        How often a group went into flight.
    requeued
        How often a group went back into the queue, by reason.
    sessions
        Sessions drawn, and sessions by state (rejected and given up in one number each), named as above.
    """

    drawn: int
    delivered: int
    rejected: dict[str, int]
    given_up: dict[str, int]
    returned: int
    abandoned: int
    queued: int
    in_flight: int
    buffered: int
    handed: int
    submissions: int
    requeued: dict[str, int]
    sessions: dict[str, int]

    @property
    def live(self) -> int:
        """Groups that have not reached a final state."""
        return self.queued + self.in_flight + self.buffered + self.handed

    @property
    def unaccounted(self) -> int:
        """Drawn groups that are in no state: 0, or the books are wrong."""
        ended = self.delivered + self.returned + self.abandoned
        return self.drawn - self.live - ended - sum(self.rejected.values()) - sum(self.given_up.values())

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers as a plain mapping, for the journal and for metrics."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return {**fields, "unaccounted": self.unaccounted}


@dataclass(slots=True, eq=False)
class Ledger:
    """The books of one worker; call it with each transition."""

    _where: dict[int, tuple[GroupState, int]] = field(default_factory=dict, init=False)
    _next_id: int = field(default=0, init=False)
    _groups: Counter[GroupState] = field(default_factory=Counter, init=False)
    _sessions: Counter[GroupState] = field(default_factory=Counter, init=False)
    _reasons: dict[GroupState, Counter[str]] = field(init=False)
    _drawn: int = field(default=0, init=False)
    _drawn_sessions: int = field(default=0, init=False)
    _submissions: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        reasoned = (GroupState.REJECTED, GroupState.GIVEN_UP, GroupState.QUEUED)
        self._reasons = {state: Counter() for state in reasoned}

    def __call__(self, transition: Transition) -> None:
        """Enter one transition.

        Raises
        ------
        ConservationError
            If it does not continue what the ledger knows of this group; nothing is entered then.
        """
        before, after, group_id = transition.before, transition.after, transition.group_id
        known, sessions = self._where.get(group_id, (None, transition.sessions))
        fresh = before is None and group_id >= self._next_id
        if known is not before or sessions != transition.sessions or (before is None and not fresh):
            state = known or ("ended" if group_id < self._next_id else "never drawn")
            raise ConservationError(
                f"group {group_id} ({sessions} sessions, {state}) cannot go from {before} to {after} "
                f"with {transition.sessions} sessions"
            )
        if after not in _ALLOWED[before]:
            raise ConservationError(f"group {group_id} cannot go from {before} to {after}")
        self._enter(transition)

    def _enter(self, transition: Transition) -> None:
        before, after, sessions = transition.before, transition.after, transition.sessions
        if before is None:
            self._drawn += 1
            self._drawn_sessions += sessions
            self._next_id = transition.group_id + 1
        else:
            self._groups[before] -= 1
            self._sessions[before] -= sessions
        self._groups[after] += 1
        self._sessions[after] += sessions
        if before is not None and after in self._reasons:
            self._reasons[after][transition.reason or "unspecified"] += 1
        if after in LIVE_STATES:
            self._where[transition.group_id] = (after, sessions)
        else:
            self._where.pop(transition.group_id, None)
        self._submissions += after is GroupState.IN_FLIGHT

    def snapshot(self) -> LedgerSnapshot:
        """Return the numbers as they are now."""
        groups = self._groups
        return LedgerSnapshot(
            drawn=self._drawn,
            delivered=groups[GroupState.DELIVERED],
            rejected=dict(self._reasons[GroupState.REJECTED]),
            given_up=dict(self._reasons[GroupState.GIVEN_UP]),
            returned=groups[GroupState.RETURNED],
            abandoned=groups[GroupState.ABANDONED],
            queued=groups[GroupState.QUEUED],
            in_flight=groups[GroupState.IN_FLIGHT],
            buffered=groups[GroupState.BUFFERED],
            handed=groups[GroupState.HANDED],
            submissions=self._submissions,
            requeued=dict(self._reasons[GroupState.QUEUED]),
            sessions={"drawn": self._drawn_sessions, **{str(s): self._sessions[s] for s in GroupState}},
        )

    def check(self, counts: SchedulerCounts | None = None) -> LedgerSnapshot:
        """Prove conservation, and agreement with the scheduler's counts where these are given.

        Returns
        -------
        LedgerSnapshot
            The numbers that were checked.

        Raises
        ------
        ConservationError
            If a group or session is unaccounted for, or the two sides differ.
        """
        snapshot = self.snapshot()
        sessions = snapshot.sessions
        problems = []
        if snapshot.unaccounted:
            problems.append(f"{snapshot.unaccounted} of {snapshot.drawn} groups are in no state")
        if lost := sessions["drawn"] - sum(sessions[str(state)] for state in GroupState):
            problems.append(f"{lost} of {sessions['drawn']} sessions are in no state")
        if len(self._where) != snapshot.live:
            problems.append(f"{len(self._where)} groups are known to be live, {snapshot.live} are counted")
        if counts is not None:
            problems += [
                f"{name}: the ledger has {getattr(snapshot, name)}, the scheduler {getattr(counts, name)}"
                for name in (str(state) for state in LIVE_STATES)
                if getattr(snapshot, name) != getattr(counts, name)
            ]
            if sessions["in_flight"] != counts.in_flight_sessions:
                problems.append(
                    f"in-flight sessions: the ledger has {sessions['in_flight']}, "
                    f"the scheduler {counts.in_flight_sessions}"
                )
        if problems:
            raise ConservationError("; ".join(problems))
        return snapshot
