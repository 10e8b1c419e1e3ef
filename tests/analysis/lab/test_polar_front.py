"""A port that ends or refuses leaves no task and no socket behind, whatever its connections are doing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

import pytest

from analysis.lab.polar_server.faults import Fault
from analysis.lab.polar_server.front import Front

ITERATIONS = range(10)
"""Loop iterations between a client's act and the front's end: every point of a hand-over is met."""


async def _app(scope: dict[str, Any], receive: Callable[[], Awaitable[Any]], send: Any) -> None:
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


def _leaks(work: Callable[[int], Coroutine[Any, Any, None]], iterations: Iterable[int]) -> list[str]:
    """Run `work` with each number in a loop of its own; return the sockets and warnings that are left."""
    before = _open_sockets()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for number in iterations:
            asyncio.run(work(number))
    found = [str(warning.message) for warning in caught if warning.category is ResourceWarning]
    return found + sorted(_open_sockets() - before)


def _open_sockets() -> set[str]:
    """Return the sockets of this process, also those that wait for the garbage collector."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor of the listing itself
            found.add(os.readlink(f"/proc/self/fd/{number}"))
    return {name for name in found if name.startswith("socket:")}


async def _iterate(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_a_client_that_hangs_up_on_garbage_does_not_keep_the_front_alive():
    """The end of the client and the end of the front meet in one loop iteration."""

    async def work(iterations: int) -> None:
        front = Front(_app, policy=lambda _: Fault("connection_garbage"))
        await front.listen()
        client = socket.create_connection(("127.0.0.1", front.port))
        client.setblocking(False)
        await asyncio.get_running_loop().sock_recv(client, 100)
        client.close()
        await _iterate(iterations)
        async with asyncio.timeout(20):
            await front.close()
        assert front.connections == 0

    assert _leaks(work, ITERATIONS) == []


@pytest.mark.parametrize("kind", [None, "connection_garbage", "connection_half_open", "connection_reset"])
@pytest.mark.parametrize("end", ["close", "refuse"])
def test_connections_that_just_arrived_are_cut(kind: str | None, end: str):
    """A connection has an owner from its first moment, so that its socket never waits for the garbage."""

    async def work(iterations: int) -> None:
        front = Front(_app, policy=lambda _: Fault(kind) if kind else None)
        await front.listen()
        clients = [socket.create_connection(("127.0.0.1", front.port)) for _ in range(3)]
        clients[0].sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        await _iterate(iterations)
        await getattr(front, end)()
        assert front.connections == 0
        for client in clients:
            client.settimeout(20)
            try:
                while client.recv(1000):
                    pass
            except ConnectionResetError:
                pass
            client.close()
        await front.close()

    assert _leaks(work, ITERATIONS) == []


def test_a_front_that_refused_listens_again_on_its_port():
    """Refusing twice, listening twice and closing twice are harmless."""

    async def work(_: int) -> None:
        front = Front(_app)
        port = front.port
        for _ in range(2):
            await front.listen()
            await front.listen()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            assert (await reader.read()).endswith(b"ok")
            writer.close()
            await writer.wait_closed()
            await front.refuse()
            await front.refuse()
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", port)
        await front.close()
        await front.close()

    assert _leaks(work, [0]) == []
