from __future__ import annotations

import asyncio
import json
import logging
import ssl
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from types import ModuleType

import aiohttp
import anyio
import httpx
import pytest

from analysis.lab.polar_server.testing import Fault, FaultScript, serve_polar
from slime_bridge._http_errors import AIOHTTP_ERRORS, HTTPX_ERRORS, translate
from slime_bridge.client import PolarClient, connection_limits
from slime_bridge.errors import (
    BridgeError,
    ConfigError,
    ProtocolError,
    SubmitRejectedError,
    TaskConflictError,
    TaskUnknownError,
    TransportError,
)
from slime_bridge.retry import Fuse
from tests.slime_bridge.loops import run_real, run_virtual
from tests.slime_bridge.transports import Handler, HandlerTransport, refused, serving

STATUS = {"tasks": {"t-1": "running"}, "pipeline": {"pending_sessions": 1}, "nodes": {"nodes": []}}


def _client(handler: Handler, base_url: str = "http://polar:8080", **options: object) -> PolarClient:
    return PolarClient(base_url, transport=HandlerTransport(handler), **options)  # type: ignore[arg-type]


def _always(status: int, **content: object) -> Callable[[httpx.Request], httpx.Response]:
    return lambda request: httpx.Response(status, **content)  # type: ignore[arg-type]


async def _error(call: Awaitable[object]) -> BridgeError:
    with pytest.raises(BridgeError) as caught:
        await call
    return caught.value


def _exported_exceptions(library: ModuleType, base: type[Exception]) -> list[type[Exception]]:
    named = [getattr(library, name) for name in dir(library)]
    return [value for value in named if isinstance(value, type) and issubclass(value, base)]


