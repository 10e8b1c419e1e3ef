"""What several statistics ask of sessions: which attempt counted, what became of each, what it cost."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.stats.columns import (
    Bools,
    Floats,
    codes,
    first_known,
    flags,
    floats,
    integers,
    known,
    only,
    texts,
)
from analysis.stats.frames import Frames, group_codes, group_rows

__all__ = ["FATES", "STAGES", "fates", "last_stage", "session_seconds", "used_attempt"]

FATES = (
    "trained",
    "unusable",
    "rejected",
    "superseded",
    "given_up",
    "returned",
    "abandoned",
    "unfinished",
    "evaluation",
)
"""What becomes of a session; each has exactly one.

trained
    In a delivered group, with something to train on.
unusable
    In a delivered group, without.
rejected
    In a group that was rejected.
superseded
    Of an attempt that another one took the place of.
given_up, returned, abandoned
    In a group that ended so.
unfinished
    In a group whose end nobody wrote down.
evaluation
    Of an evaluation.
"""

STAGES = ("submitted", "queue", "init", "run", "postrun", "completed")
"""How far a session came; ``submitted`` if there is no result of it."""

_BASE_STAGES = ("register_to_init_queue_ms", "init_ms", "run_ms", "postrun_ms")
_STATES = {"delivered", "rejected", "given_up", "returned", "abandoned"}


def used_attempt(frames: Frames) -> Bools:
    """Tell which sessions belong to the attempt that the group's verdict is about; shape (n,).

    By the journal's results: those that came after the group was last put back. Without a journal, the
    sessions of the group's highest attempt, or all.
    """
    sessions = frames.sessions
    if sessions.empty:
        return np.zeros(0, dtype=bool)
    tasks = _final_tasks(frames.events)
    group = group_codes(sessions)[0]
    attempt = integers(sessions, "attempt", missing=0)
    highest = np.full(int(group.max()) + 1, -1, dtype=np.int64)
    np.maximum.at(highest, group, attempt)
    by_attempt = attempt == highest[group]
    if not tasks:
        return np.asarray(by_attempt, dtype=bool)
    task = texts(sessions, "task_id")
    in_final = np.array([name in tasks for name in task])
    journaled = np.bincount(group, weights=in_final, minlength=len(highest)) > 0
    return np.asarray(np.where(journaled[group], in_final, by_attempt), dtype=bool)


def _final_tasks(events: pd.DataFrame) -> set[str]:
    """Return the tasks whose results were judged: those after the last time that the group was put back."""
    chosen = events["event"].isin(["task_result", "group_requeued"]).to_numpy(dtype=bool)
    rows = events[chosen]
    if rows.empty:
        return set()
    key = codes(rows, ("run", "worker", "group"))
    put_back = (rows["event"] == "group_requeued").to_numpy(dtype=bool)
    order = np.lexsort((integers(rows, "seq"), key))
    last: dict[int, list[str]] = {}
    task = texts(rows, "task_id")
    for place in order:
        if key[place] < 0:
            continue
        if put_back[place]:
            last[int(key[place])] = []
        else:
            last.setdefault(int(key[place]), []).append(task[place])
    return {name for names in last.values() for name in names if name is not None}


def fates(frames: Frames) -> np.ndarray:
    """Return what became of each session, a word of `FATES`; shape (n,), objects."""
    sessions = frames.sessions
    state = texts(sessions, "group_state")
    rows = group_rows(frames.groups, sessions) if len(frames.groups) else np.full(len(sessions), -1)
    if len(frames.groups):
        of_group = texts(frames.groups, "state")[rows]
        state = first_known(state, only(of_group, rows >= 0))
    accepted = flags(sessions, "accepted")
    refused = known(sessions, "accepted") & ~accepted
    result = np.full(len(sessions), "unfinished", dtype=object)
    for name in _STATES:
        result[state == name] = name
    unknown = result == "unfinished"
    result[unknown & accepted] = "delivered"
    result[unknown & refused] = "rejected"
    delivered = result == "delivered"
    usable = flags(sessions, "usable")
    result[delivered & usable] = "trained"
    result[delivered & ~usable] = "unusable"
    result[~used_attempt(frames)] = "superseded"
    result[flags(sessions, "evaluation")] = "evaluation"
    return result


def session_seconds(sessions: pd.DataFrame) -> Floats:
    """Return how long each session took on its gateway, in seconds; NaN where nobody measured it.

    The gateway's own end-to-end time, else the sum of the four stages that every server reports.
    """
    whole = floats(sessions, "e2e_ms")
    stages = np.stack([floats(sessions, name) for name in _BASE_STAGES])
    there = ~np.isnan(stages).all(axis=0)
    summed = np.where(there, np.nansum(stages, axis=0), np.nan)
    return np.asarray(np.where(np.isnan(whole), summed, whole) / 1000.0, dtype=np.float64)


def last_stage(sessions: pd.DataFrame) -> np.ndarray:
    """Return how far each session came, a word of `STAGES`; shape (n,), objects."""
    result = np.full(len(sessions), "submitted", dtype=object)
    finished = flags(sessions, "finished")
    result[finished] = "queue"
    for name, column in (("init", "init_ms"), ("run", "run_ms"), ("postrun", "postrun_ms")):
        result[finished & (np.nan_to_num(floats(sessions, column)) > 0)] = name
    named = texts(sessions, "timeout_stage")
    for place in np.flatnonzero(known(sessions, "timeout_stage")):
        if named[place] in STAGES:
            result[place] = named[place]
    result[flags(sessions, "completed")] = "completed"
    return result
