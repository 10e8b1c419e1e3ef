"""Cells of the session table from what Polar says about a session, wherever a copy of it was left.

Polar's result files, task records, the bridge's journal and Slime's dumps all hold the same objects: a
timing, the trajectory's metadata, the task's metadata, the evaluator's report. Each function here turns one
of them into cells; none knows where it came from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from analysis._session_columns import EXTRA_TIMING_COLUMN, TIMING_COUNTS, TIMING_MAPS, TIMING_MILLISECONDS
from analysis.sources.values import boolean, integer, json_text, mapping, number, text

__all__ = [
    "FILTER_COLUMNS",
    "evaluation_cells",
    "filter_cells",
    "is_completed",
    "stamp_cells",
    "timing_cells",
    "trajectory_cells",
    "was_early_stopped",
]

_RECONSTRUCTION = (
    ("completions_total", "completions_total"),
    ("completions_merged", "completions_merged"),
    ("chains_total", "chains_total"),
    ("chains_reconstructed_full", "chains_full"),
    ("chains_reconstructed_truncated", "chains_truncated"),
)


def is_completed(status: str, trajectory_status: str, error: Any, trajectory_error: Any) -> bool:
    """Tell whether a session completed: both statuses say so, and neither place holds an error."""
    return {status, trajectory_status or status} == {"COMPLETED"} and not error and not trajectory_error


def was_early_stopped(*places: Mapping[str, Any]) -> bool:
    """Tell whether the server stopped a session as surplus, from the session's and trajectory's metadata."""
    return any(place.get("early_stop_cancelled") is True for place in places)


def timing_cells(timing: Any, limit: int) -> dict[str, Any]:
    """Return times, counts and maps of a session; what has no column goes into one as JSON."""
    if not isinstance(timing, Mapping):
        return {}
    cells: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for name, value in timing.items():
        if name in TIMING_MILLISECONDS:
            cell: Any = number(_lax(value))
        elif name in TIMING_COUNTS:
            cell = integer(_lax(value))
        elif name in TIMING_MAPS and isinstance(value, Mapping):
            cell = json_text(value, limit)
        else:
            cell = None
        if cell is not None:
            cells[name] = cell
        elif value is not None and value != {} and value == value:
            extra[name] = value
    if extra:
        cells[EXTRA_TIMING_COLUMN] = json_text(extra, limit)
    return cells


def _lax(value: Any) -> Any:
    """Return the number that a text stands for, as servers accept it, else the value."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return None
    return value


def trajectory_cells(metadata: Mapping[str, Any], limit: int) -> dict[str, Any]:
    """Return what a trajectory's metadata says about its building and its evaluation."""
    cells: dict[str, Any] = {
        name: text(metadata.get(name), limit)
        for name in ("builder", "api_type", "model_requested", "model_used")
    }
    cells["record_count"] = integer(metadata.get("record_count"))
    stats = mapping(metadata.get("reconstruction_stats"))
    if stats:
        for name, column in _RECONSTRUCTION:
            cells[column] = integer(stats.get(name))
    excluded = mapping(metadata.get("completion_filter"))
    if excluded:
        cells["completions_excluded"] = integer(excluded.get("excluded_completions"))
    for value in (metadata, *metadata.values()):
        if isinstance(value, dict) and "timeout_source" in value:
            cells["timeout_source"] = text(value.get("timeout_source"), limit)
            cells["timeout_stage"] = text(value.get("timeout_stage"), limit)
            break
    cells.update(evaluation_cells(metadata.get("evaluation"), limit))
    return cells


def evaluation_cells(evaluation: Any, limit: int) -> dict[str, Any]:
    """Return what an evaluator reported; it may have put anything into its report."""
    if not isinstance(evaluation, Mapping):
        return {}
    resolved = boolean(evaluation.get("resolved"))
    if resolved is None:
        resolved = boolean(mapping(evaluation.get("report")).get("resolved"))
    outcome = number(evaluation.get("outcome_reward"))
    return {
        "outcome_reward": outcome if outcome is not None and math.isfinite(outcome) else None,
        "evaluator": text(evaluation.get("strategy"), limit),
        "resolved": resolved,
        "reward_discarded": boolean(evaluation.get("reward_discarded")),
        "evaluation_report": json_text(evaluation, limit),
    }


def stamp_cells(*places: Mapping[str, Any]) -> dict[str, Any]:
    """Return ids that the submitter stamped on a task, from the first place that has each.

    A task with an evaluation data set is an evaluation; one with the bridge's other stamps is training; of
    any other nothing is known.
    """
    group = _stamped("group_id", places)
    version = _stamped("policy_version", places)
    step = _stamped("rollout_step", places)
    dataset = _stamped("eval_dataset", places)
    known = version is not None or step is not None
    return {
        "group_index": integer(group),
        "policy_version": integer(version),
        "rollout_step": integer(step),
        "rollout_id": integer(step),
        "evaluation": True if dataset is not None else (False if known else None),
        "dataset": text(dataset),
    }


def _stamped(name: str, places: tuple[Mapping[str, Any], ...]) -> Any:
    for place in places:
        value = place.get(name)
        if value is not None:
            return value
    return None


FILTER_COLUMNS = (
    "masked_by_server",
    "trainable_by_server",
    "filter_reason",
    "filter_detail",
    "original_reward",
)
"""What `filter_cells` fills, in its order."""


def filter_cells(verdict: Any, limit: int) -> dict[str, Any]:
    """Return what the server's own filter noted on a trace (``metadata.training_filter``)."""
    if not isinstance(verdict, Mapping):
        return dict.fromkeys(FILTER_COLUMNS)
    return {
        "masked_by_server": boolean(verdict.get("masked")),
        "trainable_by_server": boolean(verdict.get("trainable")),
        "filter_reason": text(verdict.get("reason"), limit),
        "filter_detail": text(verdict.get("detail"), limit),
        "original_reward": number(verdict.get("original_reward")),
    }
