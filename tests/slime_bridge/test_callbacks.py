from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import warnings
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx
import pytest

from slime_bridge._addresses import bind_sockets
from slime_bridge.callbacks import CallbackHandle, CallbackKind, CallbackListener
from slime_bridge.errors import CallbackBindError, ConfigError
from tests.slime_bridge.loops import run_real


def _result(task_id: str = "t-1", **fields: object) -> bytes:
    return json.dumps({"task_id": task_id, "status": "completed", "results": [], **fields}).encode()


async def _post(url: str, body: bytes, **options: Any) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False, timeout=20.0) as client:
        return await client.post(url, content=body, **options)


def _nonzero(listener: CallbackListener) -> dict[str, int]:
    return {kind: count for kind, count in listener.counts.items() if count}


async def _until(condition: Callable[[], bool]) -> None:
    """Wait for a state of the listener that no event announces."""
    while not condition():  # noqa: ASYNC110 - the state belongs to the listener, which has no event for it
        await anyio.sleep(0.005)


async def _counted(listener: CallbackListener, kind: CallbackKind, count: int = 1) -> None:
    """Wait until the listener has counted: an answer can reach the peer before the books are done."""
    await _until(lambda: listener.counts[kind] >= count)


class _Raw:
    """A connection on which a test writes what it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, listener: CallbackListener) -> _Raw:
        return cls(*await asyncio.open_connection("127.0.0.1", listener.port))

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def status(self) -> int:
        line = await self.reader.readline()
        return int(line.split()[1])

    async def ended(self) -> None:
        """Wait until the listener has closed the connection."""
        try:
            while await self.reader.read(65536):
                pass
        except ConnectionError:
            pass
        self.close()

    def close(self) -> None:
        self.writer.transport.abort()


def _open_sockets() -> set[str]:
    """Return the sockets of this process, also those that wait for the garbage collector."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor of the listing itself
            found.add(os.readlink(f"/proc/self/fd/{number}"))
    return {name for name in found if name.startswith("socket:")}


def _head(
    handle: CallbackHandle, *, method: str = "POST", length: int | None = None, extra: str = ""
) -> bytes:
    path = urlsplit(handle.url).path
    sized = "" if length is None else f"Content-Length: {length}\r\n"
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\n{sized}{extra}\r\n".encode()


