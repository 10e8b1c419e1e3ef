"""Reads Polar's results: one session per file, or a task's record with all its sessions.

Gives a session row and a trace row each, and the places of the token arrays. A session inside a task record
that cannot be read is a problem of its own; its siblings are read.
"""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec

from analysis.errors import FileLimitError, ForeignFileError, LoadError
from analysis.sources.base import Late, ReadOptions, Sink, SourceFile, SourceKind
from analysis.sources.files import REPEATED, damaged_json, decode_json, read_bytes
from analysis.sources.polar_wire import SessionView, TraceView, read_session
from analysis.sources.session_cells import (
    FILTER_COLUMNS,
    filter_cells,
    is_completed,
    stamp_cells,
    timing_cells,
    trajectory_cells,
    was_early_stopped,
)
from analysis.sources.token_stats import COUNTS, LOGPROB_SUMMARY, count_cells, logprob_columns
from analysis.sources.values import json_text, mapping, text
from slime_bridge.conversion.turns import oldest_and_newest
from slime_bridge.errors import ProtocolError

__all__ = ["collect"]

_TRACE_IDS = ("rollout_id", "evaluation", "dataset", "group_index", "task_id", "position", "session_id")
_TRACE_LAYOUT = (
    "path",
    *_TRACE_IDS,
    "trace_index",
    "finish_reason",
    "reward",
    "calls",
    "messages",
    *COUNTS,
    "weight_version_oldest",
    "weight_version_newest",
    *FILTER_COLUMNS,
)
_LATE = Late(LOGPROB_SUMMARY, logprob_columns)
_SAMPLED = COUNTS.index("sampled_tokens")
_FITS = COUNTS.index("has_logprobs")
_TOTALS = ("prompt_tokens", "response_tokens", "masked_tokens", "turns")
_NO_FILTER: tuple[Any, ...] = (None,) * len(FILTER_COLUMNS)
_NO_VERSIONS = (None, None)


class _Task(msgspec.Struct):
    task_id: str
    status: str
    results: list[msgspec.Raw] | None = None


_TASK = msgspec.json.Decoder(_Task)


def collect(file: SourceFile, sink: Sink, options: ReadOptions) -> None:
    """Add the sessions of one file to the sink; see `analysis.sources.registry.Reader`."""
    data = read_bytes(file, options)
    if file.kind == SourceKind.POLAR_TASK:
        _collect_task(data, file, sink, options)
        return
    try:
        view = read_session(data)
    except ProtocolError as error:
        raise _unreadable(data, error) from None
    _Rows(file, sink, options).add(view)


def _unreadable(data: bytes, error: ProtocolError) -> LoadError:
    """Tell a torn file from one that holds something else."""
    try:
        decode_json(data)
    except LoadError as damage:
        return damage
    return ForeignFileError("holds no session result", str(error)[:300])


def _collect_task(data: bytes, file: SourceFile, sink: Sink, options: ReadOptions) -> None:
    try:
        parts: list[bytes | msgspec.Raw] = list(_TASK.decode(data).results or ())
    except (msgspec.DecodeError, RecursionError) as error:
        parts = _patient_parts(data, error)
    rows = _Rows(file, sink, options)
    seen: set[str] = set()
    for position, part in enumerate(parts):
        try:
            view = read_session(part)
        except ProtocolError as error:
            sink.problem("a session cannot be read", str(error)[:300], place=f"results[{position}]")
            continue
        if view.session_id in seen:
            sink.problem(
                "a session is listed twice", f"session {view.session_id}", "the first one counts",
                place=f"results[{position}]",
            )  # fmt: skip
            continue
        seen.add(view.session_id)
        rows.add(view, position)


def _patient_parts(data: bytes, error: Exception) -> list[bytes | msgspec.Raw]:
    """Take a record apart that the fast decoder refuses."""
    record = decode_json(data)
    results = record.get("results") if isinstance(record, dict) else None
    if not isinstance(record, dict) or not isinstance(record.get("task_id"), str):
        raise ForeignFileError("holds no task record", str(error)[:300])
    if results is not None and not isinstance(results, list):
        raise damaged_json(data, error)
    return [_encoded(result) for result in results or ()]


def _encoded(result: Any) -> bytes:
    # Bare NaN must survive: the patient decoder tells it from null.
    return json.dumps(result).encode()