class TestErrorMap:
    @pytest.mark.parametrize(
        "kind", _exported_exceptions(aiohttp, aiohttp.ClientError), ids=lambda kind: kind.__name__
    )
    def test_every_exception_of_aiohttp_has_a_meaning(self, kind: type[Exception]) -> None:
        """No exception of the client's library reaches the bridge as itself, in this or a later version."""
        assert issubclass(kind, AIOHTTP_ERRORS)

    @pytest.mark.parametrize("kind", _exported_exceptions(httpx, Exception), ids=lambda kind: kind.__name__)
    def test_every_exception_of_httpx_has_a_meaning(self, kind: type[Exception]) -> None:
        """The same for the library that the gates and the doctor use."""
        assert issubclass(kind, HTTPX_ERRORS)

    @pytest.mark.parametrize("errors", [AIOHTTP_ERRORS, HTTPX_ERRORS], ids=["aiohttp", "httpx"])
    def test_no_class_is_hidden_by_its_base(self, errors: tuple[type[Exception], ...]) -> None:
        """The map is searched in order, so a base before its subclass would decide for both."""
        for position, kind in enumerate(errors):
            assert not any(issubclass(kind, earlier) for earlier in errors[:position]), kind

    @pytest.mark.parametrize(
        ("raised", "reason", "ambiguous"),
        [
            (refused(), "refused", False),
            (aiohttp.ConnectionTimeoutError("x"), "timeout", False),
            (aiohttp.ClientProxyConnectionError(refused()._conn_key, OSError(111, "x")), "proxy", False),
            (aiohttp.SocketTimeoutError("x"), "timeout", True),
            (aiohttp.ServerDisconnectedError("x"), "cut", True),
            (aiohttp.ClientOSError(104, "x"), "cut", True),
            (aiohttp.ClientPayloadError("x"), "cut", True),
            (aiohttp.ClientConnectionResetError("x"), "cut", True),
            (ConnectionResetError(104, "x"), "cut", True),
        ],
        ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
    )
    def test_transport_errors_say_whether_the_request_may_have_been_carried_out(
        self, raised: Exception, reason: str, ambiguous: bool
    ) -> None:
        """A submit that surely did not arrive is simply sent again; any other one is looked up first."""

        async def main() -> None:
            def handler(request: httpx.Request) -> httpx.Response:
                raise raised

            async with _client(handler) as client:
                error = await _error(client.submit(b"{}"))
            assert isinstance(error, TransportError)
            assert (error.reason, error.ambiguous, error.status_code) == (reason, ambiguous, None)
            assert error.__cause__ is raised
            assert "POST http://polar:8080/rollout/task/submit" in str(error)

        run_virtual(main())

    @pytest.mark.parametrize(
        ("raised", "reason", "ambiguous"),
        [
            (httpx.ConnectError("x"), "refused", False),
            (httpx.ConnectTimeout("x"), "timeout", False),
            (httpx.PoolTimeout("x"), "timeout", False),
            (httpx.ProxyError("x"), "proxy", False),
            (httpx.ReadTimeout("x"), "timeout", True),
            (httpx.WriteTimeout("x"), "timeout", True),
            (httpx.ReadError("x"), "cut", True),
            (httpx.WriteError("x"), "cut", True),
            (httpx.RemoteProtocolError("x"), "cut", True),
            (httpx.LocalProtocolError("x"), "cut", True),
            (httpx.StreamClosed(), "cut", True),
        ],
        ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
    )
    def test_the_other_library_is_understood_alike(
        self, raised: Exception, reason: str, ambiguous: bool
    ) -> None:
        """Gates and doctor report the same kinds of failure."""
        error = translate(raised, "POST http://gateway/admin/inference/pause")
        assert isinstance(error, TransportError)
        assert (error.reason, error.ambiguous) == (reason, ambiguous)
        assert error.__cause__ is raised

    def test_certificate_that_cannot_be_verified_is_called_that(self) -> None:
        """OpenSSL numbers its errors itself; 1 is not the system's "Operation not permitted"."""
        raised = aiohttp.ClientConnectorError(
            refused()._conn_key, ssl.SSLCertVerificationError(1, "certificate verify failed: self-signed")
        )
        raised.__cause__ = raised.os_error
        error = translate(raised, "GET https://polar/health")
        assert "certificate verify failed: self-signed" in str(error)
        assert "not permitted" not in str(error)

    @pytest.mark.parametrize(
        ("raised", "expected"),
        [
            (aiohttp.InvalidURL("http://me:hunter2pass@x"), ConfigError),
            (aiohttp.NonHttpUrlClientError("ftp://me:hunter2pass@x"), ConfigError),
            (httpx.InvalidURL("x"), ConfigError),
            (httpx.UnsupportedProtocol("x"), ConfigError),
            (httpx.DecodingError("x"), ProtocolError),
            (httpx.TooManyRedirects("x"), ProtocolError),
            (httpx.CookieConflict("x"), ProtocolError),
        ],
        ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
    )
    def test_what_no_retry_can_mend_is_no_transport_error(
        self, raised: Exception, expected: type[BridgeError]
    ) -> None:
        """A wrong setting or a broken body is not repeated."""
        error = translate(raised, "GET http://polar/health")
        assert type(error) is expected
        assert "hunter2pass" not in "".join(traceback.format_exception(error))


