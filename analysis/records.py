"""Everything that was read from a set of files, and how it changes when some of them are read again.

Tables hold only the columns that hold something, and name files by number: a run of a hundred thousand traces
is some tens of megabytes. Rows stand in the order of the files, whatever order the files were read in, so
that a run that was loaded while it grew equals one that was loaded at its end. Knows nothing about formats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
import pyarrow as pa

from analysis.problems import Problem, Skipped
from analysis.schema import GRAINS, TOKEN_REFS, arrow_schema
from analysis.sources.base import FileRecords, Position, ReadOptions, SourceFile
from analysis.sources.registry import read_files

__all__ = [
    "Records",
    "compacted",
    "inner_schema",
    "lost_file",
    "read_slim",
    "renamed_paths",
    "slim",
    "together",
    "widen",
]


PATH_TYPE = pa.dictionary(pa.int32(), pa.string())


@cache
def inner_schema(grain: str) -> pa.Schema:
    """Return the schema of a table inside the loader: as declared but for paths, which are many and alike."""
    schema = arrow_schema(grain)
    return schema.set(schema.names.index("path"), pa.field("path", PATH_TYPE))


def slim(table: pa.Table) -> pa.Table:
    """Leave out the columns without a value; ``path`` stays."""
    kept = [
        name for name in table.column_names if name == "path" or table.column(name).null_count < len(table)
    ]
    return table.select(kept)


def widen(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the table with all columns of the schema; missing ones share one buffer of nulls per type."""
    nulls: dict[pa.DataType, pa.Array] = {}
    arrays = []
    for name, kind in zip(schema.names, schema.types, strict=True):
        if name in table.column_names:
            arrays.append(_as_type(table.column(name), kind))
        else:
            if kind not in nulls:
                nulls[kind] = pa.nulls(len(table), kind)
            arrays.append(nulls[kind])
    return pa.Table.from_arrays(arrays, schema=schema)


def read_slim(files: Sequence[SourceFile], *, options: ReadOptions) -> FileRecords:
    """Read files into common tables without empty columns, paths as codes: what travels between processes."""
    records = read_files(files, options=options)
    return replace(
        records,
        tables={grain: _coded(slim(table)) for grain, table in records.tables.items()},
        token_refs=_coded(slim(records.token_refs)),
    )


