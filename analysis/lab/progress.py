"""What a run shows while it goes on: bars on a terminal, plain lines elsewhere, never a torn line.

Everything goes through one object to one stream under one lock; a log record or a note that comes while a bar
is drawn is placed above the bar. Knows nothing about what is being done: callers name stages, totals and
numbers.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from tqdm import tqdm

__all__ = ["NoteHandler", "Progress", "Task", "duration", "time_left"]

PLAIN_INTERVAL = 2.0
"""Seconds between two plain lines of one task, unless the caller asks for every step."""

BAR_FORMAT = "{desc} |{bar}| {n_fmt}/{total_fmt}{postfix}"


class _Bar(tqdm):  # type: ignore[misc]
    """A bar that is drawn when it is told to: tqdm's own watch thread would outlive the run."""

    monitor_interval = 0


def duration(seconds: float) -> str:
    """Format a duration as ``m:ss`` (or ``h:mm:ss``)."""
    whole = max(0, round(seconds))
    hours, minutes, rest = whole // 3600, whole % 3600 // 60, whole % 60
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def time_left(done: int, total: int, elapsed: float) -> float | None:
    """Estimate the seconds that remain from the mean pace so far; None while there is no pace."""
    if done <= 0 or elapsed <= 0:
        return None
    return elapsed / done * max(0, total - done)


class Task:
    """One thing with a known number of steps; use it as `Progress.task` gives it.

    Parameters
    ----------
    progress
        Where to show.
    label
        What is being done.
    total
        Number of steps.
    every_step
        Whether each step deserves its own plain line; on a terminal, the bar then stands from the start.
    """

    def __init__(self, progress: Progress, label: str, total: int, *, every_step: bool = False) -> None:
        self.label, self.total, self.done = label, total, 0
        self._progress = progress
        self._every_step = every_step
        self._started = progress.clock()
        self._last_line = self._started
        self._bar: Any = None
        if progress.live and every_step:
            self._bar = self._new_bar()

    def advance(self, steps: int = 1, **numbers: str) -> None:
        """Count `steps` more as done and show `numbers` (already formatted) beside them."""
        self.done += steps
        now = self._progress.clock()
        left = time_left(self.done, self.total, now - self._started)
        shown = {**numbers, "left": "?" if left is None else duration(left)}
        with self._progress.speaking():
            if self._progress.live and self._bar is None:
                self._bar = self._new_bar()
            if self._bar is not None:
                self._bar.set_postfix_str(
                    "  ".join(f"{key} {value}" for key, value in shown.items()), refresh=False
                )
                self._bar.update(steps)
            elif self._every_step or self.done >= self.total or now - self._last_line >= PLAIN_INTERVAL:
                self._last_line = now
                text = "  ".join(f"{key} {value}" for key, value in shown.items())
                self._progress.note(f"{self.label} {self.done}/{self.total}  {text}")

    def _new_bar(self) -> Any:
        stream = self._progress.stream
        return _Bar(
            total=self.total,
            desc=self.label,
            file=stream,
            bar_format=BAR_FORMAT,
            dynamic_ncols=True,
            mininterval=0.1,
            leave=True,
            ascii=None if "utf" in (stream.encoding or "").lower() else True,
        )

    def close(self) -> None:
        """End the task; on a terminal its bar stays as it stands."""
        with self._progress.speaking():
            if self._bar is not None:
                self._bar.close()
                self._bar = None


class Progress:
    """The run's single voice.

    Parameters
    ----------
    stream
        Where to write.
    live
        Whether bars are drawn; by default if the stream is a terminal.
    clock
        Seconds, monotonic.
    """

    def __init__(
        self, stream: TextIO, *, live: bool | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.stream = stream
        self.live = stream.isatty() if live is None else live
        self.clock = clock
        self.lock = threading.RLock()
        self._started = clock()
        self._open: list[Task] = []

    def note(self, text: str) -> None:
        """Show one line (or several), above a bar if one is being drawn."""
        with self.speaking():
            if self.live:
                _Bar.write(text, file=self.stream)
            else:
                self.stream.write(text + "\n")
            self.stream.flush()

    def elapsed(self) -> float:
        """Return the seconds since this object was made: since the start of the run."""
        return self.clock() - self._started

    def stage(self, text: str) -> None:
        """Announce what begins now, with the time since the start of the run."""
        self.note(f"[{duration(self.elapsed()):>5}] {text}")

    @contextmanager
    def speaking(self) -> Iterator[None]:
        """Hold the lock while the block writes; a reader that went away is no reason to fail."""
        with self.lock:
            try:
                yield
            except OSError:
                # Nobody reads any more (`workbench lab | head`, a closed terminal): the run and its folder
                # matter, the voice does not. Without this the interpreter would complain again at its exit.
                _discard(self.stream)

    @contextmanager
    def task(self, label: str, total: int, *, every_step: bool = False) -> Iterator[Task]:
        """Show a task while the block runs.

        Parameters
        ----------
        label
            What is being done.
        total
            Number of steps.
        every_step
            Whether each step gets a plain line where no bar is drawn (else one every two seconds).
        """
        task = Task(self, label, total, every_step=every_step)
        self._open.append(task)
        try:
            yield task
        finally:
            self._open.remove(task)
            task.close()

    def close(self) -> None:
        """Take down bars that an interruption left standing."""
        while self._open:
            self._open.pop().close()


class NoteHandler(logging.Handler):
    """Shows log records through a `Progress`, so that a warning never tears a bar.

    Parameters
    ----------
    progress
        Where to show.
    level
        Lowest level to show.
    """

    def __init__(self, progress: Progress, level: int = logging.WARNING) -> None:
        super().__init__(level)
        self._progress = progress
        self.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """Show one record."""
        try:
            self._progress.note(self.format(record))
        except Exception:  # a log record must never fail the run; logging's own rule reports it on stderr
            self.handleError(record)


def _discard(stream: TextIO) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
