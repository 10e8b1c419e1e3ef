"""What the run paid for and did not train on: sessions, seconds and tokens by reason, up to the total."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.stats.columns import first_known, floats, integers, nullable, only, sums, texts
from analysis.stats.frames import Frames, as_frames, group_rows
from analysis.stats.sessions import fates, session_seconds

__all__ = ["Waste", "waste"]

_UNRECORDED = "unrecorded"


@dataclass(frozen=True, eq=False)
class Waste:
    """Where the effort went.

    Attributes
    ----------
    rows
        One row per fate and reason, the largest first: `fate` (see `analysis.stats.sessions.FATES`, and
        ``unrecorded`` for sessions that were submitted and left no trace anywhere), `reason`, `groups`,
        `sessions`, `seconds` (on the gateways), `agent_seconds` (the agent at work), `prompt_tokens`,
        `response_tokens`, `trainable_tokens`, `unmeasured` (sessions without a time), and the shares
        `session_share`, `second_share`, `token_share` (of response tokens).
    total
        One row: the same sums, taken over the table of sessions as it is.
    unaccounted
        One row: `total` minus the sum of `rows`; zeros.
    """

    rows: pd.DataFrame
    total: pd.DataFrame
    unaccounted: pd.DataFrame

    @property
    def wasted_share(self) -> pd.DataFrame:
        """One row: the share of sessions, seconds and tokens outside ``trained``, without evaluations."""
        rows = self.rows[(self.rows["fate"] != "evaluation").to_numpy(dtype=bool)]
        trained = rows[(rows["fate"] == "trained").to_numpy(dtype=bool)]
        result = {}
        for name in ("sessions", "seconds", "response_tokens"):
            whole = float(rows[name].sum())
            result[name] = np.array([1 - float(trained[name].sum()) / whole if whole > 0 else np.nan])
        return nullable(result)


_MEASURES = ("sessions", "seconds", "agent_seconds", "prompt_tokens", "response_tokens", "trainable_tokens")


def waste(run: Any) -> Waste:
    """Account for the effort of a run.

    Parameters
    ----------
    run
        A loaded run or a mapping of frames.
    """
    frames = as_frames(run)
    measures = _measures(frames)
    fate, reason = fates(frames), _reasons(frames)
    keys = pd.DataFrame({"fate": fate, "reason": pd.array(reason, dtype="string")})
    number, kinds = pd.factorize(pd.MultiIndex.from_frame(keys.astype(object).fillna("")))
    owner = np.asarray(number, dtype=np.int64)
    columns: dict[str, Any] = {name: sums(owner, len(kinds), values) for name, values in measures.items()}
    columns["groups"] = _groups_per_kind(frames, owner, len(kinds))
    names = list(kinds)
    fates_of, reasons_of = [n[0] for n in names], [n[1] or None for n in names]
    lost_groups, lost = _unrecorded(frames)
    if lost:
        fates_of, reasons_of = [*fates_of, _UNRECORDED], [*reasons_of, "no result, no file"]
        extra = {name: 0.0 for name in columns} | {
            "sessions": lost,
            "unmeasured": lost,
            "groups": lost_groups,
        }
        columns = {name: np.append(values, extra[name]) for name, values in columns.items()}
    rows = _frame(fates_of, reasons_of, columns)
    total = {name: np.array([float(np.sum(values))]) for name, values in measures.items()}
    total["sessions"] += lost
    total["unmeasured"] += lost
    summed = {name: np.array([float(rows[name].sum())]) for name in measures}
    off = {name: total[name] - summed[name] for name in measures}
    return Waste(rows, nullable(total), nullable(off))


def _measures(frames: Frames) -> dict[str, Any]:
    table = frames.sessions
    seconds = session_seconds(table)
    agent = floats(table, "agent_exec_ms")
    agent = np.where(np.isnan(agent), floats(table, "run_ms"), agent) / 1000.0
    return {
        "sessions": np.ones(len(table)),
        "seconds": np.nan_to_num(seconds),
        "agent_seconds": np.nan_to_num(agent),
        "prompt_tokens": integers(table, "prompt_tokens"),
        "response_tokens": integers(table, "response_tokens"),
        "trainable_tokens": integers(table, "trainable_tokens"),
        "unmeasured": np.isnan(seconds),
    }


def _reasons(frames: Frames) -> np.ndarray:
    """Return why each session was not trained on: its group's reason, else its own."""
    table, fate = frames.sessions, fates(frames)
    rows = group_rows(frames.groups, table) if len(frames.groups) else np.full(len(table), -1, np.int64)
    own = texts(table, "reason")
    if not len(frames.groups):
        of_group = requeued = np.full(len(table), None, dtype=object)
    else:
        of_group = only(texts(frames.groups, "reject_reason")[rows], rows >= 0)
        requeued = only(texts(frames.groups, "requeue_reason")[rows], rows >= 0)
    result = np.full(len(table), None, dtype=object)
    for name, words in (
        ("unusable", own),
        ("rejected", first_known(texts(table, "reject_reason"), of_group)),
        ("superseded", requeued),
        ("given_up", requeued),
    ):
        result[fate == name] = words[fate == name]
    return result


def _groups_per_kind(frames: Frames, owner: np.ndarray, count: int) -> np.ndarray:
    """Count the groups that have a session of each kind."""
    rows = group_rows(frames.groups, frames.sessions) if len(frames.groups) else np.full(len(owner), -1)
    pairs = pd.DataFrame({"kind": owner, "group": rows})[rows >= 0].drop_duplicates()
    return np.bincount(pairs["kind"].to_numpy(dtype=np.int64), minlength=count)


def _unrecorded(frames: Frames) -> tuple[int, int]:
    """Count sessions that the journal says were submitted and of which there is no row, and their groups."""
    groups = frames.groups
    if groups.empty:
        return 0, 0
    expected = integers(groups, "expected_sessions") * integers(groups, "attempts")
    there = sums(group_rows(groups, frames.sessions), len(groups)).astype(np.int64)
    training = ~groups["evaluation"].fillna(False).to_numpy(dtype=bool)
    lost = np.where(training, np.maximum(expected - there, 0), 0)
    return int((lost > 0).sum()), int(lost.sum())


def _frame(fate: list[str], reason: list[str | None], columns: dict[str, Any]) -> pd.DataFrame:
    counts = ("groups", "sessions", "prompt_tokens", "response_tokens", "trainable_tokens", "unmeasured")
    made: dict[str, Any] = {
        "fate": np.array(fate, dtype=object),
        "reason": np.array(reason, dtype=object),
    }
    for name in ("groups", *_MEASURES, "unmeasured"):
        values = np.asarray(columns[name])
        made[name] = np.rint(values).astype(np.int64) if name in counts else values.astype(np.float64)
    for name, of in (
        ("session_share", "sessions"),
        ("second_share", "seconds"),
        ("token_share", "response_tokens"),
    ):
        whole = float(np.sum(made[of]))
        made[name] = made[of] / whole if whole > 0 else np.full(len(fate), np.nan)
    frame = nullable(made)
    return frame.sort_values(["seconds", "sessions"], ascending=False, kind="stable", ignore_index=True)
