"""Ctrl-C, or a cell's interrupt, put off while something must not stop halfway.

Signals reach Python's main thread only; in any other thread there is nothing to put off.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["shielded"]


@contextmanager
def shielded() -> Iterator[None]:
    """Let the block run to its end; an interrupt that came meanwhile is raised right after it.

    For short or bounded blocks. Does nothing outside the main thread, and where somebody else than Python
    handles the signal.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is None:
        yield
        return
    received: list[tuple[int, FrameType | None]] = []

    def remember(number: int, frame: FrameType | None) -> None:
        received.append((number, frame))

    before = signal.signal(signal.SIGINT, remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if received and callable(before):
            before(*received[0])
