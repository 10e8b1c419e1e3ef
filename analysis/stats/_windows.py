"""What happened between two rollouts, from the order of the journal's records.

A rollout's metrics are about the groups that it delivered and about everything since the rollout before. The
journal writes a summary after each delivery; the records between two summaries of one worker are one window.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from analysis.stats.columns import Ints, floats, integers, json_cells, seconds_since, texts
from analysis.stats.frames import Frames

__all__ = ["Window", "windows_of"]

_ENDS = {
    "group_delivered": "delivered",
    "group_rejected": "rejected",
    "group_returned": "returned",
    "group_abandoned": "abandoned",
    "group_given_up": "given_up",
}
_COUNTED = {
    "task_submitted": "submitted_tasks",
    "group_requeued": "requeued_groups",
    "group_given_up": "given_up_groups",
    "group_returned": "returned_groups",
    "group_abandoned": "abandoned_groups",
}


@dataclass(eq=False)
class Window:
    """One rollout and what was judged before it.

    Parameters
    ----------
    run, worker, rollout_id
        Which.
    delivered, rejected
        Rows of the table of groups.
    reasons
        Why, per rejected group.
    accepted
        Groups judged good enough.
    seconds
        Length of the window; NaN for a worker's first.
    counters
        Further counts by metric name without ``polar/``.
    filter_drops
        Groups dropped by the trainer's filter, by its reason.
    ledger
        Groups by final state since the worker started, and drawn.
    wait_seconds
        From the call to the delivery; NaN where nobody knows.
    """

    run: str | None
    worker: str | None
    rollout_id: int
    delivered: Ints
    rejected: Ints
    reasons: list[str]
    accepted: int
    seconds: float
    counters: dict[str, float]
    filter_drops: dict[str, int]
    ledger: dict[str, Any]
    wait_seconds: float


@dataclass(eq=False)
class _Open:
    """The window being read, and the worker's totals."""

    rejected: list[tuple[int, str]] = field(default_factory=list)
    delivered: list[int] = field(default_factory=list)
    accepted: int = 0
    counters: Counter[str] = field(default_factory=Counter)
    filter_drops: Counter[str] = field(default_factory=Counter)
    totals: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    given_up: int = 0
    dropped: float = 0.0
    closed_at: float = math.nan
    delivered_at: float = math.nan
    requested_at: float = math.nan
    waiting: list[tuple[str | None, int, str | None, float, Mapping[str, Any]]] = field(default_factory=list)

    def catch_up(self) -> None:
        """Enter what was written since the last delivery."""
        waiting, self.waiting = self.waiting, []
        for record in waiting:
            _enter(self, *record)

    def clear(self, now: float) -> None:
        """Begin the next window."""
        self.rejected, self.delivered, self.accepted = [], [], 0
        self.counters, self.filter_drops, self.closed_at = Counter(), Counter(), now


def windows_of(frames: Frames) -> list[Window]:
    """Return the windows of all workers, in the order of the journal."""
    events = frames.events[(frames.events["kind"] == "journal").fillna(False).to_numpy(dtype=bool)]
    if events.empty:
        return []
    places = _places(frames.groups)
    columns = zip(
        texts(events, "run"),
        texts(events, "worker"),
        texts(events, "event"),
        floats(events, "group"),
        floats(events, "rollout_id"),
        texts(events, "reason"),
        seconds_since(events, "at"),
        json_cells(events, "data"),
        strict=True,
    )
    rows = list(columns)
    seq = integers(events, "seq")
    worker = pd.factorize(pd.MultiIndex.from_arrays([texts(events, "run"), texts(events, "worker")]))[0]
    windows: list[Window] = []
    state: dict[tuple[str | None, str | None], _Open] = {}
    for place in np.lexsort((seq, worker)).tolist():
        run, life, event, group, rollout, reason, at, data = rows[place]
        opened = state.setdefault((run, life), _Open())
        row = places.get((run, life, None if math.isnan(group) else int(group)), -1)
        if event == "rollout_summary":
            windows.append(_closed(run, life, int(rollout), opened))
            opened.clear(opened.delivered_at)
            opened.catch_up()
            continue
        # The window closes with the delivery; its summary is written a moment later.
        if event == "group_delivered":
            opened.catch_up()
            _enter(opened, event, row, reason, at, data)
        else:
            opened.waiting.append((event, row, reason, at, data))
    return windows


def _places(groups: pd.DataFrame) -> dict[tuple[Any, Any, Any], int]:
    numbers = floats(groups, "group")
    keys = zip(texts(groups, "run"), texts(groups, "worker"), numbers, strict=True)
    return {(r, w, int(n)): place for place, (r, w, n) in enumerate(keys) if not math.isnan(n)}


def _enter(
    opened: _Open, event: str | None, row: int, reason: str | None, at: float, data: Mapping[str, Any]
) -> None:
    """Enter one record."""
    if event in _COUNTED:
        opened.counters[_COUNTED[event]] += 1
    if event == "group_drawn":
        opened.totals["drawn"] += 1
    elif event == "rollout_requested":
        opened.requested_at = at
    elif event == "verdict":
        opened.accepted += bool(data.get("accepted"))
    elif event == "records_dropped":
        opened.dropped += data.get("count") or 0
    if event not in _ENDS:
        return
    opened.totals[_ENDS[event]] += 1
    if event == "group_delivered":
        opened.delivered.append(row)
        opened.delivered_at = at
    elif event == "group_rejected":
        opened.rejected.append((row, reason or "unspecified"))
        opened.reasons[reason or "unspecified"] += 1
        numbers = data.get("numbers")
        said = numbers.get("filter_reason") if isinstance(numbers, Mapping) else None
        if said:
            opened.filter_drops[str(said)] += 1


def _closed(run: str | None, worker: str | None, rollout: int, opened: _Open) -> Window:
    totals = opened.totals
    ended = sum(totals[name] for name in _ENDS.values())
    known = [(row, reason) for row, reason in opened.rejected if row >= 0]
    ledger = {
        "drawn": totals["drawn"],
        **{name: totals[name] for name in _ENDS.values()},
        "queued": totals["drawn"] - ended,
    }
    return Window(
        run=run,
        worker=worker,
        rollout_id=rollout,
        delivered=np.array([row for row in opened.delivered if row >= 0], dtype=np.int64),
        rejected=np.array([row for row, _ in known], dtype=np.int64),
        reasons=[reason for _, reason in known],
        accepted=opened.accepted,
        seconds=opened.delivered_at - opened.closed_at,
        counters={**opened.counters, "journal_dropped_records": opened.dropped},
        filter_drops=dict(opened.filter_drops),
        ledger=ledger,
        wait_seconds=opened.delivered_at - opened.requested_at,
    )
