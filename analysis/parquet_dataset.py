"""Datasets of our own in Parquet: their layout, and how they are read back to the very same tables.

::

    <dataset>/_workbench.json                    schema version, runs, rows per table
    <dataset>/session/rollout=3/part-0.parquet   one folder per table: rollout, group, session, trace, ...
    <dataset>/token/rollout=3/part-0.parquet     token arrays, one row per trace, as lists

The (Hive style) partition is the rollout's number, -1 for rows whose rollout nobody knows: a missing value
there would keep some readers from reading anything. The column ``rollout_id`` says it properly. ``_row`` is a
row's place in its table, and ``_owner`` that of the row it belongs to. Any Parquet reader takes a table's
folder as one dataset.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from analysis._tables import integers, one_array, set_columns
from analysis.errors import FileLimitError
from analysis.merge import OWNER
from analysis.problems import Problem
from analysis.records import inner_schema, widen
from analysis.schema import GRAINS, SCHEMA_VERSION, TOKEN_REFS, arrow_schema
from analysis.sources.base import ReadOptions, SourceFile

__all__ = [
    "INSIDE",
    "MANIFEST",
    "NO_ROLLOUT",
    "PARTITION",
    "TOKEN_LISTS",
    "TOKEN_TABLE",
    "Restored",
    "dataset_of",
    "joined",
    "read_part",
    "restore",
]

INSIDE = MappingProxyType(
    {
        "group": "rollout",
        "session": "group",
        "trace": "session",
        "event": "group",
        "completion": "session",
        "metric": "rollout",
    }
)
"""Which table the rows of a table belong to."""

MANIFEST = "_workbench.json"
PARTITION = "rollout"
NO_ROLLOUT = -1
"""Partition of rows whose rollout nobody knows."""

TOKEN_TABLE = "token"
TOKEN_LISTS = pa.schema(
    [
        pa.field("run", pa.string()),
        pa.field("rollout_id", pa.int64()),
        pa.field("evaluation", pa.bool_()),
        pa.field("group_index", pa.int64()),
        pa.field("session_id", pa.string()),
        pa.field("trace_index", pa.int64()),
        pa.field("sample_index", pa.int64()),
        pa.field("tokens_hash", pa.string()),
        pa.field("prompt_ids", pa.list_(pa.int32())),
        pa.field("response_ids", pa.list_(pa.int32())),
        pa.field("mask", pa.list_(pa.int8())),
        pa.field("trainable", pa.list_(pa.int8())),
        pa.field("logprob", pa.list_(pa.float32())),
        pa.field("train_logprob", pa.list_(pa.float32())),
        pa.field("advantage", pa.list_(pa.float32())),
    ]
)
"""One row per trace: ids, then lists with one entry per token of the prompt or of the response.

