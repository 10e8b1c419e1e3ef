"""ASGI layer that records every request and plays the request and server faults of a script."""

from __future__ import annotations

import asyncio
import json
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from analysis.lab.polar_server.fault_kinds import kinds_of
from analysis.lab.polar_server.faults import Fault, FaultEngine, Subject
from analysis.lab.polar_server.wire import encode

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_REQUEST_KINDS = kinds_of("request", "server")
_DELAY_KINDS = frozenset({"response_slow"})
_SUBMIT_PATH = "/rollout/task/submit"


@dataclass
class RequestRecord:
    """One request as the server saw it.

    `status` is None until (or unless) it is answered, `faults` names what was played.
    `time` is `time.monotonic` at arrival, `seconds` the time until the answer was complete. `body` is kept
    for submits.
    """

    server: str
    method: str
    path: str
    query: str
    time: float
    headers: dict[str, str] = field(repr=False)
    body: bytes = field(default=b"", repr=False)
    status: int | None = None
    seconds: float | None = None
    faults: list[str] = field(default_factory=list)


class Controls(Protocol):
    """What faults do to the server as a whole."""

    def abort_connection(self, server: str, client: tuple[str, int] | None) -> None:
        """Reset the connection that a request came on."""

    async def begin_outage(self, server: str, seconds: float) -> None:
        """Refuse connections to `server` for `seconds`."""

    async def begin_restart(self, seconds: float) -> None:
        """Forget all tasks, and refuse connections for `seconds`."""


class Interceptor:
    """Wraps an ASGI application; appends to `requests`, which other threads may read."""

    def __init__(
        self,
        app: Any,
        *,
        server: str,
        engine: FaultEngine,
        controls: Controls,
        requests: deque[RequestRecord],
        notify: Callable[[], None],
    ) -> None:
        self._app = app
        self._server = server
        self._engine = engine
        self._controls = controls
        self._requests = requests
        self._notify = notify
        self._events: dict[str, int] = defaultdict(int)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {key.decode("latin-1"): value.decode("latin-1") for key, value in scope["headers"]}
        query = scope.get("query_string", b"").decode("latin-1")
        record = RequestRecord(self._server, scope["method"], scope["path"], query, time.monotonic(), headers)
        self._requests.append(record)
        if scope["method"] == "POST" and scope["path"] == _SUBMIT_PATH:
            record.body = await _read(receive)
            receive = _replay(record.body, receive)
        faults = self._faults(record)
        record.faults = [fault.kind for fault in faults]
        try:
            await self._serve(scope, receive, _observed(send, record), faults)
        finally:
            record.seconds = time.monotonic() - record.time
            self._notify()

    def _faults(self, record: RequestRecord) -> list[Fault]:
        if not self._engine.has(_REQUEST_KINDS):
            return []
        subject = self._subject(record)
        delays = self._engine.fire(_DELAY_KINDS, subject)
        return delays + self._engine.fire(_REQUEST_KINDS - _DELAY_KINDS, subject, first=True)

    def _subject(self, record: RequestRecord) -> Subject:
        common: dict[str, Any] = {"server": self._server, "method": record.method, "path": record.path}
        task_id, instruction = _task_of(record)
        key = f"{record.method} {task_id or ''}"
        common["event"], self._events[key] = self._events[key], self._events[key] + 1
        if task_id is not None and instruction is not None:
            return self._engine.task_subject(task_id, instruction, **common)
        if task_id is not None:
            return self._engine.known_task(task_id, **common)
        return Subject(**common)

    async def _serve(self, scope: Message, receive: Receive, send: Send, faults: list[Fault]) -> None:
        """Play `faults` one after the other, then answer, unless a fault took the answer away."""
        for fault in faults:
            if fault.kind in _DELAY_KINDS:
                await asyncio.sleep(fault.seconds)
        for fault in faults:
            if fault.kind not in _DELAY_KINDS:
                await self._play(scope, receive, send, fault)
                return
        await self._app(scope, receive, send)

    async def _play(self, scope: Message, receive: Receive, send: Send, fault: Fault) -> None:
        answer: list[Message] = []
        if fault.processed or fault.kind in ("response_drip", "response_cut"):

            async def keep(message: Message) -> None:
                answer.append(message)

            await self._app(scope, receive, keep)
        client = scope.get("client")
        if fault.kind == "outage":
            await self._controls.begin_outage(self._server, fault.seconds)
        elif fault.kind == "restart":
            await self._controls.begin_restart(fault.seconds)
        elif fault.kind == "response_hang":
            await _until_disconnect(receive)
        elif fault.kind == "response_status":
            detail = f"scripted fault {fault.status}" if fault.value is None else fault.value
            await _answer(send, fault.status, encode({"detail": detail}))
        elif fault.kind in ("response_garbage", "response_empty"):
            text = "" if fault.kind == "response_empty" else str(fault.value or "<html>not JSON</html>")
            await _answer(send, 200, text.encode("utf-8", "replace"))
        elif fault.kind == "response_drip":
            await _drip(send, answer, fault)
        elif fault.kind == "response_cut":
            await _half(send, answer)
            await asyncio.sleep(0.05)  # lets the first half leave before the reset
        if fault.kind in ("response_reset", "response_cut", "outage", "restart"):
            self._controls.abort_connection(self._server, client)
            await _until_disconnect(receive)


def _task_of(record: RequestRecord) -> tuple[str | None, str | None]:
    """Return the task id and, for a submit, the instruction that a request is about."""
    if record.path == _SUBMIT_PATH and record.method == "POST":
        try:
            data = json.loads(record.body)
            return str(data["task_id"]), str(data["instruction"])
        except (
            ValueError,
            KeyError,
            TypeError,
        ):  # a bad body belongs to no task; the application answers 422
            return None, None
    parts = record.path.strip("/").split("/")
    if parts[:2] == ["rollout", "task"] and len(parts) == 3:
        return parts[2], None
    if parts[:1] == ["tasks"] and len(parts) == 3:
        return parts[1], None
    return None, None


async def _read(receive: Receive) -> bytes:
    chunks: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return b"".join(chunks)
        chunks.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(chunks)


def _replay(body: bytes, receive: Receive) -> Receive:
    pending = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return pending.pop() if pending else await receive()

    return again


def _observed(send: Send, record: RequestRecord) -> Send:
    async def observe(message: Message) -> None:
        if message["type"] == "http.response.start":
            record.status = message["status"]
        await send(message)

    return observe


async def _until_disconnect(receive: Receive) -> None:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return


async def _answer(send: Send, status: int, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _split(answer: list[Message]) -> tuple[Message, bytes]:
    return answer[0], b"".join(message.get("body", b"") for message in answer[1:])


async def _drip(send: Send, answer: list[Message], fault: Fault) -> None:
    start, body = _split(answer)
    await send(start)
    pieces = max(2, fault.count)
    size = max(1, -(-len(body) // pieces))
    for offset in range(0, len(body), size):
        await send({"type": "http.response.body", "body": body[offset : offset + size], "more_body": True})
        await asyncio.sleep(fault.seconds / pieces)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _half(send: Send, answer: list[Message]) -> None:
    start, body = _split(answer)
    await send(start)
    await send({"type": "http.response.body", "body": body[: len(body) // 2], "more_body": True})
