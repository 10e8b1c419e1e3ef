"""A small HTTP/1.1 client for many concurrent requests to few hosts.

A gateway sends hundreds of model calls at a time to one router, where a general client spends most of its
time searching its connection pool. This one keeps idle connections on a stack per host, parses only what a
JSON API sends, retries nothing, follows no redirect, and reads no proxy variables. A cancelled request
aborts its connection, so that the other side notices at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urlsplit

from analysis.errors import LabError
from analysis.lab.polar_server.wire import decode, encode

_READ_LIMIT = 1 << 20
_MAX_HEAD = 1 << 16
_MAX_IDLE = 512
_DRIP_PIECES = 10

Address = tuple[str, str, int]


class HttpError(LabError, ConnectionError):
    """Raised when a request got no usable answer: not connected, cut, or not HTTP."""


class HttpTimeoutError(HttpError, TimeoutError):
    """Raised when one phase of a request (connect, write, read) took too long."""


@dataclass(frozen=True)
class HttpAnswer:
    """A complete answer; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def ok(self) -> bool:
        """Whether the status is 2xx."""
        return 200 <= self.status < 300

    @property
    def text(self) -> str:
        """The body as text; bytes that are no UTF-8 are replaced."""
        return self.content.decode("utf-8", "replace")

    def json(self) -> Any:
        """Return the decoded body; bare NaN and Infinity are accepted.

        Raises
        ------
        ValueError
            When it is not JSON.
        """
        return decode(self.content)


@dataclass(eq=False)
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @property
    def usable(self) -> bool:
        return not (self.reader.at_eof() or self.writer.transport.is_closing())

    def abort(self) -> None:
        self.writer.transport.abort()


