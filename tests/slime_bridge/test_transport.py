"""The client's way over the network: what goes out on the wire, and what comes back as what."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import logging
import re
import socket
import traceback
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest

from slime_bridge.client import PolarClient, connection_limits
from slime_bridge.errors import (
    BridgeError,
    ConfigError,
    ProtocolError,
    SubmitRejectedError,
    TransportError,
)
from tests.slime_bridge.loops import run_real
from tests.slime_bridge.transports import serving

RECEIPT = json.dumps({"task_id": "t-1", "status": "running"}).encode()
PROXY_NAMES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


@dataclass
class _Peer:
    """A server that records what it gets and answers as it is told, as often as a connection asks."""

    answers: list[bytes] = field(default_factory=list)
    requests: list[tuple[bytes, bytes]] = field(default_factory=list)
    connections: int = 0
    url: str = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while answer := await self._one(reader):
            writer.write(answer)
            await writer.drain()

    async def _one(self, reader: asyncio.StreamReader) -> bytes:
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head)
        body = await reader.readexactly(int(length[1])) if length else b""
        self.requests.append((head, body))
        return self.answers[min(len(self.requests), len(self.answers)) - 1]

    @property
    def targets(self) -> list[bytes]:
        return [head.split(b" ")[1] for head, _ in self.requests]

    def header(self, name: str, request: int = -1) -> list[bytes]:
        return re.findall(rb"(?im)^%s: (.*)\r$" % name.encode(), self.requests[request][0])


def _ok(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


@asynccontextmanager
async def _peer(*answers: bytes) -> AsyncIterator[_Peer]:
    peer = _Peer(list(answers))
    async with serving(peer.serve) as url:
        peer.url = url
        yield peer


async def _error(call: Awaitable[object]) -> BridgeError:
    with pytest.raises(BridgeError) as caught:
        await call
    return caught.value


class TestOnTheWire:
    def test_request_has_what_was_asked_for_and_no_more(self) -> None:
        """The body goes out unchanged; user info is a header, the query stays with every request."""

        async def main() -> None:
            async with _peer(_ok(RECEIPT)) as peer:
                base = peer.url.replace("//", "//me:pä%3Ass@") + "/pre/?key=v%20w&flag"
                async with PolarClient(base, control_token="tok") as client:
                    assert await client.submit(b'{"task_id": "t-1"}') == "t-1"
                    await client.get_task("a b/ü?")
                    await client.cancel_task("t")
                head, body = peer.requests[0]
                assert body == b'{"task_id": "t-1"}'
                assert peer.header("content-type", 0) == [b"application/json"]
                assert peer.header("accept", 0) == [b"application/json"]
                assert peer.header("user-agent", 0) == [b"slime-bridge"]
                assert peer.header("x-polar-control-token", 0) == [b"tok"]
                assert peer.header("authorization", 0) == [b"Basic " + base64.b64encode("me:pä:ss".encode())]
                assert peer.header("host", 0) == [peer.url.removeprefix("http://").encode()]
                assert peer.header("content-type", 1) == []
                assert peer.targets == [
                    b"/pre/rollout/task/submit?key=v+w&flag=",
                    b"/pre/rollout/task/a%20b%2F%C3%BC%3F?key=v+w&flag=",
                    b"/pre/rollout/task/t?key=v+w&flag=&register_if_missing=true",
                ]
                assert b"me:" not in head

        run_real(main())

    def test_large_request_arrives_whole_and_without_a_warning(
        self, recwarn: pytest.WarningsRecorder
    ) -> None:
        """A prompt of megabytes is a request like any other."""
        task = b'{"task_id": "t-1", "instruction": "' + b"x" * 3_000_000 + b'"}'

        async def main() -> None:
            async with _peer(_ok(RECEIPT)) as peer, PolarClient(peer.url) as client:
                await client.submit(task)
                assert peer.requests[0][1] == task

        run_real(main())
        assert not recwarn.list

    def test_connections_are_kept_and_shared(self) -> None:
        """Many requests one after another take one connection."""

        async def main() -> None:
            async with _peer(_ok(RECEIPT)) as peer, PolarClient(peer.url) as client:
                for _ in range(20):
                    await client.submit(b"{}")
                assert (len(peer.requests), peer.connections) == (20, 1)

        run_real(main())

    def test_limit_holds_and_waiting_for_a_connection_is_no_failure(self) -> None:
        """Requests beyond the limit wait their turn."""

        async def main() -> None:
            open_now = most = 0

            async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                nonlocal open_now, most
                open_now += 1
                most = max(most, open_now)
                await reader.readuntil(b"\r\n\r\n")
                await anyio.sleep(0.02)
                writer.write(_ok(b'{"tasks": {}}', "Connection: close"))
                writer.close()
                open_now -= 1

            async with serving(serve) as url, PolarClient(url, limits=connection_limits(1)) as client:
                async with anyio.create_task_group() as tasks:
                    for _ in range(40):
                        tasks.start_soon(client.list_statuses)
            assert 1 < most <= connection_limits(1)

        run_real(main())

    def test_redirects_are_not_followed(self) -> None:
        """Not even one whose address is nonsense is looked at more closely."""

        async def main() -> None:
            for place in ("/elsewhere", "http://[bad", "ftp://x/"):
                answer = _ok(b"", f"Location: {place}", status="307 Temporary Redirect")
                async with _peer(answer) as peer, PolarClient(peer.url) as client:
                    error = await _error(client.submit(b"{}"))
                    assert isinstance(error, SubmitRejectedError)
                    assert error.status_code == 307
                    assert len(peer.requests) == 1

        run_real(main())

    @pytest.mark.parametrize("call", ["list_statuses", "cancel_task", "submit"])
    def test_nothing_is_sent_again_on_a_kept_connection_that_has_closed(self, call: str) -> None:
        """Whether to repeat is the policy's to decide, also where a library would think it harmless."""

        async def main() -> None:
            heads: list[bytes] = []

            async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                heads.append(await reader.readuntil(b"\r\n\r\n"))
                writer.write(_ok(b'{"status": "ok"}'))
                heads.append(await reader.readuntil(b"\r\n\r\n"))
                writer.close()

            async with serving(serve) as url, PolarClient(url) as client:
                await client.health()
                argument: list[Any] = {"submit": [b"{}"], "cancel_task": ["t"]}.get(call, [])
                error = await _error(getattr(client, call)(*argument))
            assert isinstance(error, TransportError)
            assert (error.reason, error.ambiguous) == ("cut", True)
            assert len(heads) == 2

        run_real(main())