class TestAnswers:
    @pytest.mark.parametrize(
        ("status", "expected"),
        [
            (500, TransportError),
            (502, TransportError),
            (503, TransportError),
            (504, TransportError),
            (408, TransportError),
            (429, TransportError),
            (400, SubmitRejectedError),
            (401, SubmitRejectedError),
            (403, SubmitRejectedError),
            (404, SubmitRejectedError),
            (405, SubmitRejectedError),
            (409, TaskConflictError),
            (413, SubmitRejectedError),
            (422, SubmitRejectedError),
            (304, SubmitRejectedError),
        ],
    )
    def test_status_of_a_submit(self, status: int, expected: type[BridgeError]) -> None:
        """What is worth a retry is told apart from what is final, and the message holds status and reason."""

        async def main() -> None:
            async with _client(_always(status, json={"detail": "Not Found"})) as client:
                error = await _error(client.submit(b"{}"))
            assert type(error) is expected
            assert f"was answered {status}: Not Found" in str(error)
            if isinstance(error, TransportError | SubmitRejectedError):
                assert error.status_code == status

        run_virtual(main())

    @pytest.mark.parametrize(
        ("content", "expected"),
        [
            ({"json": {"detail": "Task not found"}}, TaskUnknownError),
            ({"json": {"detail": "no such task: t-1"}}, TaskUnknownError),
            ({"json": {"detail": "Not Found"}}, SubmitRejectedError),
            ({"html": "<html><body>404 nginx</body></html>"}, SubmitRejectedError),
            ({"content": b""}, SubmitRejectedError),
            ({"json": ["Task not found"]}, SubmitRejectedError),
        ],
    )
    def test_forgotten_task_and_unknown_route_are_told_apart(
        self, content: dict[str, object], expected: type[BridgeError]
    ) -> None:
        """A forgotten task is submitted again; a wrong address is a setting to correct."""

        async def main() -> None:
            async with _client(_always(404, **content)) as client:
                error = await _error(client.get_task("t-1"))
            assert type(error) is expected
            if expected is SubmitRejectedError:
                assert "polar_rollout_url" in str(error)

        run_virtual(main())

    def test_validation_errors_are_told_without_the_echo_of_the_request(self) -> None:
        """A 422 repeats the request with the agent's environment; only places and messages are shown."""

        async def main() -> None:
            detail = [
                {
                    "type": "missing",
                    "loc": ["body", "agent"],
                    "msg": "Field required",
                    "input": {"env": {"K": "v9"}},
                },
                *({"type": "x", "loc": ["body", n], "msg": "bad", "input": "v9"} for n in range(6)),
            ]
            async with _client(_always(422, json={"detail": detail})) as client:
                error = await _error(client.submit(b"{}"))
            assert "body.agent: Field required; body.0: bad" in str(error)
            assert "(and 2 more)" in str(error)
            assert "v9" not in str(error)

        run_virtual(main())

    @pytest.mark.parametrize("place", [5, {"a": 1}, "agent", None, [None, 1.5]])
    def test_validation_errors_of_another_form_are_errors_like_others(self, place: object) -> None:
        """What stands in front of the server may have its own idea of a 422."""

        async def main() -> None:
            answer = _always(422, json={"detail": [{"loc": place, "msg": "no such agent"}]})
            async with _client(answer) as client:
                error = await _error(client.submit(b"{}"))
            assert isinstance(error, SubmitRejectedError)
            assert "no such agent" in str(error)

        run_virtual(main())

    @pytest.mark.parametrize(("value", "expected"), [("7", 7.0), ("soon", None), ("", None), ("-1", None)])
    def test_retry_after(self, value: str, expected: float | None) -> None:
        """A busy server's wish is kept for the retry policy; its date form is ignored."""

        async def main() -> None:
            async with _client(_always(503, headers={"Retry-After": value})) as client:
                error = await _error(client.submit(b"{}"))
            assert isinstance(error, TransportError)
            assert error.retry_after == expected

        run_virtual(main())

    def test_redirects_are_reported_not_followed(self) -> None:
        """A POST that is redirected would lose its body; the message names the place to configure."""

        async def main() -> None:
            seen: list[str] = []

            def handler(request: httpx.Request) -> httpx.Response:
                seen.append(str(request.url))
                return httpx.Response(
                    307, headers={"Location": "https://u:secretpw@new/rollout?token=abc123"}
                )

            async with _client(handler) as client:
                error = await _error(client.submit(b"{}"))
            assert isinstance(error, SubmitRejectedError)
            assert error.status_code == 307
            assert "redirect to https://***@new/rollout" in str(error)
            assert "polar_rollout_url" in str(error)
            assert "secretpw" not in str(error)
            assert "abc123" not in str(error)
            assert len(seen) == 1

        run_virtual(main())

    @pytest.mark.parametrize("body", [b"", b"not json", b"[]", b'{"task_id": 3}', b"<html>"])
    def test_an_answer_that_is_no_receipt_is_a_protocol_error(self, body: bytes) -> None:
        """A proxy's page with status 200 does not count as an accepted task."""

        async def main() -> None:
            async with _client(_always(200, content=body)) as client:
                error = await _error(client.submit(b"{}"))
            assert type(error) is ProtocolError
            assert "/rollout/task/submit" in str(error)

        run_virtual(main())