class TestDelivery:
    def test_body_reaches_whoever_waits(self) -> None:
        """The result arrives byte for byte, and the server's POST is answered 200."""

        async def main() -> None:
            async with CallbackListener("127.0.0.1") as listener:
                handle = listener.register("t-1")
                waiting = asyncio.ensure_future(handle.body())
                body = _result(text="ü\N{SNOWMAN}")
                answer = await _post(handle.url, body)
                assert answer.status_code == 200
                assert answer.headers["connection"] == "close"
                assert await waiting == body
                assert handle.take() == await handle.body() == body
                assert _nonzero(listener) == {"accepted": 1}

        run_real(main())

    def test_acknowledged_before_anybody_looks(self) -> None:
        """The server is not kept waiting for whoever processes the result: here nobody does."""

        async def main() -> None:
            async with CallbackListener("127.0.0.1") as listener:
                handle = listener.register("t-1")
                called: list[bool] = []
                handle.on_delivery = lambda: called.append(True)
                assert (await _post(handle.url, _result())).status_code == 200
                assert called == [True]

        run_real(main())

    def test_addresses_cannot_be_guessed(self) -> None:
        """Each attempt has its own address of two long random parts, also for the same task."""

        async def main() -> None:
            async with CallbackListener("127.0.0.1") as listener, CallbackListener("127.0.0.1") as other:
                urls = [listener.register("t-1").url, listener.register("t-1").url, other.register("t-1").url]
                parts = [urlsplit(url).path.split("/")[1:] for url in urls]
                assert all(len(secret) >= 32 and len(token) >= 32 for secret, token in parts)
                assert len({token for _, token in parts}) == 3
                assert parts[0][0] == parts[1][0] != parts[2][0]
                assert listener.address == f"127.0.0.1:{listener.port}"
                assert parts[0][0] not in listener.address

        run_real(main())

    def test_big_body(self) -> None:
        """Forty megabytes arrive complete, in pieces as large and as small as the network likes."""

        async def main() -> None:
            async with CallbackListener("127.0.0.1") as listener:
                handle = listener.register("t-1")
                body = _result(filler=os.urandom(20_000_000).hex())
                assert (await _post(handle.url, body)).status_code == 200
                assert handle.take() == body

        run_real(main())

    def test_chunked_body(self) -> None:
        """A sender that does not know the length is understood."""

        async def main() -> None:
            async def pieces() -> Any:
                for position in range(0, len(body), 7):
                    yield body[position : position + 7]

            body = _result(filler="x" * 500)
            async with CallbackListener("127.0.0.1") as listener:
                handle = listener.register("t-1")
                async with httpx.AsyncClient(trust_env=False) as client:
                    assert (await client.post(handle.url, content=pieces())).status_code == 200
                assert handle.take() == body

        run_real(main())

    def test_sender_that_asks_first_is_told_to_go_on(self) -> None:
        """`Expect: 100-continue` gets its interim answer."""

        async def main() -> None:
            async with CallbackListener("127.0.0.1") as listener:
                handle = listener.register("t-1")
                body = _result()
                raw = await _Raw.open(listener)
                await raw.send(_head(handle, length=len(body), extra="Expect: 100-continue\r\n"))
                assert await raw.status() == 100
                await raw.reader.readuntil(b"\r\n")
                await raw.send(body)
                assert await raw.status() == 200
                await raw.ended()
                assert handle.take() == body

        run_real(main())

    def test_many_at_the_same_moment(self) -> None:
        """Two hundred tasks that end together all get through, each to its own attempt."""

        async def main() -> None:
            async with CallbackListener("127.0.0.1") as listener:
                handles = [listener.register(f"t-{n}") for n in range(200)]
                limits = httpx.Limits(max_connections=200)
                async with httpx.AsyncClient(trust_env=False, limits=limits, timeout=30.0) as client:
                    answers = await asyncio.gather(
                        *(client.post(handle.url, content=_result(handle.task_id)) for handle in handles)
                    )
                assert {answer.status_code for answer in answers} == {200}
                assert [handle.take() for handle in handles] == [_result(f"t-{n}") for n in range(200)]

        run_real(main())