class _Rows:
    """Turns sessions into rows."""

    def __init__(self, file: SourceFile, sink: Sink, options: ReadOptions) -> None:
        self._path = file.path
        self._sink = sink
        self._limit = options.max_text
        self._left = options.memory_limit() // REPEATED
        self._traces = sink.rows_of("trace", _TRACE_LAYOUT, _LATE)

    def add(self, view: SessionView, position: int | None = None) -> None:
        """Add a session, at its place in a task record or alone in its file.

        Raises
        ------
        FileLimitError
            Its ids, which each of its traces repeats, would take more memory than allowed.
        """
        ids = self._ids(view, position)
        self._spend(len(view.traces) * sum(len(cell) for cell in ids.values() if isinstance(cell, str)))
        cells = [count_cells(trace.tokens) for trace in view.traces]
        completed = is_completed(view.status, view.trajectory_status, view.error, view.trajectory_error)
        trainable = [
            cell[_SAMPLED] or 0 if _counts(view, trace, completed) else 0
            for trace, cell in zip(view.traces, cells, strict=True)
        ]
        own = tuple(ids[name] for name in _TRACE_IDS)
        for index, (trace, cell) in enumerate(zip(view.traces, cells, strict=True)):
            self._add_trace(own, index, trace, cell)
            self._add_place(ids, index, trace)
            if not cell[_FITS] and (wrong := trace.tokens.mismatch()) is not None:
                where = f"session {view.session_id}, trace {index}"
                self._sink.tally("token arrays do not fit", f"{wrong}, {where}")
        self._sink.add("session", self._session(view, ids, cells, trainable, completed))

    def _spend(self, characters: int) -> None:
        self._left -= characters
        if self._left < 0:
            raise FileLimitError(
                "repeats long texts too often", "ids of a session, in each trace", "damaged, or hostile"
            )

    def _ids(self, view: SessionView, position: int | None) -> dict[str, Any]:
        about = view.trajectory_metadata
        stamps = stamp_cells(view.metadata, about, mapping(about.get("task_metadata")), view.stamps)
        return {
            **stamps,
            "task_id": text(view.task_id),
            "session_id": text(view.session_id),
            "position": position,
        }

    def _session(
        self,
        view: SessionView,
        ids: dict[str, Any],
        cells: list[tuple[Any, ...]],
        trainable: list[int],
        completed: bool,
    ) -> dict[str, Any]:
        about, limit = view.trajectory_metadata, self._limit
        versions = oldest_and_newest([v for trace in view.traces if trace.versions for v in trace.versions])
        row = {
            **ids,
            **timing_cells(view.timing, limit),
            **trajectory_cells(about, limit),
            "attempted": True,
            "finished": True,
            "status": text(view.status),
            "error": text(view.error or view.trajectory_error, limit) or None,
            "node_id": text(view.node_id),
            "completed": completed,
            "early_stopped": was_early_stopped(view.metadata, about),
            "usable": any(trainable),
            "traces": len(view.traces),
            **{name: _total(cells, COUNTS.index(name)) for name in _TOTALS},
            "trainable_tokens": sum(trainable) if any(cell[_SAMPLED] is not None for cell in cells) else None,
            "task_metadata": json_text(view.metadata, limit),
        }
        row["reward"] = _reward(view, trainable, row.get("outcome_reward"))
        if versions is not None:
            row["weight_version_oldest"], row["weight_version_newest"] = versions
        return row

    def _add_trace(self, ids: tuple[Any, ...], index: int, trace: TraceView, cells: tuple[Any, ...]) -> None:
        verdict = _NO_FILTER
        if trace.training_filter:
            verdict = tuple(filter_cells(trace.training_filter, self._limit).values())
        self._traces.append(
            (
                self._path,
                *ids,
                index,
                trace.finish_reason,
                trace.reward,
                trace.calls,
                trace.messages,
                *cells,
                *(trace.versions or _NO_VERSIONS),
                *verdict,
                (trace.tokens.flags, trace.tokens.logprobs) if cells[_FITS] else None,
            )
        )

    def _add_place(self, ids: dict[str, Any], index: int, trace: TraceView) -> None:
        if trace.tokens.prompt is None and not trace.tokens.response:
            return
        self._sink.add_tokens(
            "polar",
            ids["session_id"],
            index,
            ids["rollout_id"],
            ids["evaluation"],
            None,
            None,
            index,
            ids["position"],
        )


def _counts(view: SessionView, trace: TraceView, completed: bool) -> bool:
    """Tell whether the bridge would train on a trace's sampled tokens."""
    if trace.training_filter.get("masked"):
        return False
    timeout = "TIMEOUT" in (view.status, view.trajectory_status)
    return completed or (timeout and bool(trace.training_filter.get("trainable")))


def _total(cells: list[tuple[Any, ...]], place: int) -> int | None:
    known = [cell[place] for cell in cells if cell[place] is not None]
    return sum(known) if known else None


def _reward(view: SessionView, trainable: list[int], outcome: float | None) -> float | None:
    pairs = zip(view.traces, trainable, strict=True)
    rated = [trace.reward for trace, tokens in pairs if tokens and trace.reward is not None]
    if rated:
        return math.fsum(rated) / len(rated)
    known = [trace.reward for trace in reversed(view.traces) if trace.reward is not None]
    return known[0] if known else outcome