def _as_type(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if column.type == kind:
        return column
    return column.dictionary_encode() if pa.types.is_dictionary(kind) else column.cast(kind)


def renamed_paths(table: pa.Table, rename: Callable[[str], str]) -> pa.Table:
    """Return the table with other file names; ``path`` becomes a dictionary column."""
    paths = _paths(table)
    names = pa.array(
        [None if path is None else rename(path) for path in paths.dictionary.to_pylist()], pa.string()
    )
    return _with_paths(table, pa.DictionaryArray.from_arrays(paths.indices, names))


def lost_file(file: SourceFile, why: str) -> FileRecords:
    """Stand in for the records of a file that killed the process which read it."""
    problem = Problem(
        file.path,
        "reading it ended the process",
        why,
        "look at the file; it is damaged, hostile or too large",
    )
    return FileRecords((file,), {}, (problem,))


def compacted(parts: Sequence[FileRecords]) -> FileRecords:
    """Put what was read in several pieces into one: many small buffers take half as much memory again."""
    refs = [part.token_refs for part in parts if len(part.token_refs)]
    return FileRecords(
        files=tuple(file for part in parts for file in part.files),
        tables={
            grain: _piled([part.tables[grain] for part in parts if grain in part.tables])
            for grain in GRAINS
            if any(grain in part.tables for part in parts)
        },
        problems=tuple(problem for part in parts for problem in part.problems),
        skipped=tuple(item for part in parts for item in part.skipped),
        token_refs=_piled(refs or [slim(TOKEN_REFS.empty_table())]),
        positions={path: at for part in parts for path, at in part.positions.items()},
    )


@dataclass(frozen=True)
class Records:
    """What is known of a set of files.

    Attributes
    ----------
    files
        By path, in the order of their rows; as they were when they were read.
    tables
        Per grain that has rows: the columns that have values, ``path`` as a dictionary column.
    token_refs
        Where token arrays lie, likewise.
    problems, skipped
        Of these files.
    positions
        Where to go on in append-only files.
    """

    files: Mapping[str, SourceFile] = field(default_factory=dict)
    tables: Mapping[str, pa.Table] = field(default_factory=dict)
    token_refs: pa.Table = field(default_factory=lambda: slim(TOKEN_REFS.empty_table()))
    problems: tuple[Problem, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    positions: Mapping[str, Position] = field(default_factory=dict)

    def table(self, grain: str) -> pa.Table:
        """Return the table of a grain with all columns of `inner_schema`."""
        found = self.tables.get(grain)
        schema = inner_schema(grain)
        return schema.empty_table() if found is None else widen(found, schema)

    def without(self, paths: Iterable[str], *, tails: Mapping[str, Position] | None = None) -> Records:
        """Forget files, and the problems behind the given positions of files that are read further.

        Parameters
        ----------
        paths
            Files to forget altogether.
        tails
            By path, where reading goes on: what was wrong from there on is forgotten.
        """
        gone = set(paths)
        ends = tails or {}
        if not gone and not ends:
            return self

        def stays(problem: Problem) -> bool:
            path, place = _split(problem.path, self.files)
            line = int(place) if place.isdigit() else 0
            return path not in gone and not (path in ends and line >= ends[path].line)

        return Records(
            files={path: file for path, file in self.files.items() if path not in gone},
            tables={grain: _dropped(table, gone) for grain, table in self.tables.items()},
            token_refs=_dropped(self.token_refs, gone),
            problems=tuple(problem for problem in self.problems if stays(problem)),
            skipped=tuple(item for item in self.skipped if _split(item.path, self.files)[0] not in gone),
            positions={path: at for path, at in self.positions.items() if path not in gone},
        )

    def plus(self, parts: Sequence[FileRecords], order: Mapping[str, int]) -> Records:
        """Add what was read.

        Parameters
        ----------
        parts
            Of files that are new here, or that were read on from their position.
        order
            Place of every file, by path.
        """
        files = {**self.files, **{file.path: file for part in parts for file in part.files}}
        last = len(order)
        tables: dict[str, pa.Table] = {}
        for grain in GRAINS:
            pieces = [part.tables[grain] for part in parts if grain in part.tables]
            if grain in self.tables:
                pieces.insert(0, self.tables[grain])
            if pieces:
                tables[grain] = _stacked(pieces, order)
        refs = [self.token_refs, *(part.token_refs for part in parts)]
        return Records(
            files=dict(sorted(files.items(), key=lambda item: order.get(item[0], last))),
            tables=tables,
            token_refs=_stacked([table for table in refs if len(table)] or refs[:1], order),
            problems=(*self.problems, *(problem for part in parts for problem in part.problems)),
            skipped=(*self.skipped, *(item for part in parts for item in part.skipped)),
            positions={**self.positions, **{p: at for part in parts for p, at in part.positions.items()}},
        )

    def renamed(self, rename: Callable[[str], str]) -> Records:
        """Return the same with other file names, as for a folder that was moved."""

        def moved(text: str) -> str:
            path, place = _split(text, self.files)
            return rename(path) + (f":{place}" if place else "")

        return Records(
            files={rename(path): replace(f, path=rename(path)) for path, f in self.files.items()},
            tables={grain: renamed_paths(table, rename) for grain, table in self.tables.items()},
            token_refs=renamed_paths(self.token_refs, rename),
            problems=tuple(replace(problem, path=moved(problem.path)) for problem in self.problems),
            skipped=tuple(replace(item, path=moved(item.path)) for item in self.skipped),
            positions={rename(path): position for path, position in self.positions.items()},
        )


def together(parts: Sequence[Records]) -> Records:
    """Return the records of several sets of files, one set after the other."""
    if len(parts) == 1:
        return parts[0]
    order = {path: place for place, path in enumerate(path for part in parts for path in part.files)}
    found = Records()
    for part in parts:
        as_read = FileRecords(
            files=tuple(part.files.values()),
            tables=dict(part.tables),
            problems=part.problems,
            skipped=part.skipped,
            token_refs=part.token_refs,
            positions=dict(part.positions),
        )
        found = found.plus([as_read], order)
    return found


def _split(text: str, files: Mapping[str, SourceFile]) -> tuple[str, str]:
    """Split the name of a place into its file and the rest."""
    path = text
    while path not in files:
        path, colon, _ = path.rpartition(":")
        if not colon:
            return text, ""
    return path, text[len(path) + 1 :]


def _paths(table: pa.Table) -> pa.DictionaryArray:
    column = table.column("path")
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    if encoded.num_chunks > 1:
        encoded = encoded.unify_dictionaries()
    chunk = encoded.combine_chunks()
    return pa.concat_arrays(chunk.chunks) if isinstance(chunk, pa.ChunkedArray) else chunk


def _with_paths(table: pa.Table, paths: pa.DictionaryArray) -> pa.Table:
    return table.set_column(table.column_names.index("path"), "path", paths)


def _dropped(table: pa.Table, gone: set[str]) -> pa.Table:
    if not gone or not len(table):
        return table
    paths = _paths(table)
    stays = np.array([path not in gone for path in paths.dictionary.to_pylist()], dtype=bool)
    mask = stays[paths.indices.to_numpy()] if len(stays) else np.zeros(len(table), bool)
    if mask.all():
        return table
    kept = table.filter(pa.array(mask))
    # The names of files that are gone must go as well.
    return _with_paths(kept, _paths(kept).dictionary_decode().dictionary_encode())


def _piled(pieces: Sequence[pa.Table]) -> pa.Table:
    """Put tables one after the other, in one piece; paths become codes."""
    plain = [_coded(piece) for piece in pieces]
    table = pa.concat_tables(plain, promote_options="default") if len(plain) > 1 else plain[0]
    return table.combine_chunks()


def _coded(table: pa.Table) -> pa.Table:
    """Return the table with paths as codes, whoever made it."""
    return _with_paths(table, _paths(table)).replace_schema_metadata(None)


def _stacked(pieces: Sequence[pa.Table], order: Mapping[str, int]) -> pa.Table:
    """Put tables one after the other, in the order of their files."""
    table = _piled(pieces)
    paths = _paths(table)
    table = _with_paths(table, paths)
    last = len(order)
    places = [order.get(path, last) for path in paths.dictionary.to_pylist()]
    ranks = np.array(places, dtype=np.int64)[paths.indices.to_numpy()] if places else np.zeros(0, np.int64)
    if (np.diff(ranks) < 0).any():
        table = table.take(pa.array(np.argsort(ranks, kind="stable")))
    return table
