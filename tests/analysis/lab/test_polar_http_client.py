"""The pooled HTTP client: answers in every framing, reuse of connections, typed errors for the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from analysis.lab.polar_server.http_client import HttpClient, HttpError, HttpTimeoutError
from analysis.lab.polar_server.wire import decode, encode

Play = Callable[[HttpClient, str], Awaitable[Any]]
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter, int], Awaitable[bool]]


def _with_server(serve: Serve, play: Play, **options: Any) -> tuple[Any, int]:
    """Run `play` against a raw server; return its result and the number of connections that were made.

    `serve` answers one request on a connection and says whether to go on; it gets the connection's number.
    """

    async def main() -> tuple[Any, int]:
        connections = 0

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal connections
            number = connections
            connections += 1
            try:
                while await serve(reader, writer, number):
                    pass
            except (asyncio.IncompleteReadError, ConnectionError):
                pass
            finally:
                writer.close()

        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        client = HttpClient(**{"timeout": 20.0, **options})
        try:
            return await play(client, f"http://127.0.0.1:{port}"), connections
        finally:
            await client.aclose()
            server.close()
            await asyncio.sleep(0.01)

    return asyncio.run(main())


async def _request(reader: asyncio.StreamReader) -> tuple[str, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    lengths = [
        line.split(":")[1] for line in head.split("\r\n") if line.lower().startswith("content-length:")
    ]
    return head, await reader.readexactly(int(lengths[0])) if lengths else b""


def _answering(raw: bytes, *, more: bool = True) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _: int) -> bool:
        await _request(reader)
        writer.write(raw)
        await writer.drain()
        return more

    return serve


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-A: b\r\n\r\n{}"


@pytest.mark.parametrize(
    ("raw", "more", "status", "content", "connections"),
    [
        (OK, True, 200, b"{}", 1),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1;x=y\r\n}\r\n0\r\nT: r\r\n\r\n",
            True,
            200,
            b"{}",
            1,
        ),
        (b"HTTP/1.1 204 No Content\r\n\r\n", True, 204, b"", 1),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 404\r\nContent-Length: 0\r\n\r\n", True, 404, b"", 1),
        (b"HTTP/1.1 200 OK\r\n\r\n{}", False, 200, b"{}", 2),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}", True, 200, b"{}", 2),
        (b"HTTP/1.1 500 Oh\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno", True, 500, b"no", 2),
    ],
)
def test_every_framing_is_read(raw: bytes, more: bool, status: int, content: bytes, connections: int):
    """By length, in chunks, to the end of the connection; reused where that is allowed."""

    async def play(client: HttpClient, url: str) -> Any:
        return [await client.get(f"{url}/x") for _ in range(2)]

    answers, made = _with_server(_answering(raw, more=more), play)
    assert [(a.status, a.content) for a in answers] == [(status, content)] * 2
    assert made == connections


def test_requests_say_what_they_should():
    """Host, length and type, own headers, query; JSON bodies are encoded."""
    seen: list[tuple[str, bytes]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _: int) -> bool:
        seen.append(await _request(reader))
        writer.write(OK)
        return True

    async def play(client: HttpClient, url: str) -> None:
        await client.post(f"{url}/a/b?c=d", json={"x": [1, None, "ü"]}, headers={"X-Own": "1"})
        await client.get(url)
        await client.request("DELETE", f"{url}/t")
        await client.post(f"{url}/s", content=b"x" * 1000, drip_seconds=0.05)

    _with_server(serve, play, headers={"X-All": "2"})
    (post, body), (get, _), (delete, _), (slow, long) = seen
    assert post.startswith("POST /a/b?c=d HTTP/1.1\r\nHost: 127.0.0.1:")
    assert "X-Own: 1\r\n" in post
    assert decode(body) == {"x": [1, None, "ü"]}
    assert f"Content-Length: {len(body)}\r\n" in post
    assert "Content-Type: application/json\r\n" in post
    assert get.startswith("GET / HTTP/1.1")
    assert "Content-Length" not in get
    assert "X-All: 2" in get
    assert delete.startswith("DELETE /t ")
    assert "Content-Length: 0" in delete
    assert (long, "Content-Length: 1000" in slow) == (b"x" * 1000, True)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"HTTP/1.1 20",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nnocolon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000 + b"\r\n\r\n",
    ],
)
def test_broken_answers_are_one_kind_of_error(raw: bytes):
    """Cut, not HTTP, or inconsistent: `HttpError`, which is a ConnectionError."""

    async def play(client: HttpClient, url: str) -> str:
        with pytest.raises(HttpError) as caught:
            await client.get(url)
        assert isinstance(caught.value, ConnectionError)
        return str(caught.value)

    text, _ = _with_server(_answering(raw, more=False), play)
    assert text


@pytest.mark.parametrize("url", ["", "ftp://x/", "http://", "http://h:notaport/", "no url at all"])
def test_unusable_urls_are_errors(url: str):
    """A URL that cannot be used never opens a connection."""

    async def play(client: HttpClient, _: str) -> None:
        with pytest.raises(HttpError, match="URL"):
            await client.get(url)

    assert _with_server(_answering(OK), play)[1] == 0


def test_phases_time_out():
    """A server that never answers, or stops in the middle, costs `timeout` seconds and no connection."""

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> bool:
        await _request(reader)
        if number:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab")
        await asyncio.sleep(60)
        return False

    async def play(client: HttpClient, url: str) -> None:
        for text in ("waiting for", "reading from"):
            with pytest.raises(HttpTimeoutError, match=text) as caught:
                await client.get(url, timeout=0.5)
            assert isinstance(caught.value, TimeoutError)

    assert _with_server(silent, play)[1] == 2


def test_refused_connections_are_errors():
    """Nobody listens: the address is in the text."""

    async def main() -> None:
        client = HttpClient()
        with pytest.raises(HttpError, match="cannot connect to 127.0.0.1:9"):
            await client.get("http://127.0.0.1:9/x")
        await client.aclose()

    asyncio.run(main())


def test_idle_connections_that_the_server_closed_are_not_used():
    """The next request opens a new one instead of failing."""

    async def play(client: HttpClient, url: str) -> list[int]:
        statuses = []
        for _ in range(3):
            statuses.append((await client.get(url)).status)
            await asyncio.sleep(0.05)
        return statuses

    statuses, connections = _with_server(_answering(OK, more=False), play)
    assert (statuses, connections) == ([200] * 3, 3)


def test_a_cancelled_request_aborts_its_connection():
    """The other side notices at once, and the connection is not used again."""
    noticed = asyncio.Event

    async def main() -> None:
        gone, started = noticed(), noticed()

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await _request(reader)
            started.set()
            try:
                await reader.read(-1)
            except ConnectionError:
                pass
            gone.set()
            writer.close()

        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        client = HttpClient()
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        task = asyncio.create_task(client.get(url))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await gone.wait()
        await client.aclose()
        server.close()

    asyncio.run(main())


def test_many_requests_at_once_share_few_connections_later():
    """Concurrent requests get connections of their own, later ones reuse them."""

    async def play(client: HttpClient, url: str) -> None:
        for _ in range(3):
            answers = await asyncio.gather(*(client.get(url) for _ in range(40)))
            assert all(answer.ok and answer.json() == {} and answer.text == "{}" for answer in answers)

    assert _with_server(_answering(OK), play)[1] == 40


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"[NaN]", float),
        (b'"\\ud83d"', "\ud83d"),
        (b'{"a": Infinity}', {"a": float("inf")}),
        (b"[1e3]", [1000.0]),
    ],
)
def test_decoding_accepts_what_strict_parsers_refuse(data: bytes, value: Any):
    """Bare NaN and lone surrogates are ordinary in Polar's world."""
    decoded = decode(data)
    assert decoded[0] != decoded[0] if value is float else decoded == value


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"nope"])
def test_decoding_refuses_what_is_no_json(data: bytes):
    """Everything else is a ValueError."""
    with pytest.raises(ValueError, match=r"Expecting|codec"):
        decode(data)


def test_encoding_keeps_surrogates_and_chooses_about_nan():
    """Null by default, a bare literal when asked for; surrogates are escapes either way."""
    assert encode({"a": float("nan"), "b": "\ud83d"}) == b'{"a":null,"b":"\\ud83d"}'
    assert encode([float("nan"), "\ud83d"], literal_nan=True) == b'[NaN,"\\ud83d"]'
    assert encode({"t": (1, float("inf")), "s": "\ud83d"}) == b'{"t":[1,null],"s":"\\ud83d"}'
