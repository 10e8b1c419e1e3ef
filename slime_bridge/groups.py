"""A drawn prompt group: its record, the states it goes through, and the changes between them.

Plain data shared by the scheduler, the ledger and the worker. It knows neither what a prompt is nor what a
result is.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

__all__ = [
    "LIVE_STATES",
    "Delivery",
    "Group",
    "GroupState",
    "RequestNote",
    "SchedulerCounts",
    "Transition",
]

P = TypeVar("P")
R = TypeVar("R")


class GroupState(StrEnum):
    """Where a group is. The first four are live, the others final."""

    QUEUED = "queued"
    IN_FLIGHT = "in_flight"
    BUFFERED = "buffered"
    HANDED = "handed"
    DELIVERED = "delivered"
    REJECTED = "rejected"
    RETURNED = "returned"
    ABANDONED = "abandoned"
    GIVEN_UP = "given_up"


LIVE_STATES = (GroupState.QUEUED, GroupState.IN_FLIGHT, GroupState.BUFFERED, GroupState.HANDED)


@dataclass(frozen=True, slots=True)
class Transition:
    """One change of state of one group.

    Parameters
    ----------
    group_id
        The scheduler's id of the group.
    before
        The state it left; None when it was just drawn.
    after
        The state it is in now.
    sessions
        Number of sessions of the group.
    reason
        Why, for rejections, requeues and prompts given up; empty otherwise.
    """

    group_id: int
    before: GroupState | None
    after: GroupState
    sessions: int
    reason: str = ""


@dataclass(slots=True, eq=False)
class Group(Generic[P, R]):
    """One drawn prompt group and what has happened to it.

    Parameters
    ----------
    group_id
        Unique and increasing in draw order within one scheduler.
    prompt
        What the data source gave, untouched.
    sessions
        How many sessions the group runs, at least 1.
    position
        How many groups the same call had drawn before this one.
    drawn_at
        Seconds.
    ready_at
        Seconds; a queued group is not admitted earlier.
    state
        Where it is.
    suspended
        Whether the server refused the request and it is open if the prompt or the whole set-up is at fault.
    admissions
        How often the group went into flight.
    failures
        How many of these ended in a failure that counts against the prompt.
    deadlines
        How many of these failures used up the whole deadline.
    policy_version
        Rollout id of the latest call when the running attempt was submitted, lowered by a jump back to an
        earlier id; None before the first.
    version_at_completion
        Rollout id of the latest call when the result was accepted; None before.
    submitted_at, completed_at
        Seconds; None before.
    result
        What was accepted; None before.
    last_error
        The latest failure, for logs and the journal.
    """

    group_id: int
    prompt: P
    sessions: int
    position: int
    drawn_at: float
    ready_at: float
    state: GroupState = GroupState.QUEUED
    suspended: bool = False
    admissions: int = 0
    failures: int = 0
    deadlines: int = 0
    policy_version: int | None = None
    version_at_completion: int | None = None
    submitted_at: float | None = None
    completed_at: float | None = None
    result: R | None = None
    last_error: str = ""

    def rewind(self, rollout_id: int) -> None:
        """Let no stamp be of a later rollout than this one."""
        if self.policy_version is not None:
            self.policy_version = min(self.policy_version, rollout_id)
        if self.version_at_completion is not None:
            self.version_at_completion = min(self.version_at_completion, rollout_id)


@dataclass(frozen=True, slots=True)
class Delivery(Generic[P, R]):
    """A group on its way to the trainer, with its lag in rollouts.

    Parameters
    ----------
    group
        The accepted group.
    result
        What was accepted.
    rollout_id
        The rollout that it is delivered to.
    policy_version
        The version stamped when its last attempt was submitted, or the rollout id of a later jump back.
    staleness
        ``rollout_id - policy_version``: the sum of the next two.
    staleness_in_flight
        What passed between submission and acceptance.
    staleness_in_queue
        What passed in the buffer.
    """

    group: Group[P, R]
    result: R
    rollout_id: int
    policy_version: int
    staleness: int
    staleness_in_flight: int
    staleness_in_queue: int

    @classmethod
    def of(cls, group: Group[P, R], rollout_id: int) -> Delivery[P, R]:
        """Make the delivery of an accepted group to a rollout."""
        version, completed, result = group.policy_version, group.version_at_completion, group.result
        if version is None or completed is None or result is None:
            raise RuntimeError(f"group {group.group_id} is in the buffer without a result")
        return cls(
            group=group,
            result=result,
            rollout_id=rollout_id,
            policy_version=version,
            staleness=rollout_id - version,
            staleness_in_flight=completed - version,
            staleness_in_queue=rollout_id - completed,
        )


class RequestNote(StrEnum):
    """What is unusual about the rollout id of a call."""

    REPEATED = "repeated"
    BACKWARDS = "backwards"


@dataclass(frozen=True, slots=True)
class SchedulerCounts:
    """How many groups are where.

    Parameters
    ----------
    queued
        Groups drawn and waiting for a slot, the next two included.
    waiting_retry
        Of these, groups that failed before and wait for another attempt.
    suspended
        Of these, groups whose request the server refused for good.
    in_flight, in_flight_sessions
        Groups and sessions that run.
    reserved_sessions
        Sessions that somebody else (evaluation) runs under the same cap.
    buffered
        Groups accepted and waiting for a call.
    handed
        Groups given to a call that has not finished yet.
    wanted
        Groups that the running call asked for; 0 between calls.
    oldest_age
        Seconds since the oldest live group was drawn; NaN when there is none.
    """

    queued: int
    waiting_retry: int
    suspended: int
    in_flight: int
    in_flight_sessions: int
    reserved_sessions: int
    buffered: int
    handed: int
    wanted: int
    oldest_age: float
