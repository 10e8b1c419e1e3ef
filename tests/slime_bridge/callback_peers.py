"""Senders of callbacks that write what a test likes, when it likes."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from urllib.parse import urlsplit

import anyio

from slime_bridge.callbacks import CallbackHandle, CallbackListener

__all__ = ["Peer", "head", "nonzero", "result", "until"]


def result(size: int) -> bytes:
    """Return a record of exactly so many bytes in which no two stretches are alike."""
    start, end = b'{"task_id":"t-1","status":"completed","results":[],"x":"', b'"}'
    filler = "".join(f"{n:x}," for n in range(size // 2)).encode()
    return start + filler[: size - len(start) - len(end)] + end


class Peer:
    """A sender that writes what it likes, when it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, listener: CallbackListener) -> Peer:
        """Connect."""
        return cls(*await asyncio.open_connection("127.0.0.1", listener.port))

    async def send(self, data: bytes) -> None:
        """Write, and wait until most of it is on its way."""
        self.writer.write(data)
        await self.writer.drain()

    async def status(self) -> int:
        """Return the status of the next answer."""
        return int((await self.reader.readline()).split()[1])

    def reset(self) -> None:
        """End the connection as a process that crashes does: what is under way is lost."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def end(self) -> None:
        """Wait until the listener has closed the connection."""
        try:
            while await self.reader.read(1 << 16):
                pass
        except ConnectionError:
            pass
        self.writer.transport.abort()


def head(handle: CallbackHandle, length: int | None, extra: str = "") -> bytes:
    """Return the head of a request; without a length its body is chunked."""
    sized = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    return f"POST {urlsplit(handle.url).path} HTTP/1.1\r\nHost: x\r\n{sized}\r\n{extra}\r\n".encode()


def nonzero(listener: CallbackListener) -> dict[str, int]:
    """Return the counts that are not zero."""
    return {kind: count for kind, count in listener.counts.items() if count}


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a state of the listener that no event announces."""
    while not condition():  # noqa: ASYNC110 - the state belongs to the listener, which has no event for it
        await anyio.sleep(0.005)
