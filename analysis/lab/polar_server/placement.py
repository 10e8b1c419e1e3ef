"""Puts sessions on gateway nodes: first come, first served, on the node with the most room."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

from analysis.lab.polar_server.events import EventHub
from analysis.lab.polar_server.faults import Fault
from analysis.lab.polar_server.gateway import Gateway
from analysis.lab.polar_server.models import AgentSpec, NewerTaskRequest, TaskRequest
from analysis.lab.polar_server.node_models import SessionDispatchRequest
from analysis.lab.polar_server.nodes import Node, NodeRegistry
from analysis.lab.polar_server.remote_node import DispatchFailedError, RemoteNodes
from analysis.lab.polar_server.results import failed_trajectory, lifted, session_result
from analysis.lab.polar_server.state import SessionRecord, TaskRecord, new_session_id

RETRY_SECONDS = 0.25
"""How often a waiting session looks again for a node when nothing wakes it earlier."""


class GatewaySessions:
    """Session source that runs every session on a node of the registry.

    Gateways of this process are called directly, the others over HTTP.
    """

    def __init__(
        self, registry: NodeRegistry, gateways: dict[str, Gateway], remote: RemoteNodes, hub: EventHub
    ) -> None:
        self._registry = registry
        self._gateways = gateways
        self._remote = remote
        self._hub = hub
        self._waiting: deque[asyncio.Future[Node]] = deque()

    def session_id(self, record: TaskRecord, index: int) -> str:
        """Return a random id."""
        return new_session_id()

    def room_changed(self) -> None:
        """Give waiting sessions the nodes that have room now."""
        while self._waiting:
            if self._waiting[0].done():
                self._waiting.popleft()
                continue
            node = self._registry.pick()
            if node is None:
                return
            node.dispatch_reservations += 1
            self._waiting.popleft().set_result(node)

    async def run(
        self, record: TaskRecord, session: SessionRecord, faults: Sequence[Fault]
    ) -> dict[str, Any]:
        """Run one session on a node, within the task's placement deadline."""
        request = record.request
        loop = asyncio.get_running_loop()
        deadline = loop.time() + request.timeout_seconds
        while loop.time() < deadline:
            try:
                async with asyncio.timeout_at(deadline):
                    node = await self._place()
            except TimeoutError:
                break
            session.node_id = node.node_id
            dispatch = _dispatch_request(record, session)
            gateway = self._gateways.get(node.node_id)
            try:
                if gateway is not None and node.probe is not None:
                    return await self._run_here(gateway, node, dispatch, session)
                return await self._remote.run(node, dispatch, on_registered=lambda: self._registered(session))
            except DispatchFailedError:
                node.dispatch_reservations = max(0, node.dispatch_reservations - 1)
                await asyncio.sleep(RETRY_SECONDS)
        return self._expired(record, session)

    async def _run_here(
        self, gateway: Gateway, node: Node, dispatch: SessionDispatchRequest, session: SessionRecord
    ) -> dict[str, Any]:
        accepted = gateway.dispatch(dispatch, sample_index=session.index)
        node.dispatch_reservations = max(0, node.dispatch_reservations - 1)
        self._registered(session)
        return await gateway.wait(accepted)

    async def _place(self) -> Node:
        """Wait for a node with room; the wait is first come, first served."""
        future: asyncio.Future[Node] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self.room_changed()
        try:
            while not future.done():
                await asyncio.wait([future], timeout=RETRY_SECONDS)
                self.room_changed()
            return future.result()
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                node = future.result()
                node.dispatch_reservations = max(0, node.dispatch_reservations - 1)
            future.cancel()
            raise

    def _registered(self, session: SessionRecord) -> None:
        session.status = "REGISTERED"
        self._hub.publish(
            "session.state_changed",
            task_id=session.task_id,
            session_id=session.session_id,
            status=session.status,
            node_id=session.node_id,
        )

    def _expired(self, record: TaskRecord, session: SessionRecord) -> dict[str, Any]:
        """Return the result of a session that found no node in time."""
        request = record.request
        trajectory = failed_trajectory(
            "TIMEOUT", "session timeout expired", builder=request.builder.strategy, metadata=request.metadata
        )
        trajectory["metadata"].update(lifted(request.metadata))
        return session_result(
            session_id=session.session_id,
            task_id=session.task_id,
            trajectory=trajectory,
            metadata=request.metadata,
            node_id=session.node_id,
        )


def _dispatch_request(record: TaskRecord, session: SessionRecord) -> SessionDispatchRequest:
    request = record.request
    priority = request.dispatch_priority if isinstance(request, NewerTaskRequest) else 0
    return SessionDispatchRequest(
        session_id=session.session_id,
        task_id=session.task_id,
        instruction=request.instruction,
        remaining_timeout_seconds=request.timeout_seconds,
        runtime=request.runtime,
        agent=_sample_agent(request, session.index),
        builder=request.builder,
        evaluator=request.evaluator,
        metadata=_sample_metadata(request.metadata, session.index),
        dispatch_priority=priority,
    )


def _sample_agent(request: TaskRequest, index: int) -> AgentSpec:
    """Return the agent, with a sampling seed for this session if the task asks for seeds."""
    metadata = _sample_metadata(request.metadata, index)
    if "eval_sampling_seed" not in metadata:
        return request.agent
    settings = {**request.agent.settings, "sampling_seed": metadata["eval_sampling_seed"]}
    return request.agent.model_copy(update={"settings": settings})


def _sample_metadata(metadata: dict[str, Any], index: int) -> dict[str, Any]:
    """Return the task's metadata, with a sampling seed for this session if the task asks for seeds."""
    base = metadata.get("eval_sampling_seed_base")
    if isinstance(base, int) and not isinstance(base, bool):
        return {**metadata, "eval_sampling_seed": base + index}
    return dict(metadata)