class TestSecrets:
    def test_no_secret_in_any_message(self, caplog: pytest.LogCaptureFixture) -> None:
        """Credentials of the URL, its query, the control token and keys in bodies appear nowhere."""
        secrets = [
            "hunter2pass",
            "queryS3cret",
            "ctl-token-77",
            "sk-abcdefgh12345",
            "envK3yvalue",
            "bearerbearer1",
        ]
        echo = (
            "bad request ctl-token-77 Authorization: Bearer bearerbearer1 key sk-abcdefgh12345 "
            '"OPENAI_API_KEY": "envK3yvalue" at http://me:hunter2pass@polar/?key=queryS3cret'
        )

        async def main() -> list[BridgeError]:
            base = "http://me:hunter2pass@polar:8080/pre?key=queryS3cret"
            errors: list[BridgeError] = []

            def raises(request: httpx.Request) -> httpx.Response:
                raise aiohttp.ClientOSError(echo)

            handlers: list[Handler] = [
                _always(422, json={"detail": echo}),
                _always(400, text=echo),
                _always(503, text=echo),
                _always(307, headers={"location": "http://x/?apikey=queryS3cret"}),
                _always(200, text=echo),
                raises,
            ]
            for handler in handlers:
                async with _client(
                    handler, base, control_token="ctl-token-77", fuse=Fuse(threshold=1)
                ) as client:
                    errors.append(await _error(client.submit(b"{}")))
            return errors

        with caplog.at_level(logging.DEBUG):
            errors = run_virtual(main())
        # The cause is the library's own text, which never holds the request; here it was made to hold all.
        shown = [f"{error} {error!r}" for error in errors] + caplog.messages
        for text in shown:
            assert not any(secret in text for secret in secrets), text
        assert any("http://polar:8080/pre/rollout/task/submit" in text for text in shown)

    def test_traceback_of_a_real_failure_holds_no_secret(self) -> None:
        """A printed traceback, cause included, shows the address without its credentials."""

        async def main() -> str:
            async with PolarClient("http://me:hunter2pass@127.0.0.1:9/?key=queryS3cret") as client:
                error = await _error(client.submit(b"{}"))
            return "".join(traceback.format_exception(error))

        text = run_real(main())
        assert "Connection refused" in text
        assert "hunter2pass" not in text
        assert "queryS3cret" not in text

    @pytest.mark.parametrize(
        "url",
        [
            *("", "polar:8080", "ftp://me:hunter2pass@polar", "http://", "http://me:hunter2pass@[::1"),
            *("http://me:hunter2pass@polar..local", f"http://me:hunter2pass@{'a' * 64}:8080"),
            *("http://me:hunter2pass@polar:65536", "http://me:hunter2pass@polar:0"),
        ],
    )
    def test_unusable_url_is_a_configuration_error_without_its_credentials(self, url: str) -> None:
        """A bad URL is reported under its key before anything is sent."""
        with pytest.raises(ConfigError, match="polar_rollout_url") as caught:
            PolarClient(url)
        assert "hunter2pass" not in "".join(traceback.format_exception(caught.value))

    @pytest.mark.parametrize("token", ["two\nlines", "umläut", " s3cret-tok"])
    def test_unusable_control_token_is_a_configuration_error_that_hides_it(self, token: str) -> None:
        """The token cannot smuggle headers in, and is not shown."""
        with pytest.raises(ConfigError, match="POLAR_CONTROL_PLANE_TOKEN") as caught:
            PolarClient("http://polar", control_token=token)
        assert token not in str(caught.value)


