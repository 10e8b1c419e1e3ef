"""Where the messages of a session lie, and how they are read from each kind of file.

A session result holds the messages of every trace; a dump and a rejected group hold those that the bridge
kept of a sample; a captured model call holds all messages up to it. Nothing is read before somebody asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
from msgspec import Raw

from analysis.errors import LoadError
from analysis.safe_pickle import load_pt
from analysis.sources.base import ReadOptions, SourceFile, SourceKind
from analysis.sources.files import decode_json, lines_of, read_bytes
from analysis.sources.token_stats import mask_from_json, mask_from_numbers
from analysis.sources.values import integer, mapping, number, text
from analysis.store import Store
from slime_bridge.conversion.turns import read_turns
from slime_bridge.sample_view import polar_metadata

__all__ = ["MessagePlaces", "RawTrace", "has_messages", "read_traces"]


@dataclass(frozen=True, slots=True)
class RawTrace:
    """What a file says about one trace, messages undecoded.

    Parameters
    ----------
    trace_index
        Number in its session, None if the file does not say.
    prompt, response, tools
        As they stand in the file.
    turns
        One mapping per model call, as `slime_bridge.conversion.turns.TurnReport.to_list` gives them.
    finish_reason, reward
        As received.
    """

    trace_index: int | None
    prompt: Any = None
    response: Any = None
    tools: Any = None
    turns: tuple[Mapping[str, Any], ...] = ()
    finish_reason: str | None = None
    reward: float | None = None


class _Trace(msgspec.Struct, gc=False):
    prompt_messages: Any = None
    response_messages: Any = None
    tools: Any = None
    loss_mask: Raw = msgspec.field(default_factory=Raw)
    finish_reason: Any = None
    reward: Any = None
    metadata: Any = None


class _Trajectory(msgspec.Struct, gc=False):
    traces: list[_Trace] | None = None


class _Session(msgspec.Struct, gc=False):
    session_id: str
    trajectory: _Trajectory | None = None
    metadata: Any = None


class _Named(msgspec.Struct, gc=False):
    session_id: str = ""


class _Task(msgspec.Struct, gc=False):
    results: list[Raw] | None = None


_SESSION = msgspec.json.Decoder(_Session)
_NAMED = msgspec.json.Decoder(_Named)
_TASK = msgspec.json.Decoder(_Task)

_RANKS: Mapping[SourceKind, int] = {
    SourceKind.POLAR_SESSION: 0,
    SourceKind.POLAR_TASK: 1,
    SourceKind.COMPLETION: 2,
    SourceKind.ROLLOUT_DUMP: 3,
    SourceKind.REJECTED: 4,
}


class MessagePlaces:
    """Which files hold messages of which session; looked up anew when the store was refreshed.

    Parameters
    ----------
    store
        Of a loaded run.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._generation: int | None = None
        self._places: dict[str, list[SourceFile]] = {}

    def files(self, session_id: str, run: str | None = None) -> list[SourceFile]:
        """Return the files that may hold a session's messages, best first.

        Parameters
        ----------
        session_id
            Polar's id.
        run
            Name of the run, where several are loaded.
        """
        store = self._store
        if self._generation != store.generation:
            self._places = self._look_up()
            self._generation = store.generation
        found = self._places.get(session_id, [])
        if run is not None:
            found = [file for file in found if store.run_names.get(file.path) == run] or found
        return found

    def _look_up(self) -> dict[str, list[SourceFile]]:
        files = self._store.records.files
        places: dict[str, dict[str, SourceFile]] = {}
        for grain in ("session", "completion"):
            table = self._store.records.tables.get(grain)
            if table is None or "session_id" not in table.column_names:
                continue
            names = table.column("session_id").to_pylist()
            paths = table.column("path").cast(pa.string()).to_pylist()
            for name, path in zip(names, paths, strict=True):
                file = files.get(path)
                if name is not None and file is not None and file.kind in _RANKS:
                    places.setdefault(name, {})[path] = file
        return {
            name: sorted(found.values(), key=lambda file: (_RANKS[file.kind], file.path))
            for name, found in places.items()
        }


def read_traces(file: SourceFile, session_id: str, options: ReadOptions) -> list[RawTrace]:
    """Read the messages of one session from one file.

    Parameters
    ----------
    file
        One of `MessagePlaces.files`.
    session_id
        Which session.
    options
        As the run was loaded.

    Returns
    -------
    list of RawTrace
        Empty if the file holds no message of the session (any more).

    Raises
    ------
    LoadError
        If it cannot be read.
    OSError
        If it cannot be opened.
    """
    return _READERS[file.kind](file, session_id, options)


def _from_session(file: SourceFile, session_id: str, options: ReadOptions) -> list[RawTrace]:
    return _session_traces(read_bytes(file, options), session_id)


def _from_task(file: SourceFile, session_id: str, options: ReadOptions) -> list[RawTrace]:
    data = read_bytes(file, options)
    try:
        parts = _TASK.decode(data).results or []
        for part in parts:
            if _NAMED.decode(part).session_id == session_id:
                return _session_traces(bytes(part), session_id)
    except (msgspec.DecodeError, RecursionError):
        results = mapping(decode_json(data)).get("results")
        for result in results if isinstance(results, list) else ():
            if mapping(result).get("session_id") == session_id:
                return _patient_traces(mapping(result))
    return []


