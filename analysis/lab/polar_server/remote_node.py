"""Runs sessions on gateways in other processes: dispatch, wait for the callback or poll, clean up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from analysis.errors import LabError
from analysis.lab.polar_server.gateway_app import TOKEN_HEADER
from analysis.lab.polar_server.http_client import HttpClient, HttpError
from analysis.lab.polar_server.node_models import SessionDispatchRequest
from analysis.lab.polar_server.nodes import Node
from analysis.lab.polar_server.results import failed_trajectory, lifted, session_result
from analysis.lab.polar_server.settings import ServerSettings

logger = logging.getLogger(__name__)

JsonMap = dict[str, Any]

DISPATCH_TIMEOUT = 30.0
"""Seconds for a dispatch request at most."""


class DispatchFailedError(LabError, ConnectionError):
    """Raised when a gateway did not take a session; it may be tried again."""


class RemoteNodes:
    """The rollout server's side of gateways that it reaches over HTTP.

    `callback_url` is where gateways post session results; it is set once the server's port is known.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._expected: dict[str, asyncio.Future[JsonMap]] = {}
        token = settings.control_token
        headers = {TOKEN_HEADER: token} if token is not None else {}
        self._client = HttpClient(timeout=DISPATCH_TIMEOUT, headers=headers)
        self.callback_url: str | None = None

    def accept(self, result: JsonMap) -> None:
        """Take a result that a gateway posted; results of unknown or finished sessions are dropped."""
        future = self._expected.get(str(result.get("session_id")))
        if future is not None and not future.done():
            future.set_result(result)

    async def run(
        self, node: Node, request: SessionDispatchRequest, *, on_registered: Callable[[], None]
    ) -> JsonMap:
        """Run one session on `node` and return its result.

        Raises
        ------
        DispatchFailedError
            When the node did not take the session.
        """
        future: asyncio.Future[JsonMap] = asyncio.get_running_loop().create_future()
        self._expected[request.session_id] = future
        try:
            await self._dispatch(node, request)
            on_registered()
            return await self._result(node, request, future)
        finally:
            self._expected.pop(request.session_id, None)
            future.cancel()

    async def aclose(self) -> None:
        """Cut the connections to the gateways."""
        await self._client.aclose()

    async def _dispatch(self, node: Node, request: SessionDispatchRequest) -> None:
        body = request.model_dump(exclude={"dispatch_priority"} if not self._settings.newer else None)
        body["callback_url"] = self.callback_url
        timeout = min(DISPATCH_TIMEOUT, request.remaining_timeout_seconds)
        try:
            answer = await self._client.post(f"{node.url}/sessions", json=body, timeout=timeout)
            if answer.ok:
                return
            problem = f"HTTP {answer.status}"
        except HttpError as error:
            problem = f"{type(error).__name__}: {error}"
        if await self._poll(node, request) is None:
            logger.info("node %s did not take session %s: %s", node.node_id, request.session_id, problem)
            raise DispatchFailedError(problem)

    async def _result(
        self, node: Node, request: SessionDispatchRequest, future: asyncio.Future[JsonMap]
    ) -> JsonMap:
        """Alternate between waiting for the callback and polling, until the result deadline."""
        loop = asyncio.get_running_loop()
        deadline: float | None = None
        interval = self._settings.dispatch_poll_seconds
        try:
            while True:
                await asyncio.wait([future], timeout=interval)
                if future.done():
                    return future.result()
                seen = await self._poll(node, request)
                if seen is not None and isinstance(seen.get("result"), dict):
                    return dict(seen["result"])
                if deadline is None and seen is not None and seen.get("status") != "REGISTERED":
                    grace = self._settings.callback_grace_seconds
                    deadline = loop.time() + request.remaining_timeout_seconds + grace
                    interval = max(interval, 5.0) if self._settings.dispatch_poll_seconds >= 1.0 else interval
                if deadline is not None and loop.time() >= deadline:
                    return _no_result(node, request)
        finally:
            await asyncio.shield(self._clean_up(node, request.session_id))

    async def _poll(self, node: Node, request: SessionDispatchRequest) -> JsonMap | None:
        """Return what the gateway says about the session, or None for any problem."""
        try:
            answer = await self._client.get(f"{node.url}/sessions/{request.session_id}", timeout=5.0)
            data = answer.json() if answer.ok else None
        except (HttpError, ValueError) as error:
            logger.debug("polling session %s failed: %s", request.session_id, error)
            return None
        known = isinstance(data, dict) and data.get("task_id") == request.task_id
        return data if known else None

    async def _clean_up(self, node: Node, session_id: str) -> None:
        try:
            await self._client.request("DELETE", f"{node.url}/sessions/{session_id}", timeout=5.0)
        except HttpError as error:
            logger.info("cleaning up session %s on node %s failed: %s", session_id, node.node_id, error)


def _no_result(node: Node, request: SessionDispatchRequest) -> JsonMap:
    error = f"session {request.session_id} did not return a terminal result in time"
    trajectory = failed_trajectory(
        "TIMEOUT", error, builder=request.builder.strategy, metadata=request.metadata
    )
    trajectory["metadata"].update(lifted(request.metadata))
    return session_result(
        session_id=request.session_id,
        task_id=request.task_id,
        trajectory=trajectory,
        metadata=request.metadata,
        node_id=node.node_id,
    )
