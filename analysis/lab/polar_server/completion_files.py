"""Writes captured model calls to disk in the background, so that no session waits for a disk."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from typing import Any

from analysis.lab.polar_server.persistence import ResultStore
from analysis.lab.polar_server.proxy import Capture

logger = logging.getLogger(__name__)

QUEUE_SIZE = 1024
"""Records that may wait; more are dropped, and their number is then missing in the sequence."""


class CompletionWriter:
    """A queue and one thread, started with the first record; `put` never blocks."""

    def __init__(self, store: ResultStore) -> None:
        self._store = store
        self._queue: queue.Queue[tuple[str, str, int, dict[str, Any]] | None] = queue.Queue(QUEUE_SIZE)
        self._numbers: dict[str, int] = {}
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()
        self.dropped = 0
        self.failed = 0

    def put(self, capture: Capture, record: dict[str, Any]) -> None:
        """Queue one captured call under its session's next number."""
        if self._store.save_dir is None or capture.task_id is None:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="completion-writer", daemon=True)
            self._thread.start()
        number = self._numbers[capture.session_id] = self._numbers.get(capture.session_id, 0) + 1
        names = {
            "session_id": capture.session_id,
            "task_id": capture.task_id,
            "api_type": capture.api_type,
            "model_requested": capture.model_requested,
            "model_used": capture.model_used,
        }
        head = {key: record[key] for key in ("completion_id", "timestamp")}
        stored = {**head, **names, **{key: value for key, value in record.items() if key not in head}}
        try:
            self._queue.put_nowait((capture.task_id, capture.session_id, number, stored))
        except queue.Full:
            self.dropped += 1

    def forget(self, session_id: str) -> None:
        """Drop the numbering of a session that is over."""
        self._numbers.pop(session_id, None)

    def close(self, timeout: float = 5.0) -> None:
        """Write what is queued, for about `timeout` seconds at most, and end the thread."""
        if self._thread is None:
            return
        deadline = time.monotonic() + timeout
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=timeout)
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            self._ending.set()
            logger.warning("about %d completion files were not written in time", self._queue.qsize())
            self._thread.join(timeout)
        if self.dropped or self.failed:
            logger.warning("completion files: %d records dropped, %d failed", self.dropped, self.failed)

    def _work(self) -> None:
        while (item := self._queue.get()) is not None and not self._ending.is_set():
            task_id, session_id, number, record = item
            try:
                self._store.write_completion(record, task_id=task_id, session_id=session_id, number=number)
            except (OSError, ValueError) as error:
                self.failed += 1
                logger.warning("a completion of session %s could not be written: %s", session_id, error)