def _session_traces(data: bytes, session_id: str) -> list[RawTrace]:
    try:
        found = _SESSION.decode(data)
    except (msgspec.DecodeError, RecursionError):
        # Bare NaN, half surrogate pairs, and fields of other types than any server sends.
        return _patient_traces(mapping(decode_json(data)))
    if found.session_id != session_id:
        return []
    traces = found.trajectory.traces if found.trajectory is not None else None
    submitted = mapping(found.metadata).get("policy_version")
    return [
        _raw_trace(
            index,
            {name: getattr(trace, name) for name in _Trace.__struct_fields__},
            mask_from_json(bytes(trace.loss_mask)) if memoryview(trace.loss_mask).nbytes > 2 else None,
            submitted,
        )
        for index, trace in enumerate(traces or ())
    ]


def _patient_traces(result: Mapping[str, Any]) -> list[RawTrace]:
    traces = mapping(result.get("trajectory")).get("traces")
    submitted = mapping(result.get("metadata")).get("policy_version")
    found = []
    for index, trace in enumerate(traces if isinstance(traces, list) else ()):
        mask = mapping(trace).get("loss_mask")
        flags = mask_from_numbers(mask) if isinstance(mask, list) and mask else None
        found.append(_raw_trace(index, mapping(trace), flags, submitted))
    return found


def _raw_trace(index: int, trace: Mapping[str, Any], flags: bytes | None, submitted: Any) -> RawTrace:
    reason = text(trace.get("finish_reason"))
    report = read_turns(mapping(trace.get("metadata")), reason, flags or b"", submitted)
    return RawTrace(
        trace_index=index,
        prompt=trace.get("prompt_messages"),
        response=trace.get("response_messages"),
        tools=trace.get("tools"),
        turns=tuple(report.to_list()),
        finish_reason=reason,
        reward=number(trace.get("reward")),
    )


def _from_completion(file: SourceFile, session_id: str, options: ReadOptions) -> list[RawTrace]:
    """Read one captured call: all that had been said before it, and its answer."""
    record = mapping(decode_json(read_bytes(file, options)))
    about = mapping(record.get("metadata"))
    if text(record.get("session_id", about.get("session_id"))) != session_id:
        return []
    request = mapping(record.get("transformed_request", record.get("request")))
    choices = mapping(record.get("response")).get("choices")
    choice = mapping(choices[0]) if isinstance(choices, list) and choices else {}
    answer = choice.get("message")
    reason = choice.get("finish_reason")
    reason = text(reason.get("type") if isinstance(reason, Mapping) else reason)
    return [
        RawTrace(
            trace_index=None,
            prompt=request.get("messages"),
            response=[answer] if isinstance(answer, Mapping) else None,
            tools=request.get("tools"),
            turns=({"start": None, "end": None, "weight_version": None, "finish_reason": reason},),
            finish_reason=reason,
        )
    ]


def _from_dump(file: SourceFile, session_id: str, options: ReadOptions) -> list[RawTrace]:
    content = mapping(load_pt(file.path, trusted=options.trusted, max_bytes=options.memory_limit()))
    return _sample_traces(content.get("samples"), session_id)


def _from_rejected(file: SourceFile, session_id: str, options: ReadOptions) -> list[RawTrace]:
    wanted = session_id.encode("utf-8", "replace")
    found: list[RawTrace] = []
    for line in lines_of(file, options):
        # The id stands in the line as it is, unless it needs an escape, and then the line is decoded too.
        if wanted not in line.data and session_id.isascii() and session_id.isprintable():
            continue
        try:
            record = decode_json(line.data)
        except LoadError:
            continue  # a torn last line; loading the run has told so
        found += _sample_traces(mapping(record).get("samples"), session_id)
    return found


def _sample_traces(samples: Any, session_id: str) -> list[RawTrace]:
    found = []
    for sample in samples if isinstance(samples, list | tuple) else ():
        polar = polar_metadata(mapping(sample))
        if text(polar.get("session_id")) != session_id:
            continue
        debug = mapping(polar.get("trace_debug"))
        turns = polar.get("turns")
        reward = mapping(sample).get("reward")
        found.append(
            RawTrace(
                trace_index=integer(polar.get("trace_index")),
                prompt=mapping(sample).get("prompt"),
                response=debug.get("response_messages", mapping(sample).get("response") or None),
                turns=tuple(mapping(turn) for turn in turns) if isinstance(turns, list) else (),
                finish_reason=text(debug.get("finish_reason")),
                reward=number(reward),
            )
        )
    return sorted(found, key=lambda trace: -1 if trace.trace_index is None else trace.trace_index)


_READERS: Mapping[SourceKind, Callable[[SourceFile, str, ReadOptions], list[RawTrace]]] = {
    SourceKind.POLAR_SESSION: _from_session,
    SourceKind.POLAR_TASK: _from_task,
    SourceKind.COMPLETION: _from_completion,
    SourceKind.ROLLOUT_DUMP: _from_dump,
    SourceKind.REJECTED: _from_rejected,
}


def has_messages(traces: Iterable[RawTrace]) -> bool:
    """Tell whether any trace holds a message."""
    return any(trace.prompt or trace.response for trace in traces)
