"""Turns SIGINT, SIGTERM and SIGHUP into one orderly end of a run, at whatever moment they come.

A signal raises `Interrupted` in the main thread. Some code swallows exceptions (finalisers, callbacks from
C), so the signal is also remembered: `Interrupts.check` raises again at the next safe point, and any error
that follows a signal counts as its consequence. Once the clean-up has begun, further signals do not disturb
it; it is bounded by its own deadlines.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

__all__ = ["Interrupted", "Interrupts"]

_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class Interrupted(KeyboardInterrupt):
    """Raised in the main thread when the user or the system asks the run to end.

    Parameters
    ----------
    signum
        The signal that came.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum

    @property
    def exit_code(self) -> int:
        """What a shell expects of a process that ended because of this signal."""
        return 128 + self.signum


class Interrupts:
    """Context manager that owns the process's ending signals while a run goes on; only for the main thread.

    Parameters
    ----------
    on_wait
        Called, with no arguments, when a signal comes during a shielded block.
    """

    def __init__(self, on_wait: Callable[[], object] | None = None) -> None:
        self.received: int | None = None
        self._on_wait = on_wait
        self._shields = 0
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        for signum in _SIGNALS:
            # A process started with a signal ignored (nohup) keeps ignoring it.
            if signal.getsignal(signum) is not signal.SIG_IGN:
                self._previous[signum] = signal.signal(signum, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for signum, previous in self._previous.items():
            signal.signal(signum, previous)
        self._previous.clear()

    def check(self) -> None:
        """Raise `Interrupted` if a signal came and its exception got lost on the way."""
        if self.received is not None and not self._shields:
            raise Interrupted(self.received)

    @contextmanager
    def shielded(self) -> Iterator[None]:
        """Let the block run to its end whatever signals come: for clean-up that has its own deadlines.

        A signal that comes while nothing else is ending raises when the block is done.
        """
        before = self.received
        self._shields += 1
        try:
            yield
        finally:
            self._shields -= 1
        if before is None:
            self.check()

    def cause(self, error: BaseException) -> BaseException:
        """Return `Interrupted` for an error that followed a signal, else the error itself."""
        if self.received is None or isinstance(error, Interrupted):
            return error
        return Interrupted(self.received)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        self.received = signum if self.received is None else self.received
        if self._shields:
            if self._on_wait is not None:
                self._on_wait()
            return
        raise Interrupted(self.received)
