"""A run as Parquet: the same frames and tokens when it is read back, and plain tables for everybody else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

import analysis
from analysis import export
from analysis.errors import StrictLoadError
from analysis.lab.run_folder import RunFolder
from analysis.parquet_dataset import MANIFEST, NO_ROLLOUT, TOKEN_LISTS
from analysis.schema import GRAINS, SCHEMA_VERSION
from analysis.sources.base import FileRecords, SourceFile, SourceKind
from analysis.sources.registry import read
from tests.analysis.test_loading import load, same, write_session
from tests.analysis.test_tokens import equal


@pytest.fixture
def run(embedded: RunFolder) -> analysis.Run:
    return load(embedded.root)


@pytest.fixture
def dataset(run: analysis.Run, tmp_path: Path) -> Path:
    return run.to_parquet(tmp_path / "out" / "dataset")


def test_reading_back_gives_the_same(run: analysis.Run, dataset: Path) -> None:
    """Frames, tokens, names, filters; nothing is left out silently."""
    back = load(dataset)
    assert back.problems.empty
    assert back.skipped.empty
    assert same(run, back)
    assert back.names == ["lab"]
    assert equal(run.token_arrays(), back.token_arrays())
    name = run.filter(accepted=True, usable=True).sessions()["session_id"].iloc[0]
    assert equal(run.token_arrays(name, window=(2, 9)), back.token_arrays(name, window=(2, 9)))
    assert same(run.filter(accepted=True), back.filter(accepted=True))
    assert back.coverage.equals(run.coverage)


def test_what_is_read_back_can_be_written_again(run: analysis.Run, dataset: Path, tmp_path: Path) -> None:
    """A dataset of a dataset is the same dataset."""
    again = load(load(dataset).to_parquet(tmp_path / "again"))
    assert same(run, again)
    assert equal(run.token_arrays(), again.token_arrays())


def test_a_view_is_written_as_it_is(run: analysis.Run, tmp_path: Path) -> None:
    """Only its rows, with the numbers that they had in the whole run; links hold."""
    part = run.filter(session=lambda frame: frame["reward"] > 0.5)
    back = load(part.to_parquet(tmp_path / "part"))
    assert same(part, back)
    assert same(part.filter(rollout_id=1), back.filter(rollout_id=1))


def test_the_server_alone_without_any_ids(tmp_path: Path) -> None:
    """Groups that only their sessions tell of, rollouts that nobody knows: they come back as they were."""
    for number in range(3):
        write_session(tmp_path / "run", f"s{number}", task=f"t{number % 2}")
    run = load(tmp_path / "run")
    dataset = run.to_parquet(tmp_path / "dataset")
    assert [path.name for path in (dataset / "session").iterdir()] == ["rollout=-1"]
    assert pd.read_parquet(dataset / "session")["rollout_id"].isna().all()
    back = load(dataset)
    assert same(run, back)
    assert (
        back.filter(session_id="s1").groups().shape == run.filter(session_id="s1").groups().shape == (1, 52)
    )


def test_rows_without_a_rollout_beside_others(embedded: RunFolder, tmp_path: Path) -> None:
    """They have a partition of their own, and come back."""
    write_session(embedded.polar_results, "stray")
    run = load(embedded.root)
    dataset = run.to_parquet(tmp_path / "dataset")
    assert (dataset / "session" / f"rollout={NO_ROLLOUT}").is_dir()
    assert same(run, load(dataset))
    assert pd.read_parquet(dataset / "session")["rollout_id"].isna().sum() == 1


def test_pandas_duckdb_and_polars_read_the_tables(run: analysis.Run, dataset: Path) -> None:
    """Each table's folder is a plain Hive-partitioned dataset; token lists are lists."""
    expected = run.sessions()
    frame = pd.read_parquet(dataset / "session")
    assert len(frame) == len(expected)
    assert set(frame["session_id"].dropna()) == set(expected["session_id"].dropna())
    assert frame["rollout_id"].value_counts().to_dict() == expected["rollout_id"].value_counts().to_dict()
    one = pd.read_parquet(dataset / "trace", filters=[("rollout", "==", 1)])
    assert len(one) == (run.traces()["rollout_id"] == 1).sum()
    tokens = pd.read_parquet(dataset / "token")
    assert (
        tokens["response_ids"].map(len).sum()
        == (run.token_arrays().position >= 0).sum() - tokens["prompt_ids"].map(len).sum()
    )


