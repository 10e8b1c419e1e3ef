"""One HTTP/1.1 request on one connection, read with h11 under limits and answered.

Knows HTTP and sockets only: who may post what, and what a body means, is decided by the caller.
"""

from __future__ import annotations

import http
import itertools
import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass

import anyio
import anyio.lowlevel
import h11

from slime_bridge._body import MAPPED_BYTES, Body, joined, mapped
from slime_bridge._connection import Connection, ConnectionCutError

__all__ = ["BodyTooLargeError", "ConnectionCutError", "HttpExchange", "Limits"]

_HEAD_BYTES = 16 * 1024
_LINGER_SECONDS = 1.0
_LINGER_BYTES = 1 << 20
# So many parts of a request are read before others get a turn: two milliseconds' worth.
_EVENTS_PER_TURN = 128


class BodyTooLargeError(Exception):
    """Raised when a request body exceeds its limit."""


@dataclass(frozen=True)
class Limits:
    """Bounds on one request: the body in bytes, the head, each read and the whole in seconds."""

    max_body_bytes: int
    header_timeout: float
    idle_timeout: float
    request_timeout: float


class HttpExchange:
    """Reads one request from a connection and writes its answer; the connection is not used again.

    Parameters
    ----------
    connection
        The accepted connection.
    limits
        What the peer may take.
    """

    def __init__(self, connection: Connection, limits: Limits) -> None:
        self._connection = connection
        self._limits = limits
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=_HEAD_BYTES)
        self._request_is_read = False
        self._method = b""
        self._framed_length: int | None = None

    async def head(self) -> h11.Request | None:
        """Return the request's line and headers, None if the peer went away without a byte.

        Raises
        ------
        h11.RemoteProtocolError
            The peer does not speak HTTP/1.1, or its head is too long.
        ConnectionCutError, TimeoutError
            It ended, or did not come in time.
        """
        with anyio.fail_after(self._limits.header_timeout):
            event = await self._next_event()
        if not isinstance(event, h11.Request):
            return None
        self._method = event.method
        if not any(name == b"transfer-encoding" for name, _ in event.headers):
            self._framed_length = self.declared_length(event)
        return event

    def declared_length(self, request: h11.Request) -> int | None:
        """Return the body's length if the request states it."""
        for name, value in request.headers:
            if name == b"content-length":
                return int(value)
        return None

    async def body(self, then: Callable[[Body], None]) -> None:
        """Read the request body and call `then` with it, before any other connection gets its turn.

        A body of declared length goes past the HTTP parser into the memory where it stays; large ones get
        theirs from `slime_bridge._body.mapped`, where a page is taken only when bytes reach it.

        Raises
        ------
        BodyTooLargeError
            It exceeds the limit; the rest is left unread.
        MemoryError
            The system has no room for it; the rest is left unread.
        h11.RemoteProtocolError, ConnectionCutError, TimeoutError
            As for `head`.
        """

        def complete(body: Body) -> None:
            self._request_is_read = True
            then(body)

        length = self._framed_length
        if length is None:
            # Joined once at the end: growing one buffer would copy a body of hundreds of megabytes again and
            # again.
            complete(joined([chunk async for chunk in self._chunks()]))
            return
        if length > self._limits.max_body_bytes:
            raise BodyTooLargeError
        idle_timeout = self._limits.idle_timeout
        if length < MAPPED_BYTES:
            self._begin_framed_body()
            await self._connection.receive(length, idle_timeout=idle_timeout, then=complete)
        else:
            memory = mapped(length)
            self._begin_framed_body()
            await self._connection.receive_into(
                memory, idle_timeout=idle_timeout, then=lambda: complete(memory.toreadonly())
            )

    async def discard_body(self) -> None:
        """Read the request body to its end without keeping it; raises like `body`."""
        if self._framed_length is None:
            async for _ in self._chunks():
                pass
            return
        self._begin_framed_body()
        left = self._framed_length
        while left > 0:
            with anyio.fail_after(self._limits.idle_timeout):
                data = await self._read()
            if not data:
                raise ConnectionCutError
            left -= len(data)
        self._request_is_read = True

    def _begin_framed_body(self) -> None:
        """Take the connection back from the HTTP parser, with what it has read too far."""
        self._send_continue()
        ahead, _ = self._http.trailing_data
        self._connection.put_back(ahead)

    async def _chunks(self) -> AsyncIterator[bytes]:
        size = 0
        self._send_continue()
        for number in itertools.count(1):
            # One read can hold tens of thousands of tiny chunks.
            if number % _EVENTS_PER_TURN == 0:
                await anyio.lowlevel.checkpoint()
            with anyio.fail_after(self._limits.idle_timeout):
                event = await self._next_event()
            if isinstance(event, h11.Data):
                size += len(event.data)
                if size > self._limits.max_body_bytes:
                    raise BodyTooLargeError
                yield bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                self._request_is_read = True
                return
            else:
                raise ConnectionCutError

    async def _next_event(self) -> h11.Event | None:
        """Return the next part of the request, None if the peer wants something else than one request."""
        while True:
            event = self._http.next_event()
            if event is h11.PAUSED:
                return None
            if isinstance(event, h11.Event):
                return event
            data = await self._read()
            if not data and self._http.their_state is h11.SEND_BODY:
                raise ConnectionCutError
            self._http.receive_data(data)

    async def _read(self) -> bytes:
        try:
            return await self._connection.read()
        except OSError as exc:
            raise ConnectionCutError from exc

    def _send_continue(self) -> None:
        if self._http.they_are_waiting_for_100_continue:
            self._send(h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue"))

    def respond(self, status: int, *, message: str, allow: str | None = None) -> None:
        """Write the answer ``{"status": message}`` without waiting; it announces the connection's end."""
        content = json.dumps({"status": message}).encode()
        headers = [
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(content))),
            ("Connection", "close"),
        ]
        if allow is not None:
            headers.append(("Allow", allow))
        reason = http.HTTPStatus(status).phrase.encode()
        events: list[h11.Event] = [h11.Response(status_code=status, headers=headers, reason=reason)]
        if self._method != b"HEAD":
            events.append(h11.Data(data=content))
        self._send(*events, h11.EndOfMessage())

    def _send(self, *events: h11.Event) -> None:
        # One write for all: each would be a system call and a packet of its own.
        self._connection.write(b"".join(self._http.send(event) or b"" for event in events))

    async def finish(self) -> None:
        """Flush the answer and close the connection.

        A peer that is still sending gets a moment to read the answer first: closing a socket with unread
        input makes the kernel reset the connection, and the answer is lost with it.
        """
        with suppress(OSError), anyio.move_on_after(_LINGER_SECONDS):
            if not self._request_is_read:
                self._connection.write_eof()
                left = _LINGER_BYTES
                while left > 0 and (data := await self._connection.read()):
                    left -= len(data)
            await self._connection.close()
        self.abort()

    def abort(self) -> None:
        """Close the connection at once; idempotent."""
        self._connection.abort()