class HttpClient:
    """A pool of connections, used from one event loop.

    Parameters
    ----------
    connect_timeout, timeout
        Seconds for connecting, and for each of: writing the request, the first byte of the answer, its rest.
    headers
        Sent with every request.
    """

    def __init__(
        self,
        *,
        connect_timeout: float = 30.0,
        timeout: float = 30.0,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._connect_timeout = connect_timeout
        self._timeout = timeout
        self._headers = dict(headers or {})
        self._idle: dict[Address, list[_Connection]] = {}
        self._busy: set[_Connection] = set()

    async def request(
        self,
        method: str,
        url: str,
        *,
        json: Any = None,
        content: bytes = b"",
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        drip_seconds: float = 0.0,
    ) -> HttpAnswer:
        """Send one request and return its answer.

        Parameters
        ----------
        method, url
            Of the request; the URL must be http or https.
        json, content
            Body: a value to encode, or bytes that are said to be JSON.
        headers
            More headers.
        timeout
            In place of the client's, for connecting too when it is shorter.
        drip_seconds
            Spread the body over so many seconds.

        Raises
        ------
        HttpTimeoutError
            When a phase took too long.
        HttpError
            When there was no usable answer for another reason, or the URL cannot be used.
        """
        parts, address = _address(url)
        body = content if json is None else encode(json)
        head = _head(method, parts, {**self._headers, **(headers or {})}, len(body))
        seconds = self._timeout if timeout is None else timeout
        connection = await self._connect(address, min(seconds, self._connect_timeout))
        keep = False
        self._busy.add(connection)
        try:
            async with _phase(seconds, f"writing to {url}"):
                await _send(connection, head, body, drip_seconds)
            answer, keep = await _receive(connection.reader, method, seconds, url)
        except (OSError, EOFError) as error:
            if isinstance(error, HttpError):
                raise
            raise HttpError(f"{url}: {type(error).__name__}: {error}") from error
        finally:
            self._busy.discard(connection)
            if keep and connection.usable:
                self._put_back(address, connection)
            else:
                connection.abort()
        return answer

    async def get(self, url: str, **options: Any) -> HttpAnswer:
        """Send a GET; see `request`."""
        return await self.request("GET", url, **options)

    async def post(self, url: str, **options: Any) -> HttpAnswer:
        """Send a POST; see `request`."""
        return await self.request("POST", url, **options)

    async def aclose(self) -> None:
        """Cut all connections, also those in use."""
        connections = [*self._busy, *(item for stack in self._idle.values() for item in stack)]
        self._idle.clear()
        for connection in connections:
            connection.abort()
        for connection in connections:
            with contextlib.suppress(OSError):
                await connection.writer.wait_closed()

    async def _connect(self, address: Address, timeout: float) -> _Connection:
        stack = self._idle.get(address, [])
        while stack:
            connection = stack.pop()
            if connection.usable:
                return connection
            connection.abort()
        scheme, host, port = address
        context = ssl.create_default_context() if scheme == "https" else None
        try:
            async with _phase(timeout, f"connecting to {host}:{port}"):
                return _Connection(*await asyncio.open_connection(host, port, ssl=context, limit=_READ_LIMIT))
        except OSError as error:
            if isinstance(error, HttpError):
                raise
            raise HttpError(f"cannot connect to {host}:{port}: {error}") from error

    def _put_back(self, address: Address, connection: _Connection) -> None:
        stack = self._idle.setdefault(address, [])
        if len(stack) < _MAX_IDLE:
            stack.append(connection)
        else:
            connection.abort()


@contextlib.asynccontextmanager
async def _phase(seconds: float, doing: str) -> Any:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise HttpTimeoutError(f"{doing} took longer than {seconds:g} s") from error


def _address(url: str) -> tuple[SplitResult, Address]:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise HttpError(f"{url!r} is no URL: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise HttpError(f"{url!r} is no http or https URL")
    return parts, (parts.scheme, parts.hostname, port or (443 if parts.scheme == "https" else 80))


def _head(method: str, parts: SplitResult, headers: Mapping[str, str], length: int) -> bytes:
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    lines = {
        "Host": parts.netloc.rpartition("@")[2],
        "Accept": "*/*",
        "User-Agent": "polar-lab",
    }
    if length or method != "GET":
        lines |= {"Content-Type": "application/json", "Content-Length": str(length)}
    lines |= headers
    text = f"{method} {target} HTTP/1.1\r\n" + "".join(f"{key}: {value}\r\n" for key, value in lines.items())
    return f"{text}\r\n".encode("latin-1")


async def _send(connection: _Connection, head: bytes, body: bytes, drip_seconds: float) -> None:
    """Write the request; what breaks the connection meanwhile is raised when the answer is read."""
    writer = connection.writer
    with contextlib.suppress(ConnectionError):
        if drip_seconds <= 0:
            writer.write(head + body)
            await writer.drain()
            return
        writer.write(head)
        size = max(1, -(-len(body) // _DRIP_PIECES))
        for start in range(0, len(body), size):
            writer.write(body[start : start + size])
            await writer.drain()
            await asyncio.sleep(drip_seconds / _DRIP_PIECES)


async def _receive(
    reader: asyncio.StreamReader, method: str, seconds: float, url: str
) -> tuple[HttpAnswer, bool]:
    """Return the answer, and whether the connection can be used again."""
    while True:
        async with _phase(seconds, f"waiting for {url}"):
            status, version, headers = await _read_head(reader)
        if status >= 200:
            break
    async with _phase(seconds, f"reading from {url}"):
        content, delimited = await _read_body(reader, method, status, headers)
    closing = headers.get("connection", "").lower() == "close" or version == "HTTP/1.0"
    return HttpAnswer(status, headers, content), delimited and not closing


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, str, dict[str, str]]:
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if not error.partial:
            raise HttpError("the server closed the connection without an answer") from error
        raise HttpError(f"the server closed the connection within {error.partial[:40]!r}") from error
    except asyncio.LimitOverrunError as error:
        raise HttpError("the answer's header does not end") from error
    first, *lines = raw[:-4].decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    if not version.startswith("HTTP/1.") or not rest[:3].isdigit() or len(raw) > _MAX_HEAD:
        raise HttpError(f"the answer is not HTTP: {first[:60]!r}")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise HttpError(f"the answer's header holds {line[:60]!r}")
        headers[name.strip().lower()] = value.strip()
    return int(rest[:3]), version, headers


async def _read_body(
    reader: asyncio.StreamReader, method: str, status: int, headers: Mapping[str, str]
) -> tuple[bytes, bool]:
    """Return the body, and whether its end was marked by more than the end of the connection."""
    if method == "HEAD" or status in (204, 304):
        return b"", True
    if "chunked" in headers.get("transfer-encoding", "").lower():
        return await _read_chunks(reader), True
    length = headers.get("content-length")
    if length is None:
        return await reader.read(-1), False
    if not length.isdigit():
        raise HttpError(f"the answer's length is {length!r}")
    return await reader.readexactly(int(length)), True


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    chunks: list[bytes] = []
    while True:
        line = (await reader.readuntil(b"\r\n")).split(b";")[0].strip()
        try:
            size = int(line, 16)
        except ValueError as error:
            raise HttpError(f"the answer holds a chunk of size {line[:20]!r}") from error
        if size == 0:
            while await reader.readuntil(b"\r\n") != b"\r\n":
                pass
            return b"".join(chunks)
        chunks.append(await reader.readexactly(size))
        await reader.readexactly(2)
