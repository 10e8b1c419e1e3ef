"""Polar's wire types: read tolerantly, written exactly.

Reading goes straight from bytes to typed structs. Unknown fields are ignored, nulls and absent fields get the
protocol's defaults, numbers may come as strings, newer timing fields are kept. What the fast decoder refuses
is read once more by a slower and more patient path; a session that even that path cannot read is reported as
a `MalformedSession` in its place, so that its siblings survive. The stored form of a session, which leaves
out ``trajectory.status`` and ``trajectory.error``, loads like the wire form.

The module checks shapes, not sense: lengths, mask values and finiteness are the converter's business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from slime_bridge import _json
from slime_bridge._collection import collection_paused
from slime_bridge.errors import ProtocolError
from slime_bridge.protocol.flat_session import FlatSession
from slime_bridge.protocol.results import (
    MalformedSession,
    SessionResult,
    SessionStatus,
    SessionTiming,
    TaskPayload,
    Trace,
    Trajectory,
    is_terminal,
    task_is_over,
)
from slime_bridge.protocol.server import (
    NodeInfo,
    ServerStatus,
    SubmitReceipt,
    TaskListEntry,
    decode_nodes,
    decode_server_status,
    decode_submit_receipt,
    decode_task_list,
)
from slime_bridge.protocol.session_repair import repair_session
from slime_bridge.protocol.task_request import (
    TASK_ID_PATTERN,
    TaskRequest,
    encode_task_request,
    safe_task_id,
    validate_task_id,
)

__all__ = [
    "TASK_ID_PATTERN",
    "MalformedSession",
    "NodeInfo",
    "ServerStatus",
    "SessionResult",
    "SessionStatus",
    "SessionTiming",
    "SubmitReceipt",
    "TaskListEntry",
    "TaskPayload",
    "TaskRequest",
    "Trace",
    "Trajectory",
    "decode_nodes",
    "decode_server_status",
    "decode_session_result",
    "decode_submit_receipt",
    "decode_task_list",
    "decode_task_payload",
    "encode_task_request",
    "is_terminal",
    "safe_task_id",
    "task_is_over",
    "validate_task_id",
]

T = TypeVar("T")

_WORTH_FLAT_ARRAYS = 1 << 17
"""Bytes of a record below which lists are as fast."""


class _TaskWire(msgspec.Struct, Generic[T]):
    task_id: str
    status: str
    total_sessions: int | None = None
    completed_sessions: int | None = None
    results: list[T] | None | UnsetType = UNSET
    result_paths: list[str] | None = None


def _dec_hook(kind: type, value: Any) -> Any:
    if kind is SessionTiming and isinstance(value, Mapping):
        return SessionTiming.from_mapping(value)
    raise TypeError(f"Expected `object`, got `{type(value).__name__}`")


_SESSION = msgspec.json.Decoder(SessionResult, strict=False, dec_hook=_dec_hook)
_TASK = msgspec.json.Decoder(_TaskWire[SessionResult], strict=False, dec_hook=_dec_hook)
_FLAT_TASK = msgspec.json.Decoder(_TaskWire[FlatSession], strict=False, dec_hook=_dec_hook)
_TASK_OF_RAW = msgspec.json.Decoder(_TaskWire[msgspec.Raw], strict=False)


def decode_session_result(data: bytes | str) -> SessionResult:
    """Decode one session's result, as called back, polled or stored.

    Raises
    ------
    ProtocolError
        If the bytes are not a session result; the message names the byte or the path, never the content.
    """
    try:
        return _SESSION.decode(data)
    except (msgspec.DecodeError, RecursionError):
        pass
    return _session_from_builtins(_json.loads(data))


def decode_task_payload(data: bytes | memoryview | str, *, flat_arrays: bool = False) -> TaskPayload:
    """Decode a task's record: ``TaskStatus`` or ``TaskResult``.

    Sessions that cannot be read become `MalformedSession` entries at their position; the others are decoded.

    Parameters
    ----------
    data
        The record as it was received: UTF-8 in anything that has a buffer, or text. Nothing returned refers
        to it.
    flat_arrays
        Allow the number arrays of traces to be memoryviews of 64-bit numbers, as the converter takes them
        too; that is twice as fast for large records. What they hold is the same.

    Raises
    ------
    ProtocolError
        If the bytes are not a task record; the message names the byte or the path, never the content.
    """
    with collection_paused():
        if flat_arrays and not isinstance(data, str) and len(data) >= _WORTH_FLAT_ARRAYS:
            try:
                return _task_payload(_FLAT_TASK.decode(data), None)
            except (msgspec.DecodeError, RecursionError):
                pass
        try:
            return _task_payload(_TASK.decode(data), None)
        except (msgspec.DecodeError, RecursionError):
            pass
        try:
            raw_task = _TASK_OF_RAW.decode(data)
        except (msgspec.DecodeError, RecursionError):
            task = _convert(_json.loads(data), _TaskWire[Any], "task record")
            return _task_payload(task, _session_or_malformed)
        return _task_payload(raw_task, _raw_session)


def _task_payload(
    wire: _TaskWire[Any], read: Callable[[int, Any], SessionResult | MalformedSession] | None
) -> TaskPayload:
    if wire.results is UNSET and wire.total_sessions is None:
        raise ProtocolError("not a task record: Object has neither `results` nor `total_sessions`")
    results = wire.results or []
    return TaskPayload(
        task_id=wire.task_id,
        status=wire.status,
        total_sessions=wire.total_sessions,
        completed_sessions=wire.completed_sessions,
        results=results if read is None else [read(index, value) for index, value in enumerate(results)],
        result_paths=wire.result_paths or [],
    )


def _raw_session(index: int, raw: msgspec.Raw) -> SessionResult | MalformedSession:
    try:
        return _SESSION.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        pass
    try:
        value = _json.loads(bytes(raw))
    except ProtocolError as exc:
        return MalformedSession(index, None, str(exc))
    return _session_or_malformed(index, value)


def _session_or_malformed(index: int, value: Any) -> SessionResult | MalformedSession:
    try:
        return _session_from_builtins(value)
    except ProtocolError as exc:
        session_id = value.get("session_id") if isinstance(value, dict) else None
        return MalformedSession(index, session_id if isinstance(session_id, str) else None, str(exc))


def _session_from_builtins(value: Any) -> SessionResult:
    return _convert(repair_session(value), SessionResult, "session result")


def _convert(value: Any, kind: type[T], name: str) -> T:
    try:
        return msgspec.convert(value, kind, strict=False, dec_hook=_dec_hook)
    except msgspec.ValidationError as exc:
        problem = f"not a {name}: {exc}"
    except RecursionError:
        problem = f"not a {name}: too deeply nested"
    raise ProtocolError(problem)
