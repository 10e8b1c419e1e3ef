"""One gateway session from acceptance to its result: stages, worker pools, budget, build and evaluation."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from analysis.lab.polar_server.agents import AgentContext, AgentResult, make_agent
from analysis.lab.polar_server.builders import make_builder
from analysis.lab.polar_server.evaluators import attach_rewards, make_evaluator
from analysis.lab.polar_server.gate import StagePool
from analysis.lab.polar_server.node_models import SessionDispatchRequest
from analysis.lab.polar_server.proxy import Capture, InferenceProxy
from analysis.lab.polar_server.results import failed_trajectory, lifted, session_result
from analysis.lab.polar_server.settings import NodeSettings
from analysis.lab.polar_server.training_filter import mask_unusable

logger = logging.getLogger(__name__)

BUDGET_ERROR = "session execution timeout"
"""Error text of a session that ran out of time."""

JsonMap = dict[str, Any]


class _Ended(Exception):
    """Leaves the stages early with the trajectory that the session ends with."""

    def __init__(self, trajectory: JsonMap) -> None:
        super().__init__(trajectory["error"])
        self.trajectory = trajectory


@dataclass
class GatewaySession:
    """One session as its gateway knows it; times are on the event loop's clock, in seconds."""

    request: SessionDispatchRequest
    capture: Capture
    sample_index: int = 0
    status: str = "REGISTERED"
    registered: float = 0.0
    deadline: float | None = None
    times: dict[str, float] = field(default_factory=dict)
    agent_result: AgentResult | None = None
    agent_timed_out: bool = False
    result: JsonMap | None = None
    task: asyncio.Task[None] | None = None
    done: asyncio.Event = field(default_factory=asyncio.Event)
    touched: float = 0.0


