"""What a rollout server tells about itself: submit receipts, status, task lists and nodes.

These bodies are small and only steer the bridge, so they are read as loosely as their use allows.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from slime_bridge import _json
from slime_bridge.errors import ProtocolError

__all__ = [
    "NodeInfo",
    "ServerStatus",
    "SubmitReceipt",
    "TaskListEntry",
    "decode_nodes",
    "decode_server_status",
    "decode_submit_receipt",
    "decode_task_list",
]


T = TypeVar("T")


class SubmitReceipt(msgspec.Struct, frozen=True):
    """The answer to a submit: the task is accepted and runs."""

    task_id: str
    status: str


class NodeInfo(msgspec.Struct, frozen=True):
    """One gateway, as ``GET /nodes`` lists it.

    Parameters
    ----------
    node_id, gateway_url
        Name and base URL; the gateway's own routes, such as its generation gate, live below that URL.
    healthy
        By the age of its heartbeat; a node that never existed counts as healthy for a while after a server's
        start.
    draining
        It gets no new sessions.
    max_init_workers, max_run_workers, max_postrun_workers
        Sizes of its worker pools, or None.
    metrics
        Depth of its queues by stage; open map.
    last_heartbeat
        ISO-8601, or None.
    """

    node_id: str
    gateway_url: str
    healthy: bool = True
    draining: bool = False
    max_init_workers: int | None = None
    max_run_workers: int | None = None
    max_postrun_workers: int | None = None
    metrics: dict[str, Any] | None = None
    last_heartbeat: str | None = None


class TaskListEntry(msgspec.Struct, frozen=True):
    """One task of ``GET /tasks``; rewards and means are None where no session has one."""

    task_id: str
    status: str
    harness: str | None = None
    model: str | None = None
    num_samples: int | None = None
    completed_sessions: int | None = None
    errored_sessions: int | None = None
    mean_reward: float | None = None
    mean_traces: float | None = None
    mean_completions: float | None = None
    created_at: float | None = None
    updated_at: float | None = None


class ServerStatus(msgspec.Struct, frozen=True):
    """``GET /rollout/status``: every task since the server's start, without any result.

    Parameters
    ----------
    tasks
        Task status by task id.
    pending_sessions
        Sessions created and not yet ended, or None.
    nodes
        The gateways.
    """

    tasks: dict[str, str]
    pending_sessions: int | None
    nodes: list[NodeInfo]


class _Pipeline(msgspec.Struct):
    pending_sessions: int | None = None


class _Nodes(msgspec.Struct):
    nodes: list[NodeInfo] | None = None


class _Status(msgspec.Struct):
    tasks: dict[str, str]
    pipeline: _Pipeline | None = None
    nodes: _Nodes | None = None


class _Tasks(msgspec.Struct):
    tasks: list[TaskListEntry]


def decode_submit_receipt(data: bytes | str) -> SubmitReceipt:
    """Decode the answer of a submit; raises `ProtocolError` if it is none."""
    return _decode(data, SubmitReceipt, "submit receipt")


def decode_nodes(data: bytes | str) -> list[NodeInfo]:
    """Decode ``GET /nodes``; raises `ProtocolError` if it is no list of nodes."""
    return _decode(data, list[NodeInfo], "list of nodes")


def decode_task_list(data: bytes | str) -> list[TaskListEntry]:
    """Decode ``GET /tasks``; raises `ProtocolError` if it is no list of tasks."""
    return _decode(data, _Tasks, "list of tasks").tasks


def decode_server_status(data: bytes | str) -> ServerStatus:
    """Decode ``GET /rollout/status``; raises `ProtocolError` if it holds no map of tasks."""
    status = _decode(data, _Status, "server status")
    return ServerStatus(
        tasks=status.tasks,
        pending_sessions=status.pipeline.pending_sessions if status.pipeline else None,
        nodes=(status.nodes.nodes or []) if status.nodes else [],
    )


def _decode(data: bytes | str, kind: type[T], name: str) -> T:
    try:
        return msgspec.json.decode(data, type=kind, strict=False)
    except (msgspec.DecodeError, RecursionError):
        pass
    try:
        return msgspec.convert(_json.loads(data), kind, strict=False)
    except msgspec.ValidationError as exc:
        problem = f"not a {name}: {exc}"
    raise ProtocolError(problem)
