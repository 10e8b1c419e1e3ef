"""How many sessions an evaluation may have in flight: its own limit, and one that it shares with training."""

from __future__ import annotations

from typing import Protocol

import anyio

from slime_bridge.loop_thread import LoopDiedError

__all__ = ["SessionGate", "SessionSlots"]

_POLL_SECONDS = 0.1


class SessionSlots(Protocol):
    """A limit on sessions in flight that is shared with training; used from the evaluation's thread.

    Both methods raise `LoopDiedError` when there is no training any more.
    """

    def reserve(self, sessions: int) -> bool:
        """Take so many slots, or return False at once; who was refused comes before new training groups."""

    def release(self, sessions: int) -> None:
        """Give slots back; 0 only withdraws a claim that was refused."""


class SessionGate:
    """Admits tasks in order, as far as the evaluation's limit and the slots shared with training allow.

    Slots that were reserved are kept while tasks wait: training would take them between two tasks, and the
    evaluation would starve.

    Parameters
    ----------
    limit
        Sessions that the evaluation may have in flight, at least those of its largest task.
    slots
        The shared limit, None without training.
    """

    def __init__(self, limit: int, slots: SessionSlots | None) -> None:
        self.limit = limit
        self._slots: SessionSlots | None = slots
        self._reserved = 0
        self._used = 0
        self._draining = False
        self._changed: anyio.Event | None = None

    async def acquire(self, sessions: int) -> None:
        """Wait for so many sessions."""
        while not self._take(sessions):
            self._changed = anyio.Event()
            # Nobody says when training gives a slot back.
            with anyio.move_on_after(None if self._slots is None else _POLL_SECONDS):
                await self._changed.wait()

    def _take(self, sessions: int) -> bool:
        if self._used + sessions > self.limit or not self._reserve(self._used + sessions - self._reserved):
            return False
        self._used += sessions
        return True

    def _reserve(self, sessions: int) -> bool:
        if self._slots is None or sessions <= 0:
            return True
        try:
            if not self._slots.reserve(sessions):
                return False
        except LoopDiedError:
            self._slots = None
            return True
        self._reserved += sessions
        return True

    def release(self, sessions: int) -> None:
        """Give a task's sessions back."""
        self._used -= sessions
        if self._changed is not None:
            self._changed.set()
        if self._draining:
            self._return(self._reserved - self._used)

    def drain(self) -> None:
        """No task waits any more: what ends from now on is training's."""
        self._draining = True
        self._return(self._reserved - self._used)

    def close(self) -> None:
        """Give everything back, and withdraw a claim that may be open."""
        self._return(self._reserved)

    def _return(self, sessions: int) -> None:
        if self._slots is None:
            return
        try:
            self._slots.release(max(0, sessions))
        except LoopDiedError:
            self._slots = None
        self._reserved -= max(0, sessions)
