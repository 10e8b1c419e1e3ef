"""A submission's groups in the journal, in the words of the bridge's own worker."""

from __future__ import annotations

from typing import Any

from analysis.live.recorder import Recorder
from slime_bridge.acceptance import Accepted
from slime_bridge.errors import BridgeError
from slime_bridge.group_task import JudgedGroup, PromptGroup
from slime_bridge.groups import Group
from slime_bridge.journal import prompt_fields

__all__ = ["DrawnGroup", "record_adopted", "record_drawn", "record_given_up", "record_verdict"]

DrawnGroup = Group[PromptGroup, JudgedGroup]

_NO_LAG = {"staleness": 0, "staleness_in_flight": 0, "staleness_in_queue": 0}
"""Nobody trains while a submission runs, so its policy does not age."""


def record_drawn(recorder: Recorder, group: DrawnGroup) -> None:
    """Note that a prompt is about to be submitted or taken over."""
    first = group.prompt[0]
    recorder.record(
        "group_drawn",
        group=group.group_id,
        group_index=first.group_index,
        sample_indices=[sample.index for sample in group.prompt],
        **prompt_fields(first.prompt),
    )


def record_adopted(recorder: Recorder, group: DrawnGroup, task_id: str) -> None:
    """Note that a task of an earlier process is taken over."""
    recorder.record(
        "task_submitted",
        group=group.group_id,
        task_id=task_id,
        attempt=1,
        policy_version=0,
        rollout_id=0,
        adopted=True,
    )


def record_verdict(recorder: Recorder, group: DrawnGroup, judged: JudgedGroup) -> None:
    """Note what a group's content was judged to be, and that this is its end."""
    verdict, number = judged.verdict, group.group_id
    accepted = isinstance(verdict, Accepted)
    reason = None if isinstance(verdict, Accepted) else str(verdict.reason)
    recorder.record("verdict", group=number, accepted=accepted, reason=reason, numbers=verdict.numbers)
    if reason is None:
        recorder.record("group_delivered", group=number, rollout_id=0, policy_version=0, **_NO_LAG)
        return
    fields: dict[str, Any] = {"group": number, "reason": reason, "numbers": verdict.numbers}
    recorder.record("group_rejected", **fields)
    recorder.rejected_group(**fields, rollout_id=0, samples=judged.conversion.samples)


def record_given_up(recorder: Recorder, group: DrawnGroup, error: BridgeError) -> None:
    """Note that a group will not be tried again."""
    recorder.record(
        "group_given_up",
        group=group.group_id,
        group_index=group.prompt[0].group_index,
        attempts=group.admissions,
        last_error=f"{type(error).__name__}: {error}",
    )
