"""Posts task results to callback URLs: once, within 10 s, as Polar does; or as a fault script wants it."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from analysis.lab.polar_server.faults import Fault
from analysis.lab.polar_server.http_client import HttpClient, HttpError
from analysis.lab.polar_server.state import TaskRecord
from analysis.lab.polar_server.wire import encode

logger = logging.getLogger(__name__)

CALLBACK_TIMEOUT = 10.0
"""Seconds per phase (connect, write, read, pool) of one callback."""

_DROPPED = frozenset({"callback_lost", "callback_foreign_only"})


@dataclass(frozen=True)
class CallbackRecord:
    """One POST to a callback URL.

    `kind` is ``result`` for the true body, else the fault kind. `status` is None when there was no answer,
    and `error` then says why.
    """

    task_id: str
    url: str
    kind: str
    status: int | None
    error: str | None
    time: float
    seconds: float


class CallbackSender:
    """Delivers results; keeps a record of every POST in `records`."""

    def __init__(self, *, notify: Callable[[], None] = lambda: None) -> None:
        self.records: list[CallbackRecord] = []
        self._notify = notify
        self._client = HttpClient(connect_timeout=CALLBACK_TIMEOUT, timeout=CALLBACK_TIMEOUT)

    async def deliver(self, record: TaskRecord, faults: Sequence[Fault] = ()) -> None:
        """Post the task's result to its callback URL, if it has one, the way `faults` ask for."""
        url = record.request.callback_url
        if not url:
            return
        by_kind = {fault.kind: fault for fault in faults}
        if "callback_late" in by_kind:
            await asyncio.sleep(by_kind["callback_late"].seconds)
        for fault in faults:
            await self._before(record, url, fault)
        if _DROPPED & by_kind.keys():
            return
        if "callback_cut" in by_kind:
            await self._cut(record, url, record.result_body())
            return
        body, kind = _body(record, faults)
        slow = by_kind.get("callback_slow")
        await self._post(record, url, body, kind, seconds=slow.seconds if slow else 0.0)
        duplicate = by_kind.get("callback_duplicate")
        for _ in range(duplicate.count if duplicate else 0):
            if duplicate and duplicate.seconds:
                await asyncio.sleep(duplicate.seconds)
            await self._post(record, url, body, "callback_duplicate")

    async def post_session_result(self, url: str, result: dict[str, Any], *, headers: dict[str, str]) -> None:
        """Post one session's result to a rollout server, once, within 30 s.

        Raises
        ------
        OSError
            When it could not be delivered.
        """
        content = encode(result)
        response = await self._client.post(url, content=content, headers=headers, timeout=30.0)
        if not response.ok:
            raise ConnectionError(f"answered {response.status}: {response.text[:500]}")

    async def aclose(self) -> None:
        """Cut the connections to callback receivers."""
        await self._client.aclose()

    async def _before(self, record: TaskRecord, url: str, fault: Fault) -> None:
        """Post what a fault wants delivered ahead of the true result."""
        if fault.kind in ("callback_forged", "callback_forged_inside"):
            target = url if fault.kind == "callback_forged_inside" else _guessed(url)
            reward = 999.0 if fault.value is None else fault.value
            await self._post(record, target, _forged(record.result_body(), reward), fault.kind)
        elif fault.kind in ("callback_foreign", "callback_foreign_only"):
            body = _renamed(record.result_body(), str(fault.value or "somebody-elses-task"))
            await self._post(record, url, body, fault.kind)

    async def _post(
        self, record: TaskRecord, url: str, body: bytes, kind: str, *, seconds: float = 0.0
    ) -> None:
        started = time.monotonic()
        status, error = None, None
        try:
            response = await self._client.post(url, content=body, drip_seconds=seconds)
            status = response.status
            if not response.ok:
                logger.info("callback of task %s was answered %d", record.task_id, status)
        except HttpError as problem:
            error = f"{type(problem).__name__}: {problem}"
            logger.info("callback of task %s failed: %s", record.task_id, error)
        self._note(record, url, kind, status, error, started)

    async def _cut(self, record: TaskRecord, url: str, body: bytes) -> None:
        """Send the header and half of the body, then reset the connection."""
        parts = urlsplit(url)
        started = time.monotonic()
        error = "cut on purpose"
        try:
            _, writer = await asyncio.open_connection(parts.hostname, parts.port or 80)
        except OSError as problem:
            error = str(problem)
        else:
            head = f"POST {parts.path or '/'} HTTP/1.1\r\nHost: {parts.netloc}\r\n"
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body[: len(body) // 2])
            try:
                async with asyncio.timeout(CALLBACK_TIMEOUT):
                    await writer.drain()
            except (OSError, TimeoutError) as problem:
                error = str(problem)
            writer.transport.abort()
        self._note(record, url, "callback_cut", None, error, started)

    def _note(
        self, record: TaskRecord, url: str, kind: str, status: int | None, error: str | None, started: float
    ) -> None:
        seconds = time.monotonic() - started
        self.records.append(CallbackRecord(record.task_id, url, kind, status, error, started, seconds))
        self._notify()


def _guessed(url: str) -> str:
    """Return the URL with its last path segment replaced, as somebody who does not know it would guess."""
    parts = urlsplit(url)
    head = parts.path.rstrip("/").rsplit("/", 1)[0]
    return urlunsplit(parts._replace(path=f"{head}/callback", query=""))


def _forged(body: bytes, reward: Any) -> bytes:
    data = json.loads(body)
    for result in data["results"]:
        for trace in result.get("trajectory", {}).get("traces") or []:
            trace["reward"] = reward
    return encode(data)


def _renamed(body: bytes, task_id: str) -> bytes:
    data = json.loads(body)
    data["task_id"] = task_id
    for result in data["results"]:
        result["task_id"] = task_id
    return encode(data)


def _body(record: TaskRecord, faults: Sequence[Fault]) -> tuple[bytes, str]:
    """Return the body to send under the task's own URL, and the kind that shaped it."""
    body, kind = record.result_body(), "result"
    for fault in faults:
        if fault.kind == "callback_malformed":
            body, kind = _malformed(body, str(fault.value or "text")), fault.kind
        elif fault.kind == "callback_status_shape":
            body, kind = record.status_body(), fault.kind
        elif fault.kind == "callback_running":
            head = {"task_id": record.task_id, "status": "running", "total_sessions": len(record.sessions)}
            body, kind = (
                encode({**head, "completed_sessions": 0, "results": [], "result_paths": []}),
                fault.kind,
            )
        elif fault.kind == "callback_huge":
            padding = max(0, fault.count - len(body) - 20)
            body, kind = body[:-1] + b',"padding":"' + b"x" * padding + b'"}', fault.kind
    return body, kind


def _malformed(body: bytes, form: str) -> bytes:
    forms = {
        "text": b"this is not JSON",
        "truncated": body[: len(body) // 2],
        "list": b"[1, 2, 3]",
        "empty": b"",
        "null": b"null",
        "not_utf8": b'{"task_id": "\xff\xfe", "status": "completed", "results": []}',
    }
    if form not in forms:
        raise ValueError(f"unknown form of callback_malformed: {form!r}; use one of {', '.join(forms)}")
    return forms[form]
