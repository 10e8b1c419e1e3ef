"""What one call of the trainer gets from the worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from slime_bridge.group_conversion import mark_delivered
from slime_bridge.group_flow import DeliveredGroup
from slime_bridge.metrics import GroupFacts
from slime_bridge.window import delivered_facts

__all__ = ["Batch"]


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
