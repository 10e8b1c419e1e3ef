"""What a rollout server keeps in memory: tasks, their sessions, and the JSON bodies that it shows of them.

Bodies are assembled from each session's own encoded bytes, so that a result is encoded once however often
it is read, and so that a fault can put any bytes into it.
"""

from __future__ import annotations

import math
import time
import uuid
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from analysis.lab.polar_server.models import TaskRequest
from analysis.lab.polar_server.wire import encode


def new_session_id(seed: int | None = None) -> str:
    """Return ``sk-polar-<uuid4>``: random, or the same one for the same 64-bit `seed`."""
    if seed is None:
        return f"sk-polar-{uuid.uuid4()}"
    spread = (seed * 0x9E3779B97F4A7C15F39CC0605CEDC835 + 0x2545F4914F6CDD1D) % 2**128
    return f"sk-polar-{uuid.UUID(int=spread, version=4)}"


@dataclass
class SessionRecord:
    """One session of a task.

    `result` is the wire form once the session is terminal, `body` its JSON; `index` is the position among
    the task's samples. `hidden` keeps the session out of the task's bodies, for fault scripts.
    """

    session_id: str
    task_id: str
    index: int
    status: str = "DISPATCHING"
    node_id: str | None = None
    result: dict[str, Any] | None = None
    body: bytes | None = None
    path: str | None = None
    hidden: bool = False
    created_at: float = field(default_factory=time.time)

    @property
    def terminal(self) -> bool:
        """Whether the session has a result."""
        return self.result is not None

    @property
    def reward(self) -> float | None:
        """The last trace's reward, else the outcome that the evaluator reported, else None."""
        value = self.traces[-1].get("reward") if self.traces else None
        if value is None:
            evaluation = self.trajectory_metadata.get("evaluation")
            value = evaluation.get("outcome_reward") if isinstance(evaluation, dict) else None
        return _number(value)

    @property
    def traces(self) -> list[dict[str, Any]]:
        """The traces of the result; empty for a result that has none or is malformed."""
        trajectory = (self.result or {}).get("trajectory")
        traces = trajectory.get("traces") if isinstance(trajectory, dict) else None
        return [trace for trace in traces if isinstance(trace, dict)] if isinstance(traces, list) else []

    @property
    def trajectory_metadata(self) -> dict[str, Any]:
        """The trajectory's metadata; empty for a result that has none or is malformed."""
        trajectory = (self.result or {}).get("trajectory")
        metadata = trajectory.get("metadata") if isinstance(trajectory, dict) else None
        return metadata if isinstance(metadata, dict) else {}

    @property
    def usable(self) -> bool:
        """Whether the session is COMPLETED with a trace that has both id lists and a non-zero mask."""
        return self.status == "COMPLETED" and any(
            trace.get("prompt_ids") and trace.get("response_ids") and any(trace.get("loss_mask") or ())
            for trace in self.traces
        )


def _number(value: Any) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return None


