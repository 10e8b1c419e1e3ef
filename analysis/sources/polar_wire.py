"""Polar's session results as views for tables: everything that a row needs, decoded as little as possible.

The fast way decodes straight from bytes into structs that skip messages and tools and count token ids without
making numbers of them. What it refuses (bare NaN, half surrogate pairs, numbers as text, nulls in lists) is
read by the bridge's own patient decoder. Knows the wire form, nothing of tables.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Raw

from analysis.sources.token_stats import (
    TraceTokens,
    all_packed,
    count_all_ids,
    mask_from_json,
    mask_from_numbers,
    packed,
)
from slime_bridge.conversion.turns import oldest_and_newest, read_turns
from slime_bridge.protocol import SessionResult, Trace, decode_session_result

__all__ = ["SessionView", "TraceView", "read_session"]


class _Call(msgspec.Struct, gc=False):
    weight_version: Any = None
    weight_versions: Any = None
    policy_version: Any = None
    finish_reason: Any = None
    meta_info: Any = None


class _TraceMetadata(msgspec.Struct, gc=False):
    completion_metadata: list[_Call] | None = None
    training_filter: dict[str, Any] | None = None
    weight_version: Any = None
    weight_versions: Any = None
    policy_version: Any = None
    finish_reason: Any = None
    meta_info: Any = None
    group_id: Any = None
    rollout_step: Any = None
    eval_dataset: Any = None


class _Trace(msgspec.Struct, gc=False):
    prompt_ids: Raw = msgspec.field(default_factory=Raw)
    response_ids: Raw = msgspec.field(default_factory=Raw)
    loss_mask: Raw = msgspec.field(default_factory=Raw)
    response_messages: list[Raw] | None = None
    finish_reason: str | None = None
    response_logprobs: list[float] | None = None
    reward: float | None = None
    metadata: _TraceMetadata | None = None


class _Trajectory(msgspec.Struct, gc=False):
    status: str | None = None
    metadata: dict[str, Any] | None = None
    traces: list[_Trace] | None = None
    error: str | None = None


class _Session(msgspec.Struct, gc=False):
    session_id: str
    task_id: str
    status: str
    trajectory: _Trajectory
    timing: dict[str, Any] | None = None
    node_id: str | None = None
    error: str | None = None
    metadata: dict[str, Any] | None = None


_DECODER = msgspec.json.Decoder(_Session)
_NO_METADATA = _TraceMetadata()
_STAMPS = ("group_id", "policy_version", "rollout_step", "eval_dataset")


@dataclass(slots=True)
class TraceView:
    """One trace.

    Parameters
    ----------
    tokens
        What is known of its tokens.
    reward
        Finite, or None.
    finish_reason
        Of its last call.
    calls
        Model calls that were merged into it, None if the server does not list them.
    messages
        Messages of the response.
    versions
        Oldest and newest weights, None if nobody said.
    training_filter
        The server's own verdict, empty where there is none.
    """

    tokens: TraceTokens
    reward: float | None
    finish_reason: str | None
    calls: int | None
    messages: int
    versions: tuple[str, str] | None
    training_filter: Mapping[str, Any]


@dataclass(slots=True)
class SessionView:
    """One session, with empty maps for nulls.

    `stamps` is what the submitter stamped on the task, as copied into the metadata of the first trace.
    """

    session_id: str
    task_id: str
    status: str
    error: str | None
    node_id: str | None
    timing: Mapping[str, Any]
    metadata: Mapping[str, Any]
    trajectory_status: str
    trajectory_error: str | None
    trajectory_metadata: Mapping[str, Any]
    stamps: Mapping[str, Any]
    traces: list[TraceView]


def read_session(data: bytes | Raw) -> SessionView:
    """Read one session result.

    Parameters
    ----------
    data
        The result, in wire or stored form.

    Raises
    ------
    ProtocolError
        If it is no session result; see `slime_bridge.protocol.decode_session_result`.
    """
    try:
        found = _DECODER.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return _patient_view(decode_session_result(bytes(data)))
    trajectory = found.trajectory
    metadata = found.metadata or {}
    about = trajectory.metadata or {}
    submitted = metadata.get("policy_version", about.get("policy_version"))
    first = (trajectory.traces[0].metadata if trajectory.traces else None) or _NO_METADATA
    return SessionView(
        session_id=found.session_id,
        task_id=found.task_id,
        status=found.status,
        error=found.error,
        node_id=found.node_id,
        timing=found.timing or {},
        metadata=metadata,
        trajectory_status=trajectory.status or found.status,
        trajectory_error=trajectory.error,
        trajectory_metadata=about,
        stamps={name: getattr(first, name) for name in _STAMPS},
        traces=_trace_views(trajectory.traces or [], submitted),
    )


def _trace_views(traces: list[_Trace], submitted: Any) -> list[TraceView]:
    """Look at all traces of a session; ids and logprobs are read in one go, which is most of the work."""
    prompts = [bytes(trace.prompt_ids) for trace in traces]
    responses = [bytes(trace.response_ids) for trace in traces]
    counts = count_all_ids(prompts + responses)
    numbers = iter(all_packed([t.response_logprobs for t in traces if t.response_logprobs is not None]))
    views = []
    for index, trace in enumerate(traces):
        tokens = _tokens(counts[index], counts[index + len(traces)])
        mask = bytes(trace.loss_mask)
        if len(mask) > 2 and mask != b"null":
            tokens.has_mask = True
            tokens.flags = mask_from_json(mask)
        if trace.response_logprobs is not None:
            tokens.logprobs = next(numbers)
        views.append(_trace_view(trace, tokens, submitted))
    return views


def _trace_view(trace: _Trace, tokens: TraceTokens, submitted: Any) -> TraceView:
    about = trace.metadata or _NO_METADATA
    calls = about.completion_metadata
    return TraceView(
        tokens=tokens,
        reward=_finite(trace.reward),
        finish_reason=trace.finish_reason,
        calls=len(calls) if calls else (1 if trace.metadata is not None else None),
        messages=len(trace.response_messages or ()),
        versions=_versions(about, tokens.flags, submitted),
        training_filter=about.training_filter or {},
    )


def _tokens(prompt: int | None, response: int | None) -> TraceTokens:
    """Return counts; a trace without a single prompt token has lost its ids, whatever else it has."""
    if not prompt:
        return TraceTokens(None, response or None)
    return TraceTokens(prompt, response or 0)


def _versions(about: _TraceMetadata, flags: bytes | None, submitted: Any) -> tuple[str, str] | None:
    calls: list[Any] = list(about.completion_metadata or (about,))
    reported = [
        call.weight_version for call in calls if call.weight_versions is None and call.meta_info is None
    ]
    if len(reported) == len(calls) and type(reported[0]) is str:
        if reported.count(reported[0]) == len(reported):
            return reported[0], reported[0]
        if all(type(version) is str for version in reported):
            return oldest_and_newest(reported)
    for call in calls:
        if any(told is not None for told in (call.weight_version, call.weight_versions, call.meta_info)):
            break
        if call.policy_version is not None and call.policy_version != submitted:
            break
    else:
        return None
    entries = [{name: getattr(call, name) for name in _Call.__struct_fields__} for call in calls]
    merged = {"completion_metadata": entries} if about.completion_metadata else entries[0]
    return oldest_and_newest(read_turns(merged, None, flags or b"", submitted).versions)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _patient_view(result: SessionResult) -> SessionView:
    trajectory = result.trajectory
    submitted = result.metadata.get("policy_version", trajectory.metadata.get("policy_version"))
    return SessionView(
        session_id=result.session_id,
        task_id=result.task_id,
        status=result.status,
        error=result.error,
        node_id=result.node_id,
        timing={name: value for name, value in result.timing.to_dict().items() if value == value},
        metadata=result.metadata,
        trajectory_status=trajectory.status,
        trajectory_error=trajectory.error,
        trajectory_metadata=trajectory.metadata,
        stamps=trajectory.traces[0].metadata if trajectory.traces else {},
        traces=[_patient_trace(trace, submitted) for trace in trajectory.traces],
    )


def _patient_trace(trace: Trace, submitted: Any) -> TraceView:
    about = trace.metadata
    tokens = _tokens(len(trace.prompt_ids), len(trace.response_ids))
    tokens.has_mask = bool(trace.loss_mask)
    tokens.flags = mask_from_numbers(trace.loss_mask) if trace.loss_mask else None
    tokens.logprobs = None if trace.response_logprobs is None else packed(trace.response_logprobs)
    calls = about.get("completion_metadata")
    verdict = about.get("training_filter")
    turns = read_turns(about, trace.finish_reason, tokens.flags or b"", submitted)
    return TraceView(
        tokens=tokens,
        reward=_finite(trace.reward),
        finish_reason=trace.finish_reason,
        calls=len(calls) if isinstance(calls, list) and calls else (1 if about else None),
        messages=len(trace.response_messages),
        versions=oldest_and_newest(turns.versions),
        training_filter=verdict if isinstance(verdict, dict) else {},
    )
