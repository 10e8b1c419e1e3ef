"""What a call of the trainer sees of its groups: each step on the way, the batch, the numbers behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from slime_bridge.conversion.groups import mark_delivered
from slime_bridge.group_task import JudgedGroup, PromptGroup
from slime_bridge.groups import Delivery, Group, SchedulerCounts
from slime_bridge.ledger import LedgerSnapshot
from slime_bridge.metrics import GroupFacts
from slime_bridge.window import WindowFacts, delivered_facts

__all__ = ["Batch", "DeliveredGroup", "DrawnGroup", "Report", "Step"]

DrawnGroup = Group[PromptGroup, JudgedGroup]
DeliveredGroup = Delivery[PromptGroup, JudgedGroup]


@dataclass(frozen=True, slots=True)
class Step:
    """What the call in progress can do next.

    Parameters
    ----------
    batch
        The groups it asked for, handed out and not yet committed; empty while there are too few.
    draw
        Prompts to draw now.
    ended
        ``group_index`` of prompts that ended without training since the last step.
    stale
        Ids of groups whose tasks are to be stopped because nobody will train on them.
    pending
        Groups queued or in flight that may still come.
    counts
        Where the groups are.
    undecided
        Ids and results of groups that the trainer's filter has to be asked about; there is no batch before.
    """

    batch: list[DeliveredGroup]
    draw: int
    ended: list[int]
    stale: list[int]
    pending: int
    counts: SchedulerCounts
    undecided: list[tuple[int, JudgedGroup]]

    def describe(self, waited: float, away: float, last_failure: str) -> str:
        """Say in one line where everything is, for a call that has waited for so many seconds.

        Parameters
        ----------
        waited, away
            Seconds that the call has waited, and that the server has been away.
        last_failure
            The latest failure, empty if there was none.
        """
        counts = self.counts
        return (
            f"{waited:.0f} s: {counts.buffered} of {counts.wanted} groups accepted, {counts.in_flight} in "
            f"flight ({counts.in_flight_sessions} sessions), {counts.queued} queued "
            f"({counts.waiting_retry} for another attempt, {counts.suspended} refused), the oldest drawn "
            f"{counts.oldest_age:.0f} s ago"
            + (f"; the server has been away for {away:.0f} s" if away else "")
            + f"; last failure: {last_failure or 'none'}"
        )


@dataclass(frozen=True, slots=True)
class Report:
    """The numbers of one delivered batch.

    Parameters
    ----------
    counts
        Where the groups were when the batch was complete.
    ledger
        The books after it was delivered.
    window
        What happened since the previous batch.
    """

    counts: SchedulerCounts
    ledger: LedgerSnapshot
    window: WindowFacts


@dataclass(frozen=True, slots=True)
class Batch:
    """The accepted groups of one call, oldest drawn first.

    Parameters
    ----------
    rollout_id
        The rollout it belongs to.
    deliveries
        The groups with their lag.
    wait_seconds
        How long the call waited.
    """

    rollout_id: int
    deliveries: Sequence[DeliveredGroup]
    wait_seconds: float

    @property
    def groups(self) -> list[list[Any]]:
        """The samples, one list per group, in the order of sessions and their traces."""
        return [delivery.result.conversion.samples for delivery in self.deliveries]

    @property
    def group_indices(self) -> list[int]:
        """The data source's numbers of the groups; those without one are left out."""
        indices = (delivery.group.prompt[0].group_index for delivery in self.deliveries)
        return [index for index in indices if index is not None]

    def facts(self) -> list[GroupFacts]:
        """Return what the metrics need of the groups."""
        return [delivered_facts(delivery) for delivery in self.deliveries]

    def annotate(self) -> None:
        """Write rollout, lag and group number into the samples."""
        for delivery in self.deliveries:
            mark_delivered(
                delivery.result.conversion.samples,
                rollout_id=self.rollout_id,
                policy_version=delivery.policy_version,
                staleness=delivery.staleness,
                scheduler_group_id=delivery.group.group_id,
            )
