"""Where the time went: sessions by stage and node, the trainer's waiting, and how many sessions ran at once.

Servers report how long each stage of a session took, and the journal when its task was submitted; a session's
stages are laid one after another from there. Times are seconds since the first submission of the run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.stats.columns import Floats, flags, floats, nullable, seconds_since, sums, texts
from analysis.stats.frames import SESSION_IDS, Frames, as_frames, ids_of
from analysis.stats.sessions import fates, session_seconds

__all__ = ["STAGES", "Timing", "timeline", "timing"]

STAGES: dict[str, str] = {
    "dispatch": "rollout_dispatch_ms",
    "queue": "register_to_init_queue_ms",
    "init": "init_ms",
    "ready": "ready_queue_ms",
    "run": "run_ms",
    "postrun_wait": "postrun_queue_ms",
    "postrun": "postrun_ms",
}
"""Stages of a session in order, and the column that says how many milliseconds each took."""

_PERCENTILES = {"median": 50, "p90": 90, "max": 100}


@dataclass(frozen=True, eq=False)
class Timing:
    """Times of a run.

    Attributes
    ----------
    rollouts
        One row per training rollout: `run`, `rollout_id`, `requested`, `delivered` (seconds), `wait_seconds`
        (the trainer waited), `busy_seconds` (until its next call; missing for the last), `step_seconds`
        (since the delivery before), `wait_share` (wait over step).
    stages
        One row per rollout and stage, over training sessions that ran: `run`, `rollout_id`, `stage`,
        `sessions`, `mean`, `median`, `p90`, `max` in seconds.
    nodes
        One row per gateway: `node_id`, `sessions`, `busy_seconds` (at least one session ran), `idle_seconds`
        (between its first and last session, none ran), `idle_share`, `mean_running`, `max_running`.
    running
        One row per change: `at` (seconds), `sessions` that run from then on, over all nodes.
    """

    rollouts: pd.DataFrame
    stages: pd.DataFrame
    nodes: pd.DataFrame
    running: pd.DataFrame


def timing(run: Any) -> Timing:
    """Measure where the time of a run went.

    Parameters
    ----------
    run
        A loaded run or a mapping of frames.
    """
    frames = as_frames(run)
    origin = _origin(frames)
    starts, ends = _intervals(frames, origin)
    return Timing(
        rollouts=_rollouts(frames, origin),
        stages=_stages(frames),
        nodes=_nodes(frames, starts, ends),
        running=_running(starts, ends),
    )


def timeline(run: Any, *, rollouts: tuple[int, int] | None = None) -> pd.DataFrame:
    """Return when each session was in which stage, for a Gantt chart.

    Parameters
    ----------
    run
        A loaded run or a mapping of frames.
    rollouts
        First and last rollout, both included; all by default.

    Returns
    -------
    DataFrame
        One row per session and stage that took time: ids, `node_id`, `stage`, `start`, `end` (seconds),
        `fate` and `status`. Sessions whose submission nobody recorded are left out.
    """
    frames = as_frames(run)
    table = frames.sessions
    origin = _origin(frames)
    begin = seconds_since(table, "submitted_at", origin)
    chosen = ~np.isnan(begin) & flags(table, "finished")
    if rollouts is not None:
        rollout = floats(table, "rollout_id")
        chosen &= (rollout >= rollouts[0]) & (rollout <= rollouts[1])
    fate, status, node = fates(frames), texts(table, "status"), texts(table, "node_id")
    lengths = np.stack([np.nan_to_num(floats(table, name)) / 1000.0 for name in STAGES.values()])
    ends = begin + np.cumsum(lengths, axis=0)
    parts = []
    for place, stage in enumerate(STAGES):
        rows = np.flatnonzero(chosen & (lengths[place] > 0))
        numbers = {
            "node_id": node[rows],
            "stage": np.full(len(rows), stage, dtype=object),
            "start": ends[place, rows] - lengths[place, rows],
            "end": ends[place, rows],
            "fate": fate[rows],
            "status": status[rows],
        }
        ids = ids_of(table.iloc[rows], SESSION_IDS).reset_index(drop=True)
        parts.append(pd.concat([ids, nullable(numbers), pd.DataFrame({"row": rows})], axis=1))
    whole = pd.concat(parts, ignore_index=True)
    return whole.sort_values(["row", "start"], kind="stable", ignore_index=True).drop(columns="row")


def _origin(frames: Frames) -> pd.Timestamp:
    """Return the first moment that the run recorded; the epoch where it recorded none."""
    columns = (
        frames.groups["submitted_at"],
        frames.sessions["submitted_at"],
        frames.rollouts["requested_at"],
    )
    firsts = [pd.to_datetime(column, utc=True).min() for column in columns]
    known = [moment for moment in firsts if not pd.isna(moment)]
    return min(known) if known else pd.Timestamp(0, tz="UTC")


def _intervals(frames: Frames, origin: pd.Timestamp) -> tuple[Floats, Floats]:
    """Return when each session's agent began and ended; NaN where nobody knows."""
    table = frames.sessions
    begin = seconds_since(table, "submitted_at", origin)
    waits = [np.nan_to_num(floats(table, STAGES[name])) for name in ("dispatch", "queue", "init", "ready")]
    start = begin + np.sum(waits, axis=0) / 1000.0
    ran = floats(table, "run_ms") / 1000.0
    ran = np.where(np.isnan(ran), session_seconds(table), ran)
    known = ~np.isnan(begin) & ~np.isnan(ran)
    return np.where(known, start, np.nan), np.where(known, start + ran, np.nan)


