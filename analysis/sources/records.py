"""JSON objects of a line-oriented file, one after the other, with torn and foreign lines listed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec

from analysis.sources.base import Position, ReadOptions, Sink, SourceFile
from analysis.sources.files import Line, lines_of

__all__ = ["objects_of"]

_TORN = "an incomplete last line"
_FIX = "a live writer completes it; load or refresh again"


def objects_of(file: SourceFile, sink: Sink, options: ReadOptions) -> Iterator[tuple[Line, dict[str, Any]]]:
    """Read the objects of a file from `SourceFile.since` on.

    A line that holds something else is listed and passed over. A last line that is not complete yet is listed
    and left for the next time: the position that the sink gets for the file stands before it, and carries the
    other fields of `SourceFile.since`.

    Yields
    ------
    tuple
        The line and its object.

    Raises
    ------
    LoadError, OSError
        As `analysis.sources.files.lines_of`.
    """
    start = file.since or Position()
    offset, number = start.offset, start.line
    for line in lines_of(file, options):
        value = _decoded(line.data)
        whole = line.data.endswith(b"\n")
        if value is None and not whole:
            sink.problem(_TORN, f"{len(line.data):,} bytes without an end", _FIX, place=str(line.number))
            offset, number = line.offset, line.number
            break
        offset, number = line.offset + len(line.data), line.number + whole
        if isinstance(value, dict):
            yield line, value
        else:
            sink.tally("a line holds no JSON object", f"line {line.number:,}: torn, or of another writer")
    sink.positions[file.path] = Position(offset, number, start.opening, start.rollout_id, start.groups)


def _decoded(data: bytes) -> Any:
    """Return the value of a line, None if it is no JSON; bare NaN and infinities are read."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        pass
    try:
        return json.loads(data.decode("utf-8-sig", "surrogatepass"))
    except (ValueError, RecursionError):
        return None
