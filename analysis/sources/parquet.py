"""Reads single files of this package's Parquet datasets, as rows with the places of their token lists.

A whole dataset is better restored by `analysis.parquet_dataset`, which also knows how its rows belong
together; this is for one file out of it.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from analysis.errors import FileLimitError, ForeignFileError, IncompleteFileError
from analysis.parquet_dataset import TOKEN_TABLE, read_part
from analysis.records import widen
from analysis.schema import arrow_schema
from analysis.sources.base import ReadOptions, Sink, SourceFile

__all__ = ["collect"]


def collect(file: SourceFile, sink: Sink, options: ReadOptions) -> None:
    """Add the rows of one file to the sink; see `analysis.sources.registry.Reader`."""
    try:
        name, table = read_part(Path(file.path), options)
    except FileLimitError:
        raise
    except pa.ArrowInvalid as error:
        raise IncompleteFileError(
            "is no whole Parquet file", str(error)[:200], "load it again when it is complete"
        ) from error
    except ValueError as error:
        raise ForeignFileError("is no table of this package", str(error)[:200]) from error
    if name == TOKEN_TABLE:
        ids = ("session_id", "trace_index", "rollout_id", "evaluation", "sample_index", "tokens_hash")
        columns = [table.column(column).to_pylist() for column in ids]
        for item, row in enumerate(zip(*columns, strict=True)):
            sink.add_tokens("parquet", *row, item, None)
        return
    paths = pa.array([file.path] * len(table), pa.string())
    place = table.column_names.index("path")
    sink.add_table(name, widen(table.set_column(place, "path", paths), arrow_schema(name)))
