"""The declared tables: complete, stable, and the same for an empty run."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime

import pandas as pd
import pyarrow as pa
import pytest

from analysis.schema import (
    COMBINE,
    GRAINS,
    IDENTITY,
    SCHEMA_VERSION,
    SOURCES,
    TABLES,
    TOKEN_REFS,
    arrow_schema,
    column,
    columns_of,
    describe,
    empty_frame,
    empty_table,
    to_frame,
)

DTYPES = {"Int64", "Float64", "boolean", "string", "datetime64[us, UTC]"}


@pytest.mark.parametrize("grain", GRAINS)
def test_columns_are_declared_whole(grain: str) -> None:
    """Every column has a type, a meaning, known sources and a reason to be missing."""
    found = columns_of(grain)
    assert len({c.name for c in found}) == len(found)
    for c in found:
        assert c.dtype in DTYPES, c.name
        assert c.meaning, c.name
        assert c.missing, c.name
        assert c.sources, c.name
        assert set(c.sources) <= {*SOURCES, "derived", "load"}, c.name
        assert len(set(c.sources)) == len(c.sources), c.name
        assert c.combine in COMBINE, c.name


@pytest.mark.parametrize("grain", GRAINS)
def test_empty_frames_have_every_column_and_dtype(grain: str) -> None:
    """A run without a single row has frames with the dtypes of a full one, all of them nullable."""
    frame = empty_frame(grain)
    assert len(frame) == 0
    assert frame.columns.tolist() == [c.name for c in columns_of(grain)]
    for c in columns_of(grain):
        assert str(frame[c.name].dtype) == c.dtype, c.name


@pytest.mark.parametrize("grain", GRAINS)
def test_a_row_of_nothing_keeps_the_dtypes(grain: str) -> None:
    """Missing everywhere is missing, not 0, not NaN of another dtype."""
    schema = arrow_schema(grain)
    frame = to_frame(pa.Table.from_pylist([{}], schema=schema))
    assert frame.isna().all().all()
    assert frame.dtypes.astype(str).tolist() == empty_frame(grain).dtypes.astype(str).tolist()


def test_values_survive() -> None:
    """Large integers, booleans, texts and moments come out as they went in."""
    row = {
        "session_id": "ä",
        "group_index": 2**62 + 1,
        "completed": False,
        "reward": 0.1,
        "submitted_at": datetime(2026, 1, 1, 0, 0, 0, 5, tzinfo=UTC),
    }
    frame = to_frame(pa.Table.from_pylist([row, {}], schema=arrow_schema("session")))
    for name, value in row.items():
        assert frame[name].iloc[0] == value, name
        assert pd.isna(frame[name].iloc[1]), name


def test_ids_of_outer_levels_stand_in_every_row() -> None:
    """Each level holds the ids of the levels around it, so that tables join without thought."""
    for grain, inner in (("rollout", "group"), ("group", "session"), ("session", "trace")):
        outer = {c.name for c in TABLES[grain]} & {
            "run", "rollout_id", "evaluation", "worker", "group", "group_index", "task_id", "attempt",
            "trajectory", "session_id", "position", "dataset",
        }  # fmt: skip
        assert outer <= {c.name for c in TABLES[inner]}, inner


def test_keys_name_columns() -> None:
    """What makes two rows the same thing is made of columns of the table."""
    for grain, keys in IDENTITY.items():
        for key in keys:
            assert set(key) <= {c.name for c in TABLES[grain]}


def test_every_source_is_used_and_described() -> None:
    """Each kind of file is the source of some column and says what it can and cannot tell."""
    used = {source for columns in TABLES.values() for c in columns for source in c.sources}
    for name, source in SOURCES.items():
        assert name in used
        assert source.files
        assert source.tells
        assert source.cannot_tell


def test_data_dictionary() -> None:
    """The dictionary has one row per column, for all tables or one."""
    whole = describe()
    assert len(whole) == sum(len(columns) for columns in TABLES.values())
    assert whole["table"].unique().tolist() == list(GRAINS)
    traces = describe("trace").set_index("column")
    assert traces.loc["logprob_mean", "unit"] == "nats"
    assert traces.loc["reward", "sources"] == "polar > rollout_dump > rejected"


def test_lookups() -> None:
    """One column by name; unknown names are told."""
    assert column("session", "status").sources[0] == "polar"
    with pytest.raises(KeyError, match="no column"):
        column("session", "nonsense")
    with pytest.raises(KeyError, match="there are rollout, group"):
        columns_of("nonsense")


def test_versions_are_in_the_schemas() -> None:
    """Every table of our own says which schema it was made by."""
    for grain in GRAINS:
        assert arrow_schema(grain).metadata == {
            b"table": grain.encode(),
            b"schema_version": str(SCHEMA_VERSION).encode(),
        }
        assert empty_table(grain).num_rows == 0
    assert TOKEN_REFS.metadata == {b"schema_version": str(SCHEMA_VERSION).encode()}


def test_readers_need_no_pandas() -> None:
    """A process that only reads files imports neither pandas nor torch."""
    code = (
        "import sys, importlib\n"
        "from analysis.sources.registry import READERS\n"
        "import analysis.discovery, analysis.safe_pickle\n"
        "for name in READERS.values():\n"
        "    if name != 'analysis.sources.parquet': importlib.import_module(name)\n"
        "print(sorted({'pandas', 'torch', 'wandb', 'matplotlib'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=True
    )
    assert done.stdout.strip() == "[]"
