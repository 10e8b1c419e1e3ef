"""One status request for all tasks that are waited for.

A task is watched from the moment the server accepted it. The poller asks for the status of all tasks at
once, soon after the first could be done and then less and less often, and wakes those whose task has ended
or is missing. While callbacks arrive it only looks now and then, for the ones that get lost. It fetches no
results and decides nothing.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from slime_bridge.errors import (
    ProtocolError,
    SubmitRejectedError,
    TaskConflictError,
    TaskUnknownError,
    TransportError,
)
from slime_bridge.retry import RetryPolicy

if TYPE_CHECKING:
    from slime_bridge.client import PolarClient

__all__ = ["PollSchedule", "Signal", "StatusPoller", "Watch", "is_running"]

logger = logging.getLogger(__name__)

# What a server without a status list answers; one such answer may be a proxy's, so it takes a few in a row.
_NO_LIST = (SubmitRejectedError, TaskUnknownError, TaskConflictError, ProtocolError)
_REFUSALS_BEFORE_BLIND = 3
_RUNNING = frozenset({"running", "cancelling"})


def is_running(status: str) -> bool:
    """Tell whether a task status may change; all but ``running`` and ``cancelling`` are final."""
    return status in _RUNNING


class Signal(enum.StrEnum):
    """Why a watcher should look at its task."""

    ENDED = "ended"
    """The server reports a final status."""

    MISSING = "missing"
    """The server knows tasks, but not this one."""

    LOOK = "look"
    """The server cannot list its tasks: the time has come to ask for this one."""


@dataclass(frozen=True, kw_only=True)
class PollSchedule:
    """When to ask.

    A task of age ``a`` is due again after ``a * (factor - 1)`` seconds, bounded by `first` and
    `max_interval`: with the defaults at 2, 4, 8, 13, 18, ... seconds. While callbacks work the first polls
    are left out, and it is due every `max_interval`: a task that fails on the server gets no callback at
    all, and must not wait long for somebody to notice. One request asks for all tasks.

    Parameters
    ----------
    first
        Seconds from acceptance to the first poll.
    factor
        Growth of a task's age between two polls.
    max_interval
        Bound on the time between two polls, in seconds.
    min_gap
        Least time between two requests, whatever is due, in seconds.
    max_duty
        Most share of the time that requests may take: a server with a hundred thousand past tasks lists them
        all.
    sparing_interval
        Bound in place of `max_interval` where asking is expensive, in seconds: the list takes long, or the
        server has none and each task is asked for with all its results.
    """

    first: float = 2.0
    factor: float = 2.0
    max_interval: float = 5.0
    min_gap: float = 0.5
    max_duty: float = 0.05
    sparing_interval: float = 15.0

    def __post_init__(self) -> None:
        if not (
            0 < self.first <= self.max_interval
            and self.factor > 1
            and self.min_gap >= 0
            and 0 < self.max_duty <= 1
        ):
            raise ValueError(
                f"a poll schedule needs 0 < first <= max_interval, factor > 1, 0 < max_duty <= 1, got {self}"
            )

    def interval(self, age: float, *, callbacks_work: bool | None, sparing: bool = False) -> float:
        """Return the seconds until a task of this age in seconds is due again."""
        most = max(self.max_interval, self.sparing_interval) if sparing else self.max_interval
        if callbacks_work:
            return most
        return min(most, max(self.first, age * (self.factor - 1.0)))


class Watch:
    """One accepted task under observation; made by `StatusPoller.watch`."""

    def __init__(self, poller: StatusPoller, task_id: str, began: float, due: float) -> None:
        self.task_id = task_id
        self.began = began
        self.due = due
        self._poller = poller
        self._signal: Signal | None = None
        self._wake = asyncio.Event()

    async def wait(self) -> Signal:
        """Wait until there is a reason to look at the task; each reason is returned once."""
        while self._signal is None:
            await self._wake.wait()
        signal, self._signal = self._signal, None
        self._wake.clear()
        return signal

    def close(self) -> None:
        """End the observation; idempotent."""
        self._poller._watches.pop(self, None)

    def _raise(self, signal: Signal) -> None:
        self._signal = signal
        self._wake.set()


class StatusPoller:
    """Watches tasks through one client; somebody must await `run` meanwhile.

    Parameters
    ----------
    client
        Whom to ask.
    schedule
        When to ask.
    retry
        Waits after requests without a usable answer.
    rng
        Source of their jitter.

    Attributes
    ----------
    callbacks_work : bool or None
        Whether the last result came by callback, None before the first; whoever collects results sets it,
        and it sets the pace.
    polls : int
        Requests sent so far.
    """

    def __init__(
        self,
        client: PolarClient,
        *,
        schedule: PollSchedule | None = None,
        retry: RetryPolicy | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.callbacks_work: bool | None = None
        self.polls = 0
        self._client = client
        self._schedule = schedule if schedule is not None else PollSchedule()
        self._retry = retry if retry is not None else RetryPolicy()
        self._rng = rng if rng is not None else random.Random()
        self._watches: dict[Watch, None] = {}
        self._planned = float("inf")
        self._replan = asyncio.Event()
        self._blind = False

    def watch(self, task_id: str) -> Watch:
        """Watch a task that the server has just accepted."""
        now = anyio.current_time()
        watch = Watch(self, task_id, now, now + self._interval(0.0))
        self._watches[watch] = None
        if watch.due < self._planned:
            self._replan.set()
        return watch

    async def run(self) -> None:
        """Poll until cancelled."""
        failures = refusals = 0
        not_before = 0.0
        while True:
            await self._until_due(not_before)
            started = anyio.current_time()
            try:
                statuses = {} if self._blind else await self._ask()
            except (TransportError, *_NO_LIST) as exc:
                failures += 1
                refusals = 0 if isinstance(exc, TransportError) else refusals + 1
                if refusals >= _REFUSALS_BEFORE_BLIND:
                    self._give_up_listing(exc)
                # An outage is the fuse's to report, once; a line per poll would bury it.
                logger.debug("Polling failed %d times in a row: %s", failures, exc)
                not_before = anyio.current_time() + self._retry.delay(failures, self._rng)
                continue
            failures = refusals = 0
            self._tell(statuses, started)
            ended = anyio.current_time()
            pause = (ended - started) * (1.0 / self._schedule.max_duty - 1.0)
            not_before = ended + max(self._schedule.min_gap, min(pause, self._schedule.sparing_interval))

    async def _ask(self) -> dict[str, str]:
        self.polls += 1
        return await self._client.list_statuses()

    def _give_up_listing(self, error: Exception) -> None:
        self._blind = True
        self._client.mark_inactive(
            "status list", f"{error}; each task is asked for by itself, with all its results"
        )

    async def _until_due(self, not_before: float) -> None:
        """Return when the earliest watch is due; a new watch that is due earlier changes the plan."""
        while True:
            due = min((watch.due for watch in self._watches), default=float("inf"))
            self._planned = max(due, not_before)
            self._replan.clear()
            wait = self._planned - anyio.current_time()
            if wait <= 0:
                self._planned = 0.0
                return
            with anyio.move_on_after(wait if wait < float("inf") else None):
                await self._replan.wait()

    def _tell(self, statuses: dict[str, str], started: float) -> None:
        """Wake the watchers of an answer to a request sent at `started`."""
        now = anyio.current_time()
        for watch in self._watches:
            if watch.began >= started:
                # The server may have made this answer before it accepted the task.
                continue
            status = statuses.get(watch.task_id)
            if self._blind:
                if watch.due > now:
                    continue
                watch._raise(Signal.LOOK)
            elif status is None:
                watch._raise(Signal.MISSING)
            elif not is_running(status):
                watch._raise(Signal.ENDED)
            watch.due = now + self._interval(now - watch.began)

    def _interval(self, age: float) -> float:
        return self._schedule.interval(age, callbacks_work=self.callbacks_work, sparing=self._blind)
