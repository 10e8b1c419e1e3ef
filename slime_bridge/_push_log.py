"""Which weight pushes waited until no model call was in flight: in memory, and in a file for others.

The process that pushes weights is rarely the one that collects rollouts. Where both know the run's folder,
the first notes each push in a file there, and the second can tell that a change of weights between two turns
of a session cut nothing. Whatever is not proved counts as a push that may have cut a turn.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

__all__ = ["FILE_NAME", "Push", "PushLog", "note_push", "pushes_were_guarded"]

logger = logging.getLogger(__name__)

FILE_NAME = "weight_pushes.jsonl"
"""One line per push in the run's folder: ``{"ts": Unix seconds, "server": URL, "guarded": bool}``."""

_KEPT = 10_000
_TAIL_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Push:
    """One weight push: when (Unix seconds), and whether no model call was in flight."""

    ts: float
    guarded: bool


class PushLog:
    """The pushes that this process knows of; usable from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._own: dict[str, deque[Push]] = {}
        self._read: dict[Path, tuple[tuple[int, int], dict[str, list[Push]]]] = {}
        self._warned = False

    def note(self, server: str, run_dir: str | None, *, guarded: bool) -> None:
        """Remember a push that is about to happen; a file that cannot be written costs a warning."""
        push = Push(time.time(), guarded)
        with self._lock:
            self._own.setdefault(server, deque(maxlen=_KEPT)).append(push)
        if run_dir is None:
            return
        line = json.dumps({"ts": push.ts, "server": server, "guarded": guarded}) + "\n"
        try:
            os.makedirs(run_dir, exist_ok=True)
            # One write: lines of several processes do not run into each other.
            descriptor = os.open(Path(run_dir) / FILE_NAME, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                os.write(descriptor, line.encode())
            finally:
                os.close(descriptor)
        except OSError as error:
            self._warn("Weight pushes cannot be noted in %s: %s", run_dir, error)

    def guarded_since(self, server: str, run_dir: str | None, since: float) -> bool:
        """Tell whether there was a push since a time (Unix seconds), and no model call in flight at any."""
        with self._lock:
            pushes = list(self._own.get(server, ()))
            if run_dir is not None:
                pushes += self._of_others(Path(run_dir) / FILE_NAME).get(server, [])
        later = [push.guarded for push in pushes if push.ts >= since]
        return bool(later) and all(later)

    def _of_others(self, path: Path) -> dict[str, list[Push]]:
        """Read the file again if it has changed."""
        try:
            status = path.stat()
        except OSError:
            return {}
        mark = (status.st_size, status.st_mtime_ns)
        known = self._read.get(path)
        if known is None or known[0] != mark:
            try:
                with path.open("rb") as file:
                    file.seek(max(0, status.st_size - _TAIL_BYTES))
                    known = (mark, _pushes(file.read()))
            except OSError as error:
                self._warn("%s cannot be read: %s", path, error)
                return {}
            self._read[path] = known
        return known[1]

    def _warn(self, message: str, *values: object) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(message, *values)


def _pushes(content: bytes) -> dict[str, list[Push]]:
    """Read lines; one that is torn, at the start of the tail or by a writer at work, says nothing."""
    found: dict[str, list[Push]] = {}
    for line in content.splitlines():
        try:
            entry = json.loads(line)
            push = Push(float(entry["ts"]), entry["guarded"] is True)
            found.setdefault(entry["server"], []).append(push)
        except (ValueError, TypeError, KeyError):
            continue
    return found


_log = PushLog()
note_push = _log.note
pushes_were_guarded = _log.guarded_since
