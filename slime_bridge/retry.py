"""How requests to the rollout server are repeated, and how an outage is noticed: one policy, one fuse.

`RetryPolicy` says how long to wait before the next try, `call_with_retry` repeats an operation that raises
`TransportError`, and `Fuse` watches all requests of a client together. While the server is away the fuse is
open: callers queue at it, a few probes a second get through, and the first answer lets everybody go on.
Nothing here knows HTTP, Polar or deadlines; callers put the deadline around the call.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import anyio

from slime_bridge.errors import TransportError

__all__ = ["Fuse", "RetryPolicy", "call_with_retry"]

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """Exponential backoff with full jitter.

    Before try ``n + 1`` the wait is drawn uniformly from ``[0, min(max_delay, initial * factor ** (n -
    1))]``: callers that failed together come back spread out ("full jitter", M. Brooker, Exponential Backoff
    and Jitter, AWS Architecture Blog, 2015).

    Parameters
    ----------
    initial
        Upper end of the first wait, in seconds.
    factor
        Growth of the upper end per failure.
    max_delay
        Bound on the upper end, in seconds.
    max_attempts
        Tries in all, at least 1. Failures during an outage (an open fuse) are not counted, because they say
        nothing about the request.

    Raises
    ------
    ValueError
        If a value is out of range.
    """

    initial: float = 0.25
    factor: float = 2.0
    max_delay: float = 10.0
    max_attempts: int = 10

    def __post_init__(self) -> None:
        if not (self.initial > 0 and self.factor >= 1 and self.max_delay > 0 and self.max_attempts >= 1):
            raise ValueError(
                f"initial and max_delay must be above 0, factor and max_attempts at least 1, got {self}"
            )

    def delay(self, failures: int, rng: random.Random) -> float:
        """Return the wait after this many failures in a row.

        Parameters
        ----------
        failures
            How many tries failed so far, at least 1.
        rng
            Source of the jitter; the same state gives the same wait.

        Returns
        -------
        float
            Seconds.
        """
        # Beyond this exponent the bound has long been reached; a larger one would overflow the float.
        exponent = min(max(failures, 1) - 1, 64)
        return rng.uniform(0.0, min(self.max_delay, self.initial * self.factor**exponent))


class Fuse:
    """Opens when requests fail one after the other, and closes with the first answer.

    All users live in one event loop; the read-only attributes may be read from any thread.

    Parameters
    ----------
    threshold
        Consecutive failures that open the fuse.
    probe_interval
        Seconds between two requests that an open fuse lets through, shared by all callers.
    clock
        Monotonic seconds.
    on_change
        Called with the fuse each time it opens or closes, in the loop's thread.

    Attributes
    ----------
    is_open : bool
        True during an outage.
    since : float or None
        During an outage, the clock at the first of its failures, else None.
    last_error : TransportError or None
        The latest failure, kept after the fuse has closed.
    opened_count : int
        Outages so far.
    probe_count : int
        Requests let through while open, over all outages.
    """

    def __init__(
        self,
        *,
        threshold: int = 3,
        probe_interval: float = 0.5,
        clock: Callable[[], float] = time.monotonic,
        on_change: Callable[[Fuse], None] | None = None,
    ) -> None:
        if threshold < 1 or probe_interval <= 0:
            raise ValueError(
                f"a fuse needs threshold >= 1 and probe_interval > 0, got {threshold} and {probe_interval}"
            )
        self.threshold = threshold
        self.probe_interval = probe_interval
        self.on_change = on_change
        self.is_open = False
        self.since: float | None = None
        self.last_error: TransportError | None = None
        self.opened_count = 0
        self.probe_count = 0
        self._clock = clock
        self._failures = 0
        self._streak_began = 0.0
        self._last_success: float | None = None
        self._next_probe = 0.0
        self._turn = asyncio.Lock()
        self._closed = asyncio.Event()
        self._closed.set()

    def now(self) -> float:
        """Return the fuse's clock, to be handed back as `started`."""
        return self._clock()

    def outage_seconds(self) -> float:
        """Return how long the present outage has lasted in seconds, 0.0 when there is none."""
        since = self.since
        return 0.0 if since is None else max(0.0, self._clock() - since)

    async def admit(self) -> None:
        """Return when a request may be sent: at once, or at the next probe or the closing of an open fuse.

        Waiting callers stand in line, so one timer runs however many of them there are.
        """
        if not self.is_open:
            return
        async with self._turn:
            while self.is_open:
                wait = self._next_probe - self._clock()
                if wait <= 0:
                    self._next_probe = self._clock() + self.probe_interval
                    self.probe_count += 1
                    return
                with anyio.move_on_after(wait):
                    await self._closed.wait()

    def record_success(self) -> None:
        """Note that the server answered: the streak ends and an open fuse closes."""
        self._failures = 0
        self._last_success = self._clock()
        if not self.is_open:
            return
        logger.warning("The rollout server answers again after %.1f s", self.outage_seconds())
        self.is_open = False
        self.since = None
        self._closed.set()
        self._announce()

    def record_failure(self, error: TransportError, *, started: float | None = None) -> None:
        """Note that a request got no usable answer.

        Parameters
        ----------
        error
            What happened.
        started
            The clock when the request was sent. A request older than the last success is not counted: the
            server has answered since.
        """
        if started is not None and self._last_success is not None and started < self._last_success:
            return
        if self._failures == 0:
            self._streak_began = self._clock() if started is None else started
        self._failures += 1
        self.last_error = error
        if self.is_open or self._failures < self.threshold:
            return
        self.is_open = True
        self.since = self._streak_began
        self.opened_count += 1
        self._next_probe = self._clock() + self.probe_interval
        self._closed.clear()
        logger.warning(
            "The rollout server gives no usable answer (%s); requests wait, one probe every %.2g s",
            error,
            self.probe_interval,
        )
        self._announce()

    def _announce(self) -> None:
        if self.on_change is not None:
            self.on_change(self)


async def call_with_retry(
    operation: Callable[[], Awaitable[T]],
    *,
    policy: RetryPolicy,
    rng: random.Random,
    fuse: Fuse,
    on_retry: Callable[[int, float, TransportError], None] | None = None,
) -> T:
    """Await an operation until it does not raise `TransportError`, or its tries are used up.

    Parameters
    ----------
    operation
        Called anew for each try; it passes the fuse itself (`PolarClient` does).
    policy, rng
        When to try again. A longer ``retry_after`` of the error is honoured up to the policy's `max_delay`.
    fuse
        While it is open, failures are not counted against `RetryPolicy.max_attempts`.
    on_retry
        Called before each wait with the number of counted failures, the wait in seconds and the error.

    Returns
    -------
    object
        What the operation returned.

    Raises
    ------
    TransportError
        The last failure, once the tries are used up. Every other exception passes through at once.
    """
    counted = failures = 0
    while True:
        try:
            return await operation()
        except TransportError as exc:
            failures += 1
            counted += 0 if fuse.is_open else 1
            if counted >= policy.max_attempts:
                raise
            # During an outage the fuse sets the pace for all callers; waits of their own would only delay
            # the recovery.
            wanted = max(policy.delay(failures, rng), min(exc.retry_after or 0.0, policy.max_delay))
            delay = 0.0 if fuse.is_open else wanted
            if on_retry is not None:
                on_retry(counted, delay, exc)
        await anyio.sleep(delay)
