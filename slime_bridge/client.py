"""HTTP client of the rollout server: one method per route, one request per call, typed errors.

The client repeats nothing (see `slime_bridge.retry`), decodes only small answers, and keeps credentials out
of every message. Its `Fuse` sees each request, so that an outage is noticed once for all callers. It knows
the protocol's routes and status codes, but not what tasks are for.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import quote

import aiohttp
import anyio
import anyio.to_thread
import httpx

from slime_bridge import _json
from slime_bridge._http_errors import Answer, error_of_answer, translate
from slime_bridge._http_url import parse_http_url
from slime_bridge._transport import HttpTransport, Transport
from slime_bridge.errors import (
    BridgeError,
    ConfigError,
    ProtocolError,
    SubmitRejectedError,
    TaskConflictError,
    TaskUnknownError,
    TransportError,
)
from slime_bridge.protocol import NodeInfo, decode_nodes, decode_server_status, decode_submit_receipt
from slime_bridge.redaction import redact
from slime_bridge.retry import Fuse

__all__ = ["CONNECT_TIMEOUT", "DEFAULT_TIMEOUT", "MAX_BODY_BYTES", "PolarClient", "connection_limits"]

logger = logging.getLogger(__name__)

DEFAULT_TIMEOUT = 30.0
"""Seconds for each read or write, and for a whole request with a small answer, if no timeout is given."""

CONNECT_TIMEOUT = 5.0
"""Upper bound on the seconds for a connection, whatever the other timeouts are."""

MAX_BODY_BYTES = 1 << 30
"""Default bound on an answer's decoded size: some forty times the largest task records in use."""

# Below this, decoding costs less than the way to a thread and back.
_INLINE_BYTES = 256 * 1024

T = TypeVar("T")


def connection_limits(concurrency: int) -> int:
    """Return how many connections let so many requests run at the same time without waiting for each other.

    Parameters
    ----------
    concurrency
        Groups in flight at most; a few connections are added for polling and cancelling.
    """
    if concurrency < 1:
        raise ValueError(f"concurrency must be at least 1, got {concurrency}")
    return concurrency + 8


