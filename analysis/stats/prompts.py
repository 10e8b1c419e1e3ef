"""Prompts over training: which of them carry a signal, and what happened at each attempt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.errors import StatsError
from analysis.stats.columns import Bools, Floats, Ints, floats, nullable, seconds_since, sums, texts
from analysis.stats.frames import GROUP_IDS, Frames, as_frames, group_rows, ids_of
from analysis.stats.numbers import wilson_interval
from analysis.stats.sessions import fates, session_seconds

__all__ = ["KINDS", "ZeroSignal", "prompt_history", "zero_signal"]

KINDS = ("mixed", "all_correct", "all_wrong", "constant", "lone", "empty")
"""What the rewards of a group's usable sessions are like; only ``mixed`` ones teach.

all_correct, all_wrong
    All equal, and at least 1, or at most 0.
constant
    All equal, in between.
lone, empty
    One session with a reward, or none.
"""

_SAME = 1e-6
_SUCCESS = 1.0


@dataclass(frozen=True, eq=False)
class ZeroSignal:
    """Groups without variance.

    Attributes
    ----------
    groups
        One row per judged or delivered training group: ids, `prompt_sha256`, `prompt_preview`, `accepted`,
        `kind` (see `KINDS`), `zero_signal`, `rated_sessions`, `reward_mean`, `reward_std`.
    prompts
        One row per prompt: `prompt_sha256`, `prompt_preview`, `attempts` (groups), `zero_signal`, `share`,
        the counts by kind, `reward_mean`, `streak` (zero-signal attempts in a row at the end),
        `first_rollout`, `last_rollout`. Groups whose prompt nobody wrote down are left out.
    rollouts
        One row per rollout, delivered groups only: `run`, `rollout_id`, `groups`, `zero_signal`, `share` with
        the 95 % interval `low`, `high` (Wilson), the counts by kind, `streak` (rollouts in a row, this one
        included, in which at least half of the groups had no signal).
    """

    groups: pd.DataFrame
    prompts: pd.DataFrame
    rollouts: pd.DataFrame


def zero_signal(run: Any) -> ZeroSignal:
    """Find the groups that teach nothing, by prompt and over time.

    Parameters
    ----------
    run
        A loaded run or a mapping of frames.
    """
    groups = _rated(as_frames(run))
    return ZeroSignal(groups, _by_prompt(groups), _by_rollout(groups))


def prompt_history(run: Any, prompt: str | int) -> pd.DataFrame:
    """Return all attempts at one prompt over training, earliest first.

    Parameters
    ----------
    run
        A loaded run or a mapping of frames.
    prompt
        The prompt's digest or the beginning of it (at least four characters), a part of its preview, or a
        ``group_index``.

    Returns
    -------
    DataFrame
        One row per group: ids, `state`, `reject_reason`, `kind`, `zero_signal`, `rated_sessions`,
        `reward_mean`, `reward_std`, `reward_min`, `reward_max`, `staleness`, `attempts`, `requeues`,
        `completed`, `failed` and `usable` sessions, `response_tokens` (mean per usable session), `seconds`
        (sum over sessions), `drawn_at`, `prompt_sha256`, `prompt_preview`.

    Raises
    ------
    StatsError
        If the text fits several prompts, or none.
    """
    frames = as_frames(run)
    table = frames.groups
    chosen = _matching(table, prompt)
    part = table[chosen].reset_index(drop=True)
    digests = set(part["prompt_sha256"].dropna())
    if len(digests) > 1 and not isinstance(prompt, int):
        shown = ", ".join(sorted(str(text)[:60] for text in part["prompt_preview"].dropna().unique())[:5])
        raise StatsError(f"{len(digests)} prompts fit {prompt!r}: {shown}; give more of one of them")
    if part.empty:
        raise StatsError(f"no prompt fits {prompt!r}; `zero_signal(run).prompts` lists them")
    kind, rated = _kinds(frames, part)
    counts = _session_counts(frames, part)
    names = ["state", "reject_reason", "reward_mean", "reward_std", "reward_min", "reward_max", "staleness"]
    names += ["attempts", "requeues", "drawn_at", "prompt_sha256", "prompt_preview"]
    result = pd.concat(
        [
            ids_of(part, GROUP_IDS),
            nullable(
                {
                    "kind": kind,
                    "zero_signal": kind != "mixed",
                    "rated_sessions": rated.astype(np.int64),
                    **counts,
                }
            ),
            part.loc[:, names],
        ],
        axis=1,
    )
    order = np.lexsort(
        (np.nan_to_num(floats(part, "rollout_id"), nan=np.inf), seconds_since(part, "drawn_at"))
    )
    return result.iloc[order].reset_index(drop=True)


def _matching(table: pd.DataFrame, prompt: str | int) -> Bools:
    training = ~table["evaluation"].fillna(False).to_numpy(dtype=bool)
    if isinstance(prompt, int):
        same = (table["group_index"] == prompt).fillna(False).to_numpy(dtype=bool)
        return np.asarray(training & same, dtype=bool)
    digest, preview = texts(table, "prompt_sha256"), texts(table, "prompt_preview")
    long = len(prompt) >= 4
    by_digest = np.array(
        [d is not None and (d == prompt or (long and d.startswith(prompt))) for d in digest], bool
    )
    if (by_digest & training).any():
        return np.asarray(by_digest & training, dtype=bool)
    by_preview = np.array([p is not None and prompt in p for p in preview], dtype=bool)
    return np.asarray(training & by_preview, dtype=bool)


def _session_counts(frames: Frames, part: pd.DataFrame) -> dict[str, Any]:
    sessions = frames.sessions
    owner, count = group_rows(part, sessions), len(part)
    usable = sessions["usable"].fillna(False).to_numpy(dtype=bool)
    completed = sessions["completed"].fillna(False).to_numpy(dtype=bool)
    stopped = sessions["early_stopped"].fillna(False).to_numpy(dtype=bool)
    tokens = np.nan_to_num(floats(sessions, "response_tokens"))
    number = sums(owner, count, usable)
    length = np.divide(
        sums(owner, count, tokens * usable), number, out=np.full(count, np.nan), where=number > 0
    )
    return {
        "completed": sums(owner, count, completed).astype(np.int64),
        "failed": sums(owner, count, ~completed & ~stopped).astype(np.int64),
        "usable": number.astype(np.int64),
        "response_tokens": length,
        "seconds": sums(owner, count, np.nan_to_num(session_seconds(sessions))),
    }


def _kinds(frames: Frames, groups: pd.DataFrame) -> tuple[np.ndarray, Floats]:
    """Return the kind of each group, and how many usable sessions have a reward."""
    sessions = frames.sessions
    reward = floats(sessions, "reward")
    rated = sessions["usable"].fillna(False).to_numpy(dtype=bool) & np.isfinite(reward)
    rated &= ~sessions["early_stopped"].fillna(False).to_numpy(dtype=bool)
    rated &= ~np.isin(fates(frames), ["superseded"])
    owner = np.where(rated, group_rows(groups, sessions), -1)
    count = len(groups)
    low, high = np.full(count, np.inf), np.full(count, -np.inf)
    np.minimum.at(low, owner[owner >= 0], reward[owner >= 0])
    np.maximum.at(high, owner[owner >= 0], reward[owner >= 0])
    number = sums(owner, count)
    kind = np.full(count, "mixed", dtype=object)
    with np.errstate(invalid="ignore"):  # groups without a reward: inf - inf
        flat = high - low <= _SAME
    kind[flat] = "constant"
    kind[flat & (low >= _SUCCESS)] = "all_correct"
    kind[flat & (high <= 0)] = "all_wrong"
    kind[number == 1] = "lone"
    kind[number == 0] = "empty"
    return kind, number


def _rated(frames: Frames) -> pd.DataFrame:
    table = frames.groups
    training = ~table["evaluation"].fillna(False).to_numpy(dtype=bool)
    judged = table["verdict"].notna() | table["state"].isin(["delivered", "rejected"])
    groups = table[training & judged.to_numpy(dtype=bool)].reset_index(drop=True)
    kind, rated = _kinds(frames, groups)
    names = ["prompt_sha256", "prompt_preview", "accepted", "reward_mean", "reward_std"]
    numbers = nullable(
        {"kind": kind, "zero_signal": kind != "mixed", "rated_sessions": rated.astype(np.int64)}
    )
    return pd.concat([ids_of(groups, GROUP_IDS), numbers, groups.loc[:, names]], axis=1)


def _by_prompt(groups: pd.DataFrame) -> pd.DataFrame:
    there = groups[groups["prompt_sha256"].notna().to_numpy(dtype=bool)]
    code, digests = pd.factorize(there["prompt_sha256"])
    owner, count = np.asarray(code, dtype=np.int64), len(digests)
    zero = there["zero_signal"].to_numpy(dtype=bool)
    number, zeros = sums(owner, count), sums(owner, count, zero)
    rollout = floats(there, "rollout_id")
    mean = floats(there, "reward_mean")
    rewards = np.divide(
        sums(owner, count, np.nan_to_num(mean)),
        sums(owner, count, ~np.isnan(mean)),
        out=np.full(count, np.nan),
        where=sums(owner, count, ~np.isnan(mean)) > 0,
    )
    first, last = np.full(count, np.nan), np.full(count, np.nan)
    np.fmin.at(first, owner, rollout)
    np.fmax.at(last, owner, rollout)
    return nullable(
        {
            "prompt_sha256": np.asarray(digests, dtype=object),
            "prompt_preview": there["prompt_preview"].groupby(owner).first().reset_index(drop=True)
            if count
            else np.array([], dtype=object),
            "attempts": number.astype(np.int64),
            "zero_signal": zeros.astype(np.int64),
            "share": zeros / np.maximum(number, 1),
            **_kind_counts(there, owner, count),
            "reward_mean": rewards,
            "streak": _streaks(owner, zero, rollout, count),
            "first_rollout": pd.Series(first).astype("Int64"),
            "last_rollout": pd.Series(last).astype("Int64"),
        }
    )


def _kind_counts(groups: pd.DataFrame, owner: Ints, count: int) -> dict[str, Ints]:
    kind = texts(groups, "kind")
    return {name: sums(owner, count, kind == name).astype(np.int64) for name in KINDS}


def _streaks(owner: Ints, zero: Bools, rollout: Floats, count: int) -> Ints:
    """Return how many of the latest attempts at each prompt in a row had no signal."""
    result = np.zeros(count, dtype=np.int64)
    running = np.ones(count, dtype=bool)
    for place in np.argsort(-np.nan_to_num(rollout, nan=-1.0), kind="stable"):
        prompt = owner[place]
        running[prompt] &= zero[place]
        result[prompt] += running[prompt]
    return result


def _by_rollout(groups: pd.DataFrame) -> pd.DataFrame:
    there = groups[
        groups["accepted"].fillna(False).to_numpy(dtype=bool) & groups["rollout_id"].notna().to_numpy()
    ]
    there = there.sort_values(["run", "rollout_id"], kind="stable")
    keys = pd.MultiIndex.from_frame(there[["run", "rollout_id"]].astype(object).fillna(""))
    code, kinds = pd.factorize(keys)
    owner, count = np.asarray(code, dtype=np.int64), len(kinds)
    zero = there["zero_signal"].to_numpy(dtype=bool)
    number, zeros = sums(owner, count), sums(owner, count, zero)
    bounds = [wilson_interval(z, n) for z, n in zip(zeros, number, strict=True)]
    streak, running, previous = np.zeros(count, dtype=np.int64), 0, None
    for place, (run, _) in enumerate(kinds):
        running = running + 1 if run == previous else 1
        running = running if 2 * zeros[place] >= number[place] else 0
        streak[place], previous = running, run
    return nullable(
        {
            "run": np.array([k[0] or None for k in kinds], dtype=object),
            "rollout_id": np.array([int(k[1]) for k in kinds], dtype=np.int64),
            "groups": number.astype(np.int64),
            "zero_signal": zeros.astype(np.int64),
            "share": zeros / np.maximum(number, 1),
            "low": np.array([low for low, _ in bounds], dtype=float),
            "high": np.array([high for _, high in bounds], dtype=float),
            **_kind_counts(there, owner, count),
            "streak": streak,
        }
    )
