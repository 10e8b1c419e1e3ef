"""What readers are given and what they give back: files, options, rows, problems, and where tokens lie.

A reader adds rows to a `Sink`, table by table, as plain dicts of the columns it knows, or as tuples of a
fixed layout where there are very many. The sink turns them into Arrow tables once, for as many files as were
read into it, and takes back the rows of a file that fails halfway. Knows nothing about formats.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import pyarrow as pa

from analysis.problems import Problem, Skipped
from analysis.schema import GRAINS, TOKEN_REFS, arrow_schema

__all__ = ["FileRecords", "Late", "Position", "ReadOptions", "Sink", "SourceFile", "SourceKind"]

Row = dict[str, Any]


class SourceKind(StrEnum):
    """Formats that readers exist for."""

    POLAR_SESSION = "polar_session"
    """One session result, as stored or from the wire."""
    POLAR_TASK = "polar_task"
    """A task's record with the results of its sessions."""
    COMPLETION = "completion"
    """One captured model call."""
    ROLLOUT_DUMP = "rollout_dump"
    """Slime's samples of one rollout or evaluation."""
    TRAIN_DUMP = "train_dump"
    """What one rank of Slime's trainer made of a rollout."""
    JOURNAL = "journal"
    """The bridge's event log."""
    REJECTED = "rejected"
    """The samples of rejected groups."""
    WEIGHT_PUSHES = "weight_pushes"
    """The barrier's list of weight pushes."""
    METRICS = "metrics"
    """One JSON object of numbers per line."""
    WANDB = "wandb"
    """The log of a W&B run."""
    PARQUET = "parquet"
    """Tables that this package wrote."""