class TestRequests:
    def test_submit_sends_the_body_as_it_is(self) -> None:
        """The encoded request is neither parsed nor changed, and carries the type that servers insist on."""

        async def main() -> None:
            seen: list[httpx.Request] = []

            def handler(request: httpx.Request) -> httpx.Response:
                seen.append(request)
                return httpx.Response(200, json={"task_id": "t-1", "status": "running"})

            async with _client(handler, "http://u:p@polar:8080/pre/?k=v", control_token="tok") as client:
                assert await client.submit(b'{"task_id":"t-1"}') == "t-1"
                assert client.base_url == "http://polar:8080/pre"
            request = seen[0]
            assert request.content == b'{"task_id":"t-1"}'
            assert request.headers["content-type"] == "application/json"
            assert request.headers["x-polar-control-token"] == "tok"
            assert request.headers["authorization"].startswith("Basic ")
            assert request.url.raw_path == b"/pre/rollout/task/submit?k=v"

        run_virtual(main())

    def test_no_token_no_header(self) -> None:
        """Baseline servers see nothing of newer ones."""

        async def main() -> None:
            def handler(request: httpx.Request) -> httpx.Response:
                assert "x-polar-control-token" not in request.headers
                return httpx.Response(200, json=STATUS)

            async with _client(handler) as client:
                assert await client.list_statuses() == {"t-1": "running"}

        run_virtual(main())

    def test_task_ids_are_one_percent_encoded_segment(self) -> None:
        """No id can reach another route."""

        async def main() -> None:
            paths: list[bytes] = []

            def handler(request: httpx.Request) -> httpx.Response:
                paths.append(request.url.raw_path)
                return httpx.Response(200, content=b"{}")

            async with _client(handler) as client:
                await client.get_task("a b/../ü?x#y%2F")
                for unusable in ("", ".", ".."):
                    with pytest.raises(ValueError, match="URL path"):
                        await client.get_task(unusable)
            assert paths == [b"/rollout/task/a%20b%2F..%2F%C3%BC%3Fx%23y%252F"]

        run_virtual(main())

    def test_nodes_and_health(self) -> None:
        """The small answers come decoded."""

        async def main() -> None:
            def handler(request: httpx.Request) -> httpx.Response:
                if request.url.path == "/nodes":
                    return httpx.Response(
                        200, json=[{"node_id": "n", "gateway_url": "http://g:1", "healthy": False}]
                    )
                return httpx.Response(200, json={"status": "ok", "nodes": 1})

            async with _client(handler) as client:
                (node,) = await client.nodes()
                assert (node.node_id, node.gateway_url, node.healthy) == ("n", "http://g:1", False)
                assert await client.health() == {"status": "ok", "nodes": 1}

        run_virtual(main())

    def test_large_status_list_is_decoded(self) -> None:
        """A server that remembers a hundred thousand tasks is read off the loop."""

        async def main() -> None:
            tasks = {f"polar-slime-{n}": "completed" for n in range(20_000)}
            async with _client(_always(200, json={"tasks": tasks})) as client:
                assert await client.list_statuses() == tasks

        run_real(main())

    def test_answer_of_exactly_the_limit_is_fine(self) -> None:
        """The limit itself is allowed."""

        async def main() -> None:
            async with _client(_always(200, content=b"x" * 500), max_body_bytes=500) as client:
                assert len(await client.get_task("t")) == 500

        run_virtual(main())


def _dripping(seconds: float, count: int) -> Callable[[httpx.Request], httpx.Response]:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(count):
            await anyio.sleep(seconds)
            yield b" "
        yield json.dumps(STATUS).encode()

    return lambda request: httpx.Response(200, content=pieces())


