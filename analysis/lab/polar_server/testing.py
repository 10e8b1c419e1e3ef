"""A Polar-compatible rollout server in a thread, on real loopback sockets: the peer of the bridge's tests.

Usage
-----
The plain case: every submitted task runs `num_samples` synthetic sessions at once, calls back once and
answers polls::

    with serve_polar() as polar:
        httpx.post(f"{polar.url}/rollout/task/submit", json={
            "task_id": "t-1", "instruction": "Say hello.", "num_samples": 4, "agent": {"harness": "lab"},
            "callback_url": "http://127.0.0.1:9000/token", "metadata": {"policy_version": 3}})
        polar.wait_until(lambda: polar.tasks["t-1"].status == "completed")

With faults, all deterministic by the script's seed (`analysis.lab.polar_server.fault_kinds.KINDS` lists the
kinds)::

    script = FaultScript(seed=3, sessions=SessionProfile(duration=0.05, reward=1.0), faults=[
        Fault("callback_lost", tasks=[0, 2]),                   # by order of first submit
        Fault("session_error", instruction="hard", sessions=[1]),
        Fault("response_status", on="submit", status=503, times=2),
        Fault("response_hang", on="submit", tasks=[3], processed=True),   # accepted, but never answered
        Fault("outage", since=1.0, seconds=3.0),                # connections refused from 1 s to 4 s
        Fault("restart", tasks=[5]),                            # forgets everything when this submit comes
    ])
    with serve_polar(script=script) as polar: ...

Gateways have ports and faults of their own: ``Fault("response_status", on="pause", server="node-2",
status=504)`` with ``serve_polar(gateways=2)``, and `polar.gateways["node-2"]`. With ``agents=True,
inference_url=...`` sessions run agents on the gateways instead of the script's synthetic sessions; the
other faults still apply.

What a test can ask: `polar.requests`, `polar.submissions`, `polar.submits`, `polar.tasks`, `polar.history`,
`polar.callbacks`, `polar.cancelled`, `polar.max_running_sessions`, `polar.fired`. What it can do:
`forget_all`, `refuse`, `stop`, `restart`, `set_script`, `set_weight_version`, and `wait_until` to wait for
any of it without sleeping.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from analysis.lab.polar_server.delivery import CallbackRecord
from analysis.lab.polar_server.faults import Fault, FaultScript
from analysis.lab.polar_server.gate import GenerationGate
from analysis.lab.polar_server.interception import RequestRecord
from analysis.lab.polar_server.server import PolarServer
from analysis.lab.polar_server.settings import NodeSettings, ServerSettings
from analysis.lab.polar_server.state import TaskRecord
from analysis.lab.polar_server.synthetic import Lognormal, SessionInfo, SessionProfile

__all__ = [
    "Fault",
    "FaultScript",
    "GatewayHandle",
    "Lognormal",
    "NodeSettings",
    "PolarHandle",
    "ServerSettings",
    "SessionInfo",
    "SessionProfile",
    "serve_polar",
]

T = TypeVar("T")

CALL_TIMEOUT = 30.0
"""Seconds that a call into the server's thread may take."""


class GatewayHandle:
    """One gateway of a running server; may be used from any thread."""

    def __init__(self, owner: PolarHandle, node_id: str) -> None:
        self._owner = owner
        self.node_id = node_id

    @property
    def url(self) -> str:
        """Base URL of the gateway."""
        return self._owner.server.fronts[self.node_id].url

    @property
    def paused(self) -> bool:
        """Whether the generation gate is closed."""
        return self._gate.paused

    @property
    def inflight(self) -> int:
        """Model calls in flight, with those that `add_inflight` made up."""
        return self._gate.inflight

    @property
    def requests(self) -> list[RequestRecord]:
        """The requests that this gateway got, in order."""
        return [request for request in self._owner.requests if request.server == self.node_id]

    def add_inflight(self, count: int) -> None:
        """Make up `count` model calls in flight; a negative number ends some of them."""
        act = self._gate.enter if count > 0 else self._gate.leave
        self._owner.run(lambda: [act() for _ in range(abs(count))])

    def stop(self) -> None:
        """Cut and refuse connections to this gateway until `restart`."""
        self._owner.call(self._owner.server.stop_listening(self.node_id))

    def restart(self) -> None:
        """Accept connections on the same port again."""
        self._owner.call(self._owner.server.listen_again(self.node_id))

    @property
    def _gate(self) -> GenerationGate:
        return self._owner.server.gateways[self.node_id].gate