def _rollouts(frames: Frames, origin: pd.Timestamp) -> pd.DataFrame:
    table = frames.rollouts[~flags(frames.rollouts, "evaluation")]
    table = table.sort_values(["run", "rollout_id"], kind="stable").reset_index(drop=True)
    requested = seconds_since(table, "requested_at", origin)
    delivered = seconds_since(table, "delivered_at", origin)
    same = texts(table, "run")[1:] == texts(table, "run")[:-1]
    busy, step = np.full(len(table), np.nan), delivered - requested
    if len(table) > 1:
        busy[:-1] = np.where(same, requested[1:] - delivered[:-1], np.nan)
        step[1:] = np.where(same, delivered[1:] - delivered[:-1], step[1:])
    wait = delivered - requested
    numbers = nullable(
        {
            "requested": requested,
            "delivered": delivered,
            "wait_seconds": wait,
            "busy_seconds": busy,
            "step_seconds": step,
            "wait_share": np.divide(wait, step, out=np.full(len(table), np.nan), where=step > 0),
        }
    )
    return pd.concat([table[["run", "rollout_id"]], numbers], axis=1)


def _stages(frames: Frames) -> pd.DataFrame:
    table = frames.sessions[~flags(frames.sessions, "evaluation")]
    lengths = {stage: floats(table, name) / 1000.0 for stage, name in STAGES.items()}
    # Servers write zeros for sessions that they only wrote off.
    ran = np.nansum(np.stack(list(lengths.values())), axis=0) > 0
    keys = table[["run", "rollout_id"]][ran].drop_duplicates().dropna(subset=["rollout_id"])
    keys = keys.sort_values(["run", "rollout_id"], kind="stable")
    run, rollout = texts(table, "run"), floats(table, "rollout_id")
    rows: list[dict[str, Any]] = []
    for name, number in zip(texts(keys, "run"), floats(keys, "rollout_id"), strict=True):
        mine = ran & (rollout == number) & ((run == name) if name is not None else pd.isna(run))
        for stage, values in lengths.items():
            own = values[mine & ~np.isnan(values)]
            if not len(own):
                continue
            marks = dict(
                zip(_PERCENTILES, np.percentile(own, list(_PERCENTILES.values())).tolist(), strict=True)
            )
            row = {"run": name, "rollout_id": int(number), "stage": stage, "sessions": len(own)}
            rows.append({**row, "mean": float(own.mean()), **marks})
    types = {"run": "string", "rollout_id": "Int64", "stage": "string", "sessions": "Int64"}
    types |= dict.fromkeys(("mean", *_PERCENTILES), "Float64")
    return pd.DataFrame(rows, columns=list(types)).astype(types)


def _nodes(frames: Frames, starts: Floats, ends: Floats) -> pd.DataFrame:
    node = texts(frames.sessions, "node_id")
    names = sorted({name for name in node if name is not None})
    rows = []
    for name in names:
        mine = (node == name) & ~np.isnan(starts)
        changes = _running(starts[mine], ends[mine])
        at, running = floats(changes, "at"), floats(changes, "sessions")
        lasted = np.diff(at) if len(at) else np.zeros(0)
        busy = float(lasted[running[:-1] > 0].sum()) if len(lasted) else 0.0
        span = float(lasted.sum())
        mean = float((running[:-1] * lasted).sum()) / span if span > 0 else np.nan
        idle = (span - busy) / span if span > 0 else np.nan
        top = float(running.max(initial=0))
        rows.append((int((node == name).sum()), busy, span - busy, idle, mean, top))
    columns = np.array(rows, dtype=np.float64).T if rows else np.zeros((6, 0))
    return nullable(
        {
            "node_id": np.array(names, dtype=object),
            "sessions": columns[0].astype(np.int64),
            "busy_seconds": columns[1],
            "idle_seconds": columns[2],
            "idle_share": columns[3],
            "mean_running": columns[4],
            "max_running": columns[5].astype(np.int64),
        }
    )


def _running(starts: Floats, ends: Floats) -> pd.DataFrame:
    """Return how many intervals are open after each moment at which one begins or ends."""
    known = ~np.isnan(starts) & ~np.isnan(ends)
    moments = np.concatenate([starts[known], ends[known]])
    steps = np.concatenate([np.ones(int(known.sum())), -np.ones(int(known.sum()))])
    at, inverse = np.unique(moments, return_inverse=True)
    change = sums(inverse.reshape(-1).astype(np.int64), len(at), steps)
    return nullable({"at": at, "sessions": np.rint(np.cumsum(change)).astype(np.int64)})
