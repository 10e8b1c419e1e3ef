"""One Polar-compatible deployment: rollout server, gateways, faults, and their sockets."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from fastapi import FastAPI

from analysis.lab.polar_server.app import Services, create_app
from analysis.lab.polar_server.completion_files import CompletionWriter
from analysis.lab.polar_server.delivery import CallbackSender
from analysis.lab.polar_server.events import EventHub
from analysis.lab.polar_server.fault_kinds import kinds_of
from analysis.lab.polar_server.faults import Fault, FaultEngine, FaultScript, Subject
from analysis.lab.polar_server.front import Front
from analysis.lab.polar_server.gateway import Gateway
from analysis.lab.polar_server.gateway_app import TOKEN_HEADER, create_gateway_app
from analysis.lab.polar_server.interception import Interceptor, RequestRecord
from analysis.lab.polar_server.node_models import NodeRegistrationRequest, NodeStageMetrics
from analysis.lab.polar_server.nodes import NodeRegistry
from analysis.lab.polar_server.persistence import ResultStore
from analysis.lab.polar_server.placement import GatewaySessions
from analysis.lab.polar_server.remote_node import RemoteNodes
from analysis.lab.polar_server.scripted import ScriptedSessions
from analysis.lab.polar_server.sessions import SessionSource, TaskRunner
from analysis.lab.polar_server.settings import NodeSettings, ServerSettings
from analysis.lab.polar_server.state import ServerState

logger = logging.getLogger(__name__)

ROLLOUT = "rollout"
"""Name of the rollout server among the fronts; gateways go by their node id."""

WRITER_SECONDS = 1.0
"""Time that completion files get at the end."""

_CONNECTION_KINDS = kinds_of("connection")
_SERVER_KINDS = kinds_of("server")


class PolarServer:
    """One deployment, alive on the running event loop between `start` and `close`."""

    def __init__(
        self,
        settings: ServerSettings | None = None,
        *,
        script: FaultScript | None = None,
        notify: Callable[[], None] = lambda: None,
    ) -> None:
        self.settings = settings or ServerSettings()
        self.engine = FaultEngine(_with_single_outages(script or FaultScript()))
        self.state = ServerState()
        self.hub = EventHub()
        self.nodes = NodeRegistry()
        self.sender = CallbackSender(notify=notify)
        self.requests: deque[RequestRecord] = deque(maxlen=self.settings.keep_requests)
        self.fronts: dict[str, Front] = {}
        self.gateways: dict[str, Gateway] = {}
        self.scripted = ScriptedSessions(
            self.engine, self.hub, [node.node_id for node in self.settings.nodes]
        )
        self._notify = notify
        self._remote = RemoteNodes(self.settings)
        self._placement = GatewaySessions(self.nodes, self.gateways, self._remote, self.hub)
        store = ResultStore(self.settings.save_dir, max_field_bytes=self.settings.max_field_bytes)
        self._writer = CompletionWriter(store) if self.settings.persist_completions else None
        source: SessionSource = self.scripted if self.settings.scripted else self._placement
        self.runner = TaskRunner(
            state=self.state,
            hub=self.hub,
            engine=self.engine,
            source=source,
            store=store,
            sender=self.sender,
            notify=notify,
            keep_results=self.settings.keep_results,
        )
        self._timers: list[asyncio.TimerHandle] = []
        self._background: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """Base URL of the rollout server."""
        return self.fronts[ROLLOUT].url

    async def start(self) -> None:
        """Bind all ports and listen.

        Raises
        ------
        OSError
            When a port cannot be bound.
        """
        try:
            services = Services(self.settings, self.runner, self.nodes, self.hub, self._remote.accept)
            self._add_front(ROLLOUT, create_app(services), self.settings.host, self.settings.port)
            self._remote.callback_url = f"{self.settings.public_url or self.url}/callbacks/session_result"
            for node in self.settings.nodes:
                self._add_gateway(node)
            for front in self.fronts.values():
                await front.listen()
        except BaseException:  # whatever kept it from starting, the ports that are bound must be freed
            await self.close()
            raise
        self._arm()

    async def close(self, *, grace: float = 0.0) -> None:
        """End everything: sessions, callbacks, connections; free the ports."""
        self._disarm()
        for task in list(self._background):
            task.cancel()
        await self.runner.close()
        for gateway in self.gateways.values():
            await gateway.aclose()
        for front in self.fronts.values():
            await front.close(grace=grace)
        await self._remote.aclose()
        await self.sender.aclose()
        if self._background:
            await asyncio.wait(self._background, timeout=5.0)
        if self._writer is not None:
            await asyncio.to_thread(self._writer.close, WRITER_SECONDS)

    def set_script(self, script: FaultScript) -> None:
        """Play another script from now on."""
        self._disarm()
        self.engine.set_script(_with_single_outages(script))
        self._arm()

    def forget_all(self) -> None:
        """Lose all tasks and everything in flight."""
        self.runner.forget_all()

    async def stop_listening(self, server: str = ROLLOUT) -> None:
        """Refuse connections and cut the live ones."""
        await self.fronts[server].refuse()
        self._notify()

    async def listen_again(self, server: str = ROLLOUT) -> None:
        """Accept connections on the same port again."""
        await self.fronts[server].listen()
        self._notify()

    def abort_connection(self, server: str, client: tuple[str, int] | None) -> None:
        """Reset the connection that a request came on."""
        self.fronts[server].abort(client)

    async def begin_outage(self, server: str, seconds: float) -> None:
        """Refuse connections to `server` from now on, and for `seconds`."""
        front = self.fronts[server]
        await front.refuse()
        self._spawn(self._end_outage(front, seconds))
        self._notify()

    async def begin_restart(self, seconds: float) -> None:
        """Forget all tasks, and refuse connections to the rollout server for `seconds`."""
        self.runner.forget_all()
        if seconds > 0:
            await self.begin_outage(ROLLOUT, seconds)

    def _add_gateway(self, node: NodeSettings) -> None:
        gateway = Gateway(
            node,
            newer=self.settings.newer,
            writer=self._writer,
            on_change=self._placement.room_changed,
            deliver=self._deliver,
        )
        app = create_gateway_app(
            gateway, control_token=self.settings.control_token, ping_seconds=self.settings.ping_seconds
        )
        front = self._add_front(node.node_id, app, node.host, node.port)
        public_url = node.public_url or front.url
        app.state.base_url = public_url
        self.gateways[node.node_id] = gateway
        registration = NodeRegistrationRequest(
            node_id=node.node_id,
            gateway_url=public_url,
            max_init_workers=node.max_init_workers,
            max_run_workers=node.max_run_workers,
            max_postrun_workers=node.max_postrun_workers,
            heartbeat_interval_seconds=self.settings.heartbeat_seconds,
        )

        def probe() -> NodeStageMetrics | None:
            return gateway.metrics() if front.listening else None

        self.nodes.register(registration, probe=probe)

    def _add_front(self, server: str, app: FastAPI, host: str, port: int) -> Front:
        interceptor = Interceptor(
            app,
            server=server,
            engine=self.engine,
            controls=self,
            requests=self.requests,
            notify=self._notify,
        )

        def policy(ordinal: int) -> Fault | None:
            fired = self.engine.fire(_CONNECTION_KINDS, Subject(server=server, event=ordinal), first=True)
            return fired[0] if fired else None

        front = Front(interceptor, host=host, port=port, policy=policy, keep_alive=self.settings.keep_alive)
        self.fronts[server] = front
        return front

    async def _deliver(self, url: str, result: dict[str, Any]) -> None:
        token = self.settings.control_token
        headers = {TOKEN_HEADER: token} if token is not None else {}
        await self.sender.post_session_result(url, result, headers=headers)

    async def _end_outage(self, front: Front, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await front.listen()
        self._notify()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("a scripted event failed", exc_info=task.exception())

    def _arm(self) -> None:
        """Start the timers of outages and restarts that happen at a time rather than at a request."""
        loop = asyncio.get_running_loop()
        for fault in self.engine.script.faults:
            if fault.timed:
                self._timers.append(loop.call_later(fault.since, self._timed_event, fault))

    def _disarm(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    def _timed_event(self, fault: Fault) -> None:
        self.engine.count(fault)
        if fault.kind == "restart":
            self._spawn(self.begin_restart(fault.seconds))
        else:
            self._spawn(self.begin_outage(fault.server or ROLLOUT, fault.seconds))


def _with_single_outages(script: FaultScript) -> FaultScript:
    """Let outages and restarts happen once unless the script says how often."""
    faults = []
    for fault in script.faults:
        if fault.kind in _SERVER_KINDS and fault.times is None:
            fault = replace(fault, times=1)
        faults.append(fault)
    return replace(script, faults=tuple(faults))
