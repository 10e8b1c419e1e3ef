"""The hook's metrics computed again, from dumps where there are any, and every difference listed.

Facts per session come from the samples in the rollout dumps and rejected files (tokens, traces, rewards), and
from the session table for the rest; which groups a rollout's numbers are about, from the journal's order of
events. The aggregation is the bridge's own (`slime_bridge.metrics`), so that a difference is one of facts: a
dump that is not what was counted, a lost record, a reward that changed.

What a metric needs and no file holds (how callbacks arrived, what was queued at one moment) cannot be
recomputed, and says so.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.stats._outcomes import outcomes_of, session_rows_of
from analysis.stats._windows import Window, windows_of
from analysis.stats.columns import Floats, Ints, flags, floats, integers, nullable, sums, texts
from analysis.stats.frames import Frames, as_frames, session_rows
from slime_bridge.conversion.groups import GroupConversion, SessionOutcome
from slime_bridge.evaluation.results import EvalGroupResult, dataset_metrics, overall_metrics
from slime_bridge.metrics import DecisionWindow, GroupFacts, find_metric, rollout_metrics

__all__ = ["Reconciliation", "reconcile"]

_WHY_NOT = (
    ("polar/callbacks/", "how callbacks arrived is counted in memory only"),
    ("polar/scheduler/", "what was where at that moment is not in the journal"),
    ("polar/ledger/submissions", "the journal holds tasks that the server took, not admissions"),
    ("polar/ledger/unaccounted", "it is a check of the worker's own books"),
    ("polar/polled_results", "how results arrived is counted in memory only"),
    ("polar/output_queue_full_waits", "waits for a slot are not in the journal"),
    ("polar/deferred_queue_dequeues", "admissions are not in the journal"),
    ("polar/inactive_features", "what a server lacks is not in the journal"),
    ("polar/outage", "an outage that lasts is counted up to its end only"),
)
_TIMES = {"polar/wait_seconds": 0.5, "polar/decision_window/seconds": 0.5}
_RATES = {"polar/decision_window/groups_per_second": 0.05}
_RELATIVE = 1e-6


@dataclass(frozen=True, eq=False)
class Reconciliation:
    """Emitted against recomputed.

    Attributes
    ----------
    rows
        One row per rollout (or evaluation) and metric of the hook: `run`, `rollout_id`, `evaluation`, `name`,
        `unit`, `emitted`, `recomputed`, `difference`, `status` (``equal``, ``differs``, ``not emitted``: the
        recomputation gives a number and the hook gave none; ``not recomputable``), `why`.
    summary
        One row per status: `status`, `metrics` (different names), `rows`.
    """

    rows: pd.DataFrame
    summary: pd.DataFrame

    @property
    def differences(self) -> pd.DataFrame:
        """The rows that differ."""
        return self.rows[
            self.rows["status"].isin(["differs", "not emitted"]).to_numpy(dtype=bool)
        ].reset_index(drop=True)


def reconcile(run: Any) -> Reconciliation:
    """Recompute every metric that the hook emitted.

    Parameters
    ----------
    run
        A loaded run or a mapping of frames.
    """
    frames = as_frames(run)
    facts = _facts(frames)
    emitted = _emitted(frames)
    rows: list[dict[str, Any]] = []
    for window in windows_of(frames):
        key = (window.run, window.rollout_id, False)
        if key in emitted:
            rows += _compared(key, emitted.pop(key), _rollout_numbers(frames, facts, window))
    for key, values in emitted.items():
        again = _evaluation_numbers(frames, facts, key) if key[2] else None
        rows += _compared(key, values, again)
    types = {
        "run": "string",
        "rollout_id": "Int64",
        "evaluation": "boolean",
        "name": "string",
        "unit": "string",
        "emitted": "Float64",
        "recomputed": "Float64",
        "difference": "Float64",
        "status": "string",
        "why": "string",
    }
    frame = pd.DataFrame(rows, columns=list(types)).astype(types)
    frame = frame.sort_values(["run", "evaluation", "rollout_id"], kind="stable", ignore_index=True)
    return Reconciliation(frame, _summary(frame))


Key = tuple[str | None, int, bool]


def _emitted(frames: Frames) -> dict[Key, dict[str, float]]:
    """Return the hook's metrics by rollout: the journal's record of them, else what was logged."""
    table = frames.metrics
    stream = texts(table, "stream")
    rank = np.where(stream == "journal", 0, np.where(stream == "metrics", 1, 2))
    value, rollout = floats(table, "value"), floats(table, "rollout_id")
    evaluation = flags(table, "evaluation")
    found: dict[Key, dict[str, float]] = {}
    taken: dict[tuple[Key, str], int] = {}
    for place in np.argsort(rank, kind="stable").tolist():
        name = texts_at(table, "name", place)
        if name is None or find_metric(name) is None or np.isnan(value[place]) or np.isnan(rollout[place]):
            continue
        key = (texts_at(table, "run", place), int(rollout[place]), bool(evaluation[place]))
        if taken.setdefault((key, name), int(rank[place])) == rank[place]:
            found.setdefault(key, {})[name] = float(value[place])
    return found


def texts_at(table: pd.DataFrame, name: str, place: int) -> str | None:
    """Return one text of a column, None where it is missing."""
    value = table[name].iat[place]
    return None if pd.isna(value) else str(value)


def _facts(frames: Frames) -> list[SessionOutcome]:
    """Return what became of each session, by its samples where they are dumped."""
    outcomes = outcomes_of(frames)
    traces = frames.traces
    dumped = traces["sample_status"].notna().to_numpy(dtype=bool)
    if not len(outcomes) or not dumped.any():
        return outcomes
    count = len(outcomes)
    owner = np.where(dumped, session_rows(frames.sessions, traces), -1)
    real = ~flags(traces, "placeholder")
    trainable = np.where(flags(traces, "removed"), 0, integers(traces, "trainable_tokens"))
    reward = floats(traces, "reward")
    rated = np.isfinite(reward) & (trainable > 0)
    numbers = {
        "dumped": sums(owner, count),
        "trainable_tokens": sums(owner, count, trainable),
        "response_tokens": sums(owner, count, np.where(real, integers(traces, "response_tokens"), 0)),
        "n_traces": sums(owner, count, real),
        "rated": sums(owner, count, rated),
        "reward": sums(owner, count, np.where(rated, np.nan_to_num(reward), 0.0)),
    }
    clipped = sums(owner, count, flags(traces, "clipped")) > 0
    return [_from_samples(o, place, numbers, bool(clipped[place])) for place, o in enumerate(outcomes)]


def _from_samples(
    outcome: SessionOutcome, place: int, numbers: dict[str, Floats], clipped: bool
) -> SessionOutcome:
    if not numbers["dumped"][place]:
        return outcome
    trainable = int(numbers["trainable_tokens"][place])
    rated = numbers["rated"][place]
    # A clipped response is shorter in the dump than in the server's file, whose length the table has.
    length = outcome.response_tokens if clipped else int(numbers["response_tokens"][place])
    return dataclasses.replace(
        outcome,
        usable=trainable > 0,
        trainable_tokens=trainable,
        response_tokens=length,
        n_traces=int(numbers["n_traces"][place]),
        reward=float(numbers["reward"][place] / rated) if rated else outcome.reward,
    )


def _rollout_numbers(frames: Frames, facts: list[SessionOutcome], window: Window) -> dict[str, float]:
    delivered = _group_facts(frames, facts, window.delivered, None)
    rejected = _group_facts(frames, facts, window.rejected, window.reasons)
    return rollout_metrics(
        delivered=delivered,
        rejected=rejected,
        ledger=window.ledger,
        window=DecisionWindow(window.accepted, len(window.rejected), window.seconds),
        counters=window.counters,
        filter_drops=window.filter_drops,
        wait_seconds=window.wait_seconds,
    )


def _group_facts(
    frames: Frames, facts: list[SessionOutcome], rows: Ints, reasons: Sequence[str] | None
) -> list[GroupFacts]:
    table = frames.groups.iloc[rows]
    members = session_rows_of(frames, table)
    columns = {
        "staleness": floats(table, "staleness"),
        "staleness_in_flight": floats(table, "staleness_in_flight"),
        "staleness_in_queue": floats(table, "staleness_in_queue"),
        "seconds": floats(table, "result_seconds"),
    }
    # Of a group that was cut in flight the hook saw no session, though the server may have kept their files.
    unseen = table["verdict"].isna().to_numpy(dtype=bool) & table["result_at"].isna().to_numpy(dtype=bool)
    result = []
    for place, own in enumerate(members):
        known = {k: None if math.isnan(v[place]) else v[place] for k, v in columns.items()}
        if reasons is not None:
            known = {"seconds": known["seconds"]}
        cut = reasons is not None and unseen[place]
        sessions = [] if cut else [facts[int(row)] for row in own]
        reason = None if reasons is None else reasons[place]
        result.append(GroupFacts(sessions, reason=reason, **known))
    return result


def _evaluation_numbers(frames: Frames, facts: list[SessionOutcome], key: Key) -> dict[str, float] | None:
    table = frames.sessions
    run, rollout = texts(table, "run"), floats(table, "rollout_id")
    same_run = pd.isna(run) if key[0] is None else run == key[0]
    mine = flags(table, "evaluation") & (rollout == key[1]) & same_run
    if not mine.any():
        return None
    cut = _truncated(frames)
    dataset, number = texts(table, "dataset"), integers(table, "group_index", missing=-1)
    position = integers(table, "position")
    order = np.flatnonzero(mine)
    order = order[np.lexsort((position[order], number[order]))]
    metrics: dict[str, float] = {}
    everything: list[EvalGroupResult] = []
    for name in sorted({name for name in dataset[order] if name is not None}):
        rows = [row for row in order if dataset[row] == name]
        groups: dict[int, list[int]] = {}
        for row in rows:
            groups.setdefault(int(number[row]), []).append(int(row))
        results = [EvalGroupResult(GroupConversion([], [facts[r] for r in own])) for own in groups.values()]
        metrics |= dataset_metrics(name, results, [bool(cut[row]) for row in rows])
        everything += results
    return {**metrics, **overall_metrics(everything)}


def _truncated(frames: Frames) -> np.ndarray:
    traces = frames.traces
    owner = session_rows(frames.sessions, traces)
    return sums(owner, len(frames.sessions), texts(traces, "sample_status") == "truncated") > 0


def _compared(key: Key, emitted: dict[str, float], again: dict[str, float] | None) -> list[dict[str, Any]]:
    rows = []
    for name in sorted({*emitted, *(again or {})}):
        metric = find_metric(name)
        mine, theirs = (again or {}).get(name), emitted.get(name)
        status, why = _status(name, theirs, mine, again is not None)
        if status is None:
            continue
        both = mine is not None and theirs is not None
        rows.append(
            {
                "run": key[0],
                "rollout_id": key[1],
                "evaluation": key[2],
                "name": name,
                "unit": metric.unit if metric is not None else None,
                "emitted": theirs,
                "recomputed": mine if status != "not recomputable" else None,
                "difference": mine - theirs if both and status != "not recomputable" else None,  # type: ignore[operator]
                "status": status,
                "why": why,
            }
        )
    return rows


def _status(
    name: str, emitted: float | None, again: float | None, possible: bool
) -> tuple[str | None, str | None]:
    reason = next((why for stem, why in _WHY_NOT if name.startswith(stem)), None)
    if not possible:
        return "not recomputable", "no session or group of it is loaded"
    if reason is not None:
        return ("not recomputable", reason) if emitted is not None else (None, None)
    if again is None:
        return "not recomputable", "the loaded files do not hold what it is computed from"
    if emitted is None:
        # An older bridge does not know newer counts; where nothing was counted nothing is missing.
        return ("not emitted", None) if again else (None, None)
    close = abs(again - emitted) <= _tolerance(name, emitted)
    return ("equal", None) if close else ("differs", None)


def _tolerance(name: str, emitted: float) -> float:
    if name in _TIMES:
        return _TIMES[name]
    return max(_RATES.get(name, _RELATIVE) * abs(emitted), 1e-9)


def _summary(rows: pd.DataFrame) -> pd.DataFrame:
    names = ("equal", "differs", "not emitted", "not recomputable")
    counts = Counter(rows["status"].dropna().tolist())
    different = {name: rows["name"][(rows["status"] == name).fillna(False)].nunique() for name in names}
    return nullable(
        {
            "status": np.array(names, dtype=object),
            "metrics": np.array([different[name] for name in names], dtype=np.int64),
            "rows": np.array([counts[name] for name in names], dtype=np.int64),
        }
    )
