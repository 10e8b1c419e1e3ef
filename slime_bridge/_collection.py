"""A pause of Python's cyclic garbage collector while millions of objects are made that are not garbage.

Decoding a task's results makes long lists, and each collection that their messages trigger walks through all
of them: a third of the decoding time. Nothing there is cyclic, so nothing is lost by collecting later.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["collection_paused"]


class _Pause:
    """How many pauses are on, over all threads; the collector belongs to the whole process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._depth = 0
        self._was_enabled = False

    def begin(self) -> None:
        with self._lock:
            if self._depth == 0:
                self._was_enabled = gc.isenabled()
                gc.disable()
            self._depth += 1

    def end(self) -> None:
        with self._lock:
            self._depth -= 1
            if self._depth == 0 and self._was_enabled:
                gc.enable()


_pause = _Pause()


@contextmanager
def collection_paused() -> Iterator[None]:
    """Pause the collector in this process; the last pause to end switches it back on, if it was on before."""
    _pause.begin()
    try:
        yield
    finally:
        _pause.end()