class TestAnswerBodies:
    def test_body_is_returned_as_received_and_gzip_is_undone(self) -> None:
        """A proxy that compresses changes nothing; what only claims to be compressed is no answer."""
        plain = json.dumps({"task_id": "t", "x": "y" * 1_000_000}).encode()

        async def main() -> None:
            answers = [
                _ok(gzip.compress(plain), "Content-Encoding: gzip"),
                _ok(b"no gzip", "Content-Encoding: gzip"),
                _ok(plain),
            ]
            async with _peer(*answers) as peer, PolarClient(peer.url) as client:
                assert await client.get_task("t") == plain
                assert type(await _error(client.get_task("t"))) is ProtocolError
                assert await client.get_task("t") == plain

        run_real(main())

    def test_answer_that_only_unpacks_to_more_is_refused(self) -> None:
        """The limit counts what would be kept in memory."""

        async def main() -> None:
            bomb = _ok(gzip.compress(b"x" * 50_000_000), "Content-Encoding: gzip")
            async with _peer(bomb) as peer, PolarClient(peer.url, max_body_bytes=10_000) as client:
                error = await _error(client.get_task("t"))
            assert type(error) is ProtocolError
            assert "larger than 10000 bytes" in str(error)

        run_real(main())

    @pytest.mark.parametrize("status", ["200 OK", "500 Internal Server Error"])
    def test_endless_answer_is_given_up_while_it_comes_in(self, status: str) -> None:
        """Of an error only the start is read, of a result as much as the limit."""
        sent = 0

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal sent
            await reader.readuntil(b"\r\n\r\n")
            writer.write(f"HTTP/1.1 {status}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
            piece = b"x" * 10_000
            while True:
                writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                await writer.drain()
                sent += len(piece)

        async def main() -> None:
            async with serving(serve) as url, PolarClient(url, max_body_bytes=1_000_000) as client:
                error = await _error(client.get_task("t"))
            if status.startswith("200"):
                assert type(error) is ProtocolError
                assert "larger than 1000000 bytes" in str(error)
            else:
                assert isinstance(error, TransportError)
                assert error.status_code == 500

        run_real(main())
        # What the kernel holds on both sides comes on top.
        assert sent < 50_000_000

    @pytest.mark.parametrize(
        "answer",
        [
            b"hello\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nBad Header\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 9, 7\r\n\r\n{}",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}",
        ],
    )
    def test_what_is_no_http_is_a_cut_that_hides_the_address(self, answer: bytes) -> None:
        """The library's own words hold the whole URL; neither the message nor a printed traceback does."""

        async def main() -> BridgeError:
            async with _peer(answer) as peer:
                async with PolarClient(f"{peer.url}/?key=queryS3cret", timeout=5.0) as client:
                    return await _error(client.submit(b"{}"))

        error = run_real(main())
        assert isinstance(error, TransportError)
        assert (error.reason, error.ambiguous) == ("cut", True)
        assert "queryS3cret" not in "".join(traceback.format_exception(error))


