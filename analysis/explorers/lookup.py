"""Who belongs to whom in a run, found once and looked up at once: what linked selections stand on."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analysis.errors import ExplorerError
from analysis.merge import OWNER
from analysis.run import Run
from analysis.schema import GRAINS
from analysis.stats.columns import Bools, Ints, texts
from analysis.stats.frames import GROUP_IDS, Frames, as_frames, group_rows, session_rows

__all__ = ["GroupKey", "RunTables", "tables_of"]

_SHOWN_CANDIDATES = 5


class GroupKey(NamedTuple):
    """What names a prompt group; parts that nobody recorded are None.

    Attributes
    ----------
    run
        Name of the run.
    rollout_id
        Rollout that it counts towards.
    evaluation
        Whether it belongs to an evaluation.
    worker, group
        Life of the bridge's worker, and the scheduler's number in it.
    group_index
        Slime's number of the prompt group.
    """

    run: str | None = None
    rollout_id: int | None = None
    evaluation: bool | None = None
    worker: str | None = None
    group: int | None = None
    group_index: int | None = None

    def label(self) -> str:
        """Return a short name for people."""
        number = self.group if self.group is not None else self.group_index
        kind = "evaluation group" if self.evaluation else "group"
        rollout = "" if self.rollout_id is None else f", rollout {self.rollout_id}"
        return f"{kind} {'?' if number is None else number}{rollout}"


class RunTables:
    """The tables of a run with the owner of each row; read again after `Run.refresh`.

    Parameters
    ----------
    run
        A loaded run or a mapping of frames.

    Raises
    ------
    ExplorerError
        If a table of a mapping is no data frame.
    StatsError
        If it is something else, or a table has a name that no table has.
    """

    def __init__(self, run: Any) -> None:
        self.run = run
        self._generation: int | None = None
        _refuse_other_tables(run)
        self._frames: Frames = as_frames(run)
        self._found: dict[Hashable, Any] = {}

    @property
    def generation(self) -> int:
        """Counts the refreshes of the run; 0 for frames, which do not change."""
        return int(getattr(getattr(self.run, "store", None), "generation", 0))

    @property
    def frames(self) -> Frames:
        """The tables as the statistics take them."""
        self._keep_up()
        return self._frames

    @property
    def rollouts(self) -> pd.DataFrame:
        """One row per rollout; do not change it."""
        return self.frames.rollouts

    @property
    def groups(self) -> pd.DataFrame:
        """One row per prompt group; do not change it."""
        return self.frames.groups

    @property
    def sessions(self) -> pd.DataFrame:
        """One row per session; do not change it."""
        return self.frames.sessions

    @property
    def traces(self) -> pd.DataFrame:
        """One row per trace; do not change it."""
        return self.frames.traces

    # Owners

    @property
    def group_of_session(self) -> Ints:
        """Row of each session's group, -1 for none."""
        found: Ints = self.once("group_of_session", lambda: self._owners("session"))
        return found

    @property
    def session_of_trace(self) -> Ints:
        """Row of each trace's session, -1 for none."""
        found: Ints = self.once("session_of_trace", lambda: self._owners("trace"))
        return found

    @property
    def group_of_trace(self) -> Ints:
        """Row of each trace's group, -1 for none."""
        found: Ints = self.once("group_of_trace", self._groups_of_traces)
        return found

    # Keys

    @property
    def group_keys(self) -> list[GroupKey]:
        """Key of each group, in the order of the table."""
        found: list[GroupKey] = self.once("group_keys", lambda: _keys(self.groups))
        return found

    def group_row(self, key: GroupKey) -> int | None:
        """Return the row of a group, None if it is not there (any more).

        A group that was open counts towards another rollout once it is delivered: it is then found by the
        scheduler's or by Slime's number.
        """
        by_key, by_number = self.once("group_places", lambda: _places(self.group_keys))
        if key in by_key:
            return int(by_key[key])
        return next((int(by_number[n]) for n in _numbers(key) if n in by_number), None)

    def find_group(self, wanted: Any) -> GroupKey:
        """Return the key of what a user calls a group.

        Parameters
        ----------
        wanted
            A key, a number (the scheduler's, else Slime's), or a mapping or row with some of a key's names.

        Raises
        ------
        ExplorerError
            If there is no such group, or more than one.
        """
        if isinstance(wanted, GroupKey):
            row = self.group_row(wanted)
            if row is None:
                raise ExplorerError(f"this run has no {wanted.label()}; run.groups() lists all")
            return self.group_keys[row]
        if isinstance(wanted, int | np.integer) and not isinstance(wanted, bool):
            return self._group_by_number(int(wanted))
        if isinstance(wanted, Mapping | pd.Series):
            return self._group_by_parts(wanted)
        raise ExplorerError(f"a group is a number, a GroupKey or a row of run.groups(), got {wanted!r}")

    def session_row(self, session_id: str, run: str | None = None) -> int | None:
        """Return the row of a session, None if it is not there.

        Parameters
        ----------
        session_id
            Polar's id.
        run
            Where several runs are loaded and both have the session, as a copied run folder has.
        """
        places = self.once("session_places", lambda: _session_places(self.sessions))
        found = places.get(session_id, [])
        if run is not None and len(found) > 1:
            names = texts(self.sessions, "run")
            found = [row for row in found if names[row] == run] or found
        return found[0] if found else None

    def rows_in_rollouts(self, grain: str, rollouts: tuple[int, ...] | None) -> Ints:
        """Return the rows of a table that count towards some rollouts; all rows for None."""
        frame = self.frames.table(grain)
        if rollouts is None:
            return np.arange(len(frame), dtype=np.int64)
        ids = self.once(f"rollout_ids/{grain}", lambda: _rollout_ids(frame))
        return np.flatnonzero(np.isin(ids, np.asarray(rollouts, dtype=np.int64)))

    def once(self, name: Hashable, make: Callable[[], Any]) -> Any:
        """Return what `make` gives, made once per name until the run is read again."""
        self._keep_up()
        if name not in self._found:
            self._found[name] = make()
        return self._found[name]

    # Inner workings

    def _keep_up(self) -> None:
        generation = self.generation
        if generation != self._generation:
            if self._generation is not None:
                self._frames = as_frames(self.run)
            self._found = {}
            self._generation = generation

    def _owners(self, grain: str) -> Ints:
        if isinstance(self.run, Run):
            column = self.run.owned_table(grain).column(OWNER).combine_chunks()
            return np.asarray(column.fill_null(-1).to_numpy(zero_copy_only=False), dtype=np.int64)
        outer = self.groups if grain == "session" else self.sessions
        find = group_rows if grain == "session" else session_rows
        inner = self.frames.table(grain)
        return find(outer, inner) if len(outer) and len(inner) else np.full(len(inner), -1, dtype=np.int64)

    def _groups_of_traces(self) -> Ints:
        owner = self.session_of_trace
        through = np.full(len(owner), -1, dtype=np.int64)
        known = owner >= 0
        through[known] = self.group_of_session[owner[known]]
        lost: Bools = through < 0
        if lost.any() and not isinstance(self.run, Run) and len(self.groups):
            through[lost] = group_rows(self.groups, self.traces[lost])
        return through

    def _group_by_number(self, number: int) -> GroupKey:
        for name in ("group", "group_index"):
            found = [key for key in self.group_keys if getattr(key, name) == number]
            training = [key for key in found if not key.evaluation]
            found = training or found
            if len(found) == 1:
                return found[0]
            if found:
                raise _ambiguous(f"{name} {number}", found)
        raise ExplorerError(f"no group has the number {number}: the run has {len(self.groups)} groups")

    def _group_by_parts(self, wanted: Mapping[str, Any] | pd.Series) -> GroupKey:
        parts = {name: _plain(wanted[name]) for name in GROUP_IDS if name in wanted}
        if not parts:
            raise ExplorerError(f"none of {', '.join(GROUP_IDS)} is given: these name a group")
        found = [key for key in self.group_keys if all(getattr(key, n) == v for n, v in parts.items())]
        if not found:
            raise ExplorerError(f"no group with {parts}; run.groups() lists all")
        if len(found) > 1:
            raise _ambiguous(str(parts), found)
        return found[0]


