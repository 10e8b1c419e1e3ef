"""Where the token arrays of a session result lie in its file, found when somebody asks for tokens.

The file is walked over without decoding what is in it; an array's place follows from the memory address of
its undecoded part. So a window into one trace costs the reading of that trace's arrays, however long the
others are, and loading tables costs nothing for tokens that nobody looks at.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from msgspec import Raw

__all__ = ["ARRAYS", "Places", "places_of"]

ARRAYS = ("prompt", "response", "mask", "logprob")
"""Names of a trace's token arrays."""

Places = Mapping[str, tuple[int, int]]
"""Offset and length in bytes of each of `ARRAYS` that a trace has."""


class _Trace(msgspec.Struct, gc=False):
    prompt_ids: Raw = msgspec.field(default_factory=Raw)
    response_ids: Raw = msgspec.field(default_factory=Raw)
    loss_mask: Raw = msgspec.field(default_factory=Raw)
    response_logprobs: Raw = msgspec.field(default_factory=Raw)


class _Trajectory(msgspec.Struct, gc=False):
    traces: list[_Trace] | None = None


class _Session(msgspec.Struct, gc=False):
    trajectory: _Trajectory | None = None


class _Task(msgspec.Struct, gc=False):
    results: list[Raw] | None = None


_SESSION = msgspec.json.Decoder(_Session)
_TASK = msgspec.json.Decoder(_Task)


def places_of(data: bytes, result: int | None = None) -> list[Places] | None:
    """Find the token arrays of all traces of a session.

    Parameters
    ----------
    data
        The file.
    result
        Place of the session in a task's record; None for a file that is the session.

    Returns
    -------
    list of mapping or None
        For each trace, offset and length in bytes of each of `ARRAYS` that is there, brackets included. None
        where the file is no strict JSON, or another file than it was: it must be decoded as a whole then.
    """
    try:
        part: bytes | Raw = data
        if result is not None:
            results = _TASK.decode(data).results or []
            if result >= len(results):
                return None
            part = results[result]
        session = _SESSION.decode(part)
    except (msgspec.DecodeError, RecursionError):
        return None
    traces = session.trajectory.traces if session.trajectory is not None else None
    base = _address(data)
    return [_places(trace, base) for trace in traces or ()]


def _places(trace: _Trace, base: int) -> dict[str, tuple[int, int]]:
    parts = (trace.prompt_ids, trace.response_ids, trace.loss_mask, trace.response_logprobs)
    places = {}
    for name, part in zip(ARRAYS, parts, strict=True):
        view = memoryview(part)
        if view.nbytes and view[0] == ord("["):
            places[name] = (_address(part) - base, view.nbytes)
    return places


def _address(buffer: Any) -> int:
    address: int = np.frombuffer(buffer, dtype=np.uint8).__array_interface__["data"][0]
    return address
