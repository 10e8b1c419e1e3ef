"""A listening socket in front of uvicorn's HTTP protocol, with faults at the level of TCP connections.

Accepted connections are handed to uvicorn's own protocol class, so that ordinary traffic is uvicorn's. The
port can refuse connections and listen again: while it refuses, a socket that is bound but does not listen
keeps the port for us.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
import time
from collections.abc import Callable
from email.utils import formatdate
from typing import Any

import uvicorn
from uvicorn.server import ServerState as UvicornState

from analysis.lab.polar_server.faults import Fault

logger = logging.getLogger(__name__)

ConnectionPolicy = Callable[[int], Fault | None]
"""Maps the ordinal of an accepted connection to the fault it meets, or None."""

_RESET = struct.pack("ii", 1, 0)
_REBIND_ATTEMPTS = 50


class Front:
    """One HTTP port.

    Parameters
    ----------
    app
        The ASGI application.
    host, port
        Address to listen on; port 0 takes a free one and keeps it until `close`.
    policy
        Decides about each accepted connection.
    keep_alive
        Seconds after which an idle connection is closed.

    Attributes
    ----------
    port
        The TCP port, the same for the front's whole life.
    accepted
        Connections accepted so far.
    """

    def __init__(
        self,
        app: Any,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        policy: ConnectionPolicy | None = None,
        keep_alive: float = 5.0,
    ) -> None:
        self._config = uvicorn.Config(
            app,
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_keep_alive=int(max(1.0, keep_alive)),
        )
        self._host = host
        self._policy = policy or (lambda _: None)
        self._state = UvicornState()
        self._held: set[socket.socket] = set()
        self._clients: dict[tuple[str, int], asyncio.Transport] = {}
        self._acceptor: asyncio.Task[None] | None = None
        self._socket = self._bind(port, attempts=1)
        self.port = int(self._socket.getsockname()[1])
        self.accepted = 0

    @property
    def url(self) -> str:
        """Base URL without a trailing slash."""
        shown = "127.0.0.1" if self._host in ("0.0.0.0", "") else self._host
        return f"http://{shown}:{self.port}"

    @property
    def listening(self) -> bool:
        """Whether connections are accepted at present."""
        return self._acceptor is not None

    @property
    def connections(self) -> int:
        """Number of live connections."""
        return len(self._state.connections) + len(self._held)

    def _bind(self, port: int, *, attempts: int) -> socket.socket:
        last: OSError | None = None
        for _ in range(attempts):
            bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            bound.setblocking(False)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                bound.bind((self._host, port))
            except OSError as error:
                bound.close()
                last = error
                time.sleep(0.02)
            else:
                return bound
        raise OSError(f"cannot bind {self._host}:{port}: {last}") from last

    async def listen(self) -> None:
        """Accept connections from now on; does nothing if it does already."""
        if self._acceptor is None:
            if not self._config.loaded:
                self._config.load()
            self._socket.listen(1024)
            self._acceptor = asyncio.get_running_loop().create_task(self._accept(), name="polar-front")

    async def refuse(self) -> None:
        """Refuse connections from now on and cut the live ones; the port stays ours."""
        if self._acceptor is None:
            return
        acceptor, self._acceptor = self._acceptor, None
        acceptor.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await acceptor
        self._socket.close()
        self._socket = self._bind(self.port, attempts=_REBIND_ATTEMPTS)
        self._cut_all()

    async def close(self, *, grace: float = 0.0) -> None:
        """Stop listening, give requests `grace` seconds, then cut and cancel the rest; frees the port."""
        await self.refuse_new(grace)
        self._cut_all()
        tasks = list(self._state.tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=5.0)
        self._socket.close()

    async def refuse_new(self, grace: float) -> None:
        """Stop accepting and wait up to `grace` seconds for running requests."""
        if self._acceptor is not None:
            acceptor, self._acceptor = self._acceptor, None
            acceptor.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await acceptor
        tasks = list(self._state.tasks)
        if tasks and grace > 0:
            await asyncio.wait(tasks, timeout=grace)

    def abort(self, client: tuple[str, int] | None) -> None:
        """Reset the connection that comes from `client`, as ASGI's ``scope["client"]`` names it."""
        transport = self._clients.pop((client[0], client[1]), None) if client is not None else None
        if transport is not None:
            _set_reset(transport.get_extra_info("socket"))
            transport.abort()

    def _cut_all(self) -> None:
        for connection in list(self._state.connections):
            transport = connection.transport
            if transport is not None:
                _set_reset(transport.get_extra_info("socket"))
                transport.abort()
        for held in self._held:
            _set_reset(held)
            held.close()
        self._held.clear()
        self._clients.clear()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(self._socket)
            except OSError as error:
                logger.warning("accepting a connection on %s failed: %s", self.url, error)
                await asyncio.sleep(0.05)
                continue
            ordinal, self.accepted = self.accepted, self.accepted + 1
            fault = self._policy(ordinal)
            if fault is None:
                await self._hand_over(loop, connection)
            else:
                await self._misbehave(loop, connection, fault)

    async def _hand_over(self, loop: asyncio.AbstractEventLoop, connection: socket.socket) -> None:
        date = formatdate(time.time(), usegmt=True).encode()
        self._state.default_headers = [(b"date", date), *self._config.encoded_headers]
        self._clients = {key: value for key, value in self._clients.items() if not value.is_closing()}
        protocol_class: Any = self._config.http_protocol_class

        def create() -> Any:
            return protocol_class(config=self._config, server_state=self._state, app_state={})

        try:
            # asyncio does this only for sockets that name their protocol; without it answers wait for an ACK.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            transport, protocol = await loop.connect_accepted_socket(create, connection)
        except OSError as error:  # the peer is gone already
            logger.debug("handing over a connection failed: %s", error)
            connection.close()
            return
        if protocol.client is not None and isinstance(transport, asyncio.Transport):
            self._clients[tuple(protocol.client)] = transport

    async def _misbehave(
        self, loop: asyncio.AbstractEventLoop, connection: socket.socket, fault: Fault
    ) -> None:
        if fault.kind == "connection_half_open":
            self._held.add(connection)
            return
        connection.setblocking(False)
        try:
            if fault.kind == "connection_garbage":
                text = str(fault.value or "\x16\x03\x01 this is not HTTP\r\n\r\n")
                await loop.sock_sendall(connection, text.encode("utf-8", "replace"))
                connection.shutdown(socket.SHUT_WR)
                with contextlib.suppress(TimeoutError, OSError):
                    await asyncio.wait_for(loop.sock_recv(connection, 65536), 1.0)
            else:
                _set_reset(connection)
        except OSError as error:  # the peer hung up first, which is fine for a broken connection
            logger.debug("misbehaving on a connection failed: %s", error)
        finally:
            connection.close()


def _set_reset(connection: Any) -> None:
    """Make the next close of `connection` send a reset instead of an orderly end."""
    if connection is not None and connection.fileno() >= 0:
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
