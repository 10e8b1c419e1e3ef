"""What a call of the trainer sees of its groups: each step on the way, the batch, the numbers behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from slime_bridge.group_conversion import mark_delivered
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
    """

    batch: list[DeliveredGroup]
    draw: int
    ended: list[int]
    stale: list[int]
    pending: int
    counts: SchedulerCounts


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
