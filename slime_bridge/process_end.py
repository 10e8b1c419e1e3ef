"""SIGTERM as an ordinary end of the process, for as long as somebody needs exit hooks to run.

Python dies of an unhandled SIGTERM at once. While there are users, the signal raises ``SystemExit(143)`` in
the main thread instead, so that ``finally`` blocks and exit hooks run. A handler that somebody else has
installed is never touched, and outside the main thread nothing can be installed.
"""

from __future__ import annotations

import signal
import threading
import weakref
from types import FrameType
from typing import Any, NoReturn

__all__ = ["exit_on_sigterm", "release_sigterm"]

_users: weakref.WeakSet[Any] = weakref.WeakSet()


def exit_on_sigterm(user: object) -> bool:
    """Make SIGTERM run exit hooks while `user` is alive and has not released it; tell whether that is so."""
    if threading.current_thread() is not threading.main_thread():
        return False
    if signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, _raise_exit):
        return False
    signal.signal(signal.SIGTERM, _raise_exit)
    _users.add(user)
    return True


def release_sigterm(user: object) -> None:
    """Give SIGTERM its default action back once nobody needs another one; harmless to repeat."""
    _users.discard(user)
    if _users or threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) is _raise_exit:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _raise_exit(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
