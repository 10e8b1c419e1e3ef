"""A Polar server's event stream, read as it comes: where each session is, for a live view and nothing else.

The stream is a hint. There is no replay, a slow reader loses events, and a server or a proxy may not offer it
at all. So nothing here raises: a stream that breaks is opened again after a pause, and one that does not
exist leaves the view with what the journal says.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import anyio
import httpx

from slime_bridge.redaction import redact

__all__ = ["EventParser", "follow_events"]

logger = logging.getLogger(__name__)

_MAX_EVENT_BYTES = 1 << 20
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 15.0
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
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL:
        return
    timeout = httpx.Timeout(5.0, read=_SILENCE_SECONDS)
    base = url.copy_with(query=None, fragment=None)
    async with httpx.AsyncClient(
        base_url=base, params=url.params, headers=dict(headers or {}), timeout=timeout, trust_env=trust_env
    ) as http:
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
