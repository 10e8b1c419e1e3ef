"""Sessions that share engines, as a simulation: a FIFO of slots, and a common pace that drops with the load.

Every running session works at the same pace ``n ** -contention``, n being how many run: 0 means that
sessions do not slow each other down, 1 that they share a fixed capacity. Since the pace is common, a
session of work w that starts when the clock of work shows V ends when it shows ``V + w``, and one heap
orders all ends.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from analysis.stats.columns import Floats

__all__ = ["Engine", "fitted_contention", "works_of"]

_LEAST_SESSIONS = 20
_LEAST_SPREAD = 0.1
"""Standard deviation of the logarithm of the load below which nothing can be said."""

_LEAST_KNOWN = 0.5
"""How far the logarithm of the load during a session must follow the one at its start, 1 being one to one."""

Key = tuple[int, int]
"""Group and session."""


@dataclass(slots=True, eq=False)
class Engine:
    """The sessions in service.

    Parameters
    ----------
    contention
        Exponent of the slow-down, 0 to 1.
    slots
        Most sessions that run at once; None for no limit.
    """

    contention: float = 0.0
    slots: int | None = None
    now: float = 0.0
    _work: float = field(default=0.0, init=False)
    _running: dict[Key, float] = field(default_factory=dict, init=False)
    _ends: list[tuple[float, int, Key]] = field(default_factory=list, init=False)
    _queue: deque[tuple[Key, float]] = field(default_factory=deque, init=False)
    _ticket: itertools.count[int] = field(default_factory=itertools.count, init=False)
    busy_seconds: float = field(default=0.0, init=False)
    """Session-seconds in service so far."""

    def submit(self, key: Key, work: float) -> None:
        """Begin a session, or queue it where no slot is free."""
        if self.slots is not None and len(self._running) >= self.slots:
            self._queue.append((key, work))
            return
        self._start(key, work)

    def cancel(self, key: Key) -> None:
        """Stop a session, queued or running; unknown ones change nothing."""
        if self._running.pop(key, None) is None:
            self._queue = deque(item for item in self._queue if item[0] != key)
        self._fill()

    def next_end(self) -> float:
        """Return when the next session will end if nothing changes; infinity where none runs."""
        while self._ends and self._running.get(self._ends[0][2]) != self._ends[0][0]:
            heapq.heappop(self._ends)  # stopped meanwhile
        if not self._ends:
            return float("inf")
        left = max(0.0, self._ends[0][0] - self._work)
        return float(self.now + left * len(self._running) ** self.contention)

    def advance(self, until: float) -> None:
        """Let time pass; must not go beyond `next_end`."""
        passed = max(0.0, until - self.now)
        if self._running:
            self._work += passed * len(self._running) ** -self.contention
            self.busy_seconds += passed * len(self._running)
        self.now = max(self.now, until)

    def pop(self) -> Key:
        """End the session that is due, and start the next in the queue."""
        self.next_end()
        end, _, key = heapq.heappop(self._ends)
        self._work = max(self._work, end)
        del self._running[key]
        self._fill()
        return key

    def _start(self, key: Key, work: float) -> None:
        end = self._work + work
        self._running[key] = end
        heapq.heappush(self._ends, (end, next(self._ticket), key))

    def _fill(self) -> None:
        while self._queue and (self.slots is None or len(self._running) < self.slots):
            self._start(*self._queue.popleft())


def works_of(starts: Floats, ends: Floats, contention: float) -> Floats:
    """Return the work of recorded sessions: the integral of ``n ** -contention`` over each one's time.

    Parameters
    ----------
    starts, ends
        Shape (n,): seconds; NaN where unknown, which gives NaN.
    contention
        The exponent; 0 gives the durations.
    """
    if contention == 0:
        return ends - starts
    there = ~(np.isnan(starts) | np.isnan(ends))
    times = np.concatenate([starts[there], ends[there]])
    steps = np.concatenate([np.ones(int(there.sum())), -np.ones(int(there.sum()))])
    order = np.argsort(times, kind="stable")
    moments, running = times[order], np.cumsum(steps[order])
    pace = np.where(running[:-1] > 0, np.maximum(running[:-1], 1.0) ** -contention, 0.0)
    clock = np.concatenate([[0.0], np.cumsum(pace * np.diff(moments))]) if len(moments) else np.zeros(0)
    result = np.full(len(starts), np.nan)
    if len(moments):
        result[there] = np.interp(ends[there], moments, clock) - np.interp(starts[there], moments, clock)
    return result


def fitted_contention(starts: Floats, ends: Floats) -> float:
    """Return the exponent under which a session's work does not depend on how many ran when it began.

    Length bias plays no part, since only the load at the start is looked at. At most 1; 0 where the sessions
    do not get slower with the load, and where the record cannot tell: if the load hardly varies, or the load
    at a session's start says little about the load during it, as in bursts that begin and drain together.
    """
    there = ~(np.isnan(starts) | np.isnan(ends)) & (ends > starts)
    if there.sum() < _LEAST_SESSIONS:
        return 0.0
    a, b = starts[there], ends[there]
    begun, over = np.searchsorted(np.sort(a), a, "right"), np.searchsorted(np.sort(b), a, "right")
    load = np.log(np.maximum(begun - over, 1))
    if load.std() < _LEAST_SPREAD:
        return 0.0

    def slope(contention: float) -> float:
        work = np.log(np.maximum(works_of(a, b, contention), 1e-9))
        centred = load - load.mean()
        return float(centred @ (work - work.mean()) / (centred @ centred))

    low, high = 0.0, 1.0
    at_low, at_high = slope(low), slope(high)
    if at_low <= 0 or at_low - at_high < _LEAST_KNOWN:
        return 0.0
    if at_high >= 0:
        return 1.0
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) > 0 else (low, middle)
    return (low + high) / 2
