"""The ledger of everything that was attempted: where each group and session ended, why, and what it cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.stats.columns import (
    Ints,
    first_known,
    floats,
    integers,
    json_cells,
    nullable,
    only,
    seconds_since,
    sums,
    texts,
)
from analysis.stats.frames import GROUP_IDS, SESSION_IDS, Frames, as_frames, group_rows, ids_of
from analysis.stats.sessions import fates, last_stage, session_seconds

__all__ = ["Ledger", "ledger"]

_GROUP_COLUMNS = (
    "state",
    "verdict",
    "attempts",
    "requeues",
    "expected_sessions",
    "completed_sessions",
    "usable_sessions",
    "complete_usable_sessions",
    "required_sessions",
    "early_stopped_sessions",
    "traceless_sessions",
    "staleness",
    "staleness_in_flight",
    "staleness_in_queue",
    "policy_version",
    "reward_mean",
    "reward_std",
    "result_seconds",
    "prompt_sha256",
    "prompt_preview",
    "last_error",
)
_FILTERED = ("filtered", "all_wrong", "all_correct")
_STAGE_OF_STATE = {
    "delivered": "delivered",
    "returned": "returned",
    "abandoned": "abandoned",
    "given_up": "infrastructure",
}


@dataclass(frozen=True, eq=False)
class Ledger:
    """Every attempted group and session.

    Attributes
    ----------
    groups
        One row per group: ids; `state`; `stage` (``delivered``, ``content``, ``filter``, ``lag``,
        ``infrastructure``, ``returned``, ``abandoned``, ``open``, ``evaluation``); `reason`; `deciding`,
        the numbers in words; the numbers themselves; lag and its parts; `attempts`, `requeues`;
        `lifetime_seconds` (drawn to ended), `result_seconds` (of the last attempt), `session_seconds`,
        `response_tokens`, `trainable_tokens` (over its sessions, every attempt included), `sessions`,
        `unmeasured_sessions` (without a time); reward mean and spread; the prompt.
    sessions
        One row per session: ids; `task_id`, `attempt`; `fate` (see `analysis.stats.sessions.FATES`); `stage`
        (how far it came); `status`; `reason` and `detail`; `group_reason` (why its group was rejected);
        `reward`, `seconds`, `response_tokens`, `trainable_tokens`, `staleness`, `node_id`.
    """

    groups: pd.DataFrame
    sessions: pd.DataFrame


def ledger(run: Any) -> Ledger:
    """Return the ledger of a run.

    Parameters
    ----------
    run
        A loaded run or a mapping of frames.
    """
    frames = as_frames(run)
    sessions = _session_rows(frames)
    return Ledger(_group_rows(frames, sessions), sessions)


def _session_rows(frames: Frames) -> pd.DataFrame:
    table = frames.sessions
    status = texts(table, "status")
    fate = fates(frames)
    bad = ~pd.isna(status) & (status != "COMPLETED")
    lowered = np.array(
        [str(name).lower() if there else None for name, there in zip(status, bad, strict=True)]
    )
    numbers = nullable(
        {
            "task_id": texts(table, "task_id"),
            "attempt": table["attempt"],
            "fate": fate,
            "stage": last_stage(table),
            "status": status,
            "reason": first_known(texts(table, "reason"), lowered),
            "detail": first_known(texts(table, "detail"), texts(table, "error")),
            "group_reason": texts(table, "reject_reason"),
            "reward": floats(table, "reward"),
            "seconds": session_seconds(table),
            "response_tokens": table["response_tokens"],
            "trainable_tokens": table["trainable_tokens"],
            "staleness": table["staleness"],
            "node_id": texts(table, "node_id"),
        },
        index=table.index,
    )
    return pd.concat([ids_of(table, SESSION_IDS), numbers], axis=1).reset_index(drop=True)


def _group_rows(frames: Frames, sessions: pd.DataFrame) -> pd.DataFrame:
    table = frames.groups
    owner = group_rows(table, frames.sessions) if len(table) else np.full(len(sessions), -1, dtype=np.int64)
    costs = _costs(sessions, owner, len(table))
    born, ended = seconds_since(table, "drawn_at"), seconds_since(table, "ended_at")
    kept = [name for name in _GROUP_COLUMNS if name not in ("state", "verdict")]
    return pd.concat(
        [
            ids_of(table, (*GROUP_IDS, "state", "verdict")),
            nullable(
                {
                    "stage": _stages(table),
                    "reason": _reasons(table),
                    "deciding": np.array(_deciding(table), dtype=object),
                    "lifetime_seconds": ended - born,
                    **costs,
                },
                index=table.index,
            ),
            table.loc[:, kept].copy(),
        ],
        axis=1,
    ).reset_index(drop=True)


def _costs(sessions: pd.DataFrame, owner: Ints, count: int) -> dict[str, Any]:
    seconds = floats(sessions, "seconds")
    return {
        "sessions": sums(owner, count).astype(np.int64),
        "session_seconds": sums(owner, count, np.nan_to_num(seconds)),
        "unmeasured_sessions": sums(owner, count, np.isnan(seconds)).astype(np.int64),
        "response_tokens": sums(owner, count, integers(sessions, "response_tokens")).astype(np.int64),
        "trainable_tokens": sums(owner, count, integers(sessions, "trainable_tokens")).astype(np.int64),
    }


def _stages(table: pd.DataFrame) -> np.ndarray:
    state, reason = texts(table, "state"), texts(table, "reject_reason")
    result = np.array([_STAGE_OF_STATE.get(name, "open") for name in state], dtype=object)
    rejected = state == "rejected"
    result[rejected] = "content"
    result[rejected & (reason == "too_stale")] = "lag"
    result[rejected & np.isin(reason.astype(str), _FILTERED)] = "filter"
    result[table["evaluation"].fillna(False).to_numpy(dtype=bool)] = "evaluation"
    return result


def _reasons(table: pd.DataFrame) -> np.ndarray:
    state = texts(table, "state")
    lost = (state == "given_up") | pd.isna(state)
    return first_known(texts(table, "reject_reason"), only(texts(table, "requeue_reason"), lost))


def _deciding(table: pd.DataFrame) -> list[str | None]:
    """Say in words which numbers decided each rejection."""
    numbers = json_cells(table, "verdict_numbers")
    return [
        None if reason is None else _words(str(reason), {**known, **_declared(table, place)})
        for place, (reason, known) in enumerate(zip(texts(table, "reject_reason"), numbers, strict=True))
    ]


def _declared(table: pd.DataFrame, place: int) -> dict[str, int]:
    names = {
        "sessions": "expected_sessions",
        "complete_usable": "complete_usable_sessions",
        "required": "required_sessions",
        "traceless": "traceless_sessions",
        "early_stopped": "early_stopped_sessions",
    }
    row = table.iloc[place]
    return {name: int(row[column]) for name, column in names.items() if not pd.isna(row[column])}


def _words(reason: str, numbers: dict[str, Any]) -> str:
    def of(name: str) -> str:
        return str(numbers.get(name, "?"))

    if reason == "too_stale":
        return f"{of('staleness')} rollouts old, {of('max_staleness')} allowed"
    if reason == "low_complete_fraction":
        counted = f"{of('complete_usable')} of {of('sessions')} sessions complete and usable"
        return f"{counted}, {of('required')} required"
    if reason in ("all_wrong", "all_correct"):
        return f"{of('succeeded')} of {of('rated')} rated sessions succeeded"
    if reason == "filtered":
        return f"the trainer's filter said: {of('filter_reason')}"
    if reason == "failed_task":
        return f"{of('traceless')} of {of('sessions')} sessions failed without a trace"
    lost = numbers.get("reasons")
    if isinstance(lost, dict) and lost:
        return ", ".join(f"{count} {name}" for name, count in sorted(lost.items()))
    return f"{of('trainable_tokens')} trainable tokens in {of('sessions')} sessions"
