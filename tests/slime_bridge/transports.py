"""Peers for the client: a function in place of the network, on any clock, and servers on real sockets."""

from __future__ import annotations

import asyncio
import inspect
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress

import aiohttp
import httpx

from slime_bridge._http_errors import Answer

Handler = Callable[[httpx.Request], httpx.Response] | Callable[[httpx.Request], Awaitable[httpx.Response]]


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class HandlerTransport:
    """Gives each request to a handler, which returns the answer or raises what aiohttp would."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    async def exchange(
        self, method: str, url: str, *, headers: Mapping[str, str], content: bytes | None, max_bytes: int
    ) -> Answer:
        answer = self._handler(httpx.Request(method, url, headers=headers, content=content))
        response = await answer if inspect.isawaitable(answer) else answer
        chunks: list[bytes] = []
        async for chunk in response.aiter_bytes():
            chunks.append(chunk)
            if sum(map(len, chunks)) > max_bytes:
                break
        return Answer(response.status_code, response.headers, b"".join(chunks))

    async def aclose(self) -> None:
        """Nothing is open."""


def refused() -> aiohttp.ClientConnectorError:
    """Make the error of a port where nobody listens."""
    return aiohttp.ClientConnectorError(_KEY, ConnectionRefusedError(111, "Connection refused"))


_KEY = aiohttp.client_reqrep.ConnectionKey("polar", 80, False, True, None, None, None)


@asynccontextmanager
async def serving(serve: Serve) -> AsyncIterator[str]:
    """Run a handler for each connection to a free port and give the URL; connections end with the handler."""
    loop, tasks = asyncio.get_running_loop(), set[asyncio.Task[None]]()

    async def handle(connection: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=connection)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                await serve(reader, writer)
                await writer.drain()
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def accept() -> None:
        while True:
            connection, _ = await loop.sock_accept(bound)
            tasks.add(loop.create_task(handle(connection)))

    with socket.create_server(("127.0.0.1", 0), backlog=1024) as bound:
        bound.setblocking(False)
        accepting = loop.create_task(accept())
        try:
            yield f"http://127.0.0.1:{bound.getsockname()[1]}"
        finally:
            for task in (accepting, *tasks):
                task.cancel()
            ends = await asyncio.gather(accepting, *tasks, return_exceptions=True)
    failures = [end for end in ends if isinstance(end, Exception)]
    if failures:
        raise failures[0]
