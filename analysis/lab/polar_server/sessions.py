"""Runs tasks: fans them out into sessions, collects results in Polar's order, and delivers them once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from analysis.lab.polar_server.delivery import CallbackSender
from analysis.lab.polar_server.events import EventHub
from analysis.lab.polar_server.fault_kinds import kinds_of
from analysis.lab.polar_server.faults import Fault, FaultEngine, Subject
from analysis.lab.polar_server.models import NewerTaskRequest, TaskRequest
from analysis.lab.polar_server.mutations import apply_session_faults, needs_literal_nan
from analysis.lab.polar_server.persistence import ResultStore
from analysis.lab.polar_server.results import failed_trajectory, session_result
from analysis.lab.polar_server.state import ServerState, SessionRecord, TaskRecord
from analysis.lab.polar_server.wire import encode

logger = logging.getLogger(__name__)

_SESSION_KINDS = kinds_of("session")
_TASK_KINDS = kinds_of("task") - {"task_conflict"}
_CALLBACK_KINDS = kinds_of("callback")


class SessionSource(Protocol):
    """Where sessions come from: a fault script, or gateways that run agents."""

    def session_id(self, record: TaskRecord, index: int) -> str:
        """Return the id of a new session."""

    async def run(
        self, record: TaskRecord, session: SessionRecord, faults: Sequence[Fault]
    ) -> dict[str, Any]:
        """Run one session to its end and return its result in wire form.

        Sets ``session.node_id`` and publishes ``REGISTERED`` once a node took the session.
        """


@dataclass
class _Run:
    """What belongs to one running task: its subject for faults, and its asyncio tasks."""

    record: TaskRecord
    subject: Subject
    faults: list[Fault]
    sessions: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    main: asyncio.Task[None] | None = None
    delivered: asyncio.Event = field(default_factory=asyncio.Event)
    stop_error: str | None = None
    early_stopped: bool = False

    def fault(self, kind: str) -> Fault | None:
        """Return the first fired fault of this kind."""
        return next((fault for fault in self.faults if fault.kind == kind), None)


class TaskRunner:
    """Owns the life of every task; used from one event loop only."""

    def __init__(
        self,
        *,
        state: ServerState,
        hub: EventHub,
        engine: FaultEngine,
        source: SessionSource,
        store: ResultStore,
        sender: CallbackSender,
        notify: Callable[[], None],
        keep_results: int | None = None,
    ) -> None:
        self.state = state
        self.hub = hub
        self.engine = engine
        self.source = source
        self.store = store
        self.sender = sender
        self._notify = notify
        self._keep_results = keep_results
        self._runs: dict[int, _Run] = {}
        self._background: set[asyncio.Task[None]] = set()

    def submit(self, request: TaskRequest) -> TaskRecord:
        """Create a running record in place of an older one with this id, and start its sessions."""
        subject = self.engine.task_subject(request.task_id, request.instruction)
        record = TaskRecord(request, ordinal=subject.ordinal or 0, attempt=subject.attempt or 0)
        record.runs_before = self.state.runs[request.task_id]
        run = _Run(record, subject, self.engine.fire(_TASK_KINDS, subject))
        record.sessions = [
            SessionRecord(self.source.session_id(record, index), record.task_id, index)
            for index in range(request.num_samples)
        ]
        _shape_bodies(record, run.faults)
        self.state.add(record)
        self.hub.publish(
            "task.created",
            task_id=record.task_id,
            status=record.status,
            harness=request.agent.harness,
            model=request.agent.model_name,
            num_samples=request.num_samples,
        )
        self._runs[id(record)] = run
        # A task that is over may still be delivering, while its result already brings the next one.
        running = sum(not run.record.over for run in self._runs.values())
        self.state.max_running_tasks = max(self.state.max_running_tasks, running)
        run.main = self._spawn(self._run(run))
        forgotten = run.fault("task_forgotten")
        if forgotten is not None:
            self._spawn(self._forget_later(record, forgotten.seconds))
        self._notify()
        return record

    async def delivered_early(self, record: TaskRecord, timeout: float = 30.0) -> None:
        """Wait for the callback of a task whose script wants it before the submit is answered."""
        run = self._runs.get(id(record))
        early = Fault("callback_early")
        if (
            run is None
            or not self.engine.has([early.kind])
            or not self.engine.fire([early.kind], run.subject)
        ):
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await run.delivered.wait()

    async def cancel(self, record: TaskRecord) -> None:
        """Cancel a running task: unfinished sessions end as ERROR, the task as ``cancelled``."""
        run = self._runs.get(id(record))
        if record.status != "running" or run is None:
            return
        record.status = "cancelling"
        run.stop_error = "session cancelled"
        self.state.cancelled.append(record.task_id)
        if run.main is not None:
            run.main.cancel()
        await self._settle(run)
        for session in record.sessions:
            if not session.terminal:
                self._record(run, session, self._stopped(run, session), literal=False)
        record.status = "cancelled"
        record.reordered = True
        record.updated_at = time.time()
        self.hub.publish("task.completed", task_id=record.task_id, status="cancelled")
        self._finished(run)
        self._notify()

    def forget_all(self) -> None:
        """Lose all tasks and everything in flight, as a restart of the process does."""
        lost = self.state.forget()
        for record in lost:
            self._abandon(record)
        self._notify()

    async def close(self) -> None:
        """Cancel everything in flight and wait until it is gone."""
        for run in list(self._runs.values()):
            self._abandon(run.record)
        pending = [task for task in self._background if task is not asyncio.current_task()]
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.wait(pending, timeout=10.0)
        self._runs.clear()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("a task of the rollout server failed", exc_info=task.exception())
            self._notify()

    def _abandon(self, record: TaskRecord) -> None:
        run = self._runs.pop(id(record), None)
        if run is None:
            return
        run.delivered.set()
        for task in [*run.sessions.values(), *([run.main] if run.main else [])]:
            task.cancel()

    async def _forget_later(self, record: TaskRecord, seconds: float) -> None:
        await asyncio.sleep(seconds)
        record.forgotten = True
        if self.state.tasks.get(record.task_id) is record:
            del self.state.tasks[record.task_id]
        self._abandon(record)
        self._notify()

    async def _run(self, run: _Run) -> None:
        record = run.record
        slow = run.fault("task_slow")
        if slow is not None:
            await asyncio.sleep(slow.seconds)
        failed = run.fault("task_failed")
        if failed is not None:
            await asyncio.sleep(failed.seconds)
            self._end(run, "failed")
            return
        for session in record.sessions:
            self.hub.publish(
                "session.state_changed",
                task_id=record.task_id,
                session_id=session.session_id,
                status=session.status,
            )
            run.sessions[session.index] = self._spawn(self._session(run, session))
        await self._settle(run)
        if run.early_stopped:
            for session in record.sessions:
                if not session.terminal:
                    self._record(run, session, self._stopped(run, session), literal=False)
        if run.fault("task_endless") is not None:
            await asyncio.Event().wait()
        broken = next((s for s in record.sessions if not s.terminal), None)
        if broken is not None:
            logger.error("session %s of task %s left no result", broken.session_id, record.task_id)
            self._end(run, "failed")
            return
        other = run.fault("task_status")
        if other is not None:
            self._end(run, str(other.value or "cancelled"))
            return
        self._end(run, "completed")
        faults = self.engine.fire(_CALLBACK_KINDS - {"callback_early"}, run.subject)
        await self.sender.deliver(record, faults)
        self._finished(run)

    async def _settle(self, run: _Run) -> None:
        """Wait until every session task of the run has ended, however it did."""
        if run.sessions:
            if run.stop_error is not None:
                for task in run.sessions.values():
                    task.cancel()
            await asyncio.wait(run.sessions.values())

    def _end(self, run: _Run, status: str) -> None:
        record = run.record
        record.status = status
        record.updated_at = time.time()
        record.reordered = status == "completed"
        counts = {"completed_sessions": record.completed_sessions} if status == "completed" else {}
        self.hub.publish("task.completed", task_id=record.task_id, status=status, **counts)
        if status != "completed":
            self._finished(run)
        self._notify()

    def _finished(self, run: _Run) -> None:
        """Let go of a task that will do nothing more, and of old results if they are not to be kept."""
        run.delivered.set()
        self._runs.pop(id(run.record), None)
        if self._keep_results is not None:
            self.state.drop_old_results(self._keep_results)

    async def _session(self, run: _Run, session: SessionRecord) -> None:
        subject = self.engine.known_task(session.task_id, session=session.index)
        faults = self.engine.fire(_SESSION_KINDS, subject)
        self.state.session_started()
        try:
            slow = next((fault for fault in faults if fault.kind == "session_slow"), None)
            result = await self.source.run(run.record, session, faults)
            if slow is not None:
                await asyncio.sleep(slow.seconds)
            if any(fault.kind == "session_endless" for fault in faults):
                await asyncio.Event().wait()
        finally:
            self.state.session_ended()
        session.hidden = any(fault.kind == "session_missing" for fault in faults)
        result = apply_session_faults(result, faults)
        self._record(run, session, result, literal=needs_literal_nan(faults))
        if session.body is not None and any(fault.kind == "session_duplicate" for fault in faults):
            run.record.extra_bodies.append(session.body)
        self._stop_early(run)

    def _record(self, run: _Run, session: SessionRecord, result: dict[str, Any], *, literal: bool) -> None:
        """Write, store and announce one session's result."""
        record = run.record
        session.result = result
        session.status = str(result.get("status"))
        try:
            session.path = self.store.write_session(session)
        except OSError:
            session.result = None
            raise
        session.body = encode(result, literal_nan=literal)
        record.finished.append(session)
        record.updated_at = time.time()
        self.hub.publish(
            "session.state_changed",
            task_id=record.task_id,
            session_id=session.session_id,
            status=session.status,
            node_id=session.node_id,
        )
        self.hub.publish(
            "task.updated",
            task_id=record.task_id,
            completed_sessions=record.completed_sessions,
            total_sessions=len(record.sessions),
        )
        self._notify()

    def _stop_early(self, run: _Run) -> None:
        """Stop the stragglers of a task that has enough usable sessions (newer servers)."""
        request = run.record.request
        minimum = request.early_stop_min_usable_sessions if isinstance(request, NewerTaskRequest) else None
        if minimum is None or run.early_stopped:
            return
        if sum(session.usable for session in run.record.finished) < minimum:
            return
        run.early_stopped = True
        for session in run.record.sessions:
            task = run.sessions.get(session.index)
            if task is not None and not session.terminal and task is not asyncio.current_task():
                task.cancel()

    def _stopped(self, run: _Run, session: SessionRecord) -> dict[str, Any]:
        """Return the result of a session that was cancelled, or stopped because its task had enough."""
        request = run.record.request
        trajectory = failed_trajectory(
            "ERROR", "session cancelled", builder=request.builder.strategy, metadata=request.metadata
        )
        result = session_result(
            session_id=session.session_id,
            task_id=session.task_id,
            trajectory=trajectory,
            metadata=request.metadata,
            node_id=session.node_id,
        )
        if run.early_stopped and isinstance(request, NewerTaskRequest):
            placeholder = {
                "early_stop_cancelled": True,
                "fully_masked": True,
                "early_stop_reason": "minimum_usable_sessions_reached",
                "early_stop_min_usable_sessions": request.early_stop_min_usable_sessions,
                "early_stop_usable_sessions": sum(item.usable for item in run.record.finished),
                "early_stop_elapsed_ms": round((time.monotonic() - run.record.submitted) * 1000, 3),
            }
            result["metadata"].update(placeholder)
            trajectory["metadata"].update(placeholder)
        return result


def _shape_bodies(record: TaskRecord, faults: Sequence[Fault]) -> None:
    """Apply the task faults that change what the bodies of a task show."""
    for fault in faults:
        if fault.kind == "task_foreign_id":
            record.shown_id = str(fault.value or "somebody-elses-task")
        elif fault.kind == "task_unknown_fields":
            record.extra_fields["future_field"] = {"nested": [1, None, {"deep": True}]}
        elif fault.kind == "task_huge":
            record.extra_fields["padding"] = "x" * fault.count
        elif fault.kind == "session_extra":
            for number in range(fault.count):
                record.extra_bodies.append(_uninvited(record, number))


def _uninvited(record: TaskRecord, number: int) -> bytes:
    trajectory = failed_trajectory("COMPLETED", "", builder=record.request.builder.strategy, metadata={})
    trajectory["error"] = None
    session_id = f"sk-polar-00000000-0000-4000-8000-{number:012d}"
    result = session_result(session_id=session_id, task_id=record.task_id, trajectory=trajectory, metadata={})
    return encode(result)
