"""The tables that a run is loaded into, declared as data: the frames, their types and the data dictionary.

One table per level: rollout, group, session, trace, and the records event, completion and metric. Every row
holds the ids of all levels around it, so that tables join without thought. A missing value is NA in a
nullable dtype, never 0, and dtypes are the same for an empty table. Token arrays are in no table;
`TOKEN_REFS` says where they lie.

Readers fill the columns of their own source and leave the rest missing. Rows of several sources about the
same thing are found by `IDENTITY` and joined column by column, in the order of `Column.sources`; columns with
the source ``derived`` are computed then. Knows nothing about files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from analysis._columns import BOOLEAN, COMBINE, FLOAT, INTEGER, TEXT, TIME, Column
from analysis._group_columns import GROUP_COLUMNS, ROLLOUT_COLUMNS
from analysis._record_columns import COMPLETION_COLUMNS, EVENT_COLUMNS, METRIC_COLUMNS
from analysis._session_columns import SESSION_COLUMNS
from analysis._trace_columns import TRACE_COLUMNS

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "COMBINE",
    "GRAINS",
    "IDENTITY",
    "SCHEMA_VERSION",
    "SOURCES",
    "TABLES",
    "TOKEN_REFS",
    "Column",
    "Source",
    "arrow_schema",
    "column",
    "columns_of",
    "describe",
    "empty_frame",
    "empty_table",
    "to_array",
    "to_frame",
]

SCHEMA_VERSION = 1
"""Written into every file of our own that holds these tables; grows when older files would be misread."""

TABLES: Mapping[str, tuple[Column, ...]] = MappingProxyType(
    {
        "rollout": ROLLOUT_COLUMNS,
        "group": GROUP_COLUMNS,
        "session": SESSION_COLUMNS,
        "trace": TRACE_COLUMNS,
        "event": EVENT_COLUMNS,
        "completion": COMPLETION_COLUMNS,
        "metric": METRIC_COLUMNS,
    }
)
"""Columns of each table, in order."""

GRAINS = tuple(TABLES)
"""Names of the tables, outer levels first."""

IDENTITY: Mapping[str, tuple[tuple[str, ...], ...]] = MappingProxyType(
    {
        "rollout": (("evaluation", "rollout_id"),),
        "group": (
            ("worker", "group"),
            ("evaluation", "group", "group_index", "rollout_id"),
            ("evaluation", "group", "group_index"),
            ("evaluation", "rollout_id", "group_index"),
        ),
        "session": (
            ("session_id",),
            ("task_id", "position"),
            ("evaluation", "rollout_id", "group_index", "trajectory"),
        ),
        "trace": (
            ("session_id", "trace_index"),
            ("evaluation", "rollout_id", "sample_index", "tokens_hash"),
        ),
        "completion": (("session_id", "completion_id"),),
    }
)
"""What makes two rows of a table the same thing: keys to try in order, each usable where all parts are known.

Later keys are for rows that lack the ids of earlier ones: a rejected group's samples do not know their
worker, a placeholder knows no session, a train dump knows nothing but sample indices and tokens. Events and
metrics are never the same.
"""


@dataclass(frozen=True, slots=True)
class Source:
    """One kind of file that rows come from.

    Parameters
    ----------
    files
        Where it lies.
    tells
        What it alone, or it best, can tell.
    cannot_tell
        What is not in it.
    """

    files: str
    tells: str
    cannot_tell: str


SOURCES: Mapping[str, Source] = MappingProxyType(
    {
        "polar": Source(
            "task_*/ses_*.json, and task records or session results saved from the wire",
            "status, error, timing, evaluation and every trace of a session as the server delivered it",
            "whether the bridge accepted it, which rollout took it, and sessions that never finished",
        ),
        "completion": Source(
            "task_*/sessions/*/completions/*.json",
            "each model call as it happened, also of sessions that left no result",
            "calls that the writer dropped, and fields that it cut away",
        ),
        "rollout_dump": Source(
            "rollout_data/<id>.pt, rollout_data/eval_<id>.pt",
            "what the trainer was handed, in training order, with the masks and rewards of the bridge",
            "rejected groups, post-processed rewards, and the data set of an evaluation",
        ),
        "train_dump": Source(
            "train_data/<id>_<rank>.pt",
            "advantages, recomputed logprobs and optimiser steps, per token, as trained",
            "sessions and groups: its rows are found by sample index and tokens",
        ),
        "journal": Source(
            "journal*.jsonl",
            "every group that was drawn, its attempts, verdict and fate, with times and deciding numbers",
            "tokens and messages, and records that were dropped when the disk could not follow",
        ),
        "rejected": Source(
            "rejected*.jsonl",
            "the samples of rejected groups, as they would have been trained on",
            "samples of groups that failed before they were converted",
        ),
        "weight_pushes": Source(
            "weight_pushes.jsonl",
            "when weights were pushed, and whether the barrier had waited until no model call was in flight",
            "which policy version a push brought",
        ),
        "metrics": Source(
            "metrics.jsonl", "numbers per rollout and evaluation, as logged", "anything about single groups"
        ),
        "wandb": Source(
            "*.wandb", "the history of a W&B run, online or offline", "anything that was never logged there"
        ),
    }
)
"""Every source by the name that `Column.sources` uses."""

TOKEN_REFS = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("session_id", pa.string()),
        pa.field("trace_index", pa.int64()),
        pa.field("rollout_id", pa.int64()),
        pa.field("evaluation", pa.bool_()),
        pa.field("sample_index", pa.int64()),
        pa.field("tokens_hash", pa.string()),
        pa.field("item", pa.int64()),
        pa.field("result", pa.int64()),
        pa.field("file_bytes", pa.int64()),
        pa.field("file_mtime_ns", pa.int64()),
    ],
    metadata={"schema_version": str(SCHEMA_VERSION)},
)
"""Where the token arrays of a trace lie, one row per trace and file.

