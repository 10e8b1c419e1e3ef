"""Lines of strict JSON, and append-only files with one writer each, for `slime_bridge.journal`."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from slime_bridge.errors import JournalError

__all__ = ["LineFile", "encode_json", "open_pair", "prompt_fields"]

MAX_PREVIEW_CHARS = 200
_MAX_DEPTH = 50
_MAX_FILES = 1000


def encode_json(value: Any) -> bytes:
    """Encode any value as one line of strict JSON.

    Parameters
    ----------
    value
        Plain containers, dataclasses and enums; NumPy scalars and arrays become numbers and lists, anything
        else its text.

    Returns
    -------
    bytes
        UTF-8 without a newline. Non-finite numbers are ``null``; lone surrogates are U+FFFD.

    Raises
    ------
    TypeError
        An object's own conversion to text failed.
    """
    try:
        return _ENCODER.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        # Lone surrogates, keys that are no text, cycles: rare enough to be walked in Python.
        return json.dumps(_plain(value, _MAX_DEPTH), allow_nan=False, separators=(",", ":")).encode()


def prompt_fields(prompt: Any) -> dict[str, str]:
    """Identify a prompt in a record without keeping all of it.

    Parameters
    ----------
    prompt
        The prompt text, or its list of chat messages.

    Returns
    -------
    dict
        ``prompt_sha256``, over the text or the messages' JSON, and ``prompt_preview``, its first 200
        characters.
    """
    text = prompt if isinstance(prompt, str) else encode_json(prompt).decode()
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return {"prompt_sha256": digest, "prompt_preview": text[:MAX_PREVIEW_CHARS]}


def _foreign(value: Any) -> Any:
    """Turn an object that msgspec does not know into one that it does."""
    for name in ("to_dict", "tolist"):  # our own records; NumPy arrays and scalars, tensors
        convert = getattr(value, name, None)
        if callable(convert):
            return convert()
    return str(value)


def _plain(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, str):
        # UTF-16 joins the halves of a pair; a half that stands alone becomes U+FFFD.
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if depth == 0:
        return "..."
    if isinstance(value, Mapping):
        return {_plain(str(key), depth): _plain(item, depth - 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item, depth - 1) for item in value]
    builtin = msgspec.to_builtins(value, enc_hook=_foreign)
    return builtin if isinstance(builtin, str) else _plain(builtin, depth - 1)


_ENCODER = msgspec.json.Encoder(enc_hook=_foreign)


class LineFile:
    """A locked file that lines are appended to.

    Parameters
    ----------
    path
        The file; created if missing.
    descriptor
        An open descriptor of it, for reading and appending, whose lock is held.

    Attributes
    ----------
    dirty : bool
        Whether something was written since the last sync.
    written_lines : int
        Lines of the last `write` that are complete in the file.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.dirty = False
        self.written_lines = 0
        self._descriptor: int | None = descriptor
        size = os.fstat(descriptor).st_size
        self._torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"

    def write(self, data: bytes) -> None:
        """Append whole lines.

        Parameters
        ----------
        data
            Lines, each ending in a newline. After a torn line they start on a fresh one.

        Raises
        ------
        OSError
            The disk refused some of it; `written_lines` says how many lines made it.
        """
        self.written_lines = 0
        if not data or self._descriptor is None:
            return
        lead = b"\n" if self._torn else b""
        view = memoryview(lead + data)
        written = 0
        try:
            while written < len(view):
                written += os.write(self._descriptor, view[written:])
        finally:
            if written:
                self.dirty = True
                self._torn = view[written - 1] != ord("\n")
            self.written_lines = data[: max(0, written - len(lead))].count(b"\n")

    def sync(self) -> None:
        """Bring what was written to the disk; OSError where that fails."""
        if self.dirty and self._descriptor is not None:
            os.fsync(self._descriptor)
            self.dirty = False

    def close(self) -> None:
        """Close the file and release its lock."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            with contextlib.suppress(
                OSError
            ):  # nothing more can be done for a descriptor that does not close
                os.close(descriptor)


def open_pair(directory: Path) -> tuple[LineFile, LineFile]:
    """Open the journal and the rejected file of a folder that no other writer holds.

    Parameters
    ----------
    directory
        The folder; created if missing.

    Returns
    -------
    tuple of LineFile
        ``journal.jsonl`` and ``rejected.jsonl``, or the first numbered pair that is free.

    Raises
    ------
    JournalError
        The folder cannot be created or written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for number in range(_MAX_FILES):
            suffix = f".{number}.jsonl" if number else ".jsonl"
            descriptor = _open_locked(directory / f"journal{suffix}")
            if descriptor is not None:
                rejected = directory / f"rejected{suffix}"
                return LineFile(directory / f"journal{suffix}", descriptor), LineFile(
                    rejected, _open(rejected)
                )
    except OSError as error:
        raise JournalError(
            f"{directory}: the journal's folder cannot be used: {error.strerror or error}"
        ) from error
    raise JournalError(f"{directory}: {_MAX_FILES} journals in this folder are in use")


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _open_locked(path: Path) -> int | None:
    """Open and lock the file, or return None where another writer has it."""
    descriptor = _open(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        # Some network file systems have no locks: there a file with content counts as somebody else's.
        lockless = error.errno in {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}
        if lockless and os.fstat(descriptor).st_size == 0:
            return descriptor
        os.close(descriptor)
        if lockless or isinstance(error, BlockingIOError):
            return None
        raise
    return descriptor
