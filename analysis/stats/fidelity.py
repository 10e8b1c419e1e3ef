"""Can these tokens and numbers be trusted? An audit of the data, and the hook's metrics computed again.

`audit` runs every check of `CHECKS` and names each trace, session or group at fault; what cannot be checked
says why. `reconcile` recomputes what the hook emitted.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.errors import StatsError
from analysis.stats._audit import AuditData, Check, Found
from analysis.stats._audit_arrays import ARRAY_CHECKS
from analysis.stats._audit_sequences import SEQUENCE_CHECKS
from analysis.stats._audit_tables import TABLE_CHECKS
from analysis.stats.columns import nullable
from analysis.stats.frames import Frames, as_frames
from analysis.stats.reconcile import Reconciliation, reconcile

__all__ = ["CHECKS", "Audit", "Reconciliation", "audit", "reconcile"]

CHECKS: tuple[Check, ...] = (*ARRAY_CHECKS, *SEQUENCE_CHECKS, *TABLE_CHECKS)
"""Every check, in order."""

_LOCATION = ("run", "rollout_id", "evaluation", "group", "group_index", "session_id", "trace_index", "path")
_SEVERITIES = ("error", "warning", "note")


@dataclass(frozen=True, eq=False)
class Audit:
    """What an audit found.

    Attributes
    ----------
    findings
        One row per finding, errors first: `check`, `severity`, `detail`, `position` (in the response, where
        it has one), and where: `run`, `rollout_id`, `evaluation`, `group`, `group_index`, `session_id`,
        `trace_index`, `path`.
    checks
        One row per check: `check`, `severity`, `meaning`, `examined` (rows that could be checked),
        `findings`, `skipped` (why nothing could be checked).
    """

    findings: pd.DataFrame
    checks: pd.DataFrame

    @property
    def clean(self) -> bool:
        """Whether there is neither an error nor a warning."""
        return not self.findings["severity"].isin(["error", "warning"]).any()


def audit(
    run: Any,
    *,
    tokenizer: Any = None,
    vocabulary: int | None = None,
    only: Collection[str] | None = None,
) -> Audit:
    """Check the data of a run.

    Parameters
    ----------
    run
        A loaded run or a mapping of frames; token arrays are read if there are any.
    tokenizer
        With ``encode(text) -> ids`` and ``decode(ids) -> text``, for the round trip.
    vocabulary
        Number of token ids, for the check of their range.
    only
        Names of the checks to run; all by default.

    Raises
    ------
    StatsError
        If a check is unknown.
    """
    names = {check.name for check in CHECKS}
    if only is not None and not set(only) <= names:
        raise StatsError(f"no check {sorted(set(only) - names)[0]!r}: there are {', '.join(sorted(names))}")
    frames = as_frames(run)
    data = AuditData(frames, tokenizer, vocabulary)
    chosen = [check for check in CHECKS if only is None or check.name in only]
    found = [check.function(data) for check in chosen]
    parts = [_located(frames, check, answer) for check, answer in zip(chosen, found, strict=True)]
    whole = pd.concat(parts, ignore_index=True)
    rank = whole["severity"].map({name: place for place, name in enumerate(_SEVERITIES)})
    whole = whole.iloc[np.argsort(rank.to_numpy(dtype=np.int64), kind="stable")].reset_index(drop=True)
    return Audit(whole, _checks_frame(chosen, found))


def _located(frames: Frames, check: Check, found: Found) -> pd.DataFrame:
    table = frames.table(found.grain)
    rows = table.iloc[found.rows].reset_index(drop=True)
    place = np.full(len(rows), -1) if found.positions is None else found.positions
    columns = nullable(
        {
            "check": np.full(len(rows), check.name, dtype=object),
            "severity": np.full(len(rows), check.severity, dtype=object),
            "detail": np.array(list(found.details), dtype=object),
            "position": pd.Series(place, dtype="Int64").mask(place < 0),
        }
    )
    return pd.concat([columns, rows.reindex(columns=list(_LOCATION)).astype(_location_types(frames))], axis=1)


def _location_types(frames: Frames) -> dict[str, Any]:
    return {name: frames.traces[name].dtype for name in _LOCATION}


def _checks_frame(checks: list[Check], found: list[Found]) -> pd.DataFrame:
    return nullable(
        {
            "check": np.array([check.name for check in checks], dtype=object),
            "severity": np.array([check.severity for check in checks], dtype=object),
            "meaning": np.array([check.meaning for check in checks], dtype=object),
            "examined": np.array([answer.examined for answer in found], dtype=np.int64),
            "findings": np.array([len(answer.rows) for answer in found], dtype=np.int64),
            "skipped": np.array([answer.skipped for answer in found], dtype=object),
        }
    )
