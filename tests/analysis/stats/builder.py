"""Small runs with planted facts, as the frames that loading would give: one call per group, answers known."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import numpy as np
import pandas as pd

from analysis.schema import columns_of, empty_frame
from analysis.stats.token_tables import TokenTable

START = pd.Timestamp("2026-01-01", tz="UTC")


def frame(grain: str, rows: list[dict[str, Any]]) -> pd.DataFrame:
    """A table with all declared columns and dtypes from rows that name some of them."""
    if not rows:
        return empty_frame(grain)
    declared = {c.name: c.dtype for c in columns_of(grain)}
    unknown = set().union(*rows) - set(declared)
    assert not unknown, f"not in the {grain} table: {sorted(unknown)}"
    columns = {}
    for name, dtype in declared.items():
        values = [row.get(name) for row in rows]
        values = [None if isinstance(v, float) and math.isnan(v) else v for v in values]
        columns[name] = (
            pd.to_datetime(pd.Series(values, dtype=object), utc=True).astype("datetime64[us, UTC]")
            if dtype.startswith("datetime")
            else pd.Series(values, dtype=object).astype(dtype)
        )
    return pd.DataFrame(columns)


class RunBuilder:
    """Collects groups with their sessions and traces; `frames` gives the mapping."""

    def __init__(self, run: str = "run", **config: Any) -> None:
        self.run = run
        self.worker = "journal.jsonl#0"
        self.rows: dict[str, list[dict[str, Any]]] = {
            grain: [] for grain in ("rollout", "group", "session", "trace", "event", "metric", "completion")
        }
        self.token_rows: list[int] = []
        self.token_lists: dict[str, list[Any]] = {}
        self._groups = itertools.count()
        self._seq = itertools.count()
        if config:
            self.event("journal_opened", 0.0, versions={}, config=config, pid=1)

    def event(self, event: str, at: float, **data: Any) -> None:
        """One record of the journal."""
        known = {
            k: data.pop(k)
            for k in ("rollout_id", "group", "group_index", "task_id", "attempt", "reason")
            if k in data
        }
        self.rows["event"].append(
            {
                "run": self.run,
                "worker": self.worker,
                "evaluation": False,
                "seq": next(self._seq),
                "at": START + pd.Timedelta(seconds=at),
                "kind": "journal",
                "event": event,
                "data": json.dumps(data),
                "path": "journal.jsonl",
                **known,
            }
        )

    def group(
        self,
        rewards: list[float | None],
        *,
        rollout_id: int | None = 0,
        accepted: bool | None = True,
        reject_reason: str | None = None,
        tokens: int = 10,
        staleness: int | None = 0,
        in_queue: int = 0,
        prompt: str = "p",
        sessions: list[dict[str, Any]] | None = None,
        **extra: Any,
    ) -> int:
        """A group with one session per reward; `sessions` overrides fields of each. Returns its number."""
        number = next(self._groups)
        base = {
            "run": self.run,
            "rollout_id": rollout_id,
            "evaluation": False,
            "worker": self.worker,
            "group": number,
            "group_index": number,
            "accepted": accepted,
        }
        state = None if accepted is None else "delivered" if accepted else "rejected"
        self.rows["group"].append(
            {
                **base,
                "attempted": True,
                "state": state,
                "verdict": {True: "accepted", False: "rejected", None: None}[accepted],
                "reject_reason": reject_reason,
                "prompt_sha256": f"sha-{prompt}",
                "prompt_preview": prompt,
                "expected_sessions": len(rewards),
                "attempts": 1,
                "staleness": staleness if accepted else None,
                "staleness_in_queue": in_queue if accepted else None,
                "staleness_in_flight": None if staleness is None or not accepted else staleness - in_queue,
                "policy_version": None if staleness is None or rollout_id is None else rollout_id - staleness,
                **extra,
            }
        )
        for position, reward in enumerate(rewards):
            own = dict((sessions or [{}] * len(rewards))[position])
            self._session(
                base, number, position, reward, tokens, state, reject_reason, staleness, own, len(rewards)
            )
        return number

    def _session(
        self,
        base: dict,
        number: int,
        position: int,
        reward: float | None,
        tokens: int,
        state: str | None,
        reject_reason: str | None,
        staleness: int | None,
        own: dict,
        size: int,
    ) -> None:
        ids = {
            **base,
            "task_id": f"task-{number}",
            "attempt": 1,
            "trajectory": 100 * number + position,
            "position": position,
            "session_id": own.pop("session_id", f"s-{number}-{position}"),
        }
        traces = own.pop("traces", None)
        usable = own.get("usable", own.get("completed", True))
        session = {
            **ids,
            "attempted": True,
            "finished": True,
            "status": "COMPLETED",
            "completed": True,
            "usable": usable,
            "early_stopped": False,
            "reward": reward,
            "group_state": state,
            "reject_reason": reject_reason,
            "policy_version": None
            if staleness is None or base["rollout_id"] is None
            else base["rollout_id"] - staleness,
            "staleness": staleness if base["accepted"] else None,
            "traces": 1,
            "kept_traces": 1 if usable else 0,
            "dropped_traces": 0,
            "prompt_tokens": 5,
            "response_tokens": tokens,
            "trainable_tokens": tokens if usable else 0,
            "missing_rewards": 0,
            **own,
        }
        self.rows["session"].append(session)
        if traces is None:
            traces = [{}]
        for index, trace in enumerate(traces):
            self._trace(ids, index, reward, tokens, usable, dict(trace))

    def _trace(
        self, ids: dict, index: int, reward: float | None, tokens: int, usable: bool, own: dict
    ) -> None:
        lists = own.pop("lists", None)
        row = {
            **ids,
            "trace_index": index if usable else -1,
            "sample_index": ids["trajectory"],
            "sample_position": len(self.rows["trace"]),
            "placeholder": not usable,
            "sample_status": "completed" if usable else "aborted",
            "removed": not usable,
            "reward": reward if usable else None,
            "prompt_tokens": 5 if usable else 1,
            "response_tokens": tokens if usable else 0,
            "sampled_tokens": tokens if usable else 0,
            "trainable_tokens": tokens if usable else 0,
            "finish_reason": "stop",
            **own,
        }
        if lists is not None:
            self.token_rows.append(len(self.rows["trace"]))
            for name, values in lists.items():
                self.token_lists.setdefault(name, []).append(values)
        self.rows["trace"].append(row)

    def rollout(self, rollout_id: int, **extra: Any) -> None:
        """One rollout."""
        self.rows["rollout"].append({"run": self.run, "rollout_id": rollout_id, "evaluation": False, **extra})

    def tables(self) -> dict[str, Any]:
        """The mapping of frames, with the token arrays where any trace has them."""
        tables: dict[str, Any] = {grain: frame(grain, rows) for grain, rows in self.rows.items()}
        if self.token_rows:
            tables["tokens"] = TokenTable.of_lists(self.token_rows, **self.token_lists)
        return tables


def untouched(tables: dict[str, Any]) -> dict[str, Any]:
    """Copies to compare with afterwards."""
    return {name: table.copy(deep=True) for name, table in tables.items() if isinstance(table, pd.DataFrame)}


def same(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Assert that no frame was changed."""
    for name, table in before.items():
        pd.testing.assert_frame_equal(table, after[name])


