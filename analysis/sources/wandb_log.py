"""The log that W&B writes for a run (``run-<id>.wandb``), read without W&B.

The file is a sequence of blocks of 32 KiB with records in the manner of LevelDB's log: each piece has a
checksum, a length and a kind (whole, first, middle, last). A record is a protocol buffer, of which only the
history is looked at: names, JSON texts, and the step. What a live or killed run leaves unfinished at the end
is reported, not raised.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from analysis.errors import ForeignFileError

__all__ = ["HistoryRow", "LogEnd", "history_rows"]

_MAGIC = b":W&B"
_HEADER_SIZE = 7
_BLOCK = 1 << 15
_PIECE_HEADER = 7
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_HISTORY_FIELD, _ITEM_FIELD, _STEP_FIELD = 2, 1, 2
_KEY, _NESTED_KEY, _VALUE = 1, 2, 16


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """One call of ``wandb.log``, or what W&B made of several.

    Parameters
    ----------
    step
        W&B's own counter, None if the record has none.
    values
        By name; nested names are joined by ``/``.
    """

    step: int | None
    values: dict[str, Any]


@dataclass(slots=True)
class LogEnd:
    """How the log ended.

    Parameters
    ----------
    complete
        Bytes of whole records.
    problem
        What stands behind them, None if nothing.
    damaged
        Records in between that could not be read.
    """

    complete: int = 0
    problem: str | None = None
    damaged: int = 0


def history_rows(data: bytes, end: LogEnd) -> Iterator[HistoryRow]:
    """Read the history of a log.

    Parameters
    ----------
    data
        The file.
    end
        Filled in as the log is read.

    Raises
    ------
    ForeignFileError
        If it is no such log.
    """
    if data[:4] != _MAGIC or len(data) < _HEADER_SIZE:
        raise ForeignFileError("is no W&B log", "its first bytes are others")
    for record in _records(data, end):
        try:
            row = _history(record)
        except (ValueError, IndexError, RecursionError):
            end.damaged += 1
            continue
        if row is not None:
            yield row


def _records(data: bytes, end: LogEnd) -> Iterator[bytes]:
    position = _HEADER_SIZE
    pieces: list[bytes] = []
    end.complete = position
    while position < len(data):
        left = _BLOCK - position % _BLOCK
        if left < _PIECE_HEADER:
            position += left
            continue
        head = data[position : position + _PIECE_HEADER]
        size, kind = int.from_bytes(head[4:6], "little"), head[6] if len(head) == _PIECE_HEADER else 0
        body = data[position + _PIECE_HEADER : position + _PIECE_HEADER + size]
        if len(head) < _PIECE_HEADER or len(body) < size:
            end.problem = "its last record is cut off"
            return
        if not any(head) and not size:
            end.problem = "it ends in zero bytes"
            return
        if kind not in (_WHOLE, _FIRST, _MIDDLE, _LAST) or _checksum(head[6:], body) != head[:4]:
            # The rest of a damaged block cannot be trusted; the next one starts afresh.
            end.damaged += 1
            pieces = []
            position += left
            continue
        position += _PIECE_HEADER + size
        if kind in (_WHOLE, _FIRST):
            pieces = []
        pieces.append(body)
        if kind in (_WHOLE, _LAST):
            end.complete = position
            yield b"".join(pieces)
            pieces = []
    if pieces:
        end.problem = "its last record is cut off"


def _checksum(kind: bytes, body: bytes) -> bytes:
    return zlib.crc32(body, zlib.crc32(kind)).to_bytes(4, "little")


def _history(record: bytes) -> HistoryRow | None:
    history = next((value for field, value in _fields(record) if field == _HISTORY_FIELD), None)
    if not isinstance(history, bytes):
        return None
    values: dict[str, Any] = {}
    step: int | None = None
    for field, value in _fields(history):
        if field == _ITEM_FIELD and isinstance(value, bytes):
            name, content = _item(value)
            if name:
                values[name] = content
        elif field == _STEP_FIELD and isinstance(value, bytes):
            step = next(
                (number for part, number in _fields(value) if part == 1 and isinstance(number, int)), 0
            )
    return HistoryRow(step, values)


def _item(data: bytes) -> tuple[str, Any]:
    names: list[str] = []
    content: Any = None
    for field, value in _fields(data):
        if not isinstance(value, bytes):
            continue
        if field in (_KEY, _NESTED_KEY) and value:
            names.append(value.decode("utf-8", "replace"))
        elif field == _VALUE:
            content = _json(value)
    return "/".join(names), content


def _json(data: bytes) -> Any:
    """Return a JSON value; W&B writes bare NaN and infinities."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        pass
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return data[:200].decode("utf-8", "replace")


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Give the fields of a protocol buffer: number, and an integer or the bytes."""
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        kind = tag & 7
        if kind == 0:
            value, position = _varint(data, position)
            yield tag >> 3, value
            continue
        if kind == 2:
            size, position = _varint(data, position)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"wire type {kind}")
        if position + size > len(data):
            raise ValueError("a field is cut off")
        yield tag >> 3, data[position : position + size]
        position += size


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise ValueError("an endless number")