``item`` is the place of the trace in its container: among the session's traces, the dump's samples or the
rank's lists; ``result`` is the place of the session in a task record, or the byte offset of the group's line
in a file of rejected groups. ``file_bytes`` and ``file_mtime_ns`` are those of the file as it was read: in
another file the places may be others.
"""

_ARROW_TYPES = {
    INTEGER: pa.int64(),
    FLOAT: pa.float64(),
    BOOLEAN: pa.bool_(),
    TEXT: pa.string(),
    TIME: pa.timestamp("us", tz="UTC"),
}


def columns_of(grain: str) -> tuple[Column, ...]:
    """Return the columns of a table, in order.

    Raises
    ------
    KeyError
        If there is no such table; the message names the tables.
    """
    if grain not in TABLES:
        raise KeyError(f"no table {grain!r}: there are {', '.join(GRAINS)}")
    return TABLES[grain]


def column(grain: str, name: str) -> Column:
    """Return one column of a table.

    Raises
    ------
    KeyError
        If there is no such table or column.
    """
    for found in columns_of(grain):
        if found.name == name:
            return found
    raise KeyError(f"no column {name!r} in table {grain!r}")


@cache
def arrow_schema(grain: str) -> pa.Schema:
    """Return the Arrow schema of a table; its metadata holds the table's name and the schema version."""
    fields = [pa.field(c.name, _ARROW_TYPES[c.dtype]) for c in columns_of(grain)]
    return pa.schema(fields, metadata={"table": grain, "schema_version": str(SCHEMA_VERSION)})


def empty_table(grain: str) -> pa.Table:
    """Return a table without rows."""
    return arrow_schema(grain).empty_table()


@cache
def _pandas_types() -> dict[pa.DataType, Any]:
    import pandas as pd  # here: processes that only read files need no frames

    return {
        pa.int64(): pd.Int64Dtype(),
        pa.float64(): pd.Float64Dtype(),
        pa.bool_(): pd.BooleanDtype(),
        pa.string(): pd.StringDtype("pyarrow"),
    }


def to_frame(table: pa.Table) -> pd.DataFrame:
    """Return an Arrow table as a frame with the declared nullable dtypes.

    Parameters
    ----------
    table
        Of any grain, or a selection of its columns.
    """
    frame: pd.DataFrame = table.to_pandas(types_mapper=_pandas_types().get, ignore_metadata=True)
    return frame


def to_array(values: pa.Array) -> Any:
    """Return one Arrow array as a pandas array with the declared nullable dtype."""
    import pandas as pd  # here: processes that only read files need no frames

    dtype = _pandas_types().get(values.type)
    return pd.array(values.to_pandas()) if dtype is None else dtype.__from_arrow__(values)


def empty_frame(grain: str) -> pd.DataFrame:
    """Return a frame without rows, with every column and its dtype."""
    return to_frame(empty_table(grain))


def describe(grain: str | None = None) -> pd.DataFrame:
    """Return the data dictionary.

    Parameters
    ----------
    grain
        One table, or None for all.

    Returns
    -------
    DataFrame
        One row per column: table, column, dtype, unit, meaning, sources (best first), missing.
    """
    rows: list[dict[str, Any]] = [
        {
            "table": name,
            "column": c.name,
            "dtype": c.dtype,
            "unit": c.unit,
            "meaning": c.meaning,
            "sources": " > ".join(c.sources),
            "missing": c.missing,
        }
        for name in (GRAINS if grain is None else (grain,))
        for c in columns_of(name)
    ]
    import pandas as pd  # here: processes that only read files need no frames

    return pd.DataFrame(rows, dtype="string")