class TestWhatChangesNothing:
    def test_duplicates_are_acknowledged_and_dropped(self) -> None:
        """The first body stays, before and after the attempt has been closed."""

        async def main() -> None:
            async with CallbackListener("127.0.0.1") as listener:
                handle = listener.register("t-1")
                await _post(handle.url, _result(first=True))
                assert (await _post(handle.url, _result(second=True))).status_code == 200
                assert handle.take() == _result(first=True)
                handle.close()
                handle.close()
                assert (await _post(handle.url, _result(third=True))).status_code == 200
                assert handle.take() is None
                assert _nonzero(listener) == {"accepted": 1, "duplicate": 2}

        run_real(main())

    def test_late_body_is_acknowledged_and_dropped(self) -> None:
        """After the result was polled, its callback is no error and no result."""

        async def main() -> None:
            async with CallbackListener("127.0.0.1") as listener:
                handle = listener.register("t-1")
                handle.close()
                assert (await _post(handle.url, _result())).status_code == 200
                assert handle.take() is None
                assert _nonzero(listener) == {"late": 1}

        run_real(main())

    def test_body_under_way_when_the_attempt_ends_is_late(self) -> None:
        """What counts is the end of the body, not its beginning."""

        async def main() -> None:
            async with CallbackListener("127.0.0.1") as listener:
                handle = listener.register("t-1")
                body = _result()
                raw = await _Raw.open(listener)
                await raw.send(_head(handle, length=len(body)) + body[:10])
                await _until(lambda: handle.receiving)
                handle.close()
                await raw.send(body[10:])
                assert await raw.status() == 200
                await raw.ended()
                assert not handle.receiving
                assert handle.take() is None
                assert _nonzero(listener) == {"late": 1}

        run_real(main())

    def test_another_tasks_body_is_refused(self) -> None:
        """A result that names another task is none of this attempt's, wherever it was posted."""

        async def main() -> None:
            async with CallbackListener("127.0.0.1") as listener:
                handle = listener.register("t-1")
                assert (await _post(handle.url, b' { "task_id" : "t-\\u0032"}')).status_code == 404
                assert handle.take() is None
                assert (await _post(handle.url, _result())).status_code == 200
                assert handle.take() == _result()
                assert _nonzero(listener) == {"accepted": 1, "foreign": 1}

        run_real(main())

    def test_forged_paths_are_refused_unread(self) -> None:
        """Whoever does not know the whole address gets a 404 before a byte of the body is taken."""

        async def main() -> None:
            async with CallbackListener("127.0.0.1") as listener:
                handle = listener.register("t-1")
                base, secret, token = handle.url.rsplit("/", 2)
                forged = [
                    f"{base}/",
                    f"{base}/{token}",
                    f"{base}/{secret}/",
                    f"{base}/{secret}/x{token}",
                    f"{base}/{secret}x/{token}",
                    f"{base}/{token}/{secret}",
                    f"{handle.url}/",
                    f"{handle.url}?x=1",
                    f"{base}/x/{secret}/{token}",
                    f"{base}/{secret}/%C3%BC",
                ]
                for url in forged:
                    assert (await _post(url, _result())).status_code == 404, url
                raw = await _Raw.open(listener)
                await raw.send(b"POST /guess HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n")
                assert await raw.status() == 404
                await raw.ended()
                assert handle.take() is None
                assert _nonzero(listener) == {"forged": len(forged) + 1}

        run_real(main())

    @pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "HEAD"])
    def test_only_post_is_allowed(self, method: str) -> None:
        """A browser or a scanner that has the address cannot deliver anything."""

        async def main() -> None:
            async with CallbackListener("127.0.0.1") as listener:
                handle = listener.register("t-1")
                async with httpx.AsyncClient(trust_env=False) as client:
                    answer = await client.request(method, handle.url)
                assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
                assert _nonzero(listener) == {"malformed": 1}

        run_real(main())

    @pytest.mark.parametrize("body", [b"", b"hello", b"[1]", b"null", b'"{"', b"\xff\xfe{"])
    def test_body_that_is_no_object_is_refused(self, body: bytes) -> None:
        """Garbage is answered 400, and the attempt still waits for its result."""

        async def main() -> None:
            async with CallbackListener("127.0.0.1") as listener:
                handle = listener.register("t-1")
                assert (await _post(handle.url, body)).status_code == 400
                assert (await _post(handle.url, _result())).status_code == 200
                assert handle.take() == _result()
                assert _nonzero(listener) == {"malformed": 1, "accepted": 1}

        run_real(main())

    @pytest.mark.parametrize(
        "data",
        [
            b"\x16\x03\x01\x02\x00\x01\x00\x01\r\n\r\n",
            b"HELO mail\r\n\r\n",
            b"GET / FTP/1.1\r\n\r\n",
            b"POST / HTTP/1.1\r\nContent-Length: ten\r\nHost: x\r\n\r\n",
            b"POST / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 100_000,
        ],
        ids=["tls", "smtp", "version", "length", "endless header"],
    )
    def test_what_is_not_http_is_refused(self, data: bytes) -> None:
        """Port scanners and TLS clients get a 400 and are gone."""

        async def main() -> None:
            async with CallbackListener("127.0.0.1") as listener:
                raw = await _Raw.open(listener)
                await raw.send(data)
                await raw.ended()
                await _counted(listener, CallbackKind.MALFORMED)
                assert _nonzero(listener) == {"malformed": 1}

        run_real(main())

    def test_rejected_body_makes_room_for_the_next(self) -> None:
        """A body that turns out to be no result is counted as such, and a later one is taken."""

        async def main() -> None:
            async with CallbackListener("127.0.0.1") as listener:
                handle = listener.register("t-1")
                handle.reject()
                await _post(handle.url, b"{broken")
                handle.reject()
                assert handle.take() is None
                waiting = asyncio.ensure_future(handle.body())
                await _post(handle.url, _result())
                assert await waiting == _result()
                assert _nonzero(listener) == {"malformed": 1, "accepted": 1}

        run_real(main())

    def test_books_of_ended_attempts_are_bounded(self) -> None:
        """A listener that has served a hundred thousand attempts does not remember them all."""

        async def main() -> None:
            async with CallbackListener("127.0.0.1") as listener:
                oldest = listener.register("t-0")
                oldest.close()
                for n in range(5000):
                    newest = listener.register(f"t-{n}")
                    newest.close()
                assert (await _post(oldest.url, _result())).status_code == 404
                assert (await _post(newest.url, _result())).status_code == 200
                assert _nonzero(listener) == {"forged": 1, "late": 1}

        run_real(main())

    def test_a_flood_is_one_warning(self, caplog: pytest.LogCaptureFixture) -> None:
        """Someone who knocks all day does not fill the log."""

        async def main() -> None:
            async with CallbackListener("127.0.0.1") as listener:
                for _ in range(20):
                    await _post(f"http://{listener.address}/guess", b"")

        with caplog.at_level(logging.WARNING, logger="slime_bridge"):
            run_real(main())
        assert len([record for record in caplog.records if record.name.startswith("slime_bridge")]) == 1


