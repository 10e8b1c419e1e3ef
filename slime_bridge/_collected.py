"""What collecting a task gives: the result, and on the way to it, events."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from slime_bridge._body import Body

__all__ = ["CollectEvent", "CollectEventKind", "CollectedTask", "Via"]

Via = Literal["callback", "poll"]


class CollectEventKind(enum.StrEnum):
    """What is reported while a task is collected."""

    SUBMITTED = "submitted"
    """The server accepted the first attempt; `detail` has ``conflict`` (bool: it ran the id already)."""

    RESUBMITTED = "resubmitted"
    """The same for a later attempt."""

    RETRY = "retry"
    """A failed request is repeated; ``what``, ``failures``, ``delay`` (seconds), ``reason``, ``error``."""

    FORGOTTEN = "forgotten"
    """The server does not know the task any more."""

    CALLBACK = "callback"
    """The result came by callback; ``status``, ``bytes``."""

    POLLED = "polled"
    """The result came by polling; ``status``, ``bytes``."""

    REJECTED_CALLBACK = "rejected_callback"
    """A callback body was no result of this attempt; ``kind``, ``error``."""

    CANCELLED = "cancelled"
    """The attempt was given up and the server asked to cancel it; ``acknowledged`` (bool)."""


@dataclass(frozen=True)
class CollectEvent:
    """One step of one attempt; `at` is `anyio.current_time`, in seconds."""

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
        Bytes, or a view of bytes, of the ``TaskResult`` or ``TaskStatus``: JSON with this task id and the
        status ``completed``. The memory of a large one goes back to the system with the last reference.
    via
        How it came.
    submitted_at, received_at
        `anyio.current_time` when the server accepted the attempt and when the body was complete, in seconds.
    """

    task_id: str
    attempt: int
    body: Body = field(repr=False)
    via: Via
    submitted_at: float
    received_at: float
