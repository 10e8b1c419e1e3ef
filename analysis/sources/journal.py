"""Reads the bridge's journal: every record as an event, and the life of every group and session in one row.

A file may hold several openings, one per start of the bridge; group numbers start again in each, so rows
carry the opening as their worker. Reading can go on where an earlier reading stopped: rows are partial then,
and rows of the same group are combined as `Column.combine` says.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any

from analysis.sources.base import Position, ReadOptions, Sink, SourceFile
from analysis.sources.journal_groups import GroupLife
from analysis.sources.metric_rows import MetricsOf, add_metrics
from analysis.sources.records import objects_of
from analysis.sources.values import integer, json_text, mapping, moment, text
from slime_bridge.journal.schema import SCHEMA_VERSION

__all__ = ["collect"]

_ENVELOPE = frozenset({"v", "seq", "ts", "event"})
_COLUMNS = frozenset({"group", "rollout_id", "task_id", "attempt", "reason", "sessions", "metrics"})


def collect(file: SourceFile, sink: Sink, options: ReadOptions) -> None:
    """Add the records of one journal to the sink; see `analysis.sources.registry.Reader`."""
    reader = _Reader(file, sink, options)
    for line, record in objects_of(file, sink, options):
        version = integer(record.get("v"))
        if version is None:
            sink.tally("a line is no journal record", f"line {line.number:,}: the field v is missing")
        elif version > SCHEMA_VERSION:
            sink.tally(
                "written by a newer version",
                f"line {line.number:,}: schema {version}, known up to {SCHEMA_VERSION}",
                "update this package",
            )
        else:
            reader.take(record)
    reader.finish()


class _Reader:
    """Follows one journal."""

    def __init__(self, file: SourceFile, sink: Sink, options: ReadOptions) -> None:
        since = file.since or Position()
        self._path = file.path
        self._sink = sink
        self._limit = options.max_text
        self._stem = os.path.basename(file.path).removesuffix(".jsonl")
        self._opening = since.opening
        self._rollout_id = since.rollout_id
        self._groups = {number: GroupLife.resumed(facts) for number, facts in since.groups.items()}
        self._handlers: Mapping[str, Callable[[Mapping[str, Any], int | None], None]] = {
            "journal_opened": self._opened,
            "rollout_requested": self._requested,
            "rollout_summary": self._summary,
            "evaluation_summary": self._summary,
        }

    @property
    def _worker(self) -> str:
        return f"{self._stem}#{self._opening}"

    def take(self, record: Mapping[str, Any]) -> None:
        """Take one record."""
        event, at = text(record.get("event")) or "", moment(record.get("ts"))
        if event in self._handlers:
            self._handlers[event](record, at)
        number = integer(record.get("group"))
        life = None
        if number is not None:
            life = self._groups.setdefault(number, GroupLife())
            wrong = life.take(event, record, at, self._rollout_id, self._limit)
            if wrong is not None:
                self._sink.tally(wrong, f"a {event} record of group {number}")
        self._sink.add("event", self._event(event, record, at, number, life))

    def finish(self) -> None:
        """Add the rows of all groups, and note where to go on."""
        self._flush()
        position = self._sink.positions[self._path]
        open_groups = {number: life.facts() for number, life in self._groups.items() if life.is_open}
        self._sink.positions[self._path] = dataclasses.replace(
            position, opening=self._opening, rollout_id=self._rollout_id, groups=open_groups
        )

    def _opened(self, record: Mapping[str, Any], at: int | None) -> None:
        self._flush()
        self._groups.clear()
        self._opening += 1
        self._rollout_id = None

    def _requested(self, record: Mapping[str, Any], at: int | None) -> None:
        self._rollout_id = integer(record.get("rollout_id"))
        if self._rollout_id is not None:
            self._sink.add(
                "rollout",
                {
                    "rollout_id": self._rollout_id,
                    "evaluation": False,
                    "requested_at": at,
                    "wanted_groups": integer(record.get("wanted")),
                },
            )

    def _summary(self, record: Mapping[str, Any], at: int | None) -> None:
        rollout_id, evaluation = integer(record.get("rollout_id")), record["event"] == "evaluation_summary"
        if rollout_id is not None:
            self._sink.add(
                "rollout", {"rollout_id": rollout_id, "evaluation": evaluation, "delivered_at": at}
            )
        add_metrics(
            self._sink,
            self._path,
            mapping(record.get("metrics")),
            self._limit,
            MetricsOf(rollout_id, evaluation, "journal", integer(record.get("seq")), at),
        )

    def _event(
        self,
        event: str,
        record: Mapping[str, Any],
        at: int | None,
        number: int | None,
        life: GroupLife | None,
    ) -> dict[str, Any]:
        rollout_id = integer(record.get("rollout_id"))
        known = _ENVELOPE | (_COLUMNS if life is not None else _COLUMNS - {"sessions"})
        rest = {name: value for name, value in record.items() if name not in known}
        return {
            "rollout_id": self._rollout_id if rollout_id is None else rollout_id,
            "evaluation": event == "evaluation_summary",
            "worker": self._worker,
            "group": number,
            "group_index": None if life is None else life.group_index,
            "task_id": text(record.get("task_id")),
            "attempt": integer(record.get("attempt")),
            "seq": integer(record.get("seq")),
            "at": at,
            "kind": "journal",
            "event": event,
            "reason": text(record.get("reason"), self._limit),
            "data": json_text(rest, self._limit),
        }

    def _flush(self) -> None:
        for number, life in self._groups.items():
            if not life.touched:
                continue
            self._sink.add(
                "group", {**life.row(), "evaluation": False, "worker": self._worker, "group": number}
            )
            for row in life.session_rows():
                self._sink.add(
                    "session", {**row, "evaluation": False, "worker": self._worker, "group": number}
                )
