"""Building blocks of session results in wire form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from analysis.lab.polar_server.models import LIFTED_METADATA_KEYS

ZERO_TIMING: dict[str, float] = {
    "register_to_init_queue_ms": 0.0,
    "init_ms": 0.0,
    "run_ms": 0.0,
    "postrun_ms": 0.0,
}
"""Timing of results that no gateway measured."""


def session_result(
    *,
    session_id: str,
    task_id: str,
    trajectory: dict[str, Any],
    metadata: Mapping[str, Any],
    timing: Mapping[str, Any] | None = None,
    node_id: str | None = None,
    error: str | None = None,
) -> dict[str, Any]:
    """Return a session result in Polar's key order; its status and error are the trajectory's."""
    return {
        "session_id": session_id,
        "task_id": task_id,
        "status": trajectory["status"],
        "trajectory": trajectory,
        "timing": dict(timing or ZERO_TIMING),
        "node_id": node_id,
        "error": error if error is not None else trajectory.get("error"),
        "metadata": dict(metadata),
    }


def failed_trajectory(
    status: str, error: str, *, builder: str, metadata: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the empty trajectory of a session that failed before a builder ran."""
    shown = {"builder": builder, "record_count": 0, "task_metadata": dict(metadata)}
    return {"status": status, "metadata": shown, "traces": [], "error": error}


def lifted(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a task's metadata that Polar shows at the top level of ``trajectory.metadata``."""
    return {key: metadata[key] for key in LIFTED_METADATA_KEYS if key in metadata}


def failure_result(result: Mapping[str, Any], status: str, error: str) -> dict[str, Any]:
    """Return a result with the names and timing of `result` that ended as `status` without traces."""
    builder = str(result["trajectory"].get("metadata", {}).get("builder", "per_request"))
    return session_result(
        session_id=result["session_id"],
        task_id=result["task_id"],
        trajectory=failed_trajectory(status, error, builder=builder, metadata=result["metadata"]),
        metadata=result["metadata"],
        timing=result["timing"],
        node_id=result["node_id"],
        error=error,
    )