@dataclass(frozen=True, slots=True)
class Position:
    """How far an append-only file was read.

    Parameters
    ----------
    offset
        First byte that was not consumed.
    line
        Number of the line that begins there, from 1.
    opening
        Openings of a journal seen before it.
    rollout_id
        The rollout that a journal's trainer had asked for last, None before the first.
    groups
        Facts about groups that later records of a journal refer to: group number to a small mapping.
    """

    offset: int = 0
    line: int = 1
    opening: int = 0
    rollout_id: int | None = None
    groups: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file to read.

    Parameters
    ----------
    path
        Where it is.
    kind
        What it is taken for; the content decides, and a reader that finds something else says so.
    size, mtime_ns
        As found by discovery; together they tell whether a file has changed.
    explicit
        It was named by the user, not found in a folder.
    since
        For append-only files: read only what stands after this position. None reads everything.
    """

    path: str
    kind: SourceKind
    size: int = 0
    mtime_ns: int = 0
    explicit: bool = False
    since: Position | None = None

    @classmethod
    def at(cls, path: str | os.PathLike[str], kind: SourceKind, *, explicit: bool = False) -> SourceFile:
        """Describe an existing file.

        Raises
        ------
        OSError
            If it cannot be looked at.
        """
        status = os.stat(path)
        return cls(os.fspath(path), kind, status.st_size, status.st_mtime_ns, explicit)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How to read, the same for all files.

    Parameters
    ----------
    trusted
        Load pickles that could run code. Only for files whose writer you trust like your own shell.
    reward_key
        Which entry is the reward where a sample's reward is a mapping of several; None takes ``score``, else
        ``reward``, else leaves the reward missing and says so.
    max_bytes
        Most memory that the content of one file may take, in bytes; None for half of the machine's memory, at
        most 16 GiB.
    max_text
        Longest text kept in a cell, in characters; longer texts are cut and end in ``…``.
    """

    trusted: bool = False
    reward_key: str | None = None
    max_bytes: int | None = None
    max_text: int = 20_000

    def memory_limit(self) -> int:
        """Return `max_bytes`, or what stands for None, in bytes."""
        if self.max_bytes is not None:
            return self.max_bytes
        physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return min(physical // 2, 16 << 30)


@dataclass(frozen=True, slots=True)
class FileRecords:
    """What was read from one file, or from several.

    Parameters
    ----------
    files
        The files, in the order of reading.
    tables
        One Arrow table per grain that has rows, with the grain's full schema. Rows of one file are
        in file order; the column ``path`` tells files apart.
    problems, skipped
        What went wrong, and what was left out.
    token_refs
        Where token arrays lie; schema `analysis.schema.TOKEN_REFS`.
    positions
        For append-only files, by path: where to go on.
    """

    files: tuple[SourceFile, ...]
    tables: dict[str, pa.Table]
    problems: tuple[Problem, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    token_refs: pa.Table = field(default_factory=TOKEN_REFS.empty_table)
    positions: dict[str, Position] = field(default_factory=dict)

    def table(self, grain: str) -> pa.Table:
        """Return the table of a grain, empty where nothing was read."""
        return self.tables[grain] if grain in self.tables else arrow_schema(grain).empty_table()


@dataclass(frozen=True)
class Late:
    """Columns that are computed for all rows at once, when the table is made.

    Parameters
    ----------
    names
        The columns.
    function
        Gets one item per row, and returns one Arrow array per name.
    """

    names: tuple[str, ...]
    function: Callable[[Sequence[Any]], list[pa.Array]]


class Sink:
    """Collects rows, problems and token places of any number of files."""

    def __init__(self) -> None:
        self._files: list[SourceFile] = []
        self._rows: dict[str, list[Row]] = {grain: [] for grain in GRAINS}
        self._names: dict[str, set[str]] = {grain: set() for grain in GRAINS}
        self._tuples: dict[tuple[str, tuple[str, ...], Late | None], list[tuple[Any, ...]]] = {}
        self._refs: list[tuple[Any, ...]] = []
        self._tables: dict[str, list[pa.Table]] = {}
        self._path = ""
        self._state: tuple[int | None, int | None] = None, None
        self._tallies: dict[str, tuple[int, str, str]] = {}
        self.problems: list[Problem] = []
        self.skipped: list[Skipped] = []
        self.positions: dict[str, Position] = {}

    def begin(self, file: SourceFile) -> None:
        """Start a file: rows that follow are its own until `rollback` or the next `begin`."""
        self._close_tallies()
        self._files.append(file)
        self._path = file.path
        self._state = file.size or None, file.mtime_ns or None
        self._mark = [(rows, len(rows)) for rows in self._collected()]

    def rollback(self) -> None:
        """Take back all rows, token places and problems of the current file."""
        counts = {id(rows): count for rows, count in self._mark}
        for rows in self._collected():
            del rows[counts.get(id(rows), 0) :]
        self._tallies.clear()
        self.positions.pop(self._path, None)

    def add(self, grain: str, row: Row) -> None:
        """Add one row.

        Parameters
        ----------
        grain
            Which table.
        row
            Values by column name; taken over. Absent and None are missing. ``path`` is filled in.
        """
        row["path"] = self._path
        self._rows[grain].append(row)
        self._names[grain].update(row)

    def rows_of(self, grain: str, layout: tuple[str, ...], late: Late | None = None) -> list[tuple[Any, ...]]:
        """Return the list to append rows of a fixed layout to: the fast way, for millions of rows.

        Parameters
        ----------
        grain
            Which table.
        layout
            Names of the columns that each tuple holds, in order; ``path`` is the reader's to fill.
        late
            What is made of one more item of each tuple, its last.
        """
        return self._tuples.setdefault((grain, layout, late), [])

    def _collected(self) -> Iterator[list[Any]]:
        yield from self._rows.values()
        yield from self._tuples.values()
        yield from self._tables.values()
        yield self._refs
        yield self.problems

    def add_table(self, grain: str, table: pa.Table) -> None:
        """Add rows that are an Arrow table of the grain's schema already."""
        self._tables.setdefault(grain, []).append(table)

    def add_tokens(self, *ref: Any) -> None:
        """Add the place of one trace's token arrays: `TOKEN_REFS` in order, from ``source`` to ``result``."""
        self._refs.append((self._path, *ref, *self._state))

    def problem(self, what: str, why: str = "", fix: str = "", *, place: str = "") -> None:
        """Note a problem of the current file.

        Parameters
        ----------
        what, why, fix
            As in `Problem`.
        place
            Where in the file, appended to its path after a colon.
        """
        self.problems.append(Problem(f"{self._path}:{place}" if place else self._path, what, why, fix))

    def tally(self, what: str, example: str, fix: str = "") -> None:
        """Note a problem that many rows of the current file may share; it is listed once, with a count.

        Parameters
        ----------
        what, fix
            As in `Problem`.
        example
            The row at fault; the first one is named.
        """
        count, first, _ = self._tallies.get(what, (0, example, fix))
        self._tallies[what] = (count + 1, first, fix)

    def _close_tallies(self) -> None:
        for what, (count, first, fix) in self._tallies.items():
            self.problem(what, first if count == 1 else f"{count:,} times, first: {first}", fix)
        self._tallies.clear()

    def skip(self, reason: str) -> None:
        """Note that the current file was left out."""
        self.skipped.append(Skipped(self._path, reason))

    def records(self) -> FileRecords:
        """Return everything collected so far."""
        self._close_tallies()
        tables: dict[str, pa.Table] = {}
        for grain, rows in self._rows.items():
            parts = list(self._tables.get(grain, ()))
            if rows:
                parts.append(self._table(grain, rows))
            for (other, layout, late), tuples in self._tuples.items():
                if other == grain and tuples:
                    parts.append(self._table_of(grain, layout, late, tuples))
            if parts:
                tables[grain] = pa.concat_tables(parts).combine_chunks()
        return FileRecords(
            files=tuple(self._files),
            tables=tables,
            problems=tuple(self.problems),
            skipped=tuple(self.skipped),
            token_refs=_refs_table(self._refs),
            positions=dict(self.positions),
        )

    def _table(self, grain: str, rows: list[Row]) -> pa.Table:
        schema = arrow_schema(grain)
        unknown = self._names[grain].difference(schema.names)
        if unknown:
            raise KeyError(f"no columns {sorted(unknown)} in table {grain!r}")
        paths = [row["path"] for row in rows]
        arrays = [
            self._array([row.get(name) for row in rows], paths, name, kind)
            if name in self._names[grain]
            else pa.nulls(len(rows), kind)
            for name, kind in zip(schema.names, schema.types, strict=True)
        ]
        return pa.Table.from_arrays(arrays, schema=schema)

    def _table_of(
        self, grain: str, layout: tuple[str, ...], late: Late | None, rows: list[tuple[Any, ...]]
    ) -> pa.Table:
        schema = arrow_schema(grain)
        items = list(zip(*rows, strict=True))
        made: dict[str, pa.Array] = {}
        if late is not None:
            made = dict(zip(late.names, late.function(items.pop()), strict=True))
        columns = dict(zip(layout, items, strict=True))
        paths = columns["path"]
        for name, kind in zip(schema.names, schema.types, strict=True):
            if name in columns:
                made[name] = self._array(columns[name], paths, name, kind)
            elif name not in made:
                made[name] = pa.nulls(len(rows), kind)
        return pa.Table.from_arrays([made[name] for name in schema.names], schema=schema)

    def _array(self, values: Sequence[Any], paths: Sequence[str], name: str, kind: pa.DataType) -> pa.Array:
        try:
            return pa.array(values, type=kind)
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            return self._patient_array(values, paths, name, kind)

    def _patient_array(
        self, values: Sequence[Any], paths: Sequence[str], name: str, kind: pa.DataType
    ) -> pa.Array:
        """Convert value by value; one that does not fit its column is missing and listed."""
        arrays = []
        for value, path in zip(values, paths, strict=True):
            try:
                arrays.append(pa.array([value], type=kind))
            except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
                arrays.append(pa.nulls(1, kind))
                what = f"a value of column {name!r} cannot be kept"
                self.problems.append(Problem(path, what, f"{type(error).__name__}: {str(error)[:200]}"))
        return pa.concat_arrays(arrays)


def _refs_table(refs: list[tuple[Any, ...]]) -> pa.Table:
    if not refs:
        return TOKEN_REFS.empty_table()
    columns = zip(*refs, strict=True)
    arrays = [pa.array(values, type=kind) for values, kind in zip(columns, TOKEN_REFS.types, strict=True)]
    return pa.Table.from_arrays(arrays, schema=TOKEN_REFS)