class TestTimeouts:
    def test_small_answer_has_a_bound_on_the_whole_time(self) -> None:
        """A server that sends a byte now and then cannot hold a submit for ever."""

        async def main() -> None:
            async with _client(_dripping(20.0, 1000), timeout=30.0) as client:
                error = await _error(client.list_statuses())
            assert isinstance(error, TransportError)
            assert (error.reason, error.ambiguous) == ("timeout", True)
            assert anyio.current_time() == pytest.approx(30.0)

        run_virtual(main())

    def test_large_record_may_take_its_time(self) -> None:
        """A download that makes progress is the deadline's business."""

        async def main() -> None:
            async with _client(_dripping(20.0, 100), timeout=30.0) as client:
                assert b"pending_sessions" in await client.get_task("t-1")
            assert anyio.current_time() == pytest.approx(2000.0)

        run_virtual(main())

    def test_silent_server_is_given_up(self) -> None:
        """A connection that is accepted and never answered ends after the timeout, ambiguous."""

        async def main() -> None:
            async with serving(lambda reader, writer: asyncio.sleep(60)) as url:
                async with PolarClient(url, timeout=1.0) as client:
                    for call in (client.submit(b"{}"), client.get_task("t")):
                        error = await _error(call)
                        assert isinstance(error, TransportError)
                        assert (error.reason, error.ambiguous) == ("timeout", True)

        run_real(main())

    def test_answer_that_breaks_off_is_a_transport_error(self) -> None:
        """Half a record is not a record."""

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{half")

        async def main() -> None:
            async with serving(answer) as url:
                async with PolarClient(url) as client:
                    error = await _error(client.get_task("t"))
            assert isinstance(error, TransportError)
            assert error.reason == "cut"

        run_real(main())


class TestConcurrency:
    def test_three_hundred_requests_run_at_once(self) -> None:
        """No request waits for a free connection, and none fails because of the pool."""
        count = 300

        async def main() -> None:
            arrived = 0
            all_here = asyncio.Event()

            async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                nonlocal arrived
                await reader.readuntil(b"\r\n\r\n")
                arrived += 1
                if arrived == count:
                    all_here.set()
                # Only when every request has arrived is the first one answered.
                await all_here.wait()
                body = json.dumps(STATUS).encode()
                head = f"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
                writer.write(head.encode() + body)

            async with serving(answer) as url:
                async with PolarClient(url, timeout=45.0, limits=connection_limits(count)) as client:
                    async with anyio.create_task_group() as tasks:
                        for _ in range(count):
                            tasks.start_soon(client.list_statuses)
            assert arrived == count

        run_real(main(), within=50.0)

    def test_limits_need_a_concurrency(self) -> None:
        """Limits of zero would wait for ever."""
        with pytest.raises(ValueError, match="at least 1"):
            connection_limits(0)
        assert connection_limits(300) >= 300


class TestFuse:
    def test_outage_opens_the_fuse_and_health_closes_it(self) -> None:
        """All requests share one view of the server; asking for its health is always allowed."""

        async def main() -> None:
            up = False

            def handler(request: httpx.Request) -> httpx.Response:
                if not up:
                    raise refused()
                return httpx.Response(200, json={"status": "ok"})

            async with _client(handler, fuse=Fuse(threshold=3, clock=anyio.current_time)) as client:
                for _ in range(3):
                    await _error(client.list_statuses())
                assert client.fuse.is_open
                assert isinstance(await _error(client.health()), TransportError)
                up = True
                await client.health()
                assert not client.fuse.is_open

        run_virtual(main())

    @pytest.mark.parametrize("status", [400, 404, 409, 422, 429])
    def test_refusals_show_that_the_server_is_there(self, status: int) -> None:
        """A hundred bad requests are no outage."""

        async def main() -> None:
            async with _client(_always(status, json={"detail": "no"})) as client:
                for _ in range(10):
                    await _error(client.submit(b"{}"))
                assert not client.fuse.is_open

        run_virtual(main())

    def test_server_errors_count_as_an_outage(self) -> None:
        """A load balancer in front of a dead server answers 503 to everything."""

        async def main() -> None:
            async with _client(_always(503)) as client:
                for _ in range(3):
                    await _error(client.submit(b"{}"))
                assert client.fuse.is_open
                assert "503" in str(client.fuse.last_error)

        run_virtual(main())


class TestCancel:
    @pytest.mark.parametrize(
        ("status", "detail"), [(200, None), (404, "Task not found"), (409, "task t is already cancelled")]
    )
    def test_server_with_the_route(self, status: int, detail: str | None) -> None:
        """The request also marks ids that the server has not seen yet."""

        async def main() -> None:
            seen: list[tuple[str, bytes]] = []

            def handler(request: httpx.Request) -> httpx.Response:
                seen.append((request.method, request.url.raw_path))
                return httpx.Response(status, json={"detail": detail})

            async with _client(handler) as client:
                assert await client.cancel_task("t") is True
                assert client.inactive_features == {}
            assert seen == [("DELETE", b"/rollout/task/t?register_if_missing=true")]

        run_virtual(main())

    @pytest.mark.parametrize(("status", "detail"), [(405, "Method Not Allowed"), (404, "Not Found")])
    def test_server_without_the_route_is_asked_once(
        self, status: int, detail: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """An older server is remembered as such, with one line that says what does not work."""

        async def main() -> int:
            requests = 0

            def handler(request: httpx.Request) -> httpx.Response:
                nonlocal requests
                requests += 1
                return httpx.Response(status, json={"detail": detail})

            async with _client(handler) as client:
                for _ in range(5):
                    assert await client.cancel_task("t") is False
                assert list(client.inactive_features) == ["cancel"]
            return requests

        assert run_virtual(main()) == 1
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        assert "'cancel' is inactive" in caplog.messages[0]

    def test_refusal_is_no_missing_route(self) -> None:
        """A wrong token is an error, not a feature that is missing."""

        async def main() -> None:
            async with _client(_always(401, json={"detail": "bad token"})) as client:
                assert isinstance(await _error(client.cancel_task("t")), SubmitRejectedError)
                assert client.inactive_features == {}

        run_virtual(main())


class TestAgainstServer:
    """The same client at a Polar-compatible server over real sockets."""

    TASK = json.dumps({"task_id": "t-1", "instruction": "x", "agent": {"harness": "lab"}}).encode()

    def test_life_of_a_task(self) -> None:
        """Submit, conflict, list, fetch, and the two ways of not being there."""
        with serve_polar(FaultScript(faults=[Fault("task_endless")])) as polar:

            async def main() -> None:
                async with PolarClient(polar.url) as client:
                    assert await client.submit(self.TASK) == "t-1"
                    assert isinstance(await _error(client.submit(self.TASK)), TaskConflictError)
                    assert await client.list_statuses() == {"t-1": "running"}
                    assert b'"t-1"' in await client.get_task("t-1")
                    assert isinstance(await _error(client.get_task("t-2")), TaskUnknownError)
                    assert isinstance(await _error(client.submit(b'{"task_id": "t-3"}')), SubmitRejectedError)
                    assert await client.cancel_task("t-1") is False
                    assert isinstance(await client.nodes(), list)
                async with PolarClient(polar.url + "/wrong") as client:
                    assert isinstance(await _error(client.get_task("t-1")), SubmitRejectedError)

            run_real(main())

    def test_newer_server_cancels(self) -> None:
        """Where the route exists, it is used."""
        with serve_polar(FaultScript(faults=[Fault("task_endless")]), newer=True) as polar:

            async def main() -> None:
                async with PolarClient(polar.url) as client:
                    await client.submit(self.TASK)
                    assert await client.cancel_task("t-1") is True
                    assert await client.cancel_task("t-unseen") is True
                    late = self.TASK.replace(b"t-1", b"t-unseen")
                    assert isinstance(await _error(client.submit(late)), TaskConflictError)

            run_real(main())
            assert "t-1" in polar.cancelled

    @pytest.mark.parametrize(
        ("fault", "reason"),
        [
            (Fault("connection_reset"), "cut or refused"),
            (Fault("connection_half_open"), "timeout"),
            (Fault("connection_garbage", value="hello\r\n\r\n"), "cut"),
            (Fault("response_hang"), "timeout"),
            (Fault("response_reset"), "cut"),
            (Fault("response_cut"), "cut"),
            (Fault("response_status", status=502, value="bad gateway"), "server_error"),
        ],
        ids=lambda value: value.kind if isinstance(value, Fault) else None,
    )
    def test_network_faults(self, fault: Fault, reason: str) -> None:
        """Whatever the network does to a request, it becomes one typed error in time."""
        with serve_polar(FaultScript(faults=[fault])) as polar:

            async def main() -> None:
                timeout = 0.5 if reason == "timeout" else 20.0
                async with PolarClient(polar.url, timeout=timeout) as client:
                    error = await _error(client.submit(self.TASK))
                assert isinstance(error, TransportError)
                # A reset may come while the connection is still being made.
                assert error.reason in reason.split(" or ")

            run_real(main())