class TestLimits:
    def test_declared_size_above_the_limit_is_refused_unread(self) -> None:
        """A sender that announces too much need not send it."""

        async def main() -> None:
            async with CallbackListener("127.0.0.1", max_body_bytes=1000) as listener:
                handle = listener.register("t-1")
                raw = await _Raw.open(listener)
                await raw.send(_head(handle, length=1001))
                assert await raw.status() == 413
                await raw.ended()
                await _counted(listener, CallbackKind.OVERSIZED)
                assert _nonzero(listener) == {"oversized": 1}

        run_real(main())

    def test_chunks_above_the_limit_are_refused(self) -> None:
        """A size that was never announced is bounded too; the limit itself is allowed."""

        async def main() -> None:
            async with CallbackListener("127.0.0.1", max_body_bytes=1000) as listener:
                handle = listener.register("t-1")
                raw = await _Raw.open(listener)
                await raw.send(_head(handle, extra="Transfer-Encoding: chunked\r\n"))
                for _ in range(11):
                    await raw.send(b"64\r\n" + b"x" * 100 + b"\r\n")
                assert await raw.status() == 413
                await raw.ended()
                body = _result() + b" " * (1000 - len(_result()))
                assert (await _post(handle.url, body)).status_code == 200
                assert _nonzero(listener) == {"oversized": 1, "accepted": 1}

        run_real(main())

    def test_slow_header_is_given_up(self) -> None:
        """A connection that never finishes its header, or sends nothing at all, does not stay."""

        async def main() -> None:
            async with CallbackListener("127.0.0.1", header_timeout=0.1) as listener:
                silent, slow = await _Raw.open(listener), await _Raw.open(listener)
                await slow.send(b"POST / HTTP/1.1\r\nHost:")
                assert await slow.status() == 408
                assert await silent.status() == 408
                await slow.ended()
                await silent.ended()
                await _counted(listener, CallbackKind.SLOW, 2)
                assert _nonzero(listener) == {"slow": 2}

        run_real(main())

    @pytest.mark.parametrize("limits", [{"idle_timeout": 0.5}, {"request_timeout": 1.0}])
    def test_stalled_body_is_given_up(self, limits: dict[str, float]) -> None:
        """A body that stops, or drips for ever, is no upload any more; a later one is taken."""

        async def main() -> None:
            async with CallbackListener("127.0.0.1", **limits) as listener:
                handle = listener.register("t-1")
                raw = await _Raw.open(listener)
                await raw.send(_head(handle, length=1000) + b"{")
                await _until(lambda: handle.receiving)
                while handle.receiving:
                    if "request_timeout" in limits:
                        await raw.send(b" ")
                    await anyio.sleep(0.02)
                await handle.wait_received()
                await _counted(listener, CallbackKind.SLOW)
                raw.close()
                assert (await _post(handle.url, _result())).status_code == 200
                assert _nonzero(listener) == {"slow": 1, "accepted": 1}

        run_real(main())

    def test_connection_cut_in_the_body_delivers_nothing(self) -> None:
        """Half a result is none, and does not keep the whole one out."""

        async def main() -> None:
            async with CallbackListener("127.0.0.1") as listener:
                handle = listener.register("t-1")
                for end in ("reset", "close"):
                    raw = await _Raw.open(listener)
                    await raw.send(_head(handle, length=1000) + _result())
                    await _until(lambda: handle.receiving)
                    if end == "reset":
                        raw.close()
                    else:
                        raw.writer.write_eof()
                        await raw.ended()
                    await handle.wait_received()
                await _counted(listener, CallbackKind.CUT, 2)
                assert handle.take() is None
                assert (await _post(handle.url, _result())).status_code == 200
                assert _nonzero(listener) == {"cut": 2, "accepted": 1}

        run_real(main())

    def test_connections_above_the_limit_are_closed(self) -> None:
        """Open connections cannot eat all descriptors, and the listener works again when they are gone."""

        async def main() -> None:
            async with CallbackListener("127.0.0.1", max_connections=2) as listener:
                handle = listener.register("t-1")
                held = [await _Raw.open(listener) for _ in range(2)]
                for raw in held:
                    await raw.send(_head(handle, length=10))
                await _until(lambda: handle._uploads >= 2)
                refused = await _Raw.open(listener)
                await refused.ended()
                assert _nonzero(listener) == {"refused": 1}
                for raw in held:
                    raw.close()
                await _counted(listener, CallbackKind.CUT, 2)
                assert (await _post(handle.url, _result())).status_code == 200

        run_real(main())


