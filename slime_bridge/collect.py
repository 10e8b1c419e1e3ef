"""From a task request to its result: submit, wait for the callback or poll, under one deadline.

`collect_task` gives the same answer whatever gets lost on the way: a callback is a hint, polling is the truth. It does not
know groups, samples or verdicts, and it does not decode results; the body comes back as received.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from slime_bridge.callbacks import CallbackListener
from slime_bridge.protocol import TaskRequest
from slime_bridge.retry import RetryPolicy

__all__ = ["CollectEvent", "CollectEventKind", "CollectedTask", "Collector", "collect_task"]


class CollectEventKind(enum.StrEnum):
    """What `collect_task` reports while it works."""

    SUBMITTED = "submitted"  # accepted by the server; detail: conflict (bool)
    RESUBMITTED = "resubmitted"  # the same for an attempt after the first
    RETRY = "retry"  # a request failed and is repeated; detail: what, failures, delay, error, reason
    FORGOTTEN = "forgotten"  # the server does not know the task any more
    CALLBACK = "callback"  # the result came by callback; detail: bytes
    POLLED = "polled"  # the result came by polling; detail: bytes
    REJECTED_CALLBACK = "rejected_callback"  # a callback body was no result of this attempt; detail: kind
    CANCELLED = "cancelled"  # the task was given up and the server was told; detail: acknowledged (bool)


@dataclass(frozen=True)
class CollectEvent:
    """One step of one attempt; `at` is `anyio.current_time`."""

    kind: CollectEventKind
    task_id: str
    attempt: int
    at: float
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CollectedTask:
    """A completed task as the server reported it.

    Parameters
    ----------
    task_id, attempt
        Which attempt gave the result; attempts count from 1.
    body
        Bytes of the ``TaskResult`` or ``TaskStatus``; valid JSON with this task id and a terminal status.
    via
        How it came.
    submitted_at, received_at
        `anyio.current_time` when the server accepted the attempt and when the body was complete, in seconds.
    """

    task_id: str
    attempt: int
    body: bytes
    via: Literal["callback", "poll"]
    submitted_at: float
    received_at: float


class Collector:
    """What all collections of one worker share; an async context manager that runs the status poller.

    Parameters
    ----------
    client
        The rollout server (owned by the caller).
    listener
        A started listener (owned by the caller), or None to poll only.
    retry
        Policy for submits and result downloads.
    rng
        Source of all jitter.
    max_task_attempts
        How many task ids to try when the server keeps forgetting.
    """

    def __init__(
        self,
        client: Any,
        *,
        listener: CallbackListener | None = None,
        retry: RetryPolicy | None = None,
        rng: random.Random | None = None,
        max_task_attempts: int = 5,
    ) -> None: ...


async def collect_task(
    collector: Collector,
    build_request: Callable[[int], TaskRequest],
    *,
    deadline: float,
    on_event: Callable[[CollectEvent], None] | None = None,
) -> CollectedTask:
    """Run one task to its end.

    Parameters
    ----------
    collector
        Entered as a context manager around all its collections.
    build_request
        Makes the request of an attempt (1, 2, ...), each with a task id of its own. The callback URL is filled in here.
    deadline
        When to give up, as `anyio.current_time`; it covers every phase.
    on_event
        Called for each step, in the loop's thread.

    Returns
    -------
    CollectedTask
        The result of a task with status ``completed``.

    Raises
    ------
    SubmitRejectedError
        The server refused the request for good.
    TaskFailedError
        The task ended in another status; the error carries the record.
    InfrastructureError
        No result by the deadline or within the attempts; `reason` is ``deadline``, ``outage`` (the fuse is open),
        ``forgotten``, ``bad_answer``, or the last `TransportError.reason`.
    """
    ...
