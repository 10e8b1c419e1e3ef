"""One Polar-compatible deployment: rollout server, gateways, faults, and their sockets."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from analysis.lab.polar_server.app import Services, create_app
from analysis.lab.polar_server.delivery import CallbackSender
from analysis.lab.polar_server.events import EventHub
from analysis.lab.polar_server.fault_kinds import kinds_of
from analysis.lab.polar_server.faults import Fault, FaultEngine, FaultScript, Subject
from analysis.lab.polar_server.front import Front
from analysis.lab.polar_server.interception import Interceptor, RequestRecord
from analysis.lab.polar_server.nodes import NodeRegistry
from analysis.lab.polar_server.persistence import ResultStore
from analysis.lab.polar_server.scripted import ScriptedSessions
from analysis.lab.polar_server.sessions import TaskRunner
from analysis.lab.polar_server.settings import ServerSettings
from analysis.lab.polar_server.state import ServerState

logger = logging.getLogger(__name__)

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
        self.requests: list[RequestRecord] = []
        self.scripted = ScriptedSessions(
            self.engine, self.hub, [node.node_id for node in self.settings.nodes]
        )
        self.runner = TaskRunner(
            state=self.state,
            hub=self.hub,
            engine=self.engine,
            source=self.scripted,
            store=ResultStore(self.settings.save_dir, max_field_bytes=self.settings.max_field_bytes),
            sender=self.sender,
            notify=notify,
        )
        self._notify = notify
        self._timers: list[asyncio.TimerHandle] = []
        self._background: set[asyncio.Task[None]] = set()
        services = Services(self.settings, self.runner, self.nodes, self.hub, lambda _: None)
        self.front = self._make_front("rollout", create_app(services), self.settings.host, self.settings.port)

    @property
    def url(self) -> str:
        """Base URL of the rollout server."""
        return self.front.url

    async def start(self) -> None:
        """Listen."""
        await self.front.listen()
        self._arm()

    async def close(self, *, grace: float = 0.0) -> None:
        """End everything: sessions, callbacks, connections; free the ports."""
        self._disarm()
        for task in list(self._background):
            task.cancel()
        await self.runner.close()
        await self.front.close(grace=grace)
        await self.sender.aclose()
        if self._background:
            await asyncio.wait(self._background, timeout=5.0)

    def set_script(self, script: FaultScript) -> None:
        """Play another script from now on."""
        self._disarm()
        self.engine.set_script(_with_single_outages(script))
        self._arm()

    def forget_all(self) -> None:
        """Lose all tasks and everything in flight."""
        self.runner.forget_all()

    async def stop_listening(self) -> None:
        """Refuse connections and cut the live ones."""
        await self.front.refuse()
        self._notify()

    async def listen_again(self) -> None:
        """Accept connections on the same port again."""
        await self.front.listen()
        self._notify()

    def abort_connection(self, server: str, client: tuple[str, int] | None) -> None:
        """Reset the connection that a request came on."""
        self._front_of(server).abort(client)

    def begin_outage(self, server: str, seconds: float) -> None:
        """Refuse connections to `server` for `seconds`."""
        self._spawn(self._outage(self._front_of(server), seconds))

    def begin_restart(self, seconds: float) -> None:
        """Forget all tasks, and refuse connections to the rollout server for `seconds`."""
        self.runner.forget_all()
        if seconds > 0:
            self._spawn(self._outage(self.front, seconds))

    def _front_of(self, server: str) -> Front:
        return self.front

    def _make_front(self, server: str, app: Any, host: str, port: int) -> Front:
        interceptor = Interceptor(
            app, server=server, engine=self.engine, controls=self, requests=self.requests, notify=self._notify
        )

        def policy(ordinal: int) -> Fault | None:
            subject = Subject(server=server, event=ordinal)
            fired = self.engine.fire(_CONNECTION_KINDS, subject)
            return fired[0] if fired else None

        return Front(interceptor, host=host, port=port, policy=policy, keep_alive=self.settings.keep_alive)

    async def _outage(self, front: Front, seconds: float) -> None:
        await front.refuse()
        self._notify()
        await asyncio.sleep(seconds)
        await front.listen()
        self._notify()

    def _spawn(self, work: Any) -> None:
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
            if fault.kind in _SERVER_KINDS and _timed(fault):
                self._timers.append(loop.call_later(fault.since, self._timed_event, fault))

    def _disarm(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    def _timed_event(self, fault: Fault) -> None:
        if fault.kind == "restart":
            self.begin_restart(fault.seconds)
        else:
            self.begin_outage(fault.server or "rollout", fault.seconds)


def _timed(fault: Fault) -> bool:
    conditions = (fault.on, fault.path, fault.method)
    return fault.since > 0 and not fault.needs_task and all(condition is None for condition in conditions)


def _with_single_outages(script: FaultScript) -> FaultScript:
    """Let outages and restarts happen once unless the script says how often."""
    faults = []
    for fault in script.faults:
        if fault.kind in _SERVER_KINDS and fault.times is None:
            fault = replace(fault, times=1)
        faults.append(fault)
    return replace(script, faults=tuple(faults))
