"""Reading whole files and lines, with the limits and the kinds of errors that all readers share."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from analysis.errors import FileLimitError, ForeignFileError, IncompleteFileError, LoadError
from analysis.sources.base import ReadOptions, SourceFile

__all__ = [
    "EXPANSION",
    "REPEATED",
    "Line",
    "check_size",
    "damaged_json",
    "decode_json",
    "lines_of",
    "read_bytes",
]

EXPANSION = 25
"""How many times its size a JSON document may take in memory, once decoded: lists of empty lists do."""

REPEATED = 8
"""How many bytes a character of a cell may take, in all tables and on the way there."""

_AGAIN = "load it again when it is complete"
_BOM = b"\xef\xbb\xbf"


def read_bytes(file: SourceFile, options: ReadOptions) -> bytes:
    """Return a file's content.

    Raises
    ------
    IncompleteFileError
        If it is empty.
    FileLimitError
        If it is larger than the options allow.
    ForeignFileError
        If it is no regular file.
    OSError
        If it cannot be read.
    """
    limit = options.memory_limit() // EXPANSION
    # Never waits for the other end of a pipe.
    descriptor = os.open(file.path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ForeignFileError("is no regular file")
        if status.st_size > limit:
            raise _too_large(status.st_size, limit)
        data = os.read(descriptor, status.st_size)
        while len(data) < status.st_size and (more := os.read(descriptor, status.st_size - len(data))):
            data += more
    finally:
        os.close(descriptor)
    if not data:
        raise IncompleteFileError("is empty", "", _AGAIN)
    return data


def check_size(file: SourceFile, options: ReadOptions) -> None:
    """Refuse a file whose rows would take too much memory all at once.

    Raises
    ------
    FileLimitError
        If it is larger than the options allow.
    OSError
        If it cannot be looked at.
    """
    size, limit = os.stat(file.path).st_size, options.memory_limit() // EXPANSION
    if size > limit:
        raise _too_large(size, limit)


def _too_large(size: int, limit: int) -> FileLimitError:
    return FileLimitError(
        "is too large",
        f"{size / 2**20:,.1f} MiB of at most {limit / 2**20:,.1f} MiB",
        "pass a larger `max_bytes` if the file is genuine",
    )


def decode_json(data: bytes) -> Any:
    """Decode one JSON document; bare NaN and infinities, which Python's writers emit, are read too.

    Raises
    ------
    LoadError
        As `damaged_json`.
    """
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        pass
    try:
        return json.loads(data.decode("utf-8-sig", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        failure = error
    raise damaged_json(data, failure)


def damaged_json(data: bytes, error: BaseException) -> LoadError:
    """Return the error for a document that cannot be decoded: torn, not JSON, or too deeply nested."""
    start = data[:64].removeprefix(_BOM).lstrip()
    if not start.strip(b"\x00"):
        return IncompleteFileError("is empty", "nothing but blanks or zero bytes", _AGAIN)
    if isinstance(error, RecursionError) or "nested" in str(error):
        return FileLimitError("is too deeply nested", "JSON inside JSON beyond what any server sends")
    if not start.startswith((b"{", b"[")):
        return ForeignFileError("is no JSON document")
    end = data[-64:].rstrip()
    if not end.endswith((b"}", b"]")) or "truncated" in str(error) or _unfinished(error, data):
        return IncompleteFileError(
            "ends too early", "its JSON is cut off: torn, or still being written", _AGAIN
        )
    if isinstance(error, json.JSONDecodeError):
        return LoadError("is damaged", f"not JSON: {error.msg} at character {error.pos:,}")
    return LoadError("is damaged", f"{type(error).__name__}: {str(error)[:200]}")


def _unfinished(error: BaseException, data: bytes) -> bool:
    """Tell whether a parser got to the very end and wanted more."""
    return isinstance(error, json.JSONDecodeError) and error.pos >= len(error.doc.rstrip())


@dataclass(frozen=True, slots=True)
class Line:
    """One complete line of a file.

    Parameters
    ----------
    number
        From 1.
    offset
        Byte at which it begins.
    data
        Its bytes, with the newline where there is one.
    """

    number: int
    offset: int
    data: bytes


def lines_of(file: SourceFile, options: ReadOptions) -> Iterator[Line]:
    """Read a file line by line, from `SourceFile.since` on; blank lines are left out.

    A last line without a newline is given too: a writer may not have finished it.

    Raises
    ------
    FileLimitError
        If a line is larger than the options allow.
    ForeignFileError
        If it is no regular file.
    OSError
        If it cannot be read.
    """
    if not stat.S_ISREG(os.stat(file.path).st_mode):
        raise ForeignFileError("is no regular file")
    limit = options.memory_limit() // EXPANSION
    offset = file.since.offset if file.since else 0
    number = file.since.line if file.since else 1
    with open(file.path, "rb") as stream:
        stream.seek(offset)
        while data := stream.readline(limit):
            if len(data) >= limit:
                raise FileLimitError(
                    "holds an enormous line", f"line {number:,}", "pass a larger `max_bytes` if it is genuine"
                )
            if data.strip(b" \r\n\t\x00"):
                yield Line(number, offset, data)
            offset += len(data)
            number += 1
