"""An accepted TCP connection whose bytes are received right where they are wanted.

asyncio's streams give every byte to a buffer, a second object and whoever reads it. A body of megabytes is
received here by the kernel's own copy into the memory where it stays, in pieces as large as the socket holds
them, and nothing is woken before its last byte.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import cast

__all__ = ["Connection", "ConnectionCutError", "Reception"]

_KEPT_BYTES = 512 * 1024
# The kernel holds so much of one connection only while the loop does not keep up.
_BACKLOG_BYTES = 256 * 1024


class ConnectionCutError(Exception):
    """Raised when the peer ended the connection before its request was complete."""


class Reception:
    """What all connections of one loop share.

    Attributes
    ----------
    space : memoryview
        Where bytes are received that no memory is set aside for. A selector loop receives and hands over in
        one step, so that one space serves all connections.
    backlog_at : float
        When a connection last held so much that the loop cannot have kept up, in the loop's time.
    """

    def __init__(self) -> None:
        self.space = memoryview(bytearray(256 * 1024))
        self.backlog_at = float("-inf")


class Connection(asyncio.BufferedProtocol):
    """One connection, read by one coroutine at a time; made by `accept`.

    What arrives while nobody reads is kept, up to half a megabyte; then the peer has to wait.

    Parameters
    ----------
    reception
        Shared by the loop's connections.
    """

    def __init__(self, reception: Reception) -> None:
        self._loop = asyncio.get_running_loop()
        self._reception = reception
        self._transport: asyncio.Transport | None = None
        self._closed = self._loop.create_future()
        self._error: Exception | None = None
        self._at_end = False
        self._paused = False
        self._kept = bytearray()
        self._received_at = self._loop.time()
        self._target: memoryview | None = None
        self._goal = 1
        self._waiter: asyncio.Future[None] | None = None
        self._then: Callable[[], None] | None = None

    @classmethod
    async def accept(cls, sock: socket.socket, reception: Reception) -> Connection:
        """Take over an accepted, non-blocking socket; raises `OSError`."""
        loop = asyncio.get_running_loop()
        _, connection = await loop.connect_accepted_socket(lambda: cls(reception), sock)
        return connection

    # Reading

    async def read(self) -> bytes:
        """Wait for bytes and return all that there are, none at the connection's end; raises `OSError`."""
        if not self._kept and not self._at_end:
            await self._wait(1)
        if self._error is not None:
            raise self._error
        return self._take(len(self._kept))

    def put_back(self, data: bytes) -> None:
        """Let bytes that were read be read again, before all others."""
        self._kept[:0] = data

    async def receive(self, size: int, *, idle_timeout: float, then: Callable[[bytes], None]) -> None:
        """Receive so many bytes and call `then` with them the moment the last one is in.

        Raises
        ------
        TimeoutError
            No byte came for `idle_timeout` seconds.
        ConnectionCutError
            The connection ended before.
        """
        if len(self._kept) < size:
            await self._wait(size, idle_timeout, lambda: then(self._take(size)))
        else:
            then(self._take(size))

    async def receive_into(
        self, memory: memoryview, *, idle_timeout: float, then: Callable[[], None]
    ) -> None:
        """Fill memory and call `then` the moment it is full; raises as `receive`.

        When it raises, or is cancelled, nothing is written into the memory any more.
        """
        known = self._take(len(memory))
        memory[: len(known)] = known
        if len(known) == len(memory):
            then()
            return
        self._target = memory[len(known) :]
        try:
            await self._wait(0, idle_timeout, then)
        finally:
            self._target = None

    async def _wait(
        self, goal: int, idle_timeout: float | None = None, then: Callable[[], None] | None = None
    ) -> None:
        """Wait until so many bytes are kept, or the target is full."""
        if self._at_end:
            raise ConnectionCutError from self._error
        self._goal, self._then = goal, then
        self._waiter = waiter = self._loop.create_future()
        self._received_at = self._loop.time()
        idle = None if idle_timeout is None else _IdleTimer(self, waiter, idle_timeout)
        self._resume()
        try:
            await waiter
        finally:
            self._waiter = self._then = None
            if idle is not None:
                idle.cancel()
            # An error refers to this frame. If the frame referred to it too, the memory that was being filled
            # would stay until the garbage collector comes by.
            del waiter, idle

    @property
    def received_at(self) -> float:
        """When a byte came last, in the loop's time."""
        return self._received_at

    def _take(self, count: int) -> bytes:
        data = bytes(self._kept[:count])
        del self._kept[:count]
        return data

    def _resume(self) -> None:
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    def _wake(self, error: Exception | None = None) -> None:
        """Let whoever waits go on; what is to be done at once is done before anything else is received."""
        waiter, self._waiter = self._waiter, None
        if waiter is None or waiter.done():
            return
        if error is None and self._then is not None:
            try:
                self._then()
            except Exception as exc:  # raised in whoever waits
                error = exc
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(error)

    # Writing and closing

    def write(self, data: bytes) -> None:
        """Send without waiting; nothing happens on a connection that has ended."""
        self._live_transport.write(data)

    def write_eof(self) -> None:
        """Tell the peer that nothing follows, once everything was sent."""
        self._live_transport.write_eof()

    async def close(self) -> None:
        """Send what is left to send, close, and wait for it."""
        self._live_transport.close()
        await asyncio.shield(self._closed)

    def abort(self) -> None:
        """Close at once; idempotent."""
        self._live_transport.abort()

    @property
    def _live_transport(self) -> asyncio.Transport:
        if self._transport is None:
            raise RuntimeError("the connection was not accepted")
        return self._transport

    # What the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes go."""
        return self._reception.space if self._target is None else self._target

    def buffer_updated(self, nbytes: int) -> None:
        """Note what has arrived."""
        self._received_at = self._loop.time()
        if self._target is not None:
            if nbytes >= _BACKLOG_BYTES:
                self._reception.backlog_at = self._received_at
            rest = self._target[nbytes:]
            self._target = rest if len(rest) else None
            if self._target is None:
                self._wake()
            return
        self._kept += self._reception.space[:nbytes]
        if self._waiter is not None:
            if len(self._kept) >= self._goal:
                self._wake()
        elif len(self._kept) > _KEPT_BYTES and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        """Note that nothing more comes; the answer can still be sent."""
        self._end()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        # The frames that it went through hold the memory that was being filled.
        self._error = None if exc is None else exc.with_traceback(None)
        self._end()
        if not self._closed.done():
            self._closed.set_result(None)

    def _end(self) -> None:
        self._at_end = True
        if self._then is None:
            self._wake()
        else:
            cut = ConnectionCutError()
            cut.__cause__ = self._error
            self._wake(cut)


class _IdleTimer:
    """Fails a future when a connection received nothing for a while: one timer, however many pieces come."""

    def __init__(self, connection: Connection, waiter: asyncio.Future[None], timeout: float) -> None:
        self._connection = connection
        self._waiter = waiter
        self._timeout = timeout
        self._loop = waiter.get_loop()
        self._handle = self._loop.call_later(timeout, self._look)

    def cancel(self) -> None:
        self._handle.cancel()

    def _look(self) -> None:
        left = self._connection.received_at + self._timeout - self._loop.time()
        if left > 0:
            self._handle = self._loop.call_later(left, self._look)
        elif not self._waiter.done():
            self._waiter.set_exception(TimeoutError())
