"""Small JSON requests of the doctor to gateways, routers and engines, with errors of the bridge."""

from __future__ import annotations

import time
from typing import Any

import httpx

from slime_bridge import _json
from slime_bridge._http_errors import HTTPX_ERRORS, Answer, error_of_answer, translate
from slime_bridge.errors import BridgeError, ProtocolError
from slime_bridge.redaction import redact

__all__ = ["Web"]


class Web:
    """JSON over HTTP, one attempt per call; an async context manager.

    Parameters
    ----------
    trust_env
        Whether proxy variables of the environment are used.
    timeout
        Seconds for a call that names no other.
    """

    def __init__(self, *, trust_env: bool, timeout: float) -> None:
        self._timeout = timeout
        self._http = httpx.AsyncClient(
            trust_env=trust_env, follow_redirects=False, headers={"User-Agent": "slime-bridge"}
        )

    async def __aenter__(self) -> Web:
        """Return the client."""
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def get(self, url: str, *, timeout: float | None = None) -> Any:
        """Return the JSON of an answer; raises as `post`."""
        return await self._request("GET", url, timeout=timeout)

    async def post(self, url: str, body: Any, *, timeout: float | None = None) -> Any:
        """Send JSON and return the JSON of the answer.

        Raises
        ------
        BridgeError
            No answer, an error status, or an answer that is not JSON.
        """
        return await self._request("POST", url, json=body, timeout=timeout)

    async def seconds(self, url: str) -> float | BridgeError:
        """Return how long an answer took, whatever it holds, or why there is none."""
        started = time.monotonic()
        try:
            await self._send("GET", url, timeout=None)
        except BridgeError as error:
            return error
        return time.monotonic() - started

    async def _request(self, method: str, url: str, *, timeout: float | None, json: Any = None) -> Any:
        answer = await self._send(method, url, timeout=timeout, json=json)
        try:
            return _json.loads(answer.body)
        except ProtocolError as error:
            raise ProtocolError(f"{method} {redact(url)} was not answered with JSON: {error}") from None

    async def _send(self, method: str, url: str, *, timeout: float | None, json: Any = None) -> Answer:
        request = f"{method} {redact(url)}"
        limit = self._timeout if timeout is None else timeout
        limits = httpx.Timeout(limit, connect=min(limit, 3.0))
        try:
            got = await self._http.request(method, url, json=json, timeout=limits)
        except HTTPX_ERRORS as exc:
            raise translate(exc, request) from exc
        answer = Answer(got.status_code, {k.lower(): v for k, v in got.headers.items()}, got.content)
        error = error_of_answer(answer, request)
        if error is not None:
            raise error
        return answer
