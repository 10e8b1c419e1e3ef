"""Event loops for tests: one whose clock jumps over every wait, and the ordinary one."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _JumpingSelector(selectors.DefaultSelector):
    """Instead of waiting for input, moves the clock to the next timer; real input is still seen first."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            return super().select(None)
        events = super().select(0)
        if not events:
            self.now += max(timeout, 0.0)
        return events


class VirtualClockLoop(asyncio.SelectorEventLoop):
    """A loop for code without sockets and threads: hours pass in milliseconds, timers keep their order."""

    def __init__(self) -> None:
        self._clock = _JumpingSelector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end on a loop whose clock jumps."""
    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        return runner.run(main)


def run_real(main: Coroutine[Any, Any, T], *, within: float = 30.0) -> T:
    """Run a coroutine to its end on an ordinary loop, failing instead of hanging."""

    async def bounded() -> T:
        async with asyncio.timeout(within):
            return await main

    with asyncio.Runner(debug=False) as runner:
        return runner.run(bounded())
