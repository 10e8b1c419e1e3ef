"""Server-sent events in Polar's framing: one ``data:`` line of JSON per message, no names, no replay."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

QUEUE_SIZE = 256
"""Events kept per subscriber; a full queue loses its oldest event."""

PING_SECONDS = 15.0
"""Silence after which a ``ping`` is sent."""

HEADERS = {"Cache-Control": "no-cache", "Connection": "keep-alive", "X-Accel-Buffering": "no"}
"""Headers of the stream beside its content type."""


def now_iso() -> str:
    """Return the present as ISO-8601 in UTC with microseconds and ``+00:00``."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


class EventHub:
    """Hands every published event to every subscriber; used from one event loop only."""

    def __init__(self) -> None:
        self._subscribers: set[_Subscriber] = set()

    @property
    def subscribers(self) -> int:
        """Number of open streams."""
        return len(self._subscribers)

    def publish(self, event_type: str, **data: Any) -> None:
        """Send an event to all present subscribers; those that come later never see it."""
        if not self._subscribers:
            return
        frame = _frame(event_type, data)
        for subscriber in self._subscribers:
            subscriber.put(frame)

    async def stream(self, *, ping_seconds: float = PING_SECONDS) -> AsyncIterator[bytes]:
        """Yield frames: ``hello``, then events, with a ``ping`` after each `ping_seconds` of silence."""
        subscriber = _Subscriber()
        self._subscribers.add(subscriber)
        try:
            yield _frame("hello", {})
            while True:
                yield await subscriber.get(ping_seconds) or _frame("ping", {})
        finally:
            self._subscribers.discard(subscriber)


class _Subscriber:
    def __init__(self) -> None:
        self._frames: deque[bytes] = deque(maxlen=QUEUE_SIZE)
        self._ready = asyncio.Event()

    def put(self, frame: bytes) -> None:
        self._frames.append(frame)
        self._ready.set()

    async def get(self, timeout: float) -> bytes | None:
        if not self._frames:
            self._ready.clear()
            try:
                async with asyncio.timeout(timeout):
                    await self._ready.wait()
            except TimeoutError:
                return None
        return self._frames.popleft()


def _frame(event_type: str, data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps({"type": event_type, "ts": now_iso(), "data": data}).encode() + b"\n\n"
