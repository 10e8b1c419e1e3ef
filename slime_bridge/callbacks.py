"""The listener that Polar posts finished tasks to.

One HTTP/1.1 server on asyncio and h11. A registered attempt gets a URL that nobody can guess;
whatever arrives anywhere else is refused before its body is read. A body is acknowledged as soon as it is
complete and before anybody looks into it, because Polar waits ten seconds and never posts again. The module
does not decode results: who awaits a body checks it, and may `CallbackHandle.reject` it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections import Counter, OrderedDict
from collections.abc import Callable
from types import TracebackType

import anyio
import h11

from slime_bridge._acceptor import Acceptor
from slime_bridge._addresses import advertisable_host, bind_hint, bind_sockets, bracketed, without_brackets
from slime_bridge._body import Body
from slime_bridge._callback_http import BodyTooLargeError, ConnectionCutError, HttpExchange, Limits
from slime_bridge._callback_kind import CallbackKind
from slime_bridge._connection import Connection, Reception
from slime_bridge._task_head import leading_task_id, starts_like_object
from slime_bridge.errors import CallbackBindError

__all__ = ["MAX_BODY_BYTES", "CallbackHandle", "CallbackKind", "CallbackListener"]

logger = logging.getLogger(__name__)

MAX_BODY_BYTES = 1 << 30
"""Default bound on a callback body: some forty times the largest task results in use."""

_TOKEN_BYTES = 24
_CLOSED_TOKENS_KEPT = 4096
_CLOSE_SECONDS = 0.8
_CATCH_UP_SECONDS = 1.0
_CAUGHT_UP_SECONDS = 0.03


class CallbackHandle:
    """One attempt's address, and the body that arrives there; made by `CallbackListener.register`.

    Attributes
    ----------
    task_id : str
        The task that the address was made for.
    url : str
        What to send as ``callback_url``.
    on_delivery : callable or None
        Called without arguments in the loop's thread when a body has arrived.
    """

    def __init__(self, listener: CallbackListener, task_id: str, token: str, url: str) -> None:
        self.task_id = task_id
        self.url = url
        self.on_delivery: Callable[[], None] | None = None
        self._listener = listener
        self._token = token
        self._body: Body | None = None
        self._arrived = asyncio.Event()
        self._uploads = 0
        self._no_upload = asyncio.Event()
        self._no_upload.set()

    @property
    def receiving(self) -> bool:
        """True while a body is on its way in."""
        return self._uploads > 0

    async def body(self) -> Body:
        """Wait for the body and return it; returns at once, and again, when it is there."""
        while self._body is None:
            await self._arrived.wait()
        return self._body

    def take(self) -> Body | None:
        """Return the body if it is there, without waiting."""
        return self._body

    async def wait_received(self) -> None:
        """Return when no body is on its way in."""
        await self._no_upload.wait()

    def reject(self, kind: CallbackKind = CallbackKind.MALFORMED) -> None:
        """Forget the body, count it as of another kind, and be open for the next one.

        Parameters
        ----------
        kind
            `CallbackKind.MALFORMED` or `CallbackKind.FOREIGN`.
        """
        if self._body is None:
            return
        self._body = None
        self._arrived.clear()
        self._listener._count(kind, f"for task {self.task_id}", instead_of=CallbackKind.ACCEPTED)

    def close(self) -> None:
        """Stop accepting and let go of the body; later ones are acknowledged and dropped. Idempotent."""
        kind = CallbackKind.LATE if self._body is None else CallbackKind.DUPLICATE
        if self._listener._retire(self._token, kind):
            self._body = None
            self.on_delivery = None

    def _begin_upload(self) -> None:
        self._uploads += 1
        self._no_upload.clear()

    def _end_upload(self) -> None:
        self._uploads -= 1
        if self._uploads == 0:
            self._no_upload.set()

    def _deliver(self, body: Body) -> None:
        self._body = body
        self._arrived.set()
        if self.on_delivery is not None:
            self.on_delivery()


class CallbackListener:
    """Server for task callbacks, used from one asyncio loop; an async context manager that binds on entry.

    Parameters
    ----------
    advertise_host
        Host in the URLs: a name or address by which Polar reaches this machine, never a wildcard.
    bind_host
        Name or address to bind, `advertise_host` if None; may be a wildcard.
    port
        Port to bind, 0 for a free one.
    max_body_bytes
        Larger bodies are refused.
    header_timeout, idle_timeout, request_timeout
        Seconds for the request head, for each read of the body, and for the whole request.
    max_connections
        Connections above this number are closed at once.

    Raises
    ------
    ConfigError
        If `advertise_host` is a wildcard or no host.
    """

    def __init__(
        self,
        advertise_host: str,
        *,
        bind_host: str | None = None,
        port: int = 0,
        max_body_bytes: int = MAX_BODY_BYTES,
        header_timeout: float = 10.0,
        idle_timeout: float = 15.0,
        request_timeout: float = 300.0,
        max_connections: int = 1024,
    ) -> None:
        self._advertise_host = advertisable_host(advertise_host)
        self._bind_host = without_brackets(bind_host) if bind_host else self._advertise_host
        self._wanted_port = port
        self._limits = Limits(max_body_bytes, header_timeout, idle_timeout, request_timeout)
        self._max_connections = max_connections
        self._secret = secrets.token_urlsafe(_TOKEN_BYTES)
        self._handles: dict[str, CallbackHandle] = {}
        self._closed_tokens: OrderedDict[str, CallbackKind] = OrderedDict()
        self._counter: Counter[CallbackKind] = Counter()
        self._acceptor: Acceptor | None = None
        self._port: int | None = None
        self._exchanges: set[HttpExchange] = set()
        self._reception = Reception()
        self._uploads = 0

    @property
    def address(self) -> str:
        """``host:port`` as advertised, without the secret path; for messages."""
        return f"{bracketed(self._advertise_host)}:{self._port or self._wanted_port}"

    @property
    def port(self) -> int | None:
        """The bound port, None while not listening."""
        return self._port

    @property
    def counts(self) -> dict[str, int]:
        """Requests so far of each `CallbackKind`."""
        return {kind.value: self._counter[kind] for kind in CallbackKind}

    def register(self, task_id: str) -> CallbackHandle:
        """Make an address for one attempt of a task; the caller closes the handle.

        Raises
        ------
        CallbackBindError
            If the listener is not listening: no address would lead to it.
        """
        if self._acceptor is None:
            raise CallbackBindError(f"no callback address for task {task_id}: the listener is not listening")
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        handle = CallbackHandle(self, task_id, token, f"http://{self.address}/{self._secret}/{token}")
        self._handles[token] = handle
        return handle

    async def caught_up(self) -> None:
        """Wait while bodies come in faster than the loop receives them, a second at most.

        Whatever computes meanwhile takes turns with the loop that are longer than the loop's own: bodies then
        wait in the kernel, and their senders for an answer.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + _CATCH_UP_SECONDS
        while self._uploads > 0:
            rest = min(until, self._reception.backlog_at + _CAUGHT_UP_SECONDS) - loop.time()
            if rest <= 0:
                return
            await anyio.sleep(rest)

    async def __aenter__(self) -> CallbackListener:
        """Bind and listen; raises `CallbackBindError`."""
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the listener and every open connection within a second."""
        await self.close()

    async def start(self) -> None:
        """Bind and listen.

        Raises
        ------
        CallbackBindError
            If the address cannot be bound; the message says which, why and what to change.
        """
        if self._acceptor is not None:
            return
        try:
            sockets = await bind_sockets(self._bind_host, self._wanted_port)
            port = sockets[0].getsockname()[1]
            self._acceptor = Acceptor(sockets, self._serve)
        except OSError as exc:
            raise CallbackBindError(
                f"cannot listen for Polar's callbacks on {bracketed(self._bind_host)}:{self._wanted_port}: "
                f"{exc.strerror or exc}; {bind_hint(exc)}"
            ) from exc
        self._port = port
        logger.info("Listening for callbacks on %s, advertised as http://%s", self._bind_host, self.address)

    async def close(self) -> None:
        """Close the listener and every open connection within a second; idempotent."""
        acceptor, self._acceptor = self._acceptor, None
        self._port = None
        if acceptor is not None:
            await acceptor.close(_CLOSE_SECONDS)

    async def _serve(self, sock: socket.socket) -> None:
        """Own one connection from its first byte to its end."""
        try:
            connection = await Connection.accept(sock, self._reception)
        except OSError as exc:
            logger.debug("A connection ended before it could be served: %s", exc)
            return
        exchange = HttpExchange(connection, self._limits)
        if len(self._exchanges) >= self._max_connections:
            self._count(CallbackKind.REFUSED, "too many connections")
            exchange.abort()
            return
        self._exchanges.add(exchange)
        try:
            with anyio.move_on_after(self._limits.request_timeout) as scope:
                await self._answer(exchange)
            if scope.cancelled_caught:
                self._count(CallbackKind.SLOW, "no complete request in time")
            await exchange.finish()
        except Exception:
            # Nobody awaits this task: without the log line a bug here would be a callback that silently got
            # lost.
            logger.exception("Serving a callback connection failed")
        finally:
            exchange.abort()
            self._exchanges.discard(exchange)

    async def _answer(self, exchange: HttpExchange) -> None:
        """Read one request, decide, answer; every outcome is counted."""
        try:
            request = await exchange.head()
            if request is not None:
                await self._answer_request(exchange, request)
        except h11.RemoteProtocolError as exc:
            self._refuse(exchange, 400, CallbackKind.MALFORMED, f"not HTTP/1.1: {exc}")
        except BodyTooLargeError:
            self._refuse(
                exchange, 413, CallbackKind.OVERSIZED, f"more than {self._limits.max_body_bytes} bytes"
            )
        except TimeoutError:
            self._refuse(exchange, 408, CallbackKind.SLOW, "the request did not arrive in time")
        except MemoryError as exc:
            self._refuse(exchange, 503, CallbackKind.REFUSED, str(exc) or "no memory for the body")
        except ConnectionCutError:
            self._count(CallbackKind.CUT, "the connection ended before the request was complete")

    async def _answer_request(self, exchange: HttpExchange, request: h11.Request) -> None:
        token = self._token_of(request.target)
        if token is None:
            self._refuse(exchange, 404, CallbackKind.FORGED, "no such path")
        elif request.method != b"POST":
            self._refuse(exchange, 405, CallbackKind.MALFORMED, "only POST is allowed", allow="POST")
        elif (
            length := exchange.declared_length(request)
        ) is not None and length > self._limits.max_body_bytes:
            raise BodyTooLargeError
        elif (handle := self._handles.get(token)) is None:
            await exchange.discard_body()
            self._drop(exchange, token)
        else:
            await self._receive(exchange, handle, token)

    async def _receive(self, exchange: HttpExchange, handle: CallbackHandle, token: str) -> None:
        under_way = True

        def complete(body: Body) -> None:
            nonlocal under_way
            under_way = False
            self._uploads -= 1
            handle._end_upload()
            self._accept(exchange, handle, token, body)

        self._uploads += 1
        handle._begin_upload()
        try:
            await exchange.body(complete)
        finally:
            if under_way:
                self._uploads -= 1
                handle._end_upload()

    def _accept(self, exchange: HttpExchange, handle: CallbackHandle, token: str, body: Body) -> None:
        """Acknowledge a complete body and hand it over, unless it is too late or not the attempt's own."""
        if token not in self._handles or handle.take() is not None:
            self._drop(exchange, token)
        elif not starts_like_object(body):
            self._refuse(exchange, 400, CallbackKind.MALFORMED, "the body is not a JSON object")
        elif (named := leading_task_id(body)) is not None and named != handle.task_id:
            self._refuse(exchange, 404, CallbackKind.FOREIGN, f"a body that is not task {handle.task_id}'s")
        else:
            exchange.respond(200, message="accepted")
            self._counter[CallbackKind.ACCEPTED] += 1
            handle._deliver(body)

    def _drop(self, exchange: HttpExchange, token: str) -> None:
        """Acknowledge a body that changes nothing: an error would only make the server log one."""
        exchange.respond(200, message="accepted")
        self._count(self._closed_tokens.get(token, CallbackKind.DUPLICATE), "the attempt has its result")

    def _refuse(
        self, exchange: HttpExchange, status: int, kind: CallbackKind, why: str, allow: str | None = None
    ) -> None:
        exchange.respond(status, message=why if status != 404 else "not found", allow=allow)
        self._count(kind, why)

    def _count(self, kind: CallbackKind, why: str, *, instead_of: CallbackKind | None = None) -> None:
        """Count a request that changed nothing; the first of each kind is worth a warning, a flood is not."""
        self._counter[kind] += 1
        if instead_of is not None:
            self._counter[instead_of] -= 1
        expected = kind in (CallbackKind.LATE, CallbackKind.DUPLICATE)
        level = logging.WARNING if self._counter[kind] == 1 and not expected else logging.DEBUG
        logger.log(level, "Callback listener %s: %s request: %s", self.address, kind.value, why)

    def _token_of(self, target: bytes) -> str | None:
        """Return the attempt token of a request target, None if it was never handed out."""
        prefix, _, token = target.decode("ascii", "replace").rpartition("/")
        if not secrets.compare_digest(prefix.encode(), f"/{self._secret}".encode()):
            return None
        return token if token in self._handles or token in self._closed_tokens else None

    def _retire(self, token: str, kind: CallbackKind) -> bool:
        """Stop accepting for a token and remember what its bodies count as; False if that was done before."""
        if self._handles.pop(token, None) is None:
            return False
        self._closed_tokens[token] = kind
        while len(self._closed_tokens) > _CLOSED_TOKENS_KEPT:
            self._closed_tokens.popitem(last=False)
        return True
