"""The gateway's generation gate, and the worker pools that sessions pass through."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class GenerationGate:
    """Lets model calls through, or holds them back while the weights change.

    The gate counts calls in flight. Closing it takes effect at once: later calls wait without limit, and
    `pause` returns when the earlier ones are through.
    """

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._inflight = 0

    @property
    def paused(self) -> bool:
        """Whether new calls wait."""
        return not self._open.is_set()

    @property
    def inflight(self) -> int:
        """Calls that are through the gate and not answered yet."""
        return self._inflight

    @asynccontextmanager
    async def call(self) -> AsyncIterator[None]:
        """Wait for the gate to be open, then count as in flight."""
        while self.paused:
            await self._open.wait()
        self.enter()
        try:
            yield
        finally:
            self.leave()

    def enter(self) -> None:
        """Count one call as in flight without asking the gate."""
        self._inflight += 1
        self._idle.clear()

    def leave(self) -> None:
        """Count one call as answered."""
        self._inflight -= 1
        if self._inflight == 0:
            self._idle.set()

    async def pause(self, timeout: float) -> bool:
        """Close the gate and wait up to `timeout` seconds until nothing is in flight.

        Returns
        -------
        bool
            Whether nothing is in flight. The gate stays closed either way.
        """
        self._open.clear()
        if self._inflight == 0:
            return True
        try:
            async with asyncio.timeout(max(0.0, timeout)):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def resume(self) -> None:
        """Open the gate; harmless when it is open."""
        self._open.set()


class StagePool:
    """A stage with a fixed number of workers; serves by priority, then in order of arrival."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.active = 0
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._arrivals = 0

    @property
    def queued(self) -> int:
        """Number of those that wait for a worker."""
        return sum(not future.done() for _, _, future in self._waiting)

    @asynccontextmanager
    async def worker(self, priority: int = 0) -> AsyncIterator[None]:
        """Wait for a worker and keep it for the length of the block."""
        await self.acquire(priority)
        try:
            yield
        finally:
            self.release()

    async def acquire(self, priority: int = 0) -> None:
        """Wait for a worker; give it back with `release`."""
        if self.active < self.workers:
            self.active += 1
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._arrivals += 1
        heapq.heappush(self._waiting, (-priority, self._arrivals, future))
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.release()
            raise

    def release(self) -> None:
        """Hand a worker to the next in line."""
        while self._waiting:
            _, _, future = heapq.heappop(self._waiting)
            if not future.done():
                future.set_result(None)
                return
        self.active -= 1
