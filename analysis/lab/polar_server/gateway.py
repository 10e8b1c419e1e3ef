"""One gateway node: holds its sessions, the generation gate, and the way to the inference engine."""

from __future__ import annotations

import asyncio
import logging
import re
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from analysis.errors import LabError
from analysis.lab.polar_server.completion_files import CompletionWriter
from analysis.lab.polar_server.events import EventHub
from analysis.lab.polar_server.gate import GenerationGate
from analysis.lab.polar_server.gateway_sessions import GatewaySession, SessionStages
from analysis.lab.polar_server.node_models import NodeStageMetrics, SessionDispatchRequest
from analysis.lab.polar_server.proxy import Capture, InferenceProxy
from analysis.lab.polar_server.results import failed_trajectory, session_result
from analysis.lab.polar_server.settings import NodeSettings

logger = logging.getLogger(__name__)

SESSION_ID_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}\Z")
"""Session ids that a gateway accepts."""

JsonMap = dict[str, Any]
Deliver = Callable[[str, JsonMap], Awaitable[None]]
"""Posts a session result to a callback URL; raises when that failed."""


class SessionRefusedError(LabError, ValueError):
    """Raised when a session cannot be accepted: its id is invalid or known already."""


class Gateway:
    """One node, alive on the running event loop.

    Parameters
    ----------
    settings
        Id, workers, and the engine's address.
    newer
        Behave like newer gateways.
    writer
        Writes captured calls to disk; None keeps them in memory only.
    on_change
        Called whenever a session moves on, so that somebody may look for room.
    deliver
        Posts results of sessions that came with a callback URL.
    """

    def __init__(
        self,
        settings: NodeSettings,
        *,
        newer: bool = False,
        writer: CompletionWriter | None = None,
        on_change: Callable[[], None] = lambda: None,
        deliver: Deliver | None = None,
    ) -> None:
        self.settings = settings
        self.hub = EventHub()
        self.proxy = InferenceProxy(
            settings.inference_url,
            model_served=settings.model_served,
            engine=settings.engine,
            persist=self._persist,
        )
        self.sessions: dict[str, GatewaySession] = {}
        self.captures: dict[str, Capture] = {}
        self.stages = SessionStages(settings, self.proxy, newer=newer, on_status=self._moved)
        self._writer = writer
        self._on_change = on_change
        self._deliver = deliver
        self._queued: set[str] = set()
        self._deliveries: set[asyncio.Task[None]] = set()

    @property
    def node_id(self) -> str:
        """The node's id."""
        return self.settings.node_id

    @property
    def gate(self) -> GenerationGate:
        """The generation gate that all model calls of this node pass."""
        return self.proxy.gate

    def dispatch(self, request: SessionDispatchRequest, *, sample_index: int = 0) -> GatewaySession:
        """Accept a session and start it.

        Raises
        ------
        SessionRefusedError
            When the id is invalid or known.
        """
        session_id = request.session_id
        if SESSION_ID_PATTERN.match(session_id) is None:
            raise SessionRefusedError(f"invalid session id {session_id!r}")
        if session_id in self.sessions:
            raise SessionRefusedError(f"session {session_id} already exists")
        capture = self.captures.setdefault(session_id, Capture(session_id))
        capture.task_id, capture.metadata = request.task_id, dict(request.metadata)
        loop = asyncio.get_running_loop()
        session = GatewaySession(request, capture, sample_index, registered=loop.time(), touched=loop.time())
        self.sessions[session_id] = session
        self._queued.add(session_id)
        session.task = loop.create_task(self._run(session), name=f"session-{session_id}")
        self._on_change()
        return session

    async def wait(self, session: GatewaySession) -> JsonMap:
        """Wait for a session's result; cancelling the wait cancels the session and forgets it."""
        try:
            await session.done.wait()
        except asyncio.CancelledError:
            if session.task is not None:
                session.task.cancel()
            raise
        finally:
            self.forget(session.request.session_id)
        if session.result is None:
            raise RuntimeError(f"session {session.request.session_id} ended without a result")
        return session.result

    def cancel(self, session_id: str) -> int:
        """Cancel and forget a session, which still ends as ERROR; return the number of captured calls.

        Raises
        ------
        KeyError
            When the session is unknown.
        """
        capture = self.captures.get(session_id)
        session = self.sessions.get(session_id)
        if capture is None and session is None:
            raise KeyError(session_id)
        count = len(capture.records) if capture is not None else 0
        if session is not None and session.task is not None:
            session.task.cancel()
        self.forget(session_id)
        return count

    def forget(self, session_id: str) -> None:
        """Drop everything about a session; its key is unknown afterwards."""
        self.sessions.pop(session_id, None)
        self.captures.pop(session_id, None)
        if self._writer is not None:
            self._writer.forget(session_id)
        self._on_change()

    def open_capture(self, session_id: str | None = None, task_id: str | None = None) -> Capture:
        """Return the capture of a bare proxy session, creating it under the given or a random id."""
        key = session_id or str(uuid.uuid4())
        capture = self.captures.get(key)
        if capture is None:
            capture = self.captures[key] = Capture(key, task_id)
        return capture

    def metrics(self) -> NodeStageMetrics:
        """Return how many sessions are in which stage."""
        stages = self.stages
        return NodeStageMetrics(
            init_queue_depth=len(self._queued),
            init_inflight=stages.init.active,
            ready_depth=stages.ready.active,
            run_inflight=stages.run.active,
            postrun_queue_depth=stages.postrun.queued,
            postrun_inflight=stages.postrun.active,
        )

    def status_counts(self) -> dict[str, int]:
        """Return the number of active sessions per status."""
        active = (session.status for session in self.sessions.values() if session.result is None)
        return dict(Counter(active))

    async def aclose(self) -> None:
        """Cancel all sessions and close the connections to the engine."""
        self.gate.resume()
        tasks = [session.task for session in self.sessions.values() if session.task is not None]
        tasks += self._deliveries
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=10.0)
        self.sessions.clear()
        self.captures.clear()
        await self.proxy.aclose()

    async def _run(self, session: GatewaySession) -> None:
        request = session.request
        try:
            result = await self.stages.play(session)
        except asyncio.CancelledError:
            result = self._broken(session, "session cancelled")
        except Exception as error:  # a bug here must reach the task as a failed session, not vanish
            logger.exception("session %s failed in the gateway", request.session_id)
            result = self._broken(session, f"gateway failure: {error}")
        session.result = result
        session.status = result["status"]
        session.done.set()
        self._moved(session)
        if request.callback_url and self._deliver is not None:
            delivery = asyncio.get_running_loop().create_task(self._call_back(session, request.callback_url))
            self._deliveries.add(delivery)
            delivery.add_done_callback(self._deliveries.discard)

    async def _call_back(self, session: GatewaySession, url: str) -> None:
        """Post the result once; what could not be delivered is kept for the server's poll."""
        if self._deliver is None or session.result is None:
            return
        try:
            await self._deliver(url, session.result)
        except OSError as error:
            logger.warning(
                "result of session %s could not be delivered: %s", session.request.session_id, error
            )
        else:
            session.result = None

    def _broken(self, session: GatewaySession, error: str) -> JsonMap:
        request = session.request
        trajectory = failed_trajectory(
            "ERROR", error, builder=request.builder.strategy, metadata=request.metadata
        )
        return session_result(
            session_id=request.session_id,
            task_id=request.task_id,
            trajectory=trajectory,
            metadata=request.metadata,
            node_id=self.node_id,
        )

    def _moved(self, session: GatewaySession) -> None:
        request = session.request
        self._queued.discard(request.session_id)
        self.hub.publish(
            "session.state_changed",
            session_id=request.session_id,
            task_id=request.task_id,
            status=session.status,
        )
        self._on_change()

    def _persist(self, capture: Capture, record: JsonMap) -> None:
        if self._writer is not None and capture.task_id:
            self._writer.put(capture, record)
