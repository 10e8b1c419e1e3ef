"""A rollout server that does nothing but answer: the peer of the bridge's benchmarks.

It speaks as much of Polar's protocol as a run without faults needs, on bare asyncio, so that the time
measured is the bridge's. A submitted task is over at once, or after the longest of some lognormal times; its
callback is the prepared body with the task's id put in. It measures how long a callback's receiver takes.

Run as ``python quick_server.py JSON`` it prints its URL and serves until its input ends.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import re
import sys
import time
from typing import Any
from urllib.parse import urlsplit

from support.task_bodies import TASK_MARK, TaskShape, task_body

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
_UNKNOWN = b'HTTP/1.1 404 Not Found\r\ncontent-length: 22\r\n\r\n{"detail":"Not Found"}'


class Server:
    """The state behind all connections.

    Parameters
    ----------
    shape
        Size of every result.
    bodies
        How many different results are prepared.
    median, sigma, maximum
        Lognormal seconds; a median of 0 makes tasks end at once.
    draws
        Of how many such times a task takes the longest.
    seed
        Of these times.
    """

    def __init__(
        self,
        shape: TaskShape,
        *,
        bodies: int = 1,
        median: float = 0.0,
        sigma: float = 1.0,
        maximum: float = 8.0,
        draws: int = 1,
        seed: int = 0,
    ) -> None:
        self._bodies = [task_body(shape, seed) for seed in range(bodies)]
        self._times = (median, sigma, maximum)
        self._draws = draws
        self._seed = seed
        self._count = 0
        self._running: set[asyncio.Task[None]] = set()
        self.statuses: dict[str, str] = {}
        self.sent: list[dict[str, float]] = []

    def answer(self, method: str, path: str, content: bytes) -> bytes:
        """Answer one request; a submit starts its task."""
        if path == "/rollout/task/submit":
            request = json.loads(content)
            task_id = request["task_id"]
            self.statuses[task_id] = "running"
            work = asyncio.get_running_loop().create_task(self._run(request, self._count))
            self._count += 1
            self._running.add(work)
            work.add_done_callback(self._running.discard)
            return _json({"task_id": task_id, "status": "running"})
        if path == "/health":
            return _json({"status": "ok", "nodes": 0})
        if path == "/rollout/status":
            return _json(
                {"tasks": self.statuses, "pipeline": {"pending_sessions": 0}, "nodes": {"nodes": []}}
            )
        if path == "/nodes":
            return _json([])
        if path == "/sent":
            sent, self.sent = self.sent, []
            return _json(sent)
        return _UNKNOWN

    async def _run(self, request: dict[str, Any], number: int) -> None:
        median, sigma, maximum = self._times
        if median:
            draws = random.Random(f"{self._seed} {number}")
            times = [median * math.exp(sigma * draws.gauss(0, 1)) for _ in range(self._draws)]
            await asyncio.sleep(min(maximum, max(times)))
        body = self._bodies[number % len(self._bodies)].replace(TASK_MARK, request["task_id"].encode())
        self.statuses[request["task_id"]] = "completed"
        try:
            await self._call_back(request["callback_url"], body)
        except ConnectionError:
            return  # the trainer has ended; surplus tasks have nobody to tell

    async def _call_back(self, url: str, body: bytes) -> None:
        began = time.monotonic()
        parts = urlsplit(url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        # Draining then means that the kernel has everything.
        writer.transport.set_write_buffer_limits(0)
        head = f"POST {parts.path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        writer.write(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body))
        writer.write(body)
        await writer.drain()
        sent = time.monotonic()
        status = await reader.readline()
        answered = time.monotonic()
        writer.close()
        if b" 200 " not in status:
            raise RuntimeError(f"a callback was answered with {status!r}")
        self.sent.append({"began": began, "sent": sent, "answered": answered})


def _json(value: Any) -> bytes:
    content = json.dumps(value).encode()
    return _OK % (len(content), content)


class Connection(asyncio.Protocol):
    """One keep-alive connection of the trainer."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        """Answer every complete request."""
        self._data += data
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            head = self._data[:end]
            length = _LENGTH.search(head)
            size = end + 4 + (int(length[1]) if length else 0)
            if len(self._data) < size:
                return
            content, self._data = self._data[end + 4 : size], self._data[size:]
            method, target, _ = head.split(b"\r\n", 1)[0].decode().split(" ")
            self._transport.write(self._server.answer(method, target.partition("?")[0], content))


async def serve(settings: dict[str, Any]) -> None:
    """Serve until the input ends."""
    server = Server(TaskShape(**settings.pop("shape")), **settings)
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(lambda: Connection(server), "127.0.0.1", 0, backlog=1024)
    print(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}", flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(serve(json.loads(sys.argv[1])))