class PolarHandle:
    """What a test holds of a running server; every attribute may be read from any thread."""

    def __init__(self, settings: ServerSettings, script: FaultScript | None) -> None:
        self._changed = threading.Condition()
        self._changes = 0
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._settings = settings
        self._script = script
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._server: PolarServer | None = None
        self._thread = threading.Thread(target=self._main, name="polar-server", daemon=True)

    @property
    def server(self) -> PolarServer:
        """The server object; use it from its own loop only."""
        if self._server is None:
            raise RuntimeError("the Polar server is not running")
        return self._server

    @property
    def url(self) -> str:
        """Base URL of the rollout server."""
        return self.server.url

    @property
    def gateways(self) -> dict[str, GatewayHandle]:
        """The gateways by node id."""
        return {node_id: GatewayHandle(self, node_id) for node_id in self.server.gateways}

    @property
    def requests(self) -> list[RequestRecord]:
        """Every request in order of arrival, to the rollout server and to the gateways."""
        return list(self.server.requests)

    def requests_to(self, path: str, method: str | None = None) -> list[RequestRecord]:
        """Return the requests whose path starts with `path`, in order."""
        return [r for r in self.requests if r.path.startswith(path) and method in (None, r.method)]

    @property
    def submissions(self) -> list[RequestRecord]:
        """Every submit request in order, answered or not; `body` holds what was sent."""
        return self.requests_to("/rollout/task/submit", "POST")

    @property
    def submits(self) -> int:
        """Number of submits that were accepted."""
        return len(self.server.state.history)

    @property
    def tasks(self) -> dict[str, TaskRecord]:
        """The tasks that the server knows at present, by id."""
        return dict(self.server.state.tasks)

    @property
    def history(self) -> list[TaskRecord]:
        """Every accepted task in order, also those that were replaced or forgotten."""
        return list(self.server.state.history)

    @property
    def callbacks(self) -> list[CallbackRecord]:
        """Every POST to a callback URL, in order of completion."""
        return list(self.server.sender.records)

    @property
    def cancelled(self) -> list[str]:
        """Ids of tasks that a client cancelled, in order."""
        return list(self.server.state.cancelled)

    @property
    def running_sessions(self) -> int:
        """Sessions in flight."""
        return self.server.state.running_sessions

    @property
    def max_running_sessions(self) -> int:
        """High-water mark of sessions in flight."""
        return self.server.state.max_running_sessions

    @property
    def max_running_tasks(self) -> int:
        """High-water mark of tasks in flight."""
        return self.server.state.max_running_tasks

    @property
    def fired(self) -> dict[str, int]:
        """How often each fault kind fired under the present script."""
        return self.server.engine.counts()

    def wait_until(self, condition: Callable[[], T], timeout: float = 20.0) -> T:
        """Wait until `condition` is true, looking again whenever something happens on the server.

        Raises
        ------
        TimeoutError
            With the server's state in its text.
        """
        deadline = time.monotonic() + timeout
        while True:
            seen = self._changes
            value = condition()
            if value:
                return value
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"condition not met within {timeout} s; {self._describe()}")
            with self._changed:
                if self._changes == seen:
                    self._changed.wait(min(left, 0.05))

    def _describe(self) -> str:
        tasks = {task_id: record.status for task_id, record in self.tasks.items()}
        return f"{len(self.requests)} requests, {self.submits} submits, tasks {tasks}, fired {self.fired}"

    def forget_all(self) -> None:
        """Make the server forget all tasks, as a restart without downtime does; what is in flight is lost."""
        self.run(self.server.forget_all)

    def refuse(self, seconds: float) -> None:
        """Refuse connections for `seconds`, beginning before this returns; live connections are cut."""
        self.call(self._refuse(seconds))

    def stop(self) -> None:
        """Stop like a killed process, until `restart`: connections are cut and refused, all tasks lost."""
        self.call(self._stop_serving())

    def restart(self) -> None:
        """Come back on the same port, with empty memory, after `stop`; or stop and come back at once."""
        self.call(self._restart())

    def set_script(self, script: FaultScript) -> None:
        """Play another script from now on."""
        self.run(lambda: self.server.set_script(script))

    def set_weight_version(self, version: int | None) -> None:
        """Let synthetic turns claim this weight version; None: the task's own `policy_version`."""
        self.server.scripted.weight_version = version

    async def _refuse(self, seconds: float) -> None:
        await self.server.begin_outage("rollout", seconds)

    async def _stop_serving(self) -> None:
        await self.server.stop_listening()
        self.server.forget_all()

    async def _restart(self) -> None:
        await self._stop_serving()
        await self.server.listen_again()

    def run(self, action: Callable[[], T]) -> T:
        """Do something on the server's event loop and return what it returns."""
        return self.call(_now(action))

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the server's event loop and return its result."""
        if self._loop is None or self._loop.is_closed():
            work.close()
            raise RuntimeError("the Polar server is not running")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_TIMEOUT)

    def _notify(self) -> None:
        with self._changed:
            self._changes += 1
            self._changed.notify_all()

    def _main(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as failure:  # handed to the thread that started the server, which raises it
            self._failure = failure
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._server = PolarServer(self._settings, script=self._script, notify=self._notify)
        try:
            await self._server.start()
            self._ready.set()
            await self._stop.wait()
        finally:
            await self._server.close()

    def start(self) -> None:
        """Start the thread and wait until the server listens; raises what kept it from starting."""
        self._thread.start()
        self._ready.wait(CALL_TIMEOUT)
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """End the server and its thread, and free the port; raises what went wrong in the thread."""
        if self._loop is not None and self._stop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(CALL_TIMEOUT)
        if self._thread.is_alive():
            raise RuntimeError("the Polar server's thread did not end")
        if self._failure is not None:
            raise self._failure


async def _now(action: Callable[[], T]) -> T:
    return action()


@contextmanager
def serve_polar(
    script: FaultScript | None = None,
    *,
    save_dir: str | Path | None = None,
    newer: bool = False,
    control_token: str | None = None,
    gateways: int | None = None,
    agents: bool = False,
    inference_url: str = "",
    settings: ServerSettings | None = None,
) -> Iterator[PolarHandle]:
    """Run a Polar-compatible rollout server on a free loopback port for the length of a ``with`` block.

    Parameters
    ----------
    script
        Ordinary sessions and faults; default: instant good sessions, no faults.
    save_dir
        Write Polar's result tree here.
    newer
        Behave like newer servers (cancel route, early stop, more timing fields).
    control_token
        Token that newer servers ask for on control routes.
    gateways
        Number of gateways, named ``node-1`` and so on.
    agents
        Run agents on the gateways instead of synthetic sessions.
    inference_url
        Base URL of the engine or router behind the gateways.
    settings
        Everything else; the arguments above override it when they are given.
    """
    base = settings or ServerSettings()
    nodes = base.nodes
    if gateways is not None:
        nodes = tuple(replace(nodes[0], node_id=f"node-{number + 1}", port=0) for number in range(gateways))
    if inference_url:
        nodes = tuple(replace(node, inference_url=inference_url) for node in nodes)
    chosen = replace(
        base,
        save_dir=save_dir if save_dir is not None else base.save_dir,
        newer=newer or base.newer,
        control_token=control_token if control_token is not None else base.control_token,
        scripted=base.scripted and not agents,
        nodes=nodes,
    )
    handle = PolarHandle(chosen, script)
    handle.start()
    try:
        yield handle
    finally:
        handle.close()