class TestConnecting:
    def test_port_where_nobody_listens_and_name_that_does_not_exist(self) -> None:
        """Surely nothing arrived, and the message gives the system's reason."""

        async def main() -> None:
            for url, words in (
                ("http://127.0.0.1:9", "Connection refused"),
                ("http://no-such-host.invalid", "name resolution failed"),
                ("http://[::1]:9", ""),
            ):
                async with PolarClient(url) as client:
                    error = await _error(client.submit(b"{}"))
                assert isinstance(error, TransportError)
                assert (error.reason, error.ambiguous) == ("refused", False)
                assert words in str(error)

        run_real(main())

    def test_name_look_up_that_hangs_is_given_up_like_a_connection(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A name server that is away does not hold a request for its whole time, and nothing was sent."""

        async def main() -> None:
            async def hang(*args: object, **kwargs: object) -> None:
                await anyio.sleep_forever()

            monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", hang)
            monkeypatch.setattr("slime_bridge.client.CONNECT_TIMEOUT", 0.1)
            async with PolarClient("http://polar.test", timeout=25.0) as client:
                error = await _error(client.get_task("t"))
            assert isinstance(error, TransportError)
            assert (error.reason, error.ambiguous) == ("timeout", False)

        run_real(main(), within=20.0)

    def test_connection_that_nobody_accepts_is_given_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A full backlog, or a firewall that drops packets: nothing was sent."""
        monkeypatch.setattr("slime_bridge.client.CONNECT_TIMEOUT", 0.2)

        async def main() -> None:
            with socket.socket() as full:
                full.bind(("127.0.0.1", 0))
                full.listen(0)
                port = full.getsockname()[1]
                waiting = [socket.socket() for _ in range(4)]
                for one in waiting:
                    one.setblocking(False)
                    one.connect_ex(("127.0.0.1", port))
                async with PolarClient(f"http://127.0.0.1:{port}", timeout=25.0) as client:
                    error = await _error(client.get_task("t"))
                for one in waiting:
                    one.close()
            assert isinstance(error, TransportError)
            assert (error.reason, error.ambiguous) == ("timeout", False)

        run_real(main(), within=20.0)

    def test_download_that_makes_progress_outlives_the_timeout(self) -> None:
        """The timeout is for silence; a whole small answer has it as its bound as well."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\nConnection: close\r\n\r\n")
            for _ in range(10):
                await anyio.sleep(0.1)
                writer.write(b" ")
            writer.write(b"{}")
            await writer.drain()
            writer.close()

        async def main() -> None:
            async with serving(serve) as url, PolarClient(url, timeout=0.6) as client:
                assert (await client.get_task("t")).strip() == b"{}"
                error = await _error(client.health())
            assert isinstance(error, TransportError)
            assert (error.reason, error.ambiguous) == ("timeout", True)

        run_real(main())

    def test_cancelled_request_ends_at_once_and_closes_its_connection(self) -> None:
        """Whoever gives up a request gives up its connection with it."""

        async def main() -> None:
            gone = asyncio.Event()

            async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await reader.readuntil(b"\r\n\r\n")
                assert await reader.read() == b""
                gone.set()
                writer.close()

            async with serving(serve) as url, PolarClient(url) as client:
                with anyio.move_on_after(0.2) as scope:
                    await client.get_task("t")
                assert scope.cancelled_caught
                await gone.wait()

        run_real(main())

    def test_closed_client_stays_closed(self) -> None:
        """Closing is idempotent, and a request after it is a mistake of the caller's."""

        async def main() -> None:
            async with _peer(_ok(RECEIPT)) as peer:
                client = PolarClient(peer.url)
                await client.submit(b"{}")
                await client.aclose()
                await client.aclose()
                with pytest.raises(RuntimeError, match="closed"):
                    await client.submit(b"{}")
                unused = PolarClient(peer.url)
                await unused.aclose()
                with pytest.raises(RuntimeError, match="closed"):
                    await unused.submit(b"{}")
                assert len(peer.requests) == 1

        run_real(main())


class TestEnvironment:
    @pytest.fixture(autouse=True)
    def _no_proxy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in PROXY_NAMES:
            monkeypatch.delenv(name, raising=False)
            monkeypatch.delenv(name.lower(), raising=False)

    def test_proxy_variables_are_ignored(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A proxy meant for the internet does not swallow calls inside the cluster."""
        for name in PROXY_NAMES[:3]:
            monkeypatch.setenv(name, "http://127.0.0.1:9")

        async def main() -> None:
            async with _peer(_ok(RECEIPT)) as peer:
                async with PolarClient(peer.url) as client:
                    assert await client.submit(b"{}") == "t-1"
                async with PolarClient(peer.url, trust_env=True) as client:
                    error = await _error(client.submit(b"{}"))
                assert isinstance(error, TransportError)
                assert (error.reason, error.ambiguous) == ("proxy", False)

        run_real(main())

    @pytest.mark.parametrize("name", ["http_proxy", "ALL_PROXY"])
    def test_proxy_is_used_when_trusted(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        """The proxy gets the whole address and its own credentials; exempt hosts do not go there."""

        async def main() -> None:
            async with _peer(_ok(RECEIPT)) as proxy, _peer(_ok(RECEIPT)) as direct:
                monkeypatch.setenv(name, proxy.url.replace("//", "//pu:pw@"))
                async with PolarClient("http://me:s3@polar.test/pre", trust_env=True) as client:
                    await client.submit(b"{}")
                assert proxy.targets == [b"http://polar.test/pre/rollout/task/submit"]
                assert proxy.header("proxy-authorization") == [b"Basic " + base64.b64encode(b"pu:pw")]
                assert proxy.header("authorization") == [b"Basic " + base64.b64encode(b"me:s3")]
                monkeypatch.setenv("NO_PROXY", "127.0.0.1")
                async with PolarClient(direct.url, trust_env=True) as client:
                    await client.submit(b"{}")
                assert len(direct.requests) == len(proxy.requests) == 1

        run_real(main())

    def test_proxy_that_refuses_is_told_from_a_server_that_does(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A tunnel that is not granted carried nothing, and nobody's credentials are in what is printed."""

        async def main() -> BridgeError:
            async with _peer(_ok(b"", status="407 Proxy Authentication Required")) as proxy:
                monkeypatch.setenv("HTTPS_PROXY", proxy.url.replace("//", "//pu:hunter2pass@"))
                base = "https://me:hunter3pass@polar.test/?key=queryS3cret"
                async with PolarClient(base, trust_env=True) as client:
                    error = await _error(client.submit(b"{}"))
                assert proxy.targets == [b"polar.test:443"]
                assert proxy.header("authorization") == []
                return error

        error = run_real(main())
        assert isinstance(error, TransportError)
        assert (error.reason, error.ambiguous) == ("proxy", False)
        text = "".join(traceback.format_exception(error))
        assert "Proxy Authentication Required" in text
        assert not any(secret in text for secret in ("hunter2pass", "hunter3pass", "queryS3cret"))

    @pytest.mark.parametrize(
        "proxy",
        [
            *("socks5://pu:hunter2pass@127.0.0.1:9", "http://pu:hunter2pass@127.0.0.1:x", "http://"),
            *("http://pu:hunter2pass@[::1", "http://pu:hunter2pass@127.0.0.1:65536", "pu:hunter2pass@a..b"),
        ],
    )
    def test_proxy_that_cannot_be_one_is_a_configuration_error(
        self, proxy: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is said before anything is sent, without the proxy's password."""
        monkeypatch.setenv("ALL_PROXY", proxy)
        PolarClient("http://polar")
        with pytest.raises(ConfigError, match="NO_PROXY") as caught:
            PolarClient("http://polar", trust_env=True)
        assert "hunter2pass" not in str(caught.value)

    def test_netrc_counts_only_when_trusted_and_never_against_the_url(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
    ) -> None:
        """Credentials in the URL are the user's last word."""
        netrc = tmp_path / "netrc"
        netrc.write_text("machine 127.0.0.1 login nu password np\n")
        netrc.chmod(0o600)
        monkeypatch.setenv("NETRC", str(netrc))

        async def main() -> None:
            async with _peer(_ok(RECEIPT)) as peer:
                with_user = peer.url.replace("//", "//me:s3@")
                for url, trust in ((peer.url, False), (peer.url, True), (with_user, True)):
                    async with PolarClient(url, trust_env=trust) as client:
                        await client.submit(b"{}")
                found = [peer.header("authorization", number) for number in range(3)]
                pairs = [base64.b64decode(value[0].split()[1]) if value else b"" for value in found]
                assert pairs == [b"", b"nu:np", b"me:s3"]

        run_real(main())

    def test_server_that_speaks_no_tls_is_refused(self) -> None:
        """A wrong scheme is found while connecting: surely nothing was carried out."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.write(_ok(b"", status="400 Bad Request"))

        async def main() -> None:
            async with serving(serve) as url, PolarClient(url.replace("http:", "https:")) as client:
                error = await _error(client.submit(b"{}"))
            assert isinstance(error, TransportError)
            assert (error.reason, error.ambiguous) == ("refused", False)

        run_real(main())

    def test_certificates_that_cannot_be_loaded_are_a_configuration_error(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
    ) -> None:
        """They are named before anything is sent, and only where they would be needed."""
        empty = tmp_path / "ca.pem"
        empty.write_text("no certificate\n")
        for path in (empty, tmp_path / "missing.pem"):
            monkeypatch.setenv("SSL_CERT_FILE", str(path))
            PolarClient("https://polar")
            PolarClient("http://polar", trust_env=True)
            with pytest.raises(ConfigError, match=re.escape(str(path))):
                PolarClient("https://polar", trust_env=True)


class TestLogging:
    def test_requests_leave_no_line(self, caplog: pytest.LogCaptureFixture) -> None:
        """Thousands of polls do not fill the log, at whatever level it is kept."""

        async def main() -> None:
            async with _peer(_ok(RECEIPT, "Set-Cookie: sid=1")) as peer:
                async with PolarClient(peer.url.replace("//", "//me:hunter2pass@")) as client:
                    for _ in range(3):
                        await client.submit(b"{}")

        with caplog.at_level(logging.DEBUG):
            run_real(main())
        assert not [record for record in caplog.records if record.name != "asyncio"]
        assert "hunter2pass" not in caplog.text