A list is missing where nothing is known; NaN stands for single missing numbers.
"""


_BATCH_ROWS = 4096
_LISTS = frozenset(field.name for field in TOKEN_LISTS if pa.types.is_list(field.type))


@dataclass(frozen=True)
class Restored:
    """What some files of a dataset hold.

    Attributes
    ----------
    tables
        Joined tables with their owners, as they were when they were written.
    token_refs
        Places of token lists, with a column ``run``.
    problems
        Files that could not be read.
    """

    tables: Mapping[str, pa.Table]
    token_refs: pa.Table
    problems: tuple[Problem, ...] = ()


def restore(files: Sequence[SourceFile], options: ReadOptions | None = None) -> Restored:
    """Read a dataset back.

    Parameters
    ----------
    files
        Parquet files of one dataset, or some of them.
    options
        How much memory one of them may take; None for the defaults.
    """
    rows: dict[str, list[pa.Table]] = {grain: [] for grain in GRAINS}
    refs: list[pa.Table] = []
    problems: list[Problem] = []
    for file in files:
        try:
            name, table = read_part(Path(file.path), options)
            # Here, so that a column of another type is a problem of its own file.
            if name == TOKEN_TABLE:
                refs.append(_refs(file.path, table))
            else:
                rows[name].append(widen(table, _stored_schema(name)))
        except FileLimitError as error:
            problems.append(Problem.of(file.path, error))
        except (OSError, pa.ArrowException, ValueError, KeyError, TypeError) as error:
            problems.append(
                Problem(
                    file.path,
                    "the Parquet file cannot be read",
                    f"{type(error).__name__}: {str(error)[:200]}",
                )
            )
    tables = {grain: _in_order(parts, grain) for grain, parts in rows.items()}
    found = pa.concat_tables(refs) if refs else _refs("", TOKEN_LISTS.empty_table())
    return Restored(_with_owners(tables), found, tuple(problems))


def read_part(path: Path, options: ReadOptions | None = None) -> tuple[str, pa.Table]:
    """Return the name of the table that a file is a part of, and its rows; token lists are left out.

    Parameters
    ----------
    path
        The file.
    options
        How much memory it may take; None for the defaults.

    Raises
    ------
    FileLimitError
        Its rows would take more memory than allowed: a few bytes can say one value a billion times.
    ValueError
        It is somebody else's Parquet file, or of a newer version; or (as ``ArrowInvalid``) damaged.
    OSError
        It cannot be read.
    """
    with pq.ParquetFile(path) as parquet:
        metadata = parquet.schema_arrow.metadata or {}
        name = metadata.get(b"table", b"").decode()
        version = int(metadata.get(b"schema_version", b"0"))
        if name not in (*GRAINS, TOKEN_TABLE) or not 1 <= version <= SCHEMA_VERSION:
            raise ValueError(
                f"table {name!r} of schema version {version}; known are versions 1 to {SCHEMA_VERSION}"
            )
        wanted = [field for field in parquet.schema_arrow.names if field not in _LISTS]
        limit = (options or ReadOptions()).memory_limit()
        return name, _bounded(parquet, wanted if name == TOKEN_TABLE else None, limit)


def _bounded(parquet: pq.ParquetFile, columns: list[str] | None, limit: int) -> pa.Table:
    """Read a file's rows a few at a time, until they take more than allowed."""
    about = parquet.metadata
    groups = [about.row_group(number) for number in range(about.num_row_groups)]
    # A row takes at most what its group takes unpacked, which is known beforehand.
    row = max([group.total_byte_size for group in groups], default=0)
    rows = max(1, min(_BATCH_ROWS, limit // (4 * row + 1)))
    batches: list[pa.RecordBatch] = []
    left = limit
    for batch in parquet.iter_batches(batch_size=rows, columns=columns):
        batches.append(batch)
        left -= batch.nbytes
        if left < 0:
            raise FileLimitError(
                "would take too much memory",
                f"more than {limit / 2**20:,.0f} MiB in the first {sum(map(len, batches)):,} of "
                f"{about.num_rows:,} rows",
                "pass a larger `max_bytes` if the file is genuine",
            )
    schema = (
        parquet.schema_arrow
        if columns is None
        else pa.schema([parquet.schema_arrow.field(c) for c in columns])
    )
    return pa.Table.from_batches(batches, schema=batches[0].schema if batches else schema)


def _stored_schema(grain: str) -> pa.Schema:
    return arrow_schema(grain).append(pa.field("_row", pa.int64())).append(pa.field("_owner", pa.int64()))


def _in_order(parts: Sequence[pa.Table], grain: str) -> pa.Table:
    table = pa.concat_tables(parts) if parts else _stored_schema(grain).empty_table()
    order = np.argsort(integers(table, "_row"), kind="stable")
    return table.take(pa.array(order)).combine_chunks()


def _with_owners(tables: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
    """Turn places at the time of writing into places among what is there now."""
    result = {}
    for grain, table in tables.items():
        owner = integers(table, "_owner", -1)
        if grain in INSIDE:
            known = integers(tables[INSIDE[grain]], "_row")
            place = np.searchsorted(known, owner)
            there = (owner >= 0) & (place < len(known))
            there[there] = known[place[there]] == owner[there]
        else:
            place, there = owner, np.zeros(len(owner), dtype=bool)
        plain = widen(table, inner_schema(grain))
        result[grain] = plain.append_column(OWNER, pa.array(place.astype(np.int64), mask=~there))
    return result


def _refs(path: str, table: pa.Table) -> pa.Table:
    """Return the places of a file's token lists."""
    count = len(table)
    known = {
        "path": pa.array([path] * count, pa.string()),
        "source": pa.array(["parquet"] * count, pa.string()),
        "item": pa.array(np.arange(count), pa.int64()),
    }
    arrays = [
        known.get(field.name)
        if field.name in known
        else one_array(table.column(field.name)).cast(field.type)
        if field.name in table.column_names
        else pa.nulls(count, field.type)
        for field in TOKEN_REFS
    ]
    refs = pa.Table.from_arrays(arrays, schema=TOKEN_REFS)
    run = one_array(table.column("run")) if "run" in table.column_names else pa.nulls(count, pa.string())
    return refs.append_column("run", run.cast(pa.string()))


def joined(parts: Sequence[Mapping[str, pa.Table]]) -> dict[str, pa.Table]:
    """Put the tables of several sources one after the other; owners keep pointing to the same rows."""
    if len(parts) == 1:
        return dict(parts[0])
    offsets = {grain: np.cumsum([0, *(len(part[grain]) for part in parts)]) for grain in GRAINS}
    result = {}
    for grain in GRAINS:
        moved = []
        for place, part in enumerate(parts):
            owner = part[grain].column(OWNER)
            first = int(offsets[INSIDE.get(grain, "rollout")][place])
            moved.append(set_columns(part[grain], **{OWNER: pc.add(one_array(owner), first)}))
        result[grain] = pa.concat_tables(moved).combine_chunks()
    return result


def dataset_of(path: str) -> str:
    """Return the dataset's folder that a file belongs to."""
    return os.path.dirname(os.path.dirname(os.path.dirname(path)))
