"""The sink of readers: rows become tables, a failing file takes only its own rows with it."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pytest

from analysis.errors import LoadError
from analysis.problems import Problem
from analysis.schema import GRAINS, TOKEN_REFS, arrow_schema
from analysis.sources.base import FileRecords, Position, ReadOptions, Sink, SourceFile, SourceKind

A, B = SourceFile("/a", SourceKind.METRICS), SourceFile("/b", SourceKind.METRICS)
LAYOUT = ("path", "session_id", "trace_index")
PLACE = ("polar", "s", 0, None, None, None, None, 0, None)


def test_rows_become_tables() -> None:
    """Dicts and tuples of one grain end in one table of its schema; the path is filled in."""
    sink = Sink()
    sink.begin(A)
    sink.add("trace", {"session_id": "s", "reward": 1.5})
    sink.rows_of("trace", LAYOUT).append(("/a", "t", 3))
    sink.add_tokens(*PLACE)
    records = sink.records()
    table = records.table("trace")
    assert table.schema.equals(arrow_schema("trace"))
    assert table.column("session_id").to_pylist() == ["s", "t"]
    assert table.column("trace_index").to_pylist() == [None, 3]
    assert table.column("path").to_pylist() == ["/a", "/a"]
    assert records.token_refs.schema.equals(TOKEN_REFS)
    assert records.files == (A,)


def test_tables_of_nothing() -> None:
    """Grains without rows are not among the tables, and give an empty one of their schema when asked."""
    records = Sink().records()
    assert records.tables == {}
    for grain in GRAINS:
        assert records.table(grain).schema.equals(arrow_schema(grain))


def test_rollback_takes_one_file_back() -> None:
    """Rows, places, tables, problems and tallies of a failing file go; those of others stay."""
    sink = Sink()
    for file in (A, B):
        sink.begin(file)
        sink.add("session", {"session_id": file.path})
        sink.rows_of("trace", LAYOUT).append((file.path, "t", 3))
        sink.add_table("event", arrow_schema("event").empty_table())
        sink.add_tokens(*PLACE)
        sink.problem("odd")
        sink.tally("common", "row 1")
        sink.positions[file.path] = Position(5)
    sink.rows_of("trace", ("path", "label")).append(("/b", "x"))
    sink.rollback()
    records = sink.records()
    assert records.table("session").column("session_id").to_pylist() == ["/a"]
    assert records.table("trace").num_rows == 1
    assert records.token_refs.num_rows == 1
    assert [problem.what for problem in records.problems] == ["odd", "common"]
    assert list(records.positions) == ["/a"]


def test_tallies_count() -> None:
    """What many rows share is one problem with a count and the first example."""
    sink = Sink()
    sink.begin(A)
    for row in range(3):
        sink.tally("common", f"row {row}", "look")
    sink.tally("rare", "row 7")
    assert sink.records().problems == (
        Problem("/a", "common", "3 times, first: row 0", "look"),
        Problem("/a", "rare", "row 7"),
    )


def test_values_that_do_not_fit_are_missing_and_told() -> None:
    """A reader's slip costs one cell, never a table."""
    sink = Sink()
    sink.begin(A)
    sink.add("session", {"session_id": "a", "reward": "high"})
    sink.add("session", {"session_id": "b", "reward": 1.0, "attempt": 2**70})
    records = sink.records()
    assert records.table("session").select(["reward", "attempt"]).to_pylist() == [
        {"reward": None, "attempt": None},
        {"reward": 1.0, "attempt": None},
    ]
    assert len(records.problems) == 2


def test_unknown_columns_are_a_defect() -> None:
    """A name that the schema does not have is a mistake of a reader, and says so."""
    sink = Sink()
    sink.begin(A)
    sink.add("session", {"nonsense": 1})
    with pytest.raises(KeyError, match="nonsense"):
        sink.records()


def test_everything_travels() -> None:
    """Records, files and options cross process boundaries."""
    sink = Sink()
    sink.begin(A)
    sink.add("session", {"session_id": "a"})
    sink.positions["/a"] = Position(5, groups={1: {"group_index": 2}})
    records = pickle.loads(pickle.dumps(sink.records()))
    assert isinstance(records, FileRecords)
    assert records.table("session").num_rows == 1
    assert pickle.loads(pickle.dumps(ReadOptions(trusted=True))) == ReadOptions(trusted=True)
    error = LoadError("a", "b", "c")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.fix) == (str(error), "c")


def test_files_and_limits(tmp_path: Path) -> None:
    """A file is described as it is; the limit is the option's, else a share of the machine's memory."""
    path = tmp_path / "a.json"
    path.write_text("12345")
    file = SourceFile.at(path, SourceKind.METRICS, explicit=True)
    assert (file.path, file.size, file.explicit) == (str(path), 5, True)
    with pytest.raises(OSError, match="gone"):
        SourceFile.at(tmp_path / "gone", SourceKind.METRICS)
    assert ReadOptions(max_bytes=7).memory_limit() == 7
    assert 1 << 28 < ReadOptions().memory_limit() <= 16 << 30


def test_tables_are_joined_with_rows() -> None:
    """Rows that are a table already come with the others."""
    sink = Sink()
    sink.begin(A)
    schema = arrow_schema("metric")
    row = {name: None for name in schema.names} | {"name": "x", "path": "/a"}
    sink.add_table("metric", pa.Table.from_pylist([row], schema=schema))
    sink.add("metric", {"name": "y"})
    assert sink.records().table("metric").column("name").to_pylist() == ["x", "y"]
