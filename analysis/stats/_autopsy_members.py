"""The members of one group: what each earned, how its advantage came about, why absent ones are absent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.stats.columns import Bools, Floats, Ints, flags, floats, integers, known, texts
from analysis.stats.frames import Frames, group_rows, session_rows

__all__ = [
    "Members",
    "absence",
    "expected_sessions",
    "group_facts",
    "members_of",
    "sessions_of",
    "trajectory_frame",
]

_KINDS: dict[str, Any] = {
    "position": "Int64",
    "trajectory": "Int64",
    "session_id": "string",
    "attempt": "Int64",
    "status": "string",
    "counted": "boolean",
    "reward": "Float64",
    "baseline": "Float64",
    "spread": "Float64",
    "advantage": "Float64",
    "traces": "Int64",
    "trainable_tokens": "Int64",
    "arithmetic": "string",
    "absent": "string",
}
_OF_SESSION = (
    *("position", "trajectory", "session_id", "attempt", "status", "reward", "trainable_tokens"),
    *("reason", "detail", "error", "early_stopped", "finished", "usable"),
)
_REASONS = {
    "missing": "the server returned no result for it",
    "malformed": "its result could not be decoded",
    "logprob_error": "a mask or a logprob is missing, misaligned or not finite",
    "invalid_tokens": "a token id is not a non-negative integer",
    "missing_reward": "a trainable trace has no reward, and such sessions are rejected",
    "early_stopped": "the server stopped it as surplus",
    "timeout": "it ran out of time",
    "failed": "it ended in an error",
    "no_traces": "it completed without a trace",
    "no_token_ids": "the engine or the router gave no token ids",
    "overlong": "its traces are longer than the trainer takes",
    "aborted_turns": "a weight push may have cut what it sampled",
    "no_loss_mask": "its traces do not say which tokens were sampled",
    "masked": "the server marked its traces as unusable",
    "zero_trainable": "its masks are all zeros",
}


@dataclass(frozen=True, eq=False)
class Members:
    """What the estimator made of the trajectories of one batch, for those of one group.

    Parameters
    ----------
    key
        Shape (m,): the trajectory's number in the batch.
    session_row
        Shape (m,): its session among the group's sessions, -1 for none.
    trajectory
        Shape (m,): Slime's trajectory key, -1 where unknown.
    session_id
        Shape (m,): None where unknown.
    counted
        Shape (m,): whether it entered the statistics.
    reward, baseline, spread, advantage
        Shape (m,).
    traces, tokens
        Shape (m,): traces, and their trainable tokens.
    missing_reward
        Shape (m,): whether a trainable trace has no reward.
    """

    key: Ints
    session_row: Ints
    trajectory: Ints
    session_id: np.ndarray
    counted: Bools
    reward: Floats
    baseline: Floats
    spread: Floats
    advantage: Floats
    traces: Ints
    tokens: Ints
    missing_reward: Bools


def sessions_of(frames: Frames, group: pd.DataFrame) -> pd.DataFrame:
    """Return the sessions of one group, given as one row of the table of groups, by position."""
    mine = frames.sessions[group_rows(group, frames.sessions) == 0]
    return mine.sort_values(["position", "attempt"], kind="stable").reset_index(drop=True)


def members_of(
    sessions: pd.DataFrame,
    traces: pd.DataFrame,
    key: Ints,
    own: dict[str, Any],
    counted: Bools,
    means: Floats,
) -> Members:
    """Gather the trajectories of one group from its traces.

    Parameters
    ----------
    sessions
        Of the group.
    traces
        Of the group, as far as they took part.
    key
        Shape (n,): trajectory of each trace.
    own
        Per trace: ``baseline``, ``spread``, ``advantage``, ``trainable``.
    counted, means
        Per trajectory of the batch.
    """
    keys, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    inverse = inverse.reshape(-1)
    size = np.bincount(inverse, minlength=len(keys))
    rows = session_rows(sessions, traces) if len(sessions) else np.full(len(traces), -1, dtype=np.int64)
    unrated = ~np.isfinite(floats(traces, "reward")) & (own["trainable"] > 0)
    return Members(
        key=keys,
        session_row=rows[first],
        trajectory=integers(traces, "trajectory", missing=-1)[first],
        session_id=texts(traces, "session_id")[first],
        counted=counted[keys] if len(keys) else np.zeros(0, dtype=bool),
        reward=means[keys] if len(keys) else np.zeros(0),
        baseline=own["baseline"][first],
        spread=own["spread"][first],
        advantage=np.bincount(inverse, weights=own["advantage"], minlength=len(keys)) / np.maximum(size, 1),
        traces=size,
        tokens=np.bincount(inverse, weights=own["trainable"], minlength=len(keys)).astype(np.int64),
        missing_reward=np.bincount(inverse, weights=unrated, minlength=len(keys)) > 0,
    )


def trajectory_frame(sessions: pd.DataFrame, members: Members, expected: int | None) -> pd.DataFrame:
    """Return one row per session of the group, per trajectory without a session, and per absent session."""
    records = sessions[list(_OF_SESSION)].to_dict("records")
    rows = [_from_session(record, place, members) for place, record in enumerate(records)]
    rows += [
        {**_numbers(members, place), "session_id": members.session_id[place]}
        for place in np.flatnonzero(members.session_row < 0).tolist()
    ]
    seen = set(integers(sessions, "position", missing=-1).tolist()) if len(sessions) else set()
    if expected is not None and (len(sessions) or not len(members.key)):
        rows += [
            {"position": position, "counted": False, "traces": 0, "absent": "nothing is recorded of it"}
            for position in range(expected)
            if position not in seen
        ]
    frame = pd.DataFrame([{name: row.get(name) for name in _KINDS} for row in rows], columns=list(_KINDS))
    frame = frame.astype(_KINDS)
    return frame.sort_values(["position", "trajectory"], kind="stable", ignore_index=True)


def _from_session(row: Mapping[Any, Any], place: int, members: Members) -> dict[str, Any]:
    found = np.flatnonzero(members.session_row == place)
    base = {name: _plain(row[name]) for name in ("position", "trajectory", "session_id", "attempt", "status")}
    if not len(found):
        return {
            **base,
            "counted": False,
            "reward": _plain(row["reward"]),
            "traces": 0,
            "trainable_tokens": _plain(row["trainable_tokens"]),
            "absent": absence(row, took_part=False),
        }
    numbers = _numbers(members, int(found[0]))
    if not numbers["counted"]:
        numbers |= {"reward": _plain(row["reward"]), "absent": absence(row, took_part=True)}
    return {**numbers, **base}


def _numbers(members: Members, place: int) -> dict[str, Any]:
    counted = bool(members.counted[place])
    numbers: dict[str, Any] = {
        "trajectory": int(members.trajectory[place]) if members.trajectory[place] >= 0 else None,
        "counted": counted,
        "reward": _known(members.reward[place]),
        "baseline": _known(members.baseline[place]) if counted else None,
        "spread": _known(members.spread[place]) if counted else None,
        "advantage": _known(members.advantage[place]),
        "traces": int(members.traces[place]),
        "trainable_tokens": int(members.tokens[place]),
    }
    if not counted:
        numbers["absent"] = "failed, or nothing to train on"
    elif members.missing_reward[place]:
        numbers["arithmetic"] = _arithmetic(numbers) + " (a missing reward counts as 0)"
    else:
        numbers["arithmetic"] = _arithmetic(numbers)
    return numbers


def _arithmetic(numbers: dict[str, Any]) -> str:
    reward, baseline, spread = numbers["reward"], numbers["baseline"], numbers["spread"]
    advantage = numbers["advantage"]
    if baseline is None or spread is None or reward is None:
        return f"{_short(reward)} → {_short(advantage)}"
    difference = f"{_short(reward)} − {_short(baseline)}"
    text = difference if spread == 1.0 else f"({difference}) / {_short(spread)}"
    return f"{text} = {_short(advantage)}".replace("-", "−")


def absence(session: Mapping[Any, Any], *, took_part: bool) -> str:
    """Say why a session is not among those that are compared.

    Parameters
    ----------
    session
        A row of the table of sessions.
    took_part
        It was handed over, at least as a placeholder.
    """
    reason, detail = _plain(session["reason"]), _plain(session["detail"]) or _plain(session["error"])
    if bool(_plain(session["early_stopped"])):
        reason = "early_stopped"
    if reason is not None:
        text = _REASONS.get(reason, reason)
    elif not bool(_plain(session["finished"])):
        text = "there is no result of it"
    elif not took_part and bool(_plain(session["usable"])):
        return "its attempt was not used"
    elif _plain(session["status"]) not in (None, "COMPLETED"):
        text = f"it ended as {_plain(session['status'])}"
    elif not _plain(session["trainable_tokens"]):
        text = "it has no token to train on"
    else:
        text = "it failed, or its samples were removed"
    return f"{text}: {detail}" if detail else text


def group_facts(trajectories: pd.DataFrame, expected: int | None) -> dict[str, Any]:
    """Return the numbers of the whole group, and what they mean for learning in words."""
    counted = flags(trajectories, "counted")
    rewards = floats(trajectories, "reward")[counted]
    count = len(rewards)
    spread = float(np.std(rewards, ddof=1)) if count > 1 else math.nan
    if not count:
        signal = "none: no trajectory can be compared"
    elif count == 1:
        signal = "a lone trajectory: there is nothing to compare it with"
    elif np.ptp(rewards) == 0:
        signal = f"none: all {count} rewards are {_short(float(rewards[0]))}"
    else:
        signal = f"{count} rewards from {_short(float(rewards.min()))} to {_short(float(rewards.max()))}"
    return {
        "expected": len(trajectories) if expected is None else expected,
        "counted": count,
        "mean": float(np.mean(rewards)) if count else math.nan,
        "deviation": spread,
        "signal": signal,
    }


def expected_sessions(group: pd.DataFrame) -> int | None:
    """Return how many sessions the group was to have, None where nobody says."""
    if "expected_sessions" not in group or not known(group, "expected_sessions")[0]:
        return None
    return int(group.iloc[0]["expected_sessions"])


def _plain(value: Any) -> Any:
    return (
        None if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)) else value
    )


def _known(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _short(value: float | None) -> str:
    return "?" if value is None else f"{value:.4g}"
