"""The life of one prompt group as a journal tells it: its row, and the rows of its sessions.

Takes records one by one. Knows nothing of files, openings or other groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from analysis.sources.group_cells import number_cells
from analysis.sources.session_cells import timing_cells
from analysis.sources.values import boolean, integer, json_text, mapping, number, text

__all__ = ["GroupLife"]

_ENDS = {
    "group_delivered": "delivered",
    "group_rejected": "rejected",
    "group_returned": "returned",
    "group_abandoned": "abandoned",
    "group_given_up": "given_up",
}
_FACTS = ("group_index", "policy_version", "rollout_step")
_MALFORMED = "a record has no usable sessions"
_ALTERING = ("dropped_traces", "clipped_traces", "masked_tokens")


class _Task:
    """One submitted task."""

    __slots__ = ("attempt", "done", "flight", "submitted_at")

    def __init__(
        self, attempt: int | None, flight: int, submitted_at: int | None, done: bool = False
    ) -> None:
        self.attempt = attempt
        self.flight = flight
        self.submitted_at = submitted_at
        self.done = done


class GroupLife:
    """What the records of one group add up to."""

    def __init__(self) -> None:
        self.touched = False
        self._row: dict[str, Any] = {}
        self._indices: list[int | None] = []
        self._tasks: dict[str, _Task] = {}
        self._flight = 0
        self._sessions: list[dict[str, Any]] = []
        self._counts = {"attempts": 0, "requeues": 0}

    @classmethod
    def resumed(cls, facts: Mapping[str, Any]) -> GroupLife:
        """Go on with a group that earlier records told of; `facts` as `facts()` gave them."""
        life = cls()
        life._row = {name: facts[name] for name in _FACTS if name in facts}
        life._indices = list(facts.get("indices", ()))
        life._flight = facts.get("flight", 0)
        life._tasks = {task_id: _Task(*task) for task_id, task in facts.get("tasks", {}).items()}
        return life

    def facts(self) -> dict[str, Any]:
        """Return what later records of the group will refer to, as plain values."""
        return {
            **{name: self._row[name] for name in _FACTS if name in self._row},
            "indices": tuple(self._indices),
            "flight": self._flight,
            "tasks": {
                task_id: (task.attempt, task.flight, task.submitted_at)
                for task_id, task in self._tasks.items()
                if not task.done
            },
        }

    @property
    def group_index(self) -> int | None:
        """Slime's number of the group."""
        index: int | None = self._row.get("group_index")
        return index

    @property
    def is_open(self) -> bool:
        """Whether no record has ended it yet."""
        return "state" not in self._row

    def take(
        self, event: str, record: Mapping[str, Any], at: int | None, rollout_id: int | None, limit: int
    ) -> str | None:
        """Take one record of the group.

        Parameters
        ----------
        event, record, at
            Its name, itself, and its time in microseconds.
        rollout_id
            The rollout that was being collected.
        limit
            Longest text to keep, in characters.

        Returns
        -------
        str or None
            What is wrong with the record, if anything.
        """
        self.touched = True
        if event == "group_drawn":
            self._drawn(record, at, limit)
        elif event == "task_submitted":
            self._submitted(record, at)
        elif event == "task_result":
            return self._result(record, at, limit)
        elif event == "verdict":
            accepted = boolean(record.get("accepted"))
            verdict = None if accepted is None else ("accepted" if accepted else "rejected")
            self._judged(record, limit, verdict=verdict, judged_at=at)
        elif event == "group_requeued":
            self._counts["requeues"] += 1
            self._flight += 1
            self._set(
                requeue_reason=text(record.get("reason"), limit), last_error=text(record.get("detail"), limit)
            )
        elif event in _ENDS:
            self._ended(event, record, at, rollout_id, limit)
        return None

    def row(self) -> dict[str, Any]:
        """Return the group's row, without worker and number."""
        row = {**self._row, **self._counts}
        row["attempted"] = bool(self._tasks)
        if row.get("rollout_id") is None:
            row["rollout_id"] = row.get("rollout_step")
        if not self.is_open:
            row["accepted"] = row["state"] == "delivered"
        return row

    def session_rows(self) -> list[dict[str, Any]]:
        """Return one row per session: with its result, or as submitted and never heard of again."""
        shared = {name: self._row.get(name) for name in ("group_index", "rollout_step", "staleness")}
        shared["rollout_id"] = self.row()["rollout_id"]
        rows = [{**shared, **session} for session in self._sessions]
        for task_id, task in self._tasks.items():
            if not task.done:
                rows.extend({**shared, **session} for session in self._lost(task_id, task))
        return rows

    def _set(self, **cells: Any) -> None:
        self._row.update({name: value for name, value in cells.items() if value is not None})

    def _drawn(self, record: Mapping[str, Any], at: int | None, limit: int) -> None:
        indices = record.get("sample_indices")
        self._indices = [integer(index) for index in indices] if isinstance(indices, list) else []
        self._set(
            group_index=integer(record.get("group_index")),
            prompt_sha256=text(record.get("prompt_sha256")),
            prompt_preview=text(record.get("prompt_preview"), limit),
            drawn_at=at,
            expected_sessions=len(self._indices) or None,
        )

    def _submitted(self, record: Mapping[str, Any], at: int | None) -> None:
        self._counts["attempts"] += 1
        if (task_id := text(record.get("task_id"))) is not None:
            self._tasks[task_id] = _Task(integer(record.get("attempt")), self._flight, at)
        self._row.setdefault("submitted_at", at)
        self._set(
            policy_version=integer(record.get("policy_version")),
            rollout_step=integer(record.get("rollout_id")),
        )

    def _result(self, record: Mapping[str, Any], at: int | None, limit: int) -> str | None:
        task_id = text(record.get("task_id"))
        task = self._tasks.get(task_id or "")
        if task is None and task_id is not None:
            task = self._tasks[task_id] = _Task(integer(record.get("attempt")), self._flight, None)
        if task is not None:
            task.done = True
        self._set(via=text(record.get("via")), result_seconds=number(record.get("seconds")), result_at=at)
        sessions = record.get("sessions")
        if not isinstance(sessions, list):
            return _MALFORMED
        known = [session for session in sessions if isinstance(session, Mapping)]
        for session in known:
            self._sessions.append(self._session(session, task_id, task, record, at, limit))
        return None if len(known) == len(sessions) else _MALFORMED

    def _session(
        self,
        session: Mapping[str, Any],
        task_id: str | None,
        task: _Task | None,
        record: Mapping[str, Any],
        at: int | None,
        limit: int,
    ) -> dict[str, Any]:
        position = integer(session.get("position"))
        status = text(session.get("status")) or None
        return {
            **timing_cells(session.get("timing"), limit),
            **self._identity(task_id, position),
            **_versions(session.get("weight_versions")),
            "attempt": integer(record.get("attempt")),
            "session_id": text(session.get("session_id")),
            "node_id": text(session.get("node_id")),
            "attempted": True,
            "finished": status is not None,
            "status": status,
            "completed": boolean(session.get("completed")) if status is not None else None,
            "early_stopped": boolean(session.get("early_stopped")),
            "usable": boolean(session.get("usable")),
            "reason": text(session.get("reason")),
            "detail": text(session.get("detail"), limit),
            "reward": number(session.get("reward")),
            "policy_version": integer(session.get("policy_version")),
            "kept_traces": integer(session.get("n_traces")),
            "dropped_traces": integer(session.get("dropped_traces")),
            "dropped_tokens": integer(session.get("dropped_tokens")),
            "clipped_traces": integer(session.get("clipped_traces")),
            "altered": any(integer(session.get(name)) for name in _ALTERING),
            "aborted_masked_tokens": integer(session.get("masked_tokens")),
            "missing_rewards": integer(session.get("missing_rewards")),
            "trainable_tokens": integer(session.get("trainable_tokens")),
            "submitted_at": None if task is None else task.submitted_at,
            "result_at": at,
        }

    def _lost(self, task_id: str, task: _Task) -> list[dict[str, Any]]:
        """Return rows for a task without a result: one per session of the group, or one of several tasks'."""
        siblings = [
            name
            for name, other in self._tasks.items()
            if (other.flight, other.attempt) == (task.flight, task.attempt)
        ]
        expected = len(self._indices) or 1
        positions: Sequence[int] = range(expected) if len(siblings) == 1 else (siblings.index(task_id),)
        return [
            {
                **self._identity(task_id, position),
                "attempt": task.attempt,
                "attempted": True,
                "finished": False,
                "policy_version": self._row.get("policy_version"),
                "submitted_at": task.submitted_at,
            }
            for position in positions
        ]

    def _identity(self, task_id: str | None, position: int | None) -> dict[str, Any]:
        known = position is not None and 0 <= position < len(self._indices)
        return {
            "task_id": task_id,
            "position": position,
            "trajectory": self._indices[position] if known and position is not None else None,
        }

    def _judged(self, record: Mapping[str, Any], limit: int, **cells: Any) -> None:
        numbers = mapping(record.get("numbers"))
        self._set(
            **cells,
            reject_reason=text(record.get("reason")),
            verdict_numbers=json_text(numbers, limit),
            **number_cells(numbers),
        )

    def _ended(
        self, event: str, record: Mapping[str, Any], at: int | None, rollout_id: int | None, limit: int
    ) -> None:
        state = _ENDS[event]
        own = integer(record.get("rollout_id"))
        self._set(state=state, ended_at=at, rollout_id=rollout_id if own is None else own)
        if state == "rejected":
            self._judged(record, limit)
        elif state == "given_up":
            self._set(last_error=text(record.get("last_error"), limit))
        elif state == "delivered":
            self._set(
                **{
                    name: integer(record.get(name))
                    for name in ("policy_version", "staleness", "staleness_in_flight", "staleness_in_queue")
                }
            )


def _versions(value: Any) -> dict[str, Any]:
    if not isinstance(value, list) or len(value) != 2:
        return {}
    return {"weight_version_oldest": text(value[0]), "weight_version_newest": text(value[1])}
