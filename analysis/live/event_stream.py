"""Where each session is, as a Polar server tells it: by its event stream, or asked task by task.

For a live view and nothing else. The stream is a hint: there is no replay, a slow reader loses events, and a
server or a proxy may not offer it at all. So nothing here raises: a stream that breaks is opened again after
a pause, and where there is none, or for what happened before, the server is asked.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import anyio
import httpx

from slime_bridge.redaction import redact

__all__ = ["EventParser", "follow_events", "list_sessions", "task_sessions_path"]

logger = logging.getLogger(__name__)

_MAX_EVENT_BYTES = 1 << 20
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 15.0
_LIST_SECONDS = 5.0
_SILENCE_SECONDS = 60.0
"""Four times the interval of the server's pings: a stream that says nothing for so long is dead."""


class EventParser:
    """Takes a byte stream of server-sent events apart; whatever is no JSON object on a data line is skipped.

    Frames in Polar's form are single ``data:`` lines; comments, names and ids of the general form are passed
    over.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._skipping = False

    def feed(self, chunk: bytes) -> Iterator[dict[str, Any]]:
        """Yield the events that a chunk completes."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            skip, self._skipping = self._skipping, False
            if not skip and line.startswith(b"data:"):
                try:
                    event = json.loads(line[5:])
                except (ValueError, RecursionError):
                    continue
                if isinstance(event, dict):
                    yield event
        if len(self._rest) > _MAX_EVENT_BYTES:
            self._rest, self._skipping = b"", True


async def follow_events(
    base_url: str,
    take: Callable[[dict[str, Any]], None],
    *,
    headers: Mapping[str, str] | None = None,
    trust_env: bool = False,
) -> None:
    """Follow ``GET /events`` until cancelled, or until the server turns out to have no such stream.

    Parameters
    ----------
    base_url
        Of a rollout server or a gateway; its user info and query are used as elsewhere, and never logged.
    take
        Called with each event.
    headers
        Sent along.
    trust_env
        Follow the environment's proxy variables.
    """
    pause = _FIRST_PAUSE
    shown = redact(base_url)
    async with _opened(base_url, headers, trust_env) as http:
        while True:
            try:
                async with http.stream("GET", "/events") as response:
                    kind = response.headers.get("content-type", "")
                    if response.status_code in (404, 405) or (
                        response.is_success and "event-stream" not in kind
                    ):
                        logger.info("%s offers no event stream (%s)", shown, response.status_code)
                        return
                    if response.is_success:
                        pause = _FIRST_PAUSE
                        parser = EventParser()
                        async for chunk in response.aiter_bytes():
                            for event in parser.feed(chunk):
                                take(event)
            except httpx.HTTPError as error:
                logger.debug("The event stream of %s broke: %s", shown, type(error).__name__)
            await anyio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)


async def list_sessions(
    base_url: str,
    paths: Iterable[str],
    take: Callable[[dict[str, Any]], None],
    *,
    headers: Mapping[str, str] | None = None,
    trust_env: bool = False,
) -> None:
    """Ask once where sessions are, and tell it as events of the stream would.

    Parameters
    ----------
    base_url
        Of a rollout server or a gateway.
    paths
        Lists of sessions: `task_sessions_path` of a rollout server, ``/sessions`` of a gateway.
    take, headers, trust_env
        As `follow_events`.
    """
    async with _opened(base_url, headers, trust_env) as http:
        for path in paths:
            try:
                answer = await http.get(path, timeout=_LIST_SECONDS)
                sessions = answer.json().get("sessions") if answer.is_success else None
            except (httpx.HTTPError, ValueError, AttributeError) as error:
                logger.debug("%s: no sessions listed: %s", redact(base_url), type(error).__name__)
                continue
            for session in sessions if isinstance(sessions, list) else ():
                if isinstance(session, dict):
                    take({"type": "session.state_changed", "data": session})


def task_sessions_path(task_id: str) -> str:
    """Return where a rollout server lists the sessions of a task."""
    return f"/tasks/{quote(task_id, safe='')}/sessions"


@asynccontextmanager
async def _opened(
    base_url: str, headers: Mapping[str, str] | None, trust_env: bool
) -> AsyncIterator[httpx.AsyncClient]:
    url = httpx.URL(base_url)
    async with httpx.AsyncClient(
        base_url=url.copy_with(query=None, fragment=None),
        params=url.params,
        headers=dict(headers or {}),
        timeout=httpx.Timeout(5.0, read=_SILENCE_SECONDS),
        trust_env=trust_env,
    ) as http:
        yield http
