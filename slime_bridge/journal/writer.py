"""Append-only event log of a run, written by its own thread so that it can neither stop nor slow training.

A folder holds ``journal.jsonl``, one record per line, and ``rejected.jsonl``, one rejected group with its
samples per line. The events and their fields stand in `slime_bridge.journal.schema`.

Decisions:

- **Strict JSON.** NaN and the infinities do not exist in JSON and are written as ``null``; a reader takes
  ``null`` for missing. Lone surrogates become U+FFFD. Objects of unknown types are written as their text.
- **Never in the way.** `Journal.record` encodes the record, puts it on a bounded queue and returns; it raises
  nothing. When the queue is full the new record is dropped, and a ``records_dropped`` record with the count
  by event is written at that place as soon as there is room. Dropped records use up their ``seq``, so a
  reader sees the gap as well.
- **Durability.** Every batch reaches the operating system with one write, so a killed process loses at most
  what is still queued. The file is synced to disk every `fsync_interval` seconds while there is something
  new, and at close.
- **One writer per file.** The file is locked while it is open. A second process, or a second journal in this
  one, gets ``journal.1.jsonl`` (then ``.2`` and so on) and the rejected file of the same number.
- **Torn lines are normal.** A file that does not end in a newline is continued on a fresh line, nothing is
  cut off, and `read_journal` passes over the fragment and reports it.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.metadata
import logging
import os
import platform
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slime_bridge.errors import JournalError
from slime_bridge.journal.audit import JournalAuditor, Violation, audit
from slime_bridge.journal.files import LineFile, encode_json, open_pair, prompt_fields
from slime_bridge.journal.reader import JournalProblem, read_journal
from slime_bridge.journal.schema import SCHEMA_VERSION, EventLog, NullJournal

__all__ = [
    "EventLog",
    "Journal",
    "JournalAuditor",
    "JournalProblem",
    "NullJournal",
    "Violation",
    "audit",
    "open_journal",
    "prompt_fields",
    "read_journal",
]

logger = logging.getLogger(__name__)

_MAX_REJECTED_WAITING = 64
_MAX_QUEUED_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class _Item:
    """One line to be written; a report of lost records also holds what it reports."""

    event: str
    line: bytes
    lost: Counter[str] | None = None


class Journal(EventLog):
    """The event log in a folder.

    Parameters
    ----------
    directory
        Folder of the files; created if missing.
    config
        The resolved configuration for the first record, with secrets already masked.
    versions
        Versions of further parts (Slime, Polar) for the first record.
    max_queue
        Records that may wait for the writer; beyond it new ones are dropped and counted.
    fsync_interval
        Seconds between two syncs to disk while there is something new.

    Raises
    ------
    JournalError
        The folder or the file cannot be created, locked or written.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        config: Mapping[str, Any] | None = None,
        versions: Mapping[str, Any] | None = None,
        max_queue: int = 20_000,
        fsync_interval: float = 5.0,
    ) -> None:
        self._events, self._rejected = open_pair(Path(directory))
        self._max_queue = max_queue
        self._fsync_interval = fsync_interval
        self._wakeup = threading.Condition()
        self._queue: deque[_Item] = deque()
        self._queued_bytes = 0
        self._groups: deque[tuple[bytes, Sequence[Any]]] = deque()
        self._lost: Counter[str] = Counter()
        self._dropped = 0
        self._seq = 0
        self._accepted = 0
        self._settled = 0
        self._closing = False
        self._warned = False
        self._pid = os.getpid()
        opened = {
            "versions": {**_versions(), **(versions or {})},
            "config": dict(config or {}),
            "pid": self._pid,
        }
        try:
            self._events.write(self._encode("journal_opened", opened) + b"\n")
        except OSError as error:
            self._events.close()
            raise JournalError(f"{self._events.path}: cannot write the journal: {error}") from error
        self._thread = threading.Thread(target=self._run, name="polar-journal", daemon=True)
        self._thread.start()
        atexit.register(self.close, 2.0)

    @property
    def path(self) -> Path:
        """The file that the records go to."""
        return self._events.path

    @property
    def rejected_path(self) -> Path:
        """The file of rejected groups; it exists once a group was rejected."""
        return self._rejected.path

    @property
    def dropped(self) -> int:
        """Number of records that were lost because the queue was full or the disk refused them."""
        return self._dropped

    def record(self, event: str, /, **fields: Any) -> None:
        """Note one event; see `EventLog.record`."""
        try:
            with self._wakeup:
                if not self._takes_records():
                    return
                if len(self._queue) >= self._max_queue or self._queued_bytes >= _MAX_QUEUED_BYTES:
                    self._seq += 1
                    self._lose(event)
                    return
                line = self._encode(event, fields)
                self._queue.append(_Item(event, line))
                self._queued_bytes += len(line)
                self._accepted += 1
                self._wakeup.notify_all()
        except Exception:  # whatever a caller put into a record, training goes on
            self._failed(event)

    def rejected_group(
        self,
        *,
        group: int,
        rollout_id: int | None,
        reason: str,
        numbers: Mapping[str, Any],
        samples: Sequence[Any],
    ) -> None:
        """Keep the samples of a rejected group; see `EventLog.rejected_group`."""
        head = {"v": SCHEMA_VERSION, "ts": time.time(), "group": group, "rollout_id": rollout_id}
        try:
            encoded = encode_json({**head, "reason": reason, "numbers": numbers})
            with self._wakeup:
                if not self._takes_records():
                    return
                if len(self._groups) >= _MAX_REJECTED_WAITING:
                    self._lose("rejected_samples")
                    return
                self._groups.append((encoded, samples))
                self._accepted += 1
                self._wakeup.notify_all()
        except Exception:  # whatever a caller put into a group, training goes on
            self._failed("rejected_samples")

    def flush(self, timeout: float = 5.0) -> bool:
        """Wait until everything recorded so far is written; see `EventLog.flush`."""
        deadline = time.monotonic() + timeout
        with self._wakeup:
            target = self._accepted
            return self._wakeup.wait_for(
                lambda: self._settled >= target, timeout=max(0.0, deadline - time.monotonic())
            )

    def close(self, timeout: float = 5.0) -> None:
        """Write what is queued, then let go of the files; see `EventLog.close`."""
        with self._wakeup:
            self._closing = True
            self._wakeup.notify_all()
        atexit.unregister(self.close)
        if os.getpid() == self._pid and threading.current_thread() is not self._thread:
            self._thread.join(timeout)
            if self._thread.is_alive():
                logger.warning("%s: the disk does not answer; the journal is left open", self._events.path)

    def _takes_records(self) -> bool:
        return not self._closing and os.getpid() == self._pid  # a forked child has no writer thread

    def _encode(self, event: str, fields: Mapping[str, Any]) -> bytes:
        envelope = {"v": SCHEMA_VERSION, "seq": self._seq, "ts": time.time(), "event": event}
        self._seq += 1
        return encode_json(
            {**envelope, **{key: value for key, value in fields.items() if key not in envelope}}
        )

    def _lose(self, event: str) -> None:
        self._lost[event] += 1
        self._dropped += 1

    def _failed(self, event: str) -> None:
        with self._wakeup:
            self._lose(event)
            warn, self._warned = not self._warned, True
        if warn:
            logger.warning("%s: a %s record could not be encoded", self._events.path, event, exc_info=True)

    def _run(self) -> None:
        synced = time.monotonic()
        while True:
            with self._wakeup:
                if not (self._queue or self._groups or self._closing):
                    pending = self._events.dirty or self._rejected.dirty or bool(self._lost)
                    self._wakeup.wait(timeout=self._fsync_interval if pending else None)
                groups = list(self._groups)
                closing = self._closing
            for head, samples in groups:
                self._write_group(head, samples)
            batch = self._take(len(groups), closing)
            self._append(self._events, batch, b"".join(item.line + b"\n" for item in batch))
            with self._wakeup:
                self._settled += len(groups) + sum(item.lost is None for item in batch)
                self._wakeup.notify_all()
            if closing or time.monotonic() - synced >= self._fsync_interval:
                self._sync()
                synced = time.monotonic()
            if closing:
                self._events.close()
                self._rejected.close()
                return

    def _take(self, groups: int, closing: bool) -> list[_Item]:
        """Empty the queue; a report of what was lost since stands after the records that came before it."""
        with self._wakeup:
            for _ in range(groups):
                self._groups.popleft()
            batch = list(self._queue)
            self._queue.clear()
            self._queued_bytes = 0
            if self._lost:
                lost, self._lost = self._lost, Counter()
                fields = {"count": lost.total(), "events": dict(lost)}
                report = _Item("records_dropped", self._encode("records_dropped", fields), lost)
                batch.append(report)
            if closing:
                batch.append(
                    _Item("journal_closed", self._encode("journal_closed", {"dropped": self._dropped}))
                )
                self._accepted += 1
            return batch

    def _write_group(self, head: bytes, samples: Sequence[Any]) -> None:
        try:
            # One sample at a time: a whole group in one call would keep the interpreter for too long.
            lines = [encode_json(s.to_dict() if hasattr(s, "to_dict") else s) for s in samples]
        except Exception:  # whatever a sample holds, the writer goes on
            self._failed("rejected_samples")
            return
        line = head[:-1] + b',"samples":[' + b",".join(lines) + b"]}"
        self._append(self._rejected, [_Item("rejected_samples", line)], line + b"\n")

    def _append(self, file: LineFile, items: list[_Item], data: bytes) -> None:
        try:
            file.write(data)
        except OSError as error:
            complete = file.written_lines
            with self._wakeup:
                for item in items[complete:]:
                    if item.lost is None:
                        self._lose(item.event)
                    else:
                        self._lost.update(item.lost)
                warn, self._warned = not self._warned, True
            if warn:
                logger.warning("%s: records are lost, they will be counted: %s", file.path, error)

    def _sync(self) -> None:
        for file in (self._events, self._rejected):
            try:
                file.sync()
            except OSError as error:
                logger.warning("%s: cannot be synced to disk: %s", file.path, error)


def open_journal(
    directory: str | os.PathLike[str] | None,
    *,
    config: Mapping[str, Any] | None = None,
    versions: Mapping[str, Any] | None = None,
) -> EventLog:
    """Open the journal of a run.

    Parameters
    ----------
    directory
        The run's folder, or None for no journal.
    config, versions
        As for `Journal`.

    Returns
    -------
    EventLog
        A `Journal`, or a `NullJournal` without a folder.

    Raises
    ------
    JournalError
        The folder cannot be used.
    """
    return NullJournal() if directory is None else Journal(directory, config=config, versions=versions)


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("slime-bridge", "aiohttp", "anyio", "h11", "httpx", "msgspec", "numpy", "pysimdjson"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # used from a path, not installed
            found[name] = importlib.metadata.version(name)
    return found
