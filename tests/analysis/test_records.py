"""Rows of many files in the order of the files, whatever order they were read in."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from analysis.problems import Problem, Skipped
from analysis.records import Records, inner_schema, lost_file, read_slim, slim, together, widen
from analysis.schema import arrow_schema
from analysis.sources.base import Position, ReadOptions, SourceFile, SourceKind
from tests.analysis.rows import file_records, records_of
from tests.analysis.test_loading import session


def names(records: Records) -> list[str]:
    return records.table("session").column("session_id").to_pylist()


def test_slim_tables_hold_what_has_values_and_widen_again() -> None:
    """Columns without a value are not kept; all of them come back, missing ones sharing one buffer."""
    table = pa.table(
        {"path": pa.array([None, None], pa.string()), "n": [1, None], "x": pa.nulls(2, pa.float64())}
    )
    assert slim(table).column_names == ["path", "n"]
    schema = pa.schema([("x", pa.float64()), ("y", pa.float64()), ("n", pa.int64()), ("path", pa.string())])
    wide = widen(slim(table), schema)
    assert wide.schema == schema
    one, other = (wide.column(name).chunk(0).buffers()[1] for name in "xy")
    assert one is not None
    assert one.address == other.address


def test_rows_stand_in_the_order_of_files_not_of_reading() -> None:
    """A file that arrives late takes its place among the others."""
    order = {"polar_1": 0, "polar_2": 1, "polar_3": 2}
    late = file_records("polar_2", ("session", {"session_id": "b"}))
    early = [
        file_records(f"polar_{n}", ("session", {"session_id": name})) for n, name in ((1, "a"), (3, "c"))
    ]
    records = Records().plus(early, order).plus([late], order)
    assert names(records) == ["a", "b", "c"]
    assert list(records.files) == ["polar_1", "polar_2", "polar_3"]


def test_forgetting_a_file_forgets_its_rows_and_problems() -> None:
    """Places in a file belong to the file, colons in names or not."""
    records = records_of(
        polar_1=[("session", {"session_id": "a"})], polar_2=[("session", {"session_id": "b"})]
    )
    records = replace(
        records,
        problems=(Problem("polar_1", "x"), Problem("polar_1:results[3]", "y"), Problem("polar_2:7", "z")),
        skipped=(Skipped("polar_1", "r"), Skipped("elsewhere", "r")),
    )
    rest = records.without(["polar_1"])
    assert names(rest) == ["b"]
    assert [problem.what for problem in rest.problems] == ["z"]
    assert [item.path for item in rest.skipped] == ["elsewhere"]
    assert rest.tables["session"].column("path").chunk(0).dictionary.to_pylist() == ["polar_2"]
    assert records.without([]) is records


def test_reading_on_forgets_only_what_was_wrong_with_the_tail() -> None:
    """Line 3 was torn and is read again; what was wrong with line 1 stays true."""
    records = records_of(journal=[("event", {"event": "x"})])
    records = replace(records, problems=(Problem("journal:1", "old"), Problem("journal:3", "torn")))
    rest = records.without([], tails={"journal": Position(offset=20, line=3)})
    assert [problem.what for problem in rest.problems] == ["old"]
    assert len(rest.table("event")) == 1


def test_records_can_be_put_together_and_renamed() -> None:
    """Several folders are one set of files; moving them changes names only."""
    one, other = (
        records_of(polar_1=[("session", {"session_id": "a"})]),
        records_of(polar_2=[("trace", {"reward": 1.0})]),
    )
    both = together([one, other])
    assert names(both) == ["a"]
    assert len(both.table("trace")) == 1
    moved = both.renamed(lambda path: f"/new/{path}")
    assert moved.table("trace").column("path").to_pylist() == ["/new/polar_2"]
    assert list(moved.files) == ["/new/polar_1", "/new/polar_2"]
    assert together([one]) is one


def test_what_travels_between_processes_is_slim(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """A chunk of files gives tables with their values only."""
    path = tmp_path / "ses_a.json"
    path.write_bytes(session("a"))
    records = read_slim([SourceFile.at(path, SourceKind.POLAR_SESSION)], options=ReadOptions())
    table = records.tables["session"]
    assert 5 < table.num_columns < len(arrow_schema("session"))
    assert all(table.column(name).null_count < len(table) for name in table.column_names)
    assert records.token_refs.num_rows == 1
    assert inner_schema("session").field("path").type == pa.dictionary(pa.int32(), pa.string())


def test_a_file_that_ended_the_process_is_a_problem_with_its_path() -> None:
    """What is said of it names the file and how the process ended."""
    lost = lost_file(SourceFile("x.pt", SourceKind.ROLLOUT_DUMP), "killed by signal 9")
    assert lost.problems[0].path == "x.pt"
    assert "signal 9" in lost.problems[0].why
    assert lost.tables == {}
