"""Accepting connections without ever losing one: each belongs to a task from its first moment.

asyncio's own servers do not know a connection between its acceptance and its handler's first step, a few
loop iterations later. One that is there when such a server closes is seen by nobody: its peer waits, and its
socket stays open until the garbage collector finds it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence

import anyio
import anyio.lowlevel

__all__ = ["Acceptor"]

logger = logging.getLogger(__name__)

_BACKLOG = 1024
_RETRY_SECONDS = 1.0


class Acceptor:
    """Listens on sockets and runs a handler for each connection, in a task of its own; begins at once.

    Parameters
    ----------
    sockets
        Bound and non-blocking; they belong to the acceptor from now on.
    serve
        Gets a connection's socket, non-blocking; called in a new task of the running loop. The socket is
        closed when the task ends.

    Raises
    ------
    OSError
        If a socket cannot listen; all are closed then.
    """

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        serve: Callable[[socket.socket], Awaitable[None]],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._sockets = list(sockets)
        self._serve = serve
        self._connections: dict[asyncio.Task[None], socket.socket] = {}
        self._pauses: set[asyncio.TimerHandle] = set()
        try:
            for sock in self._sockets:
                sock.listen(_BACKLOG)
        except OSError:
            for sock in self._sockets:
                sock.close()
            raise
        for sock in self._sockets:
            self._loop.add_reader(sock, self._accept, sock)

    async def close(self, timeout: float) -> None:
        """Close the sockets, cancel what serves the connections, and wait up to `timeout` seconds for it.

        Idempotent, and not to be cancelled itself.
        """
        sockets, self._sockets = self._sockets, []
        for pause in self._pauses:
            pause.cancel()
        for sock in sockets:
            self._loop.remove_reader(sock)
            sock.close()
        for task in self._connections:
            task.cancel()
        with anyio.CancelScope(shield=True):
            if self._connections:
                await asyncio.wait(list(self._connections), timeout=timeout)
            # Transports let go of their sockets one loop iteration after they were closed.
            await anyio.lowlevel.checkpoint()

    def _accept(self, sock: socket.socket) -> None:
        """Take the connections that wait on a socket."""
        for _ in range(_BACKLOG):
            try:
                connection, _ = sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as exc:  # out of descriptors: some may be free again in a while
                logger.error("Accepting connections pauses for %g s: %s", _RETRY_SECONDS, exc)
                self._pause(sock)
                return
            connection.setblocking(False)
            task = self._loop.create_task(self._handle(connection))
            self._connections[task] = connection
            task.add_done_callback(self._ended)

    def _pause(self, sock: socket.socket) -> None:
        def resume() -> None:
            self._pauses.discard(handle)
            self._loop.add_reader(sock, self._accept, sock)

        self._loop.remove_reader(sock)
        handle = self._loop.call_later(_RETRY_SECONDS, resume)
        self._pauses.add(handle)

    async def _handle(self, connection: socket.socket) -> None:
        await self._serve(connection)

    def _ended(self, task: asyncio.Task[None]) -> None:
        # A task that is cancelled before its first step never gets to close its connection.
        self._connections.pop(task).close()
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("Serving a connection failed", exc_info=error)
