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
_BACKLOG = 1024
_RETRY_SECONDS = 0.05
_LINGER_SECONDS = 1.0


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
        self._arrivals: dict[asyncio.Task[bool], socket.socket] = {}
        self._listening = False
        self._retry: asyncio.TimerHandle | None = None
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
        return self._listening

    @property
    def connections(self) -> int:
        """Number of live connections."""
        return len(self._state.connections) + len(self._held) + len(self._arrivals)

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
        if not self._listening:
            if not self._config.loaded:
                self._config.load()
            self._socket.listen(_BACKLOG)
            self._listening = True
            self._watch()

    async def refuse(self) -> None:
        """Refuse connections from now on and cut the live ones; the port stays ours."""
        if not self._listening:
            return
        self.stop_accepting()
        self._socket.close()
        self._socket = self._bind(self.port, attempts=_REBIND_ATTEMPTS)
        await self._cut_all()

    async def close(self, *, grace: float = 0.0) -> None:
        """Stop listening, give requests `grace` seconds, then cut and cancel the rest; frees the port."""
        self.stop_accepting()
        if self._state.tasks and grace > 0:
            await asyncio.wait(list(self._state.tasks), timeout=grace)
        await self._cut_all()
        tasks = list(self._state.tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=5.0)
        self._socket.close()

    def stop_accepting(self) -> None:
        """Take no connection from now on; those that come wait in the backlog until the port closes."""
        self._listening = False
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if self._socket.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._socket)

    def abort(self, client: tuple[str, int] | None) -> None:
        """Reset the connection that comes from `client`, as ASGI's ``scope["client"]`` names it."""
        transport = self._clients.pop((client[0], client[1]), None) if client is not None else None
        if transport is not None:
            _set_reset(transport.get_extra_info("socket"))
            transport.abort()

    async def _cut_all(self) -> None:
        """Reset every connection, whoever owns it at the moment."""
        arrivals = list(self._arrivals)
        for task in arrivals:
            task.cancel()
        if arrivals:
            await asyncio.wait(arrivals)
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
        await asyncio.sleep(0)  # transports close their sockets one loop iteration after they were aborted

    def _watch(self) -> None:
        self._retry = None
        asyncio.get_running_loop().add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        """Take the connections that wait; each belongs to a task of ours until uvicorn or nobody has it."""
        loop = asyncio.get_running_loop()
        for _ in range(_BACKLOG):
            try:
                connection, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # out of descriptors: the next attempt may find some
                logger.warning("accepting a connection on %s failed: %s", self.url, error)
                loop.remove_reader(self._socket)
                self._retry = loop.call_later(_RETRY_SECONDS, self._watch)
                return
            connection.setblocking(False)
            ordinal, self.accepted = self.accepted, self.accepted + 1
            fault = self._policy(ordinal)
            if fault is not None and fault.kind == "connection_half_open":
                self._held.add(connection)
                continue
            arrival = self._hand_over(connection) if fault is None else self._misbehave(connection, fault)
            task = loop.create_task(arrival, name="polar-front")
            self._arrivals[task] = connection
            task.add_done_callback(self._arrived)

    def _arrived(self, task: asyncio.Task[bool]) -> None:
        """Close a socket that has no transport: a task may be cancelled before its first step."""
        connection = self._arrivals.pop(task)
        if task.cancelled() or task.exception() is not None or not task.result():
            connection.close()
        if not task.cancelled() and (problem := task.exception()) is not None:
            logger.error("a connection on %s failed", self.url, exc_info=problem)

    async def _hand_over(self, connection: socket.socket) -> bool:
        """Let uvicorn's protocol serve a connection; returns whether a transport owns it now."""
        date = formatdate(time.time(), usegmt=True).encode()
        self._state.default_headers = [(b"date", date), *self._config.encoded_headers]
        self._clients = {key: value for key, value in self._clients.items() if not value.is_closing()}
        protocol_class: Any = self._config.http_protocol_class

        def create() -> Any:
            return protocol_class(config=self._config, server_state=self._state, app_state={})

        try:
            # asyncio does this only for sockets that name their protocol; without it answers wait for an ACK.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            transport, protocol = await asyncio.get_running_loop().connect_accepted_socket(create, connection)
        except OSError as error:  # the peer is gone already
            logger.debug("handing over a connection failed: %s", error)
            return False
        if protocol.client is not None and isinstance(transport, asyncio.Transport):
            self._clients[tuple(protocol.client)] = transport
        return True

    async def _misbehave(self, connection: socket.socket, fault: Fault) -> bool:
        """Break a connection in the way that the fault says; the caller closes it."""
        loop = asyncio.get_running_loop()
        try:
            if fault.kind == "connection_garbage":
                text = str(fault.value or "\x16\x03\x01 this is not HTTP\r\n\r\n")
                await loop.sock_sendall(connection, text.encode("utf-8", "replace"))
                connection.shutdown(socket.SHUT_WR)
                # Not wait_for, which in Python 3.11 forgets a cancellation that comes with the peer's end.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LINGER_SECONDS):
                        await loop.sock_recv(connection, 65536)
            else:
                _set_reset(connection)
        except OSError as error:  # the peer hung up first, which is fine for a broken connection
            logger.debug("misbehaving on a connection failed: %s", error)
        return False


def _set_reset(connection: Any) -> None:
    """Make the next close of `connection` send a reset instead of an orderly end."""
    if connection is not None and connection.fileno() >= 0:
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