class PolarClient:
    """One rollout server, used from one event loop; an async context manager.

    Parameters
    ----------
    base_url
        ``http(s)://host[:port][/prefix]``. User info becomes basic authentication and a query is sent with
        every request; neither is ever shown.
    timeout
        Seconds without progress after which a read or write is given up, and the bound on a whole request
        whose answer is small (all but `get_task`); `DEFAULT_TIMEOUT` if None. Connecting takes
        `CONNECT_TIMEOUT` at most. Waiting for a free connection has no timeout of its own.
    limits
        Connections at most; see `connection_limits`, for 256 if None.
    trust_env
        Follow the environment's proxy variables, ``.netrc`` and certificate settings. Off by default,
        because servers of a cluster are rarely behind the proxy meant for the internet.
    control_token
        Sent as ``X-Polar-Control-Token`` with every request.
    transport
        Replaces the network; the client closes it. Timeouts, limits and `trust_env` are its own then.
    fuse
        Outage detection to share, a new `Fuse` if None.
    max_body_bytes
        Answers that decode to more are refused with a `ProtocolError`.

    Attributes
    ----------
    base_url : str
        The server's address without credentials.
    fuse : Fuse
        Passed by every request except `health`, `describe` and `cancel_task`; told of every outcome except
        that of `describe`.
    inactive_features : dict of str to str
        Optional features that this server was found to lack, each with its reason. Each was logged once.

    Raises
    ------
    ConfigError
        If `base_url` or `control_token` cannot be used.
    """

    def __init__(
        self,
        base_url: str,
        *,
        timeout: float | None = None,
        limits: int | None = None,
        trust_env: bool = False,
        control_token: str | None = None,
        transport: Transport | None = None,
        fuse: Fuse | None = None,
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        url = _parse_base_url(base_url)
        self.base_url = _shown(url)
        self.fuse = fuse if fuse is not None else Fuse()
        self.inactive_features: dict[str, str] = {}
        self._secrets = tuple(filter(None, (url.password, *url.params.values(), control_token)))
        self._total = DEFAULT_TIMEOUT if timeout is None else timeout
        self._max_body_bytes = max_body_bytes
        self._query = str(url.params)
        self._headers = {"Accept": "application/json", "User-Agent": "slime-bridge"}
        if control_token:
            self._headers["X-Polar-Control-Token"] = _checked_token(control_token)
        if url.userinfo:
            pair = f"{url.username}:{url.password}".encode()
            self._headers["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
        if transport is None:
            transport = HttpTransport(
                base_url=self.base_url,
                connect_timeout=min(CONNECT_TIMEOUT, self._total),
                read_timeout=self._total,
                max_connections=limits if limits is not None else connection_limits(256),
                trust_env=trust_env,
                netrc=trust_env and not url.userinfo,
            )
        self._transport = transport

    async def __aenter__(self) -> PolarClient:
        """Return the client."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close all connections."""
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections; idempotent."""
        await self._transport.aclose()

    async def submit(self, body: bytes) -> str:
        """Submit one task.

        Parameters
        ----------
        body
            The encoded task request.

        Returns
        -------
        str
            The task id that the server accepted.

        Raises
        ------
        TransportError
            No usable answer; where it is `ambiguous`, the task may run.
        TaskConflictError
            The server already runs a task of this id, or has it marked as cancelled.
        SubmitRejectedError
            The server refused for good.
        ProtocolError
            The answer is no receipt.
        """
        path = "/rollout/task/submit"
        try:
            answer = await self._exchange("POST", path, content=body)
        except TaskUnknownError as exc:
            raise SubmitRejectedError(str(exc), status_code=404) from exc
        return (await self._decode(decode_submit_receipt, answer, "POST", path)).task_id

    async def get_task(self, task_id: str) -> bytes:
        """Return a task's record with all its results, as received.

        No bound on the whole time, because records can be large; put a deadline around the call.

        Raises
        ------
        TaskUnknownError
            The server does not know the task (any more).
        TransportError, SubmitRejectedError, ProtocolError
            No usable answer, refused, too large.
        """
        return (await self._exchange("GET", _task_path(task_id), bounded=False)).body

    async def list_statuses(self) -> dict[str, str]:
        """Return the status of every task since the server's start, by task id."""
        path = "/rollout/status"
        answer = await self._exchange("GET", path)
        return (await self._decode(decode_server_status, answer, "GET", path)).tasks

    async def nodes(self) -> list[NodeInfo]:
        """Return the gateways that the server knows."""
        answer = await self._exchange("GET", "/nodes")
        return await self._decode(decode_nodes, answer, "GET", "/nodes")

    async def health(self) -> dict[str, Any]:
        """Return the server's health record. It is asked also during an outage, and a good answer ends it."""
        answer = await self._exchange("GET", "/health", gated=False)
        return await self._decode(_decode_object, answer, "GET", "/health")

    async def describe(self) -> dict[str, Any]:
        """Return the server's description of itself (OpenAPI); that it has none is no sign of an outage."""
        path = "/openapi.json"
        answer = await self._exchange("GET", path, gated=False, telling=False)
        return await self._decode(_decode_object, answer, "GET", path)

    async def cancel_task(self, task_id: str) -> bool:
        """Ask the server to cancel a task, and to refuse a submit of it that is still under way.

        Returns
        -------
        bool
            True if the server took note, False if it has no such route: then the feature ``cancel`` is
            inactive, and later calls return False without a request.

        Raises
        ------
        TransportError, SubmitRejectedError
            No usable answer, or refused.
        """
        if "cancel" in self.inactive_features:
            return False
        try:
            await self._exchange("DELETE", _task_path(task_id), query="register_if_missing=true", gated=False)
        except (TaskUnknownError, TaskConflictError):
            return True
        except SubmitRejectedError as exc:
            if exc.status_code not in (404, 405):
                raise
            self.mark_inactive(
                "cancel",
                f"no route to cancel a task ({exc.status_code}); tasks given up run to their own timeout",
            )
            return False
        return True

    def mark_inactive(self, feature: str, reason: str, *, level: int = logging.WARNING) -> None:
        """Remember that this server lacks an optional feature, and say so the first time."""
        if feature not in self.inactive_features:
            self.inactive_features[feature] = reason
            logger.log(level, "Feature %r is inactive with %s: %s", feature, self.base_url, reason)

    async def _exchange(
        self,
        method: str,
        path: str,
        *,
        content: bytes | None = None,
        query: str = "",
        bounded: bool = True,
        gated: bool = True,
        telling: bool = True,
    ) -> Answer:
        """Send one request and return its 2xx answer; every other outcome is raised.

        The fuse is asked before a `gated` request and hears of the outcome of a `telling` one.
        """
        if gated:
            await self.fuse.admit()
        request = f"{method} {self.base_url}{path}"
        started = self.fuse.now()
        error: BridgeError | None
        try:
            if bounded:
                with anyio.fail_after(self._total):
                    answer = await self._send(method, path, content, query)
            else:
                answer = await self._send(method, path, content, query)
            error = error_of_answer(answer, request, secrets=self._secrets)
            if error is None and len(answer.body) > self._max_body_bytes:
                error = ProtocolError(f"{request}: the answer is larger than {self._max_body_bytes} bytes")
        except aiohttp.ClientError as exc:
            error = translate(exc, request, secrets=self._secrets)
        except TimeoutError:
            error = TransportError(
                f"{request}: no complete answer within {self._total:g} s", reason="timeout"
            )
        except OSError as exc:
            error = translate(exc, request, secrets=self._secrets)
        if telling:
            self._tell_fuse(error, started)
        if error is not None:
            raise error
        return answer

    def _tell_fuse(self, error: BridgeError | None, started: float) -> None:
        if isinstance(error, TransportError) and error.reason != "busy":
            self.fuse.record_failure(error, started=started)
        elif not isinstance(error, ConfigError):
            self.fuse.record_success()

    async def _send(self, method: str, path: str, content: bytes | None, query: str) -> Answer:
        """Send one request and read its answer until it ends or exceeds its limit."""
        headers = self._headers
        if content is not None:
            headers = {**headers, "Content-Type": "application/json"}
        query = "&".join(filter(None, (self._query, query)))
        return await self._transport.exchange(
            method,
            f"{self.base_url}{path}?{query}" if query else f"{self.base_url}{path}",
            headers=headers,
            content=content,
            max_bytes=self._max_body_bytes,
        )

    async def _decode(self, decode: Callable[[bytes], T], answer: Answer, method: str, path: str) -> T:
        try:
            if len(answer.body) <= _INLINE_BYTES:
                return decode(answer.body)
            return await anyio.to_thread.run_sync(decode, answer.body)
        except ProtocolError as exc:
            problem = f"{method} {self.base_url}{path} was answered with something else than expected: {exc}"
        raise ProtocolError(problem)


def _parse_base_url(base_url: str) -> httpx.URL:
    url = parse_http_url(base_url)
    if url is None:
        raise ConfigError(
            f"polar_rollout_url {redact(base_url)!r} is not usable: it must look like http://host:8080 or https://host/prefix"
        )
    return url


def _shown(url: httpx.URL) -> str:
    """Return the URL without user info, query and the slash at its end."""
    return str(url.copy_with(userinfo=b"", query=None, fragment=None)).rstrip("/")


def _checked_token(token: str) -> str:
    if not (token.isascii() and token.isprintable() and token == token.strip()):
        raise ConfigError(
            "POLAR_CONTROL_PLANE_TOKEN is not usable as a header: it must be printable ASCII without blanks "
            "around it"
        )
    return token


def _task_path(task_id: str) -> str:
    if task_id in ("", ".", ".."):
        raise ValueError(f"task id {task_id!r} cannot be part of a URL path")
    return f"/rollout/task/{quote(task_id, safe='')}"


def _decode_object(body: bytes) -> dict[str, Any]:
    content = _json.loads(body)
    if not isinstance(content, dict):
        raise ProtocolError(f"not a JSON object: {type(content).__name__}")
    return content