@dataclass
class TaskRecord:
    """One task as the server knows it.

    `sessions` is in creation order, `finished` in completion order. `shown_id` is the task id that bodies
    carry, and `extra_fields` is put into them, both for fault scripts. `runs_before` counts earlier runs of
    the same id, `forgotten` marks a record that the server lost.
    """

    request: TaskRequest
    sessions: list[SessionRecord] = field(default_factory=list)
    finished: list[SessionRecord] = field(default_factory=list)
    extra_bodies: list[bytes] = field(default_factory=list)
    status: str = "running"
    reordered: bool = False
    ordinal: int = 0
    attempt: int = 0
    runs_before: int = 0
    shown_id: str | None = None
    extra_fields: dict[str, Any] = field(default_factory=dict)
    forgotten: bool = False
    created_at: float = field(default_factory=time.time)
    updated_at: float = field(default_factory=time.time)
    submitted: float = field(default_factory=time.monotonic)

    @property
    def task_id(self) -> str:
        """The id under which the task was submitted."""
        return self.request.task_id

    @property
    def over(self) -> bool:
        """Whether its sessions have ended; the callback may still be under way."""
        return self.status not in ("running", "cancelling")

    @property
    def result_paths(self) -> list[str]:
        """Paths of the written session files in completion order."""
        return [session.path for session in self.finished if session.path is not None]

    @property
    def completed_sessions(self) -> int:
        """Number of sessions with a terminal result, whatever it is."""
        return len(self.finished)

    def bodies(self) -> list[bytes]:
        """Return the sessions' JSON: in completion order while running, in creation order afterwards."""
        order: Iterable[SessionRecord] = self.finished
        if self.reordered:
            order = (session for session in self.sessions if session.terminal)
        shown = [session.body for session in order if session.body is not None and not session.hidden]
        return shown + self.extra_bodies if self.reordered else shown

    def status_body(self) -> bytes:
        """Return the `TaskStatus` JSON that ``GET /rollout/task/{id}`` shows."""
        head = {
            "task_id": self.shown_id or self.task_id,
            "status": self.status,
            "total_sessions": len(self.sessions),
            "completed_sessions": self.completed_sessions,
        }
        return self._body(head)

    def result_body(self) -> bytes:
        """Return the `TaskResult` JSON that is posted to the task's callback URL."""
        return self._body({"task_id": self.shown_id or self.task_id, "status": self.status})

    def _body(self, head: dict[str, Any]) -> bytes:
        tail = encode({"result_paths": self.result_paths, **self.extra_fields})
        parts = (encode(head)[:-1], b',"results":[', b",".join(self.bodies()), b"],", tail[1:])
        return b"".join(parts)

    def summary(self) -> dict[str, Any]:
        """Return the entry of ``GET /tasks``."""
        finished = self.finished
        rewards = [reward for session in finished if (reward := session.reward) is not None]
        traces = [len(session.traces) for session in finished]
        counts = [
            session.trajectory_metadata.get("record_count") or number
            for session, number in zip(finished, traces, strict=True)
        ]
        return {
            "task_id": self.task_id,
            "status": self.status,
            "harness": self.request.agent.harness,
            "model": self.request.agent.model_name,
            "num_samples": len(self.sessions),
            "completed_sessions": len(finished),
            "errored_sessions": sum(session.status in ("ERROR", "TIMEOUT") for session in finished),
            "mean_reward": _mean(rewards),
            "mean_traces": _mean(traces),
            "mean_completions": _mean(counts),
            "created_at": self.created_at,
            "updated_at": self.updated_at,
            "source": "live",
        }

    def session_entries(self) -> list[dict[str, Any]]:
        """Return the entries of ``GET /tasks/{id}/sessions``: finished sessions only."""
        return [
            {
                "session_id": session.session_id,
                "task_id": session.task_id,
                "status": session.status,
                "node_id": session.node_id,
                "reward": session.reward,
                "timing": (session.result or {}).get("timing") or {},
                "error": (session.result or {}).get("error"),
            }
            for session in self.finished
        ]


def _mean(values: list[Any]) -> float | None:
    numbers = [value for value in values if isinstance(value, int | float)]
    return sum(numbers) / len(numbers) if numbers else None


@dataclass
class ServerState:
    """All tasks since the process started, and the counts that tests ask about.

    `history` also holds records that were replaced or forgotten, `runs` counts them by id; both live
    outside the simulated process memory.
    """

    tasks: dict[str, TaskRecord] = field(default_factory=dict)
    tombstones: dict[str, float] = field(default_factory=dict)
    history: list[TaskRecord] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    runs: Counter[str] = field(default_factory=Counter)
    running_sessions: int = 0
    max_running_sessions: int = 0
    max_running_tasks: int = 0

    @property
    def pending_sessions(self) -> int:
        """Sessions that were created and have no result yet."""
        return sum(
            len(record.sessions) - len(record.finished) for record in self.tasks.values() if not record.over
        )

    def add(self, record: TaskRecord) -> None:
        """Put a new record in place of an older one with the same id."""
        self.tasks[record.task_id] = record
        self.history.append(record)
        self.runs[record.task_id] += 1

    def drop_old_results(self, keep: int) -> None:
        """Forget the results of finished tasks but for the latest `keep`, oldest first."""
        finished = [record for record in self.tasks.values() if record.over]
        for record in finished[: max(0, len(finished) - keep)]:
            del self.tasks[record.task_id]
            for session in record.sessions:
                session.result = session.body = None
            record.finished.clear()
            record.extra_bodies.clear()

    def session_started(self) -> None:
        """Count a session that began, for the high-water mark."""
        self.running_sessions += 1
        self.max_running_sessions = max(self.max_running_sessions, self.running_sessions)

    def session_ended(self) -> None:
        """Count a session that ended or was given up."""
        self.running_sessions -= 1

    def forget(self) -> list[TaskRecord]:
        """Drop all tasks, as a process restart does, and return them."""
        lost = list(self.tasks.values())
        for record in lost:
            record.forgotten = True
        self.tasks.clear()
        self.tombstones.clear()
        return lost
