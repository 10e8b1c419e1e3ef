"""An event loop in a daemon thread of its own, and a way into it that survives interrupts and dead loops.

The thread runs one coroutine. Other threads run functions in the loop with `LoopThread.call`: short,
synchronous, one at a time, so that whatever only these functions and the coroutine touch needs no lock. A
function that was called runs to its end in the loop's thread, even if an interrupt hits the thread that waits
for it; a caller whose loop has died gets `LoopDiedError` instead of waiting for ever.

Neither the thread nor what it starts keeps the interpreter alive. Name look-ups run in daemon threads too:
the usual executor is joined when the interpreter exits, so a look-up that hangs would keep the process.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, TypeVar

import anyio
import anyio.lowlevel

from slime_bridge.errors import BridgeError

__all__ = ["LoopDiedError", "LoopThread", "first_cause"]

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

_LOOK_SECONDS = 0.5
_LET_GO_SECONDS = 0.2


class LoopDiedError(RuntimeError):
    """Raised in a caller whose function the loop will not run any more."""


class LoopThread:
    """A daemon thread that runs one coroutine; starts at once.

    Parameters
    ----------
    main
        The coroutine function to run.
    name
        Name of the thread.
    on_end
        Called in the thread when the coroutine has ended, with its exception or None.
    """

    def __init__(
        self,
        main: Callable[[], Awaitable[None]],
        *,
        name: str,
        on_end: Callable[[BaseException | None], None],
    ) -> None:
        self._main = main
        self._on_end = on_end
        self._loop: asyncio.AbstractEventLoop | None = None
        self._scope: anyio.CancelScope | None = None
        self._cancelled = threading.Event()
        self._up = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        try:
            self._thread.start()
            self._up.wait()
        except BaseException:  # an interrupt here would leave a thread that nobody knows
            self.cancel()
            raise

    @property
    def alive(self) -> bool:
        """Whether the thread still runs."""
        return self._thread.is_alive()

    @property
    def current(self) -> bool:
        """Whether the calling thread is the loop's own."""
        return threading.current_thread() is self._thread

    def call(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function in the loop's thread and return what it returns or raise what it raises.

        From that thread itself it is a plain call. An interrupt of the waiting thread (KeyboardInterrupt,
        SystemExit from a signal handler) comes through once it is certain whether the function has run: it
        has not and will not, or it has run completely.

        Raises
        ------
        LoopDiedError
            If the loop ended before it ran the function.
        """
        if self.current:
            return function(*args, **kwargs)
        outcome: concurrent.futures.Future[T] = concurrent.futures.Future()
        try:
            self._schedule(lambda: _fulfil(outcome, lambda: function(*args, **kwargs)))
            return self._result(outcome)
        except BaseException:
            # Not started: it never will be. Started: it is short, and must not be left half-known.
            if not outcome.cancel():
                self._settle(outcome)
            raise

    def soon(self, function: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Run a function in the loop's thread without waiting; nothing happens if the loop has ended."""
        try:
            self._schedule(lambda: function(*args, **kwargs))
        except LoopDiedError:
            logger.debug("%s has ended; nothing is run in it any more", self._thread.name)

    def cancel(self) -> None:
        """Cancel the coroutine, from any thread; harmless to repeat."""
        self._cancelled.set()
        if self._scope is not None:
            self.soon(self._scope.cancel)

    def join(self, timeout: float) -> bool:
        """Wait until the thread has ended, at most so many seconds; tell whether it has."""
        if not self.current:
            self._thread.join(timeout)
        return not self.alive

    def _schedule(self, function: Callable[[], Any]) -> None:
        if self._loop is None:
            raise LoopDiedError(f"{self._thread.name} has no event loop")
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError as error:  # asyncio's word for a closed loop
            raise LoopDiedError(f"{self._thread.name} has ended") from error

    def _result(self, outcome: concurrent.futures.Future[T]) -> T:
        while True:
            alive = self.alive
            try:
                return outcome.result(_LOOK_SECONDS if alive else 0)
            except concurrent.futures.TimeoutError:
                if outcome.done():
                    raise  # the function's own
                if not alive:
                    raise LoopDiedError(f"{self._thread.name} has ended") from None

    def _settle(self, outcome: concurrent.futures.Future[Any]) -> None:
        while not outcome.done() and self.alive:
            concurrent.futures.wait([outcome], _LOOK_SECONDS)

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            anyio.run(self._supervise, backend="asyncio")
        except BaseException as exc:  # whatever ended the loop, also SystemExit, is the owner's to report
            error = exc
        finally:
            self._up.set()
            self._on_end(error)

    async def _supervise(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(_DaemonExecutor())
        with anyio.CancelScope() as self._scope:
            self._loop = loop
            self._up.set()
            if self._cancelled.is_set():
                self._scope.cancel()
            try:
                await self._main()
            finally:
                with anyio.CancelScope(shield=True):
                    await _let_go()


async def _let_go() -> None:
    """Let connections that were accepted or cut a moment ago close their sockets before the loop ends."""
    for _ in range(2):
        await anyio.lowlevel.checkpoint()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=_LET_GO_SECONDS)
    for _ in range(2):
        await anyio.lowlevel.checkpoint()


def first_cause(error: BaseException) -> BaseException:
    """Return the first error of ours inside nested exception groups, else the first one of all."""
    leaves = [error]
    while any(isinstance(leaf, BaseExceptionGroup) for leaf in leaves):
        leaves = [
            inner
            for leaf in leaves
            for inner in (leaf.exceptions if isinstance(leaf, BaseExceptionGroup) else [leaf])
        ]
    return next((leaf for leaf in leaves if isinstance(leaf, BridgeError)), leaves[0])


def _fulfil(outcome: concurrent.futures.Future[T], function: Callable[[], T]) -> None:
    if not outcome.set_running_or_notify_cancel():
        return
    try:
        outcome.set_result(function())
    except BaseException as exc:  # belongs to the caller, who gets it; the loop must not see it
        outcome.set_exception(exc)


class _DaemonExecutor(concurrent.futures.ThreadPoolExecutor):
    """Runs each call in a daemon thread of its own; nobody ever waits for these threads."""

    def submit(
        self, function: Callable[..., T], /, *args: Any, **kwargs: Any
    ) -> concurrent.futures.Future[T]:
        """Start a thread for one call."""
        outcome: concurrent.futures.Future[T] = concurrent.futures.Future()
        threading.Thread(
            target=_fulfil,
            args=(outcome, lambda: function(*args, **kwargs)),
            name="polar-lookup",
            daemon=True,
        ).start()
        return outcome

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait for nothing."""
