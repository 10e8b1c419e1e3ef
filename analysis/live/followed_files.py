"""Files that others append lines to, followed without touching them.

A line counts once its newline is there: a torn last line is one that is still being written, or never will
be. A file that shrinks, or whose name now means another file, is read from its beginning again; new files
are found by pattern. Files are opened for reading only and never kept open, so whoever owns them may rotate,
truncate or remove them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

__all__ = ["FollowedLines", "FollowedRecords"]

_CHUNK_BYTES = 4 * 2**20
_HEAD_BYTES = 256
_MAX_LINE_BYTES = 64 * 2**20


@dataclass(slots=True)
class _Place:
    """How far one file was read."""

    identity: tuple[int, int]
    head: bytes = b""
    offset: int = 0
    skipping: bool = False


class FollowedLines:
    """Complete lines of one file, as they come.

    Parameters
    ----------
    path
        The file; it may not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.restarts = 0
        self._place: _Place | None = None
        self._gone = False

    def new_lines(self) -> Iterator[bytes]:
        """Yield the complete lines that were written since the last call; nothing if there is no file.

        Raises
        ------
        OSError
            If the file is there and cannot be read.
        """
        try:
            with self.path.open("rb") as file:
                place = self._found(file)
                file.seek(place.offset)
                yield from self._read(file, place)
        except FileNotFoundError:
            self._gone = True

    def _found(self, file: BinaryIO) -> _Place:
        """Return where to go on: at the beginning if this is another file, or less of it, than before."""
        status = os.fstat(file.fileno())
        identity = (status.st_dev, status.st_ino)
        # A new file may get the number of a removed one, so its first bytes are compared too.
        head = file.read(_HEAD_BYTES)
        place = self._place
        same = (
            place is not None
            and not self._gone
            and place.identity == identity
            and status.st_size >= place.offset
            and head.startswith(place.head)
        )
        self._gone = False
        if place is None or not same:
            self.restarts += place is not None
            place = self._place = _Place(identity)
        place.head = head
        return place

    def _read(self, file: BinaryIO, place: _Place) -> Iterator[bytes]:
        rest = b""
        while chunk := file.read(_CHUNK_BYTES):
            whole = rest + chunk
            *lines, rest = whole.split(b"\n")
            for line in lines:
                # Moved before the line is handed out: a reader that fails on it does not meet it again.
                place.offset += len(line) + 1
                if place.skipping:
                    place.skipping = False
                elif line.strip():
                    yield line
            if len(rest) > _MAX_LINE_BYTES:
                place.offset += len(rest)
                place.skipping, rest = True, b""


class FollowedRecords:
    """JSON records of all files that match some patterns below a folder, as they come.

    Parameters
    ----------
    folder
        Where to look; it may not exist yet.
    patterns
        File names or globs, relative to the folder.

    Attributes
    ----------
    unreadable : int
        Complete lines so far that hold no JSON object.
    """

    def __init__(self, folder: Path, patterns: Sequence[str]) -> None:
        self.unreadable = 0
        self._folder = folder
        self._patterns = tuple(patterns)
        self._files: dict[Path, FollowedLines] = {}

    @property
    def files(self) -> list[Path]:
        """The files that were found so far."""
        return sorted(self._files)

    @property
    def restarts(self) -> int:
        """How often a file was found replaced or cut, and read from its beginning again."""
        return sum(file.restarts for file in self._files.values())

    def new_records(self) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Yield what was written since the last call, with its file; raises as `FollowedLines`."""
        for pattern in self._patterns:
            for path in sorted(self._folder.glob(pattern), key=lambda p: (len(p.name), p.name)):
                self._files.setdefault(path, FollowedLines(path))
        for path, file in self._files.items():
            for line in file.new_lines():
                try:
                    record = json.loads(line)
                except (ValueError, RecursionError):
                    record = None
                if isinstance(record, dict):
                    yield path, record
                else:
                    self.unreadable += 1
