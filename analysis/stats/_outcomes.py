"""Sessions as the bridge saw them: rows of a frame back into `SessionOutcome`, and the groups they are of."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from analysis.schema import TABLES
from analysis.stats.columns import Ints, flags, floats, integers, texts
from analysis.stats.frames import Frames, group_rows
from analysis.stats.sessions import used_attempt
from slime_bridge.conversion.groups import SessionOutcome

__all__ = ["outcomes_of", "session_rows_of", "stage_times"]

_MILLISECONDS = tuple(c.name for c in TABLES["session"] if c.name.endswith("_ms"))


def outcomes_of(frames: Frames) -> list[SessionOutcome]:
    """Return what became of each session, in the order of the table.

    The counts are those of the conversion: what the journal says comes first in the table, and the samples in
    the dumps speak where there is no journal. `SessionOutcome.timing` is a mapping of stage times.
    """
    table = frames.sessions
    columns = {
        "position": integers(table, "position", missing=0).tolist(),
        "session_id": texts(table, "session_id").tolist(),
        "node_id": texts(table, "node_id").tolist(),
        "status": [name or "" for name in texts(table, "status")],
        "completed": flags(table, "completed").tolist(),
        "usable": flags(table, "usable").tolist(),
        "trainable_tokens": integers(table, "trainable_tokens").tolist(),
        "response_tokens": integers(table, "response_tokens").tolist(),
        "n_traces": _kept(table),
        "dropped_traces": integers(table, "dropped_traces").tolist(),
        "dropped_tokens": integers(table, "dropped_tokens").tolist(),
        "clipped_traces": integers(table, "clipped_traces").tolist(),
        "masked_tokens": integers(table, "aborted_masked_tokens").tolist(),
        "missing_rewards": integers(table, "missing_rewards").tolist(),
        "reward": floats(table, "reward").tolist(),
        "reason": texts(table, "reason").tolist(),
        "detail": texts(table, "detail").tolist(),
        "timing": stage_times(table),
        "weight_versions": _versions(table),
        "early_stopped": flags(table, "early_stopped").tolist(),
    }
    names = list(columns)
    return [
        SessionOutcome(**dict(zip(names, values, strict=True)))
        for values in zip(*columns.values(), strict=True)
    ]


def _kept(table: pd.DataFrame) -> list[int]:
    kept = table["kept_traces"].fillna(table["traces"])
    return [int(value) for value in kept.fillna(0)]


def _versions(table: pd.DataFrame) -> list[tuple[str, str] | None]:
    pairs = zip(texts(table, "weight_version_oldest"), texts(table, "weight_version_newest"), strict=True)
    return [None if old is None or new is None else (old, new) for old, new in pairs]


def stage_times(table: pd.DataFrame) -> list[Any]:
    """Return the known stage times of each session in milliseconds by name; None where there are none."""
    known = [name for name in _MILLISECONDS if table[name].notna().any()]
    columns = [floats(table, name).tolist() for name in known]
    result: list[Any] = []
    for values in zip(*columns, strict=True) if columns else ((),) * len(table):
        times = {k: v for k, v in zip(known, values, strict=True) if not math.isnan(v)}
        result.append(times or None)
    return result


def session_rows_of(frames: Frames, groups: pd.DataFrame) -> list[Ints]:
    """Return for each group the rows of its sessions in the attempt that was judged, by position."""
    owner = np.where(used_attempt(frames), group_rows(groups, frames.sessions), -1)
    position = integers(frames.sessions, "position", missing=0)
    order = np.lexsort((position, owner))
    order = order[owner[order] >= 0]
    starts = np.searchsorted(owner[order], np.arange(len(groups) + 1))
    return [order[starts[g] : starts[g + 1]] for g in range(len(groups))]