class TestAddresses:
    def test_bind_and_advertised_host_are_apart(self) -> None:
        """A container binds everything and advertises the name by which the server finds it."""

        async def main() -> None:
            async with CallbackListener("localhost", bind_host="0.0.0.0") as listener:
                handle = listener.register("t-1")
                assert handle.url.startswith(f"http://localhost:{listener.port}/")
                assert (await _post(handle.url, _result())).status_code == 200

        run_real(main())

    @pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
    def test_fixed_port_can_be_taken_again_at_once(self, host: str) -> None:
        """A restarted trainer gets its port back, connections of the last one or not."""

        async def main() -> None:
            async with CallbackListener(host) as listener:
                port = listener.port
                assert port is not None
                handle = listener.register("t-1")
                await _post(handle.url, _result())
            assert listener.port is None
            async with CallbackListener(host, port=port) as listener:
                assert listener.port == port

        run_real(main())

    @pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6")
    @pytest.mark.parametrize(("host", "bind"), [("::1", None), ("[::1]", "[::1]"), ("::1", "::")])
    def test_ipv6(self, host: str, bind: str | None) -> None:
        """Addresses of both kinds work, in brackets where URLs want them."""

        async def main() -> None:
            try:
                async with CallbackListener(host, bind_host=bind) as listener:
                    handle = listener.register("t-1")
                    assert handle.url.startswith(f"http://[::1]:{listener.port}/")
                    assert (await _post(handle.url, _result())).status_code == 200
                    if bind == "::":
                        v4 = handle.url.replace("[::1]", "127.0.0.1")
                        assert (await _post(v4, _result())).status_code == 200
            except CallbackBindError as exc:
                pytest.skip(f"no IPv6 loopback: {exc}")

        run_real(main())

    @pytest.mark.parametrize(
        "host", ["0.0.0.0", "::", "[::]", "0", "0.0", "::ffff:0.0.0.0", "0:0:0:0:0:0:0:0"]
    )
    def test_wildcards_are_never_advertised(self, host: str) -> None:
        """An address that leads nowhere is refused before anything is submitted."""
        with pytest.raises(ConfigError, match="polar_callback_host.*wildcard"):
            CallbackListener(host)

    @pytest.mark.parametrize("host", ["", "http://x", "a/b", "a b", "user@host", "host:80", "[]"])
    def test_what_is_no_host_is_never_advertised(self, host: str) -> None:
        """A URL or a port in the place of a host is refused."""
        with pytest.raises(ConfigError, match="polar_callback_host"):
            CallbackListener(host)

    def test_port_in_use_is_an_error_with_a_way_out(self) -> None:
        """The message names address, reason and key."""

        async def main() -> None:
            async with CallbackListener("127.0.0.1") as first:
                with pytest.raises(CallbackBindError) as caught:
                    await CallbackListener("127.0.0.1", port=first.port or 0).start()
                text = str(caught.value)
                assert f"127.0.0.1:{first.port}" in text
                assert "in use" in text
                assert "polar_callback_port" in text

        run_real(main())

    @pytest.mark.parametrize("host", ["203.0.113.1", "x" * 70])
    def test_foreign_address_is_an_error_with_a_way_out(self, host: str) -> None:
        """An address of another machine, the usual mistake behind NAT, is explained."""

        async def main() -> None:
            with pytest.raises(CallbackBindError, match="polar_callback_bind_host") as caught:
                await CallbackListener(host).start()
            assert host in str(caught.value)

        run_real(main())


