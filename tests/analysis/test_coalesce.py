"""Several rows become one: authority, combine rules, contradictions in words."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from analysis._coalesce import SOURCE_COLUMN, coalesce
from analysis._columns import FLOAT, INTEGER, TEXT, Column
from analysis._group_columns import PROVENANCE_COLUMNS

SOURCES = ["polar", "journal", "rollout_dump", "train_dump"]
COLUMNS = (
    Column("n", INTEGER, "", "", ("journal", "polar"), ""),
    Column("x", FLOAT, "", "", ("polar", "rollout_dump"), ""),
    Column("word", TEXT, "", "", ("rollout_dump", "journal"), ""),
    Column("total", INTEGER, "", "", ("train_dump",), "", "sum"),
    Column("low", INTEGER, "", "", ("journal",), "", "min"),
    Column("high", INTEGER, "", "", ("journal",), "", "max"),
    Column("early", TEXT, "", "", ("journal",), "", "first"),
    *PROVENANCE_COLUMNS,
)
_TYPES = {INTEGER: pa.int64(), FLOAT: pa.float64(), TEXT: pa.string()}


def table(*rows: dict[str, Any]) -> pa.Table:
    arrays = [pa.array([row.get(c.name) for row in rows], _TYPES[c.dtype]) for c in COLUMNS]
    made = pa.Table.from_arrays(arrays, names=[c.name for c in COLUMNS])
    return made.append_column(
        SOURCE_COLUMN, pa.array([SOURCES.index(row["source"]) for row in rows], pa.int8())
    )


def joined(entity: list[int], *rows: dict[str, Any]) -> list[dict[str, Any]]:
    result = coalesce(table(*rows), np.array(entity, dtype=np.int64), COLUMNS, SOURCES)
    assert result.column_names == [c.name for c in COLUMNS]
    return result.to_pylist()


def test_the_best_authority_that_has_a_value_wins() -> None:
    """Order of rows is no authority, and a missing value is none either."""
    (row,) = joined(
        [0, 0, 0],
        {"source": "rollout_dump", "x": 2.0, "word": "dump", "path": "d"},
        {"source": "polar", "n": 1, "path": "p"},
        {"source": "journal", "n": 1, "word": "journal", "path": "j"},
    )
    assert (row["n"], row["x"], row["word"], row["path"]) == (1, 2.0, "dump", "p")
    assert row["sources"] == "polar+journal+rollout_dump"
    assert row["conflicts"] == "word: rollout_dump says dump, journal says journal"


def test_sources_that_agree_are_no_conflict() -> None:
    """Equal values, values equal up to float32, missing ones: nothing to report."""
    (row,) = joined(
        [0, 0],
        {"source": "polar", "n": 3, "x": 0.1},
        {"source": "rollout_dump", "n": 3, "x": float(np.float32(0.1)), "word": "w"},
    )
    assert row["conflicts"] is None


def test_each_contradiction_is_named_once_with_what_each_source_says() -> None:
    """Three sources, one of which agrees with the winner."""
    (row,) = joined(
        [0, 0, 0],
        {"source": "polar", "n": 1, "x": 1.0},
        {"source": "journal", "n": 2},
        {"source": "rollout_dump", "n": 2, "x": math.nan},
    )
    assert row["n"] == 2
    assert row["conflicts"] == "n: journal says 2, polar says 1; x: polar says 1, rollout_dump says nan"


def test_the_winner_may_differ_from_row_to_row() -> None:
    """What is quoted as the winner's word is the winner's, for every entity."""
    rows = joined(
        [0, 0, 1, 1],
        {"source": "journal", "n": 1},
        {"source": "polar", "n": 2},
        {"source": "polar", "n": 5},
        {"source": "rollout_dump", "n": 6},
    )
    assert [row["conflicts"] for row in rows] == [
        "n: journal says 1, polar says 2",
        "n: polar says 5, rollout_dump says 6",
    ]


def test_long_texts_are_cut_in_conflicts() -> None:
    """A note stays a note."""
    (row,) = joined(
        [0, 0],
        {"source": "rollout_dump", "word": "a" * 500},
        {"source": "journal", "word": "b" * 500},
    )
    assert len(row["conflicts"]) < 200


def test_rows_of_one_source_combine_by_rule() -> None:
    """Last by default; first, smallest, largest and sum where declared; missing values never count."""
    (row,) = joined(
        [0, 0, 0],
        {"source": "journal", "n": 1, "low": 5, "high": 5, "early": "first", "total": 1},
        {"source": "journal", "n": 2, "low": 3, "high": 9, "early": "second"},
        {"source": "journal", "low": 4, "total": 10},
    )
    assert (row["n"], row["low"], row["high"], row["early"], row["total"]) == (2, 3, 9, "first", 11)
    assert row["sources"] == "journal"


def test_sums_stay_within_the_best_source() -> None:
    """A number of the train dumps is not added to what another source says."""
    (row,) = joined(
        [0, 0, 0],
        {"source": "train_dump", "total": 1},
        {"source": "train_dump", "total": 1},
        {"source": "journal", "total": 100},
    )
    assert row["total"] == 2


def test_single_rows_pass_unchanged_and_order_is_that_of_the_entities() -> None:
    """Entities come out by number, joined or not."""
    rows = joined(
        [1, 0, 1, 2],
        {"source": "polar", "n": 10},
        {"source": "journal", "n": 0},
        {"source": "rollout_dump", "word": "w"},
        {"source": "polar", "n": 20, "sources": "journal+polar"},
    )
    assert [row["n"] for row in rows] == [0, 10, 20]
    assert [row["sources"] for row in rows] == ["journal", "polar+rollout_dump", "journal+polar"]
    assert [row["n"] for row in joined([1, 0], {"source": "polar", "n": 1}, {"source": "polar", "n": 0})] == [
        0,
        1,
    ]


def test_nothing_gives_nothing() -> None:
    """No rows: the declared columns, empty."""
    assert joined([]) == []


@pytest.mark.parametrize("count", [1, 3])
def test_all_values_missing(count: int) -> None:
    """A row that says nothing still counts as a row."""
    (row,) = joined([0] * count, *[{"source": "polar"}] * count)
    assert row == {**dict.fromkeys([c.name for c in COLUMNS]), "sources": "polar"}
