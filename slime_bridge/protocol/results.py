"""The shapes of Polar's results, as structs.

A null on the wire is as good as an absent field: readers of these structs meet lists, maps and times, never
None in their place. The module knows how one session or task is laid out and nothing about decoding or
configuration.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

__all__ = [
    "MalformedSession",
    "SessionResult",
    "SessionStatus",
    "SessionTiming",
    "TaskPayload",
    "Trace",
    "Trajectory",
    "is_terminal",
    "task_is_over",
]

if TYPE_CHECKING:
    Ints = list[int]
    Floats = list[float]
    Texts = list[str]
    Objects = list[dict[str, Any]]
    Map = dict[str, Any]
    Text = str
else:
    # A null is legal on the wire; `__post_init__` replaces it, so readers never see one.
    Ints = list[int] | None
    Floats = list[float] | None
    Texts = list[str] | None
    Objects = list[dict[str, Any]] | None
    Map = dict[str, Any] | None
    Text = str | None


class SessionStatus(StrEnum):
    """Session states; servers may send others, so compare strings and expect unknown ones."""

    DISPATCHING = "DISPATCHING"
    REGISTERED = "REGISTERED"
    INITIALIZING = "INITIALIZING"
    READY = "READY"
    RUNNING = "RUNNING"
    POST_RUN = "POST_RUN"
    BUILDING = "BUILDING"
    EVALUATING = "EVALUATING"
    COMPLETED = "COMPLETED"
    ERROR = "ERROR"
    TIMEOUT = "TIMEOUT"


_TERMINAL = frozenset({SessionStatus.COMPLETED, SessionStatus.ERROR, SessionStatus.TIMEOUT})


def is_terminal(status: str) -> bool:
    """Tell whether a session status is one of the three that Polar ends sessions with."""
    return status in _TERMINAL


def task_is_over(status: str) -> bool:
    """Tell whether a task stopped running: every status but ``running``, unknown ones included."""
    return status != "running"


class Trace(msgspec.Struct, gc=False):
    """One training example: a prompt, everything after it, and what is known of each response token.

    Parameters
    ----------
    prompt_ids, response_ids
        Token ids; `response_ids` holds sampled and interstitial tokens.
    loss_mask
        1 where the policy sampled the token; empty, or as long as `response_ids` on a conforming server.
    prompt_messages, response_messages, tools
        OpenAI-chat objects.
    finish_reason
        Of the last completion.
    response_logprobs
        One per response token, 0.0 at interstitial positions; NaN where the server sent null; None if there
        are none.
    reward
        None if no evaluator gave one.
    metadata
        Open map.
    """

    prompt_ids: Ints = []
    response_ids: Ints = []
    loss_mask: Ints = []
    prompt_messages: Objects = []
    response_messages: Objects = []
    tools: list[dict[str, Any]] | None = None
    finish_reason: str | None = None
    response_logprobs: list[float] | None = None
    reward: float | None = None
    metadata: Map = {}

    def __post_init__(self) -> None:
        self.prompt_ids = self.prompt_ids or []
        self.response_ids = self.response_ids or []
        self.loss_mask = self.loss_mask or []
        self.prompt_messages = self.prompt_messages or []
        self.response_messages = self.response_messages or []
        self.metadata = self.metadata or {}


if TYPE_CHECKING:
    Traces = list[Trace]
else:
    Traces = list[Trace] | None


class Trajectory(msgspec.Struct, gc=False):
    """The traces of one session.

    Parameters
    ----------
    status
        ``COMPLETED``, ``TIMEOUT`` or ``ERROR``; the session's own status where the stored form left it out.
    metadata
        Open map: builder, record counts, evaluation, reconstruction statistics.
    traces
        In the server's order.
    error
        Error text, or None.
    """

    status: Text = ""
    metadata: Map = {}
    traces: Traces = []
    error: str | None = None

    def __post_init__(self) -> None:
        self.metadata = self.metadata or {}
        self.traces = self.traces or []


class SessionTiming:
    """Stage times of one session, in milliseconds.

    Parameters
    ----------
    register_to_init_queue_ms, init_ms, run_ms, postrun_ms
        The four times that every server reports; NaN where the result does not say.
    extra
        Everything else that the server measured: numbers, counts and nested maps, as received.
    """

    __slots__ = ("extra", "init_ms", "postrun_ms", "register_to_init_queue_ms", "run_ms")
    NAMES = ("register_to_init_queue_ms", "init_ms", "run_ms", "postrun_ms")

    def __init__(
        self,
        register_to_init_queue_ms: float = math.nan,
        init_ms: float = math.nan,
        run_ms: float = math.nan,
        postrun_ms: float = math.nan,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        self.register_to_init_queue_ms = register_to_init_queue_ms
        self.init_ms = init_ms
        self.run_ms = run_ms
        self.postrun_ms = postrun_ms
        self.extra: dict[str, Any] = dict(extra or {})

    @classmethod
    def from_mapping(cls, timing: Mapping[str, Any]) -> SessionTiming:
        """Read a wire ``timing`` object; a value that is no number stays in `extra` and its time is NaN."""
        times: dict[str, float] = {}
        extra: dict[str, Any] = {}
        for name, value in timing.items():
            number = _milliseconds(value) if name in cls.NAMES else None
            if number is not None:
                times[name] = number
            elif name not in cls.NAMES or value is not None:
                extra[name] = value
        return cls(**times, extra=extra)

    def to_dict(self) -> dict[str, Any]:
        """Return the wire form: the four times, then everything in `extra`."""
        return {name: getattr(self, name) for name in self.NAMES} | self.extra

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SessionTiming):
            return NotImplemented
        return self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"SessionTiming({', '.join(f'{name}={value!r}' for name, value in self.to_dict().items())})"


def _milliseconds(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


if TYPE_CHECKING:
    Timing = SessionTiming
else:
    Timing = SessionTiming | None


class SessionResult(msgspec.Struct, gc=False):
    """The result of one session, in wire or stored form.

    Parameters
    ----------
    session_id, task_id
        Ids.
    status
        A `SessionStatus` value, or whatever else the server says.
    trajectory
        Traces and their metadata.
    timing
        Stage times.
    node_id
        None if no gateway was ever assigned.
    error
        Error text, or None.
    metadata
        The task's metadata, as submitted.
    """

    session_id: str
    task_id: str
    status: str
    trajectory: Trajectory
    timing: Timing = msgspec.field(default_factory=SessionTiming)
    node_id: str | None = None
    error: str | None = None
    metadata: Map = {}

    def __post_init__(self) -> None:
        self.timing = self.timing or SessionTiming()
        self.metadata = self.metadata or {}
        trajectory = self.trajectory
        if not trajectory.status:
            trajectory.status = self.status
            if trajectory.error is None:
                trajectory.error = self.error


class MalformedSession(msgspec.Struct, frozen=True):
    """A session of a task that could not be read.

    Parameters
    ----------
    index
        Its position in the task's ``results``.
    session_id
        Its id, where that much was readable.
    error
        What is wrong, and at which path.
    """

    index: int
    session_id: str | None
    error: str


class TaskPayload(msgspec.Struct):
    """A task's record: the body of a task callback, or the answer to a poll.

    Parameters
    ----------
    task_id, status
        The task, and ``running``, ``completed``, ``failed`` or a newer server's word.
    total_sessions, completed_sessions
        None in a callback, which leaves them out.
    results
        One entry per finished session, malformed ones included, in the server's order.
    result_paths
        Paths on the server's file system, in another order than `results`.
    """

    task_id: str
    status: str
    total_sessions: int | None
    completed_sessions: int | None
    results: list[SessionResult | MalformedSession]
    result_paths: list[str]
