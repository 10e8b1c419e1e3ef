"""The tables of a run as every statistic takes them: all declared columns, found under one set of names.

Accepts a loaded run, or a plain mapping of frames, and never changes either. It also answers who belongs to
whom: which group, trajectory and batch a row is of, by the ids that the row has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, cast

import numpy as np
import pandas as pd

from analysis.errors import StatsError
from analysis.schema import GRAINS, columns_of, empty_frame
from analysis.stats._matching import find, identify
from analysis.stats.columns import Bools, Ints, codes, known, texts
from analysis.stats.token_tables import TokenTable

__all__ = [
    "GROUP_IDS",
    "SESSION_IDS",
    "TRACE_IDS",
    "Frames",
    "as_frames",
    "batch_codes",
    "group_codes",
    "group_rows",
    "ids_of",
    "in_run_order",
    "session_rows",
    "trajectory_codes",
]

GROUP_IDS = ("run", "rollout_id", "evaluation", "worker", "group", "group_index")
"""Columns that name a group in the frames that statistics return."""

SESSION_IDS = (*GROUP_IDS, "trajectory", "position", "session_id")
"""Columns that name a session."""

TRACE_IDS = (*SESSION_IDS, "trace_index", "sample_index")
"""Columns that name a trace."""

_GROUP_KEYS = (
    ("run", "worker", "group"),
    ("run", "evaluation", "rollout_id", "group_index"),
    ("run", "evaluation", "group_index"),
    ("run", "task_id"),
)
_SESSION_KEYS = (
    ("run", "session_id"),
    ("run", "task_id", "position"),
    ("run", "worker", "group", "trajectory"),
    ("run", "evaluation", "rollout_id", "group_index", "trajectory"),
)


class Frames:
    """The tables of one run, each with every column that the schema declares.

    Parameters
    ----------
    source
        A run with one method per table (``groups()``, ``sessions()``, ...), or a mapping from table names
        (``group`` or ``groups``) to frames. The key ``tokens`` may hold a `TokenTable`.
    """

    def __init__(self, source: Any) -> None:
        self._source = source
        self._tables: dict[str, pd.DataFrame] = {}
        if isinstance(source, Mapping):
            allowed = {*GRAINS, *(f"{grain}s" for grain in GRAINS), "tokens"}
            unknown = sorted(map(str, set(source) - allowed))
            if unknown:
                raise StatsError(f"no table {unknown[0]!r}: there are {', '.join(GRAINS)} and tokens")
        elif not callable(getattr(source, "sessions", None)):
            raise StatsError(
                f"expected a loaded run or a mapping of frames, got {type(source).__name__}; "
                "`analysis.load(path)` gives a run"
            )

    def table(self, grain: str) -> pd.DataFrame:
        """Return one table by its name in the schema; without rows where the source has none."""
        if grain not in self._tables:
            self._tables[grain] = _with_declared_columns(self._find(grain), grain)
        return self._tables[grain]

    def _find(self, grain: str) -> pd.DataFrame | None:
        if not isinstance(self._source, Mapping):
            method = getattr(self._source, f"{grain}s", None)
            return method() if callable(method) else None
        for name in (f"{grain}s", grain):
            if name in self._source:
                found: pd.DataFrame = self._source[name]
                return found
        return None

    @property
    def rollouts(self) -> pd.DataFrame:
        """One row per rollout."""
        return self.table("rollout")

    @property
    def groups(self) -> pd.DataFrame:
        """One row per prompt group."""
        return self.table("group")

    @property
    def sessions(self) -> pd.DataFrame:
        """One row per session."""
        return self.table("session")

    @property
    def traces(self) -> pd.DataFrame:
        """One row per trace."""
        return self.table("trace")

    @property
    def events(self) -> pd.DataFrame:
        """One row per journal record."""
        return self.table("event")

    @property
    def completions(self) -> pd.DataFrame:
        """One row per captured model call."""
        return self.table("completion")

    @property
    def metrics(self) -> pd.DataFrame:
        """One row per recorded number."""
        return self.table("metric")

    @cached_property
    def tokens(self) -> TokenTable:
        """The token arrays of all traces; an empty table where the source has none."""
        if isinstance(self._source, Mapping):
            given = self._source.get("tokens")
            return TokenTable.empty() if given is None else given
        return TokenTable.of_run(self._source, self.traces)

    def tokens_of(self, rows: Ints) -> TokenTable:
        """Return the token arrays of some traces, given by their rows, reading their sessions only."""
        names = texts(self.traces, "session_id")[rows]
        whole = isinstance(self._source, Mapping) or "tokens" in self.__dict__ or pd.isna(names).any()
        found = self.tokens if whole else TokenTable.of_run(self._source, self.traces, sorted(set(names)))
        return found.select(np.isin(found.rows, rows))


def as_frames(run: Any) -> Frames:
    """Return the tables of a run.

    Parameters
    ----------
    run
        A loaded run, a mapping of frames, or `Frames`, which is returned as it is.

    Raises
    ------
    StatsError
        If it is none of these, or a table has an unknown name.
    """
    return run if isinstance(run, Frames) else Frames(run)


def _with_declared_columns(frame: pd.DataFrame | None, grain: str) -> pd.DataFrame:
    if frame is None:
        return empty_frame(grain)
    missing = {c.name: c.dtype for c in columns_of(grain) if c.name not in frame}
    wrong = {
        c.name: c.dtype for c in columns_of(grain) if c.name in frame and not _fits(frame[c.name], c.dtype)
    }
    if not missing and not wrong:
        return frame
    try:
        cast_columns = {name: frame[name].astype(cast(Any, dtype)) for name, dtype in wrong.items()}
    except (TypeError, ValueError) as exc:
        raise StatsError(f"a column of the {grain} table does not fit its declared type: {exc}") from exc
    added = {
        name: pd.Series(pd.NA if "datetime" not in dtype else pd.NaT, index=frame.index, dtype=dtype)
        for name, dtype in missing.items()
    }
    return pd.concat([frame.assign(**cast_columns), pd.DataFrame(added, index=frame.index)], axis=1)


def _fits(column: pd.Series, dtype: str) -> bool:
    return str(column.dtype) == dtype or (dtype == "string" and isinstance(column.dtype, pd.StringDtype))


def ids_of(frame: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Return a copy of the id columns."""
    return frame.loc[:, list(names)].copy()


