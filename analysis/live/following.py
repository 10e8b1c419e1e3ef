"""Following a run folder from a thread: journal and metrics in, numbers out, nothing touched."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from analysis.errors import RunNotFoundError
from analysis.live.followed_files import FollowedRecords
from analysis.live.progress import RunProgress, Snapshot

__all__ = ["JOURNAL_PATTERNS", "METRICS_NAME", "RunFollower"]

logger = logging.getLogger(__name__)

JOURNAL_PATTERNS = ("journal*.jsonl", "polar/journal*.jsonl")
"""Where a run's journal is, below the folder that Slime saves to, or that `polar_run_dir` names."""

METRICS_NAME = "metrics.jsonl"


class RunFollower:
    """A thread that reads what a run writes.

    Parameters
    ----------
    folder
        The run's folder.
    interval
        Seconds between two looks.
    on_look
        Called in the thread after each look; returns whether that was the last one.
    """

    def __init__(self, folder: Path, *, interval: float, on_look: Callable[[], bool]) -> None:
        self._records = FollowedRecords(folder, (*JOURNAL_PATTERNS, METRICS_NAME))
        self._interval = interval
        self._on_look = on_look
        self._lock = threading.Lock()
        self._progress = RunProgress()
        self._stop = threading.Event()
        self._problem = ""
        self._thread = threading.Thread(target=self._follow, name=f"live-follow-{folder.name}", daemon=True)

    @property
    def problem(self) -> str:
        """Why the files cannot be read at present; empty while they can."""
        return self._problem

    @property
    def files(self) -> list[Path]:
        """The files that are followed."""
        return self._records.files

    @property
    def unreadable(self) -> int:
        """Complete lines that were no records."""
        return self._records.unreadable

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def snapshot(self) -> Snapshot:
        """Return the numbers as of the latest look."""
        with self._lock:
            return self._progress.snapshot()

    def look(self) -> None:
        """Read what is new."""
        try:
            with self._lock:
                restarts = self._records.restarts
                for path, record in self._records.new_records():
                    if self._records.restarts != restarts:
                        # A file was replaced or cut: what it said before is said again, or is history.
                        restarts = self._records.restarts
                        self._progress = RunProgress()
                    if path.name == METRICS_NAME:
                        self._progress.metrics(record)
                    else:
                        self._progress.record(record)
            self._problem = ""
        except OSError as error:
            self._problem = f"{type(error).__name__}: {error}"

    def stop(self, timeout: float = 5.0) -> None:
        """End the thread; harmless to repeat, and from the thread itself."""
        self._stop.set()
        if self._thread.ident is not None and threading.current_thread() is not self._thread:
            self._thread.join(timeout)

    def _follow(self) -> None:
        while True:
            self.look()
            try:
                if self._on_look():
                    return
            except Exception:  # whoever looks at the numbers must not end their reading
                logger.exception("A live view could not be brought up to date")
            if self._stop.wait(self._interval):
                return


def require_run(folder: Path) -> None:
    """Raise unless a folder holds a run's journal or metrics.

    Raises
    ------
    RunNotFoundError
        If it does not, or does not exist.
    """
    if not folder.is_dir():
        raise RunNotFoundError(f"{folder} is no folder")
    if not any(path for pattern in (*JOURNAL_PATTERNS, METRICS_NAME) for path in folder.glob(pattern)):
        raise RunNotFoundError(
            f"{folder} holds no journal: expected journal.jsonl in it or in its folder `polar`; the bridge "
            "writes one where polar_run_dir, or Slime's --save, says"
        )