def test_duckdb_joins_them(run: analysis.Run, dataset: Path) -> None:
    """Partitions, joins on ids, sums over token lists."""
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as database:
        rows = database.execute(
            "SELECT s.rollout_id, count(*), avg(s.reward) FILTER (s.usable)"
            " FROM read_parquet(?, hive_partitioning=true) AS s WHERE NOT s.evaluation GROUP BY 1 ORDER BY 1",
            [f"{dataset}/session/**/*.parquet"],
        ).fetchall()
        trained = database.execute(
            "SELECT sum(list_sum(trainable)) FROM read_parquet(?, hive_partitioning=true)",
            [f"{dataset}/token/**/*.parquet"],
        ).fetchone()
    sessions = run.sessions()
    sessions = sessions[~sessions["evaluation"]]
    assert [row[:2] for row in rows] == list(sessions.groupby("rollout_id").size().items())
    usable = sessions[sessions["usable"]]
    np.testing.assert_allclose([row[2] for row in rows], usable.groupby("rollout_id")["reward"].mean())
    assert trained is not None
    assert trained[0] == (run.token_arrays().trainable == 1).sum()


def test_polars_scans_them(run: analysis.Run, dataset: Path) -> None:
    """Lazily, with the partition as a column."""
    polars = pytest.importorskip("polars")
    scan = polars.scan_parquet(dataset / "trace" / "**" / "*.parquet", hive_partitioning=True)
    found = scan.group_by("rollout").agg(polars.len()).collect().sort("rollout")
    assert dict(found.iter_rows()) == run.traces()["rollout_id"].value_counts().to_dict()
    lists = polars.read_parquet(dataset / "token" / "**" / "*.parquet", hive_partitioning=True)
    assert lists["advantage"].list.len().drop_nulls().sum() > 0


def test_files_say_what_they_are(run: analysis.Run, dataset: Path) -> None:
    """Table, schema version and row counts; the types that every reader knows."""
    manifest = json.loads((dataset / MANIFEST).read_text())
    assert manifest["schema_version"] == SCHEMA_VERSION
    assert manifest["rows"] == {grain: len(run.table(grain)) for grain in GRAINS}
    assert manifest["runs"] == ["lab"]
    path = dataset / "token" / "rollout=0" / "part-0.parquet"
    schema = pq.read_schema(path)
    assert schema.metadata[b"table"] == b"token"
    assert schema.names == TOKEN_LISTS.names
    assert not [name for name in dataset.parent.iterdir() if name.name.startswith(".")]


def test_unknown_values_are_missing_lists(tmp_path: Path) -> None:
    """Without dumps nobody knows what was trained: no list, rather than a list of zeros."""
    write_session(tmp_path / "run", "s1")
    dataset = load(tmp_path / "run").to_parquet(tmp_path / "dataset")
    table = pq.read_table(dataset / "token")
    assert table.column("trainable").to_pylist() == [None]
    assert table.column("advantage").to_pylist() == [None]
    assert table.column("mask").to_pylist() == [[1, 1, 1]]
    assert table.column("prompt_ids").to_pylist() == [[1, 2]]


def test_nothing_is_overwritten_by_accident(run: analysis.Run, dataset: Path, tmp_path: Path) -> None:
    """An existing dataset needs the option, anything else is never touched; an empty folder is fine."""
    with pytest.raises(FileExistsError, match="overwrite"):
        run.to_parquet(dataset)
    run.filter(rollout_id=1).to_parquet(dataset, overwrite=True)
    assert load(dataset).rollouts()["rollout_id"].tolist() == [1]
    other = tmp_path / "mine"
    other.mkdir()
    (other / "thesis.txt").write_text("years of work")
    with pytest.raises(FileExistsError, match="another folder"):
        run.to_parquet(other, overwrite=True)
    assert (other / "thesis.txt").read_text() == "years of work"
    (tmp_path / "empty").mkdir()
    run.to_parquet(tmp_path / "empty", tokens=False)
    assert not (tmp_path / "empty" / "token").exists()