def group_codes(*frames: pd.DataFrame) -> list[Ints]:
    """Give the prompt groups of several tables numbers, so that equal numbers mean the same group.

    Returns
    -------
    list of arrays
        One per table, one number per row, from 0. A row that no id ties to a group is one of its own.
    """
    together = _stacked(frames, _GROUP_KEYS)
    ends = np.cumsum([len(frame) for frame in frames])
    return np.split(identify([codes(together, key) for key in _GROUP_KEYS]), ends[:-1])


def group_rows(groups: pd.DataFrame, other: pd.DataFrame) -> Ints:
    """Find the group of each row of another table: its position among `groups`, -1 for none or several."""
    ours, theirs = group_codes(groups, other)
    return find([theirs], [ours])


def session_rows(sessions: pd.DataFrame, other: pd.DataFrame) -> Ints:
    """Find the session of each row of another table: its position among `sessions`, -1 for none."""
    together = _stacked((sessions, other), _SESSION_KEYS)
    numbers = [codes(together, key) for key in _SESSION_KEYS]
    size = len(sessions)
    return find([key[size:] for key in numbers], [key[:size] for key in numbers])


def trajectory_codes(frame: pd.DataFrame, groups: Ints) -> Ints:
    """Give the trajectories of a table of sessions or traces numbers.

    Parameters
    ----------
    frame
        Sessions or traces.
    groups
        Group number of each row.

    Returns
    -------
    array
        By session where it is known; a row without one belongs to the session of its group with the same
        trajectory key or position, else it is one of its own.
    """
    names = ("session_id", "trajectory", "position")
    keyed = frame.loc[:, list(names)].reset_index(drop=True).assign(of_group=groups)
    return identify([codes(keyed, ("of_group", name)) for name in names])


def batch_codes(frame: pd.DataFrame) -> Ints:
    """Give what estimators see at once one number: run, evaluation or not, rollout, accepted or not."""
    keys = pd.DataFrame(
        {
            "run": frame["run"].astype(object).where(frame["run"].notna(), ""),
            "evaluation": frame["evaluation"].fillna(False).astype(bool),
            "rollout_id": frame["rollout_id"].fillna(-1),
            "rejected": (~frame["accepted"].fillna(True)).astype(bool),
        }
    )
    return codes(keys, tuple(keys))


def in_run_order(frame: pd.DataFrame) -> pd.DataFrame:
    """Sort rows by run, evaluation or training, and rollout; rows of one rollout keep their order."""
    return frame.sort_values(["run", "evaluation", "rollout_id"], kind="stable", ignore_index=True)


def _stacked(frames: Sequence[pd.DataFrame], keys: Sequence[Sequence[str]]) -> pd.DataFrame:
    """Return the key columns of several tables, one below the other; absent ones are missing."""
    names = list(dict.fromkeys(name for key in keys for name in key))
    parts = [frame.reindex(columns=names).astype(object) for frame in frames]
    return pd.concat([part.where(part.notna(), None) for part in parts], ignore_index=True)


def mask_known(frame: pd.DataFrame, *names: str) -> Bools:
    """Return where all of the columns have a value."""
    result = np.ones(len(frame), dtype=bool)
    for name in names:
        result &= known(frame, name)
    return result
