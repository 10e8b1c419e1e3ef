"""Rows as readers give them, for tests of what is made of them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from analysis.merge import Merged, merge
from analysis.records import Records, slim
from analysis.schema import to_frame
from analysis.sources.base import FileRecords, Sink, SourceFile, SourceKind

KINDS = {
    "journal": SourceKind.JOURNAL,
    "polar": SourceKind.POLAR_SESSION,
    "dump": SourceKind.ROLLOUT_DUMP,
    "train": SourceKind.TRAIN_DUMP,
    "rejected": SourceKind.REJECTED,
    "completion": SourceKind.COMPLETION,
    "metrics": SourceKind.METRICS,
}

Row = tuple[str, dict[str, Any]]


def file_records(path: str, *rows: Row, size: int = 1) -> FileRecords:
    """What a reader makes of one file: pairs of table and cells; the kind is the name's first word."""
    sink = Sink()
    sink.begin(SourceFile(path, KINDS[path.split(".")[0].split("_")[0]], size, size))
    for grain, cells in rows:
        sink.add(grain, dict(cells))
    records = sink.records()
    return FileRecords(
        records.files,
        {grain: slim(table) for grain, table in records.tables.items()},
        records.problems,
        token_refs=slim(records.token_refs),
    )


def records_of(**files: list[Row]) -> Records:
    """Records of several files, named by source (``polar_2`` is another file of Polar's)."""
    parts = [file_records(name, *rows) for name, rows in files.items()]
    return Records().plus(parts, {name: place for place, name in enumerate(files)})


def merged(**files: list[Row]) -> Merged:
    """Joined tables of several files of one run."""
    return merge(records_of(**files), dict.fromkeys(files, "run"))


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """The rows, without what is missing."""
    return [{name: value for name, value in row.items() if value is not None} for row in table.to_pylist()]


def frame_of(found: Merged, grain: str) -> Any:
    """A joined table as a frame."""
    return to_frame(found.tables[grain])
