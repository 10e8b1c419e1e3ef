"""Parquet files of another time or another hand: older ones load, strange ones are listed by themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import analysis
from analysis import parquet_dataset
from analysis.lab.run_folder import RunFolder
from tests.analysis.test_loading import load, same
from tests.analysis.test_tokens import equal


@pytest.fixture
def run(embedded: RunFolder) -> analysis.Run:
    return load(embedded.root)


@pytest.fixture
def dataset(run: analysis.Run, tmp_path: Path) -> Path:
    return run.to_parquet(tmp_path / "dataset")


def rewrite(folder: Path, change: Callable[[pa.Table], pa.Table]) -> list[Path]:
    """Change the files below a folder; their metadata stays."""
    paths = sorted(folder.rglob("*.parquet"))
    for path in paths:
        with pq.ParquetFile(path) as parquet:
            table = parquet.read()
        pq.write_table(change(table).replace_schema_metadata(table.schema.metadata), path)
    return paths


def test_an_older_version_lacks_columns_and_has_others(
    run: analysis.Run, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written by version 1, read by version 2: what was added is missing, what was dropped is passed over."""

    def older(table: pa.Table) -> pa.Table:
        narrow = table.drop_columns(["staleness"]).append_column("retired", pa.array(["x"] * len(table)))
        order = list(reversed(narrow.column_names))
        reordered = narrow.select(order)
        reward = reordered.column_names.index("reward")
        return reordered.set_column(reward, "reward", reordered.column("reward").cast(pa.float32()))

    rewrite(dataset / "session", older)
    monkeypatch.setattr(parquet_dataset, "SCHEMA_VERSION", 2)
    back = load(dataset)
    assert back.problems.empty
    frame, expected = back.sessions(), run.sessions()
    assert list(frame.columns) == list(expected.columns)
    assert frame.dtypes.equals(expected.dtypes)
    assert frame["staleness"].isna().all()
    np.testing.assert_array_equal(
        frame["reward"].to_numpy(float, na_value=np.nan),
        expected["reward"].to_numpy(float, na_value=np.nan).astype(np.float32),
    )
    assert frame["session_id"].equals(expected["session_id"])
    assert equal(back.token_arrays(), run.token_arrays())


def test_types_of_other_writers(run: analysis.Run, dataset: Path) -> None:
    """Another tool writes large strings, dictionaries and narrower integers: nothing changes."""

    def rewritten(table: pa.Table) -> pa.Table:
        for place, field in enumerate(table.schema):
            if field.name == "status":
                table = table.set_column(place, field.name, table.column(place).dictionary_encode())
            elif field.type == pa.string():
                table = table.set_column(place, field.name, table.column(place).cast(pa.large_string()))
            elif field.name == "trace_index":
                table = table.set_column(place, field.name, table.column(place).cast(pa.int16()))
        return table

    for name in ("session", "trace", "token"):
        rewrite(dataset / name, rewritten)
    back = load(dataset)
    assert back.problems.empty
    assert same(run, back)
    assert equal(back.token_arrays(), run.token_arrays())


@pytest.mark.parametrize(
    ("table", "column", "values"),
    [
        ("session", "reward", ["much"]),
        ("session", "run", [[1, 2]]),
        ("session", "_row", ["first"]),
        ("trace", "_owner", [{"a": 1}]),
        ("trace", "trace_index", [1e300]),
        ("group", "accepted", ["perhaps"]),
        ("token", "session_id", [[b"x"]]),
        ("token", "trace_index", ["one"]),
    ],
)
def test_a_column_of_another_type_spoils_one_file(
    run: analysis.Run, dataset: Path, table: str, column: str, values: list[object]
) -> None:
    """The file is listed with what is wrong; every other one is read."""

    def spoilt(content: pa.Table) -> pa.Table:
        place = content.column_names.index(column)
        return content.set_column(place, column, pa.array(values * len(content)))

    (path,) = rewrite(dataset / table / "rollout=1", spoilt)
    back = load(dataset)
    assert back.problems["path"].tolist() == [str(path)]
    assert back.problems["what"].tolist() == ["the Parquet file cannot be read"]
    assert len(back.rollouts()) == len(run.rollouts())
    if table == "token":
        assert same(run, back)
    else:
        assert 0 < len(back.table(table)) < len(run.table(table))


@pytest.mark.parametrize("column", ["prompt_ids", "response_ids"])
def test_token_lists_of_another_type_are_a_problem_of_their_traces(
    run: analysis.Run, dataset: Path, column: str
) -> None:
    """Tables are whole; reading the tokens says what is wrong, and gives those of the other files."""

    def spoilt(content: pa.Table) -> pa.Table:
        place = content.column_names.index(column)
        return content.set_column(place, column, pa.array([["a", "b"]] * len(content)))

    (path,) = rewrite(dataset / "token" / "rollout=1", spoilt)
    back = load(dataset)
    assert back.problems.empty
    tokens = back.token_arrays()
    assert {problem.path for problem in tokens.problems} == {str(path)}
    assert 0 < len(tokens) < len(run.token_arrays())


@pytest.mark.parametrize("value", ["x" * 20_000, 1.5])
def test_a_small_file_of_enormous_tables_is_refused(run: analysis.Run, dataset: Path, value: object) -> None:
    """One value, said a million times in some kilobytes: listed, and read no further than allowed."""
    path = next((dataset / "session" / "rollout=1").glob("*.parquet"))
    with pq.ParquetFile(path) as parquet:
        metadata = parquet.schema_arrow.metadata
    count = 30_000 if isinstance(value, str) else 3_000_000
    name = "error" if isinstance(value, str) else "reward"
    table = pa.table(
        {name: pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int8()), pa.array([value]))}
    )
    pq.write_table(
        table.cast(pa.schema([(name, table.column(0).type.value_type)])).replace_schema_metadata(metadata),
        path,
    )
    assert path.stat().st_size < 100_000
    before = pa.total_allocated_bytes()
    back = load(dataset, max_bytes=20 * 2**20)
    assert back.problems["path"].tolist() == [str(path)]
    assert back.problems["what"].tolist() == ["would take too much memory"]
    assert len(back.sessions()) == (run.sessions()["rollout_id"] != 1).sum()
    assert pa.total_allocated_bytes() - before < 100 * 2**20