def test_a_failure_leaves_nothing_behind(
    run: analysis.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dataset is there as a whole or not at all; an old one stays."""
    dataset = run.to_parquet(tmp_path / "dataset")

    def fails(*args: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(export, "_write_file", fails)
    with pytest.raises(OSError, match="disk full"):
        run.to_parquet(dataset, overwrite=True)
    monkeypatch.undo()
    assert same(run, load(dataset))
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_tokens_that_cannot_be_read_are_told(
    embedded: RunFolder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file that went away in between: listed in the manifest and the log; strictly, an error."""
    run = load(embedded.root)
    gone = run.traces().query("not placeholder.fillna(False)")["path"].iloc[0]
    Path(gone).unlink()
    dataset = run.to_parquet(tmp_path / "dataset")
    assert Path(gone).name in " ".join(json.loads((dataset / MANIFEST).read_text())["problems"])
    assert "tokens left out" in caplog.text
    strict = load(embedded.root, strict=True)
    next(embedded.polar_results.rglob("ses_*.json")).unlink()
    with pytest.raises(StrictLoadError):
        strict.to_parquet(tmp_path / "strict")
    assert not (tmp_path / "strict").exists()


def test_processes_write_the_same_files(
    run: analysis.Run, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Byte for byte, token lists included."""
    monkeypatch.setattr("analysis.parallel.CHUNK_BYTES", 1)
    other = run.to_parquet(tmp_path / "other", engine="processes", workers=2)
    names = sorted(path.relative_to(dataset) for path in dataset.rglob("*.parquet"))
    assert names == sorted(path.relative_to(other) for path in other.rglob("*.parquet"))
    for name in names:
        assert (dataset / name).read_bytes() == (other / name).read_bytes()


def test_a_damaged_part_is_listed_and_the_rest_is_read(dataset: Path, run: analysis.Run) -> None:
    """One torn file, one foreign one: problems with their paths; the other partitions are whole."""
    torn = dataset / "session" / "rollout=1" / "part-0.parquet"
    torn.write_bytes(torn.read_bytes()[:200])
    pd.DataFrame({"a": [1]}).to_parquet(dataset / "trace" / "rollout=2" / "part-1.parquet")
    back = load(dataset)
    assert len(back.problems) >= 1
    assert str(torn) in back.problems["path"].tolist()
    left = back.sessions()
    assert 1 not in set(left.loc[~left["evaluation"], "rollout_id"])
    assert len(left) == (run.sessions()["rollout_id"] != 1).sum()
    assert len(back.traces()) == len(run.traces())


def test_a_dataset_beside_raw_files(run: analysis.Run, dataset: Path, tmp_path: Path) -> None:
    """A converted run and a raw one, loaded together, stay two runs with their own links."""
    write_session(tmp_path / "raw", "extra")
    both = load([dataset, tmp_path / "raw"])
    assert both.names == ["lab", "raw"]
    assert len(both.sessions()) == len(run.sessions()) + 1
    assert len(both.filter(run="raw").groups()) == 1
    assert same(both.filter(run="lab"), run)
    assert len(both.tokens("extra")) == 5
    shutil.rmtree(dataset / "token")
    both.refresh()
    assert both.filter(run="lab").token_arrays().ids.size == 0


def test_newer_versions_are_refused_by_name(dataset: Path) -> None:
    """A dataset of a later schema is not misread."""
    for path in (dataset / "group").rglob("*.parquet"):
        table = pq.read_table(path)
        pq.write_table(table.replace_schema_metadata({"table": "group", "schema_version": "999"}), path)
    problems = load(dataset).problems
    assert problems["why"].str.contains("999").all()
    assert len(problems) > 0


def test_a_single_file_of_a_dataset_is_rows_like_any_other(dataset: Path, run: analysis.Run) -> None:
    """Read by itself: its table with its own path, places of token lists; torn and foreign files are told."""

    def records(path: Path) -> FileRecords:
        return read(SourceFile.at(path, SourceKind.PARQUET))

    path = dataset / "session" / "rollout=1" / "part-0.parquet"
    found = records(path).table("session")
    assert len(found) == (run.sessions()["rollout_id"] == 1).sum()
    assert set(found.column("path").to_pylist()) == {str(path)}
    refs = records(dataset / "token" / "rollout=1" / "part-0.parquet").token_refs
    assert refs.column("item").to_pylist() == list(range(len(refs)))
    assert set(refs.column("source").to_pylist()) == {"parquet"}
    path.write_bytes(path.read_bytes()[:100])
    assert records(path).problems[0].what == "is no whole Parquet file"
    pd.DataFrame({"a": [1]}).to_parquet(path)
    assert records(path).problems[0].what == "is no table of this package"
