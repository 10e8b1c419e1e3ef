"""The journal of a submission, heard by its live view: each record goes to the file and to the model.

Records come from several threads: the submission's loop and the threads that convert its results.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.live.progress import RunProgress, Snapshot
from slime_bridge.journal import EventLog

__all__ = ["Recorder"]


class Recorder(EventLog):
    """A journal that also feeds a `RunProgress`.

    Parameters
    ----------
    journal
        Keeps the records.
    """

    def __init__(self, journal: EventLog) -> None:
        self._journal = journal
        self._lock = threading.Lock()
        self._progress = RunProgress()

    @property
    def path(self) -> Path | None:
        """The journal's file."""
        return self._journal.path

    @property
    def dropped(self) -> int:
        """Number of records that were lost on the way to the disk."""
        return self._journal.dropped

    @property
    def changes(self) -> int:
        """Grows with everything that was heard."""
        return self._progress.changes

    def record(self, event: str, /, **fields: Any) -> None:
        """Note one event."""
        self._journal.record(event, **fields)
        with self._lock:
            self._progress.record({"event": event, "ts": time.time(), **fields})

    def rejected_group(
        self,
        *,
        group: int,
        rollout_id: int | None,
        reason: str,
        numbers: Mapping[str, Any],
        samples: Sequence[Any],
    ) -> None:
        """Keep the samples of a rejected group."""
        self._journal.rejected_group(
            group=group, rollout_id=rollout_id, reason=reason, numbers=numbers, samples=samples
        )

    def hear_history(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Take what an earlier process has recorded; what it left open will be recorded again."""
        with self._lock:
            for record in records:
                self._progress.record(record)
            self._progress.taken_over()

    def hear_event(self, event: Mapping[str, Any]) -> None:
        """Take an event of a server's stream."""
        with self._lock:
            self._progress.event(event)

    @property
    def tokens(self) -> int:
        """Response tokens so far."""
        return self._progress.tokens

    def tasks_under_way(self) -> list[str]:
        """Return the ids of the tasks that have no result yet, oldest first."""
        with self._lock:
            return self._progress.tasks_under_way()

    def snapshot(self) -> Snapshot:
        """Return the present state."""
        with self._lock:
            return self._progress.snapshot()

    def flush(self, timeout: float = 5.0) -> bool:
        """Wait until everything so far is on disk."""
        return self._journal.flush(timeout)

    def close(self, timeout: float = 5.0) -> None:
        """Close the journal."""
        self._journal.close(timeout)