def run_of_rewards(rewards: np.ndarray, *, groups_per_rollout: int = 16, **options: Any) -> dict[str, Any]:
    """A run of one group per row of an array; faster than the builder for large simulations."""
    groups, size = rewards.shape
    group = np.repeat(np.arange(groups), size)
    n = groups * size
    traces = empty_frame("trace").reindex(range(n))
    traces["run"] = "run"
    traces["rollout_id"] = pd.array(group // groups_per_rollout, dtype="Int64")
    traces["evaluation"] = pd.array(np.zeros(n, bool))
    traces["worker"] = "w"
    for name in ("group", "group_index"):
        traces[name] = pd.array(group, dtype="Int64")
    for name in ("trajectory", "sample_index"):
        traces[name] = pd.array(np.arange(n), dtype="Int64")
    traces["position"] = pd.array(np.tile(np.arange(size), groups), dtype="Int64")
    traces["session_id"] = pd.array([f"s{i}" for i in range(n)], dtype="string")
    traces["trace_index"] = pd.array(np.zeros(n, int), dtype="Int64")
    traces["accepted"] = pd.array(np.ones(n, bool))
    traces["sample_status"] = "completed"
    traces["reward"] = pd.array(rewards.reshape(-1), dtype="Float64")
    for name in ("response_tokens", "trainable_tokens", "sampled_tokens"):
        traces[name] = pd.array(np.full(n, options.get("tokens", 10)), dtype="Int64")
    return {"trace": traces}