class TestLife:
    def test_no_address_before_the_listener_listens(self) -> None:
        """Nothing can be submitted with an address where nobody listens."""

        async def main() -> None:
            listener = CallbackListener("127.0.0.1")
            with pytest.raises(CallbackBindError, match="not listening"):
                listener.register("t-1")
            await listener.start()
            await listener.start()
            listener.register("t-1")
            await listener.close()
            await listener.close()
            with pytest.raises(CallbackBindError, match="not listening"):
                listener.register("t-1")

        run_real(main())

    @pytest.mark.parametrize("cancelled", [False, True])
    def test_closing_does_not_wait_for_open_connections(
        self, cancelled: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A stop does not take longer because somebody holds a connection, nor while being cancelled."""

        async def main() -> None:
            listener = CallbackListener(
                "127.0.0.1", header_timeout=600.0, idle_timeout=600.0, request_timeout=600.0
            )
            await listener.start()
            handle = listener.register("t-1")
            held = [await _Raw.open(listener) for _ in range(20)]
            for raw in held[:10]:
                await raw.send(_head(handle, length=1000) + b"{")
            await _until(lambda: handle._uploads >= 10)
            with anyio.CancelScope() as scope:
                if cancelled:
                    scope.cancel()
                await listener.close()
            for raw in held:
                await raw.ended()
            assert len(asyncio.all_tasks()) == 1

        run_real(main())
        assert not [record for record in caplog.records if record.levelno >= logging.ERROR]

    def test_connections_that_just_arrived_are_closed(self) -> None:
        """Whatever point of its acceptance a connection has reached, no socket is left to the collector."""

        async def main(iterations: int) -> None:
            listener = CallbackListener("127.0.0.1")
            await listener.start()
            handle = listener.register("t-1")
            clients = [socket.create_connection(("127.0.0.1", listener.port or 0)) for _ in range(3)]
            clients[0].sendall(_head(handle, length=1000) + b"{")
            clients[1].sendall(_head(handle, length=2) + b"{}")
            for _ in range(iterations):
                await asyncio.sleep(0)
            await listener.close()
            for client in clients:
                client.settimeout(20)
                try:
                    while client.recv(1000):
                        pass
                except ConnectionResetError:
                    pass
                client.close()

        before = _open_sockets()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for iterations in range(10):
                run_real(main(iterations))
        assert [str(warning.message) for warning in caught] == []
        assert _open_sockets() <= before

    def test_port_that_somebody_else_listens_on_is_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Two may bind one port before either listens; the second to listen is told as if it were bound."""

        async def main() -> None:
            with socket.socket() as other:
                other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                other.bind(("127.0.0.1", 0))
                port = other.getsockname()[1]

                async def bind_then_lose(host: str, port: int) -> list[socket.socket]:
                    bound = await bind_sockets(host, port)
                    other.listen()
                    return bound

                monkeypatch.setattr("slime_bridge.callbacks.bind_sockets", bind_then_lose)
                with pytest.raises(CallbackBindError, match="in use"):
                    await CallbackListener("127.0.0.1", port=port).start()

        run_real(main())

    def test_bug_in_a_consumer_is_logged_not_lost(self, caplog: pytest.LogCaptureFixture) -> None:
        """An exception while a body is handed over leaves a traceback in the log, and the body in place."""

        async def main() -> None:
            async with CallbackListener("127.0.0.1") as listener:
                handle = listener.register("t-1")
                handle.on_delivery = lambda: 1 / 0  # type: ignore[assignment,return-value]
                assert (await _post(handle.url, _result())).status_code == 200
                assert handle.take() == _result()

        run_real(main())
        assert any("ZeroDivisionError" in (record.exc_text or "") for record in caplog.records)

    def test_no_task_outlives_the_listener(self) -> None:
        """After closing, only the caller's own task is left on the loop."""

        async def main() -> None:
            async with CallbackListener("127.0.0.1") as listener:
                handle = listener.register("t-1")
                await _post(handle.url, _result())
            assert len(asyncio.all_tasks()) == 1

        run_real(main())
