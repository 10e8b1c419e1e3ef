"""A run elsewhere, watched: read from its files only, by whoever may read them."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from analysis.errors import LiveError
from analysis.live.following import RunFollower, require_run
from analysis.live.handle import LiveHandle
from analysis.live.progress import Snapshot
from analysis.live.progress_view import Headline, duration

__all__ = ["Watch", "watch"]

_QUIET_SECONDS = 120.0


class Watch(LiveHandle[Snapshot]):
    """A run that somebody else drives; also a context manager that stops at the end.

    Nothing is written, locked or kept open in its folder. It is `done` when watching was stopped; the run
    may go on.

    Parameters
    ----------
    folder
        The run's folder.
    interval
        Seconds between two looks.
    """

    def __init__(self, folder: Path, *, interval: float) -> None:
        super().__init__(folder.name, folder)
        self._follower = RunFollower(folder, interval=interval, on_look=self._looked)
        self._follower.start()

    @property
    def state(self) -> str:
        """``following``, ``closed`` (the run closed its journal) or ``stopped`` (nobody looks)."""
        if self.done:
            return "stopped"
        return "closed" if self.progress.closed else "following"

    @property
    def progress(self) -> Snapshot:
        """The numbers as of the latest look."""
        return self._follower.snapshot()

    @property
    def files(self) -> list[Path]:
        """The files that are followed."""
        return self._follower.files

    def headline(self) -> Headline:
        """Return what stands above the numbers."""
        snapshot, state, now = self.progress, self.state, time.time()
        quiet = now - snapshot.last
        parts = [] if snapshot.rollout is None else [f"rollout {snapshot.rollout}"]
        parts.append(f"last record {duration(quiet)} ago" if quiet == quiet else "no record yet")
        silent = state == "following" and quiet > _QUIET_SECONDS
        return Headline(
            title=self.name,
            state={"closed": "journal closed", "stopped": "not watched any more"}.get(state, "watching"),
            tone="stopped" if silent or state == "stopped" else "done" if state == "closed" else "running",
            detail=", ".join(parts),
            error=self._follower.problem,
            now=now,
        )

    def look(self) -> Watch:
        """Read what is new now, without waiting for the interval."""
        self._follower.look()
        return self

    def stop(self) -> None:
        """Stop watching; harmless to repeat."""
        self._follower.stop()
        if not self.done:
            self._set_done()

    def cancel(self) -> None:
        """Stop watching; the run itself is not touched."""
        self.stop()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _looked(self) -> bool:
        self._view.refresh()
        return False

    def _outcome(self) -> Snapshot:
        return self.progress


def watch(run_dir: str | os.PathLike[str], *, interval: float = 1.0) -> Watch:
    """Follow a run from its journal, and its metrics where there are any, without touching it.

    Parameters
    ----------
    run_dir
        The folder that `polar_run_dir` names, or the one that holds it as ``polar``.
    interval
        Seconds between two looks.

    Raises
    ------
    RunNotFoundError
        If there is no journal in the folder.
    LiveError
        If the interval is no time.
    """
    if not (isinstance(interval, int | float) and 0 < interval <= threading.TIMEOUT_MAX):
        raise LiveError(f"interval must be seconds above 0, got {interval!r}")
    folder = Path(run_dir).expanduser().resolve()
    require_run(folder)
    return Watch(folder, interval=interval)