class SessionStages:
    """The worker pools of one gateway, and the way of a session through them.

    Parameters
    ----------
    settings
        Worker counts, and how long a sandbox takes to prepare.
    proxy
        Where agents' model calls go.
    newer
        Separate agent budget, more timing fields, masked traces.
    on_status
        Called after every change of a session's status.
    """

    def __init__(
        self,
        settings: NodeSettings,
        proxy: InferenceProxy,
        *,
        newer: bool,
        on_status: Callable[[GatewaySession], None],
    ) -> None:
        self._settings = settings
        self._proxy = proxy
        self._newer = newer
        self._on_status = on_status
        self.init = StagePool(settings.max_init_workers)
        self.ready = StagePool(settings.max_run_workers)
        self.run = StagePool(settings.max_run_workers)
        self.postrun = StagePool(settings.max_postrun_workers)

    async def play(self, session: GatewaySession) -> JsonMap:
        """Take a session through all stages and return its result; only a cancellation is raised."""
        loop = asyncio.get_running_loop()
        try:
            trajectory = await self._stages(session)
        except _Ended as ended:
            trajectory = ended.trajectory
        if self._newer:
            mask_unusable(trajectory, agent_timeout=session.agent_timed_out)
        session.times["end"] = loop.time()
        request = session.request
        return session_result(
            session_id=request.session_id,
            task_id=request.task_id,
            trajectory=trajectory,
            metadata=request.metadata,
            timing=self._timing(session),
            node_id=self._settings.node_id,
        )

    async def _stages(self, session: GatewaySession) -> JsonMap:
        loop = asyncio.get_running_loop()
        await self._initialise(session)
        try:
            await self._within(session, self.run.acquire(session.request.dispatch_priority))
        finally:
            self.ready.release()
        try:
            session.times["run"] = loop.time()
            await self._run_agent(session)
        finally:
            session.times["ran"] = loop.time()
            self.run.release()
        self._status(session, "POST_RUN")
        async with self.postrun.worker():
            session.times["postrun"] = loop.time()
            self._status(session, "POST_RUN")
            return await self._finish(session)

    async def _initialise(self, session: GatewaySession) -> None:
        """Wait for an init worker without charge, prepare the sandbox, take a place in the ready buffer."""
        loop = asyncio.get_running_loop()
        async with self.init.worker(session.request.dispatch_priority):
            session.times["init"] = loop.time()
            session.deadline = loop.time() + session.request.remaining_timeout_seconds
            self._status(session, "INITIALIZING")
            if self._settings.init_seconds > 0:
                await self._within(session, asyncio.sleep(self._settings.init_seconds))
            session.times["ready"] = loop.time()
            self._status(session, "READY")
            await self._within(session, self.ready.acquire())

    async def _within(self, session: GatewaySession, work: Any) -> Any:
        """Await `work` within the session's budget; a session that runs out of it ends without traces."""
        try:
            async with asyncio.timeout_at(session.deadline):
                return await work
        except TimeoutError:
            raise _Ended(self._failed(session, "TIMEOUT", BUDGET_ERROR)) from None

    async def _run_agent(self, session: GatewaySession) -> None:
        request = session.request
        self._status(session, "RUNNING")
        try:
            agent = make_agent(request.agent)
        except ValueError as error:
            raise _Ended(self._failed(session, "ERROR", f"agent execution failed: {error}")) from error
        context = AgentContext(request.session_id, request.task_id, session.sample_index, request.metadata)

        async def ask(body: JsonMap) -> JsonMap:
            session.touched = asyncio.get_running_loop().time()
            return await self._proxy.chat(session.capture, body)

        work = agent.run(request.instruction, context, ask)
        try:
            session.agent_result = await self._within(session, self._own_time(session, work))
        except _Ended:
            raise
        except Exception as error:  # whatever a plug-in raises is the session's result, as on a real gateway
            logger.info("agent of session %s failed: %s", request.session_id, error)
            raise _Ended(self._failed(session, "ERROR", f"agent execution failed: {error}")) from error

    async def _own_time(self, session: GatewaySession, work: Any) -> AgentResult:
        """Await the agent within its own budget, if the task gives it one (newer gateways)."""
        own = session.request.metadata.get("agent_timeout") if self._newer else None
        if own is None:
            result: AgentResult = await work
            return result
        try:
            async with asyncio.timeout(float(own)):
                result = await work
                return result
        except TimeoutError:
            session.agent_timed_out = True
            return AgentResult(
                "timeout", -1, BUDGET_ERROR, {"timeout_source": "agent", "timeout_stage": "exec"}
            )

    async def _finish(self, session: GatewaySession) -> JsonMap:
        """Build the trajectory and evaluate it."""
        request = session.request
        self._status(session, "BUILDING")
        started = asyncio.get_running_loop().time()
        try:
            builder = make_builder(request.builder.strategy, request.builder.config)
            trajectory = builder.build(session.capture.session(), request.metadata)
        except Exception as error:  # a builder plug-in may raise anything; its session ends as ERROR
            logger.info("building session %s failed: %s", request.session_id, error)
            raise _Ended(self._failed(session, "ERROR", f"post-run failed: {error}")) from error
        session.times["build"] = asyncio.get_running_loop().time() - started
        result = session.agent_result
        if result is not None and result.status != "completed" and trajectory["status"] == "COMPLETED":
            trajectory["status"] = "TIMEOUT" if result.status == "timeout" else "ERROR"
            trajectory["error"] = result.error or f"step 0 exited with code {result.return_code}"
        if self._newer and result is not None:
            trajectory["metadata"]["agent_result"] = {
                "status": result.status,
                "return_code": result.return_code,
                "error": result.error,
                **{key: value for key, value in result.metadata.items() if key.startswith("timeout_")},
            }
        if request.evaluator is not None and trajectory["error"] != "no completions":
            await self._evaluate(session, trajectory)
        return trajectory

    async def _evaluate(self, session: GatewaySession, trajectory: JsonMap) -> None:
        """Attach rewards; a failing evaluator turns the session into an ERROR that keeps its traces."""
        spec = session.request.evaluator
        if spec is None:
            return
        self._status(session, "EVALUATING")
        loop = asyncio.get_running_loop()
        started = loop.time()
        left = max(0.0, (session.deadline or loop.time()) - loop.time())
        try:
            evaluator = make_evaluator(spec.strategy, spec.config)
            async with asyncio.timeout_at(session.deadline):
                outcome = await evaluator.evaluate(
                    trajectory,
                    session_id=session.request.session_id,
                    task_id=session.request.task_id,
                    agent_result=session.agent_result,
                    env=spec.env,
                    timeout_seconds=left,
                    refresh_runtime=spec.refresh_runtime,
                )
            attach_rewards(trajectory, spec.strategy, outcome)
        except Exception as error:  # an evaluator plug-in may raise anything; its session ends as ERROR
            text = BUDGET_ERROR if isinstance(error, TimeoutError) else str(error)
            logger.info("evaluating session %s failed: %s", session.request.session_id, text)
            trajectory["status"] = "ERROR"
            trajectory["error"] = (
                text if text.startswith("evaluator returned") else f"evaluator failed: {text}"
            )
        session.times["eval"] = loop.time() - started

    def _failed(self, session: GatewaySession, status: str, error: str) -> JsonMap:
        request = session.request
        trajectory = failed_trajectory(
            status, error, builder=request.builder.strategy, metadata=request.metadata
        )
        trajectory["metadata"].update(lifted(request.metadata))
        return trajectory

    def _status(self, session: GatewaySession, status: str) -> None:
        session.status = status
        session.touched = asyncio.get_running_loop().time()
        self._on_status(session)

    def _timing(self, session: GatewaySession) -> dict[str, float]:
        """Return the stage times in milliseconds; stages that were not reached count 0."""
        times, end = session.times, session.times["end"]

        def span(start: str, stop: str) -> float:
            return max(0.0, times.get(stop, end) - times[start]) * 1000 if start in times else 0.0

        waited = (times.get("init", end) - session.registered) * 1000
        timing = {
            "register_to_init_queue_ms": waited,
            "init_ms": span("init", "ready"),
            "run_ms": span("run", "ran"),
            "postrun_ms": span("postrun", "end"),
        }
        if self._newer:
            timing |= {
                "ready_queue_ms": span("ready", "run"),
                "postrun_queue_ms": span("ran", "postrun"),
                "agent_exec_ms": span("run", "ran"),
                "build_ms": times.get("build", 0.0) * 1000,
                "eval_ms": times.get("eval", 0.0) * 1000,
                "e2e_ms": (end - session.registered) * 1000,
            }
        return {key: round(value, 6) for key, value in timing.items()}