def tables_of(run: Any) -> RunTables:
    """Return the tables of a run; explorers of one run share them."""
    if isinstance(run, Mapping):  # may be filled with other frames before the next cell
        return RunTables(run)
    # The tables hold the run: as long as they are here, its id is no other's.
    found = _shared.get(id(run))
    if found is None:
        found = _shared[id(run)] = RunTables(run)
    return found


_shared: weakref.WeakValueDictionary[int, RunTables] = weakref.WeakValueDictionary()


def _refuse_other_tables(run: Any) -> None:
    if not isinstance(run, Mapping):
        return
    for name, table in run.items():
        grain = str(name).removesuffix("s")
        if grain in GRAINS and not isinstance(table, pd.DataFrame):
            raise ExplorerError(
                f"the table {name!r} is a {type(table).__name__}, where a data frame with the columns of "
                f"run.{grain}s() is expected; analysis.load(folder) gives a run with all tables"
            )


def _keys(groups: pd.DataFrame) -> list[GroupKey]:
    columns = [texts(groups, name) for name in GROUP_IDS]
    return [GroupKey(*map(_plain, values)) for values in zip(*columns, strict=True)]


def _plain(value: Any) -> Any:
    if value is None or value is pd.NA or value != value:
        return None
    return value.item() if isinstance(value, np.generic) else value


def _numbers(key: GroupKey) -> list[tuple[Any, ...]]:
    """Return what still names a group when it counts towards another rollout."""
    numbers: list[tuple[Any, ...]] = []
    if key.worker is not None and key.group is not None:
        numbers.append(("group", key.run, key.worker, key.group))
    if key.group_index is not None and not key.evaluation:
        numbers.append(("group_index", key.run, key.group_index))
    return numbers


def _places(keys: list[GroupKey]) -> tuple[dict[GroupKey, int], dict[tuple[Any, ...], int]]:
    by_key: dict[GroupKey, int] = {}
    by_number: dict[tuple[Any, ...], int] = {}
    for row, key in enumerate(keys):
        by_key.setdefault(key, row)
        for number in _numbers(key):
            by_number.setdefault(number, row)
    return by_key, by_number


def _session_places(sessions: pd.DataFrame) -> dict[str, list[int]]:
    places: dict[str, list[int]] = {}
    for row, name in enumerate(texts(sessions, "session_id")):
        if name is not None:
            places.setdefault(name, []).append(row)
    return places


def _rollout_ids(frame: pd.DataFrame) -> Ints:
    return np.asarray(frame["rollout_id"].to_numpy(dtype=np.int64, na_value=-1), dtype=np.int64)


def _ambiguous(what: str, found: list[GroupKey]) -> ExplorerError:
    shown = "; ".join(repr(key) for key in found[:_SHOWN_CANDIDATES])
    return ExplorerError(f"{len(found)} groups have {what}; name one by more of its ids: {shown}")
