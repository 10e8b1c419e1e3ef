"""Writes a run, or a part of one, as a Parquet dataset; `analysis.parquet_dataset` describes the layout.

The dataset appears as a whole or not at all. Token arrays are read from the run's files, rollout by rollout,
in as many processes as pay, or on a Ray cluster whose nodes see the same files.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from analysis._identity import Ints
from analysis._tables import integers, one_array
from analysis.merge import OWNER
from analysis.parallel import Engine, chunked, map_chunks, plan
from analysis.parquet_dataset import MANIFEST, NO_ROLLOUT, PARTITION, TOKEN_LISTS, TOKEN_TABLE
from analysis.problems import Problem
from analysis.schema import GRAINS, SCHEMA_VERSION, columns_of
from analysis.sources.base import ReadOptions
from analysis.token_files import TokenFiles
from analysis.tokens import MISSING_FLAG, TokenArrays, read_tokens, refs_of

if TYPE_CHECKING:
    from analysis.run import Run

__all__ = ["write_dataset"]

logger = logging.getLogger(__name__)

_PART = "part-0.parquet"
_ROW_GROUP = 512
_BYTES_PER_TOKEN = 12  # roughly, of what has to be read; for the progress bar and the size of chunks


def write_dataset(
    run: Run,
    out: Path,
    *,
    tokens: bool = True,
    overwrite: bool = False,
    engine: Engine | None = None,
    workers: int | None = None,
    progress: bool | None = None,
) -> Path:
    """Write the tables of a run as Parquet.

    Parameters
    ----------
    run
        The run, or a view of a part.
    out
        Folder of the dataset.
    tokens
        Whether to write the token arrays too, as lists.
    overwrite
        Replace a dataset that stands there already. Anything else is never replaced.
    engine, workers, progress
        As for `analysis.load`; by default as the run was loaded.

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    FileExistsError
        `out` is there and is no dataset of ours, or is one and `overwrite` is false.
    StrictLoadError
        The run was loaded with `strict`, and some tokens cannot be read.
    """
    out = Path(os.path.abspath(out))
    _check_target(out, overwrite)
    partial_folder = out.with_name(f".{out.name}.{os.getpid()}-{secrets.token_hex(4)}.partial")
    try:
        partial_folder.mkdir(parents=True)
        tables = {grain: run.owned_table(grain) for grain in GRAINS}
        for grain, table in tables.items():
            _write_table(partial_folder / grain, grain, table)
        problems = (
            _write_tokens(run, partial_folder / TOKEN_TABLE, engine, workers, progress) if tokens else []
        )
        manifest = {
            "schema_version": SCHEMA_VERSION,
            "runs": run.names,
            "rows": {grain: len(table) for grain, table in tables.items()},
            "tokens": tokens,
            "problems": [str(problem) for problem in problems],
        }
        (partial_folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        _put_in_place(partial_folder, out)
    finally:
        shutil.rmtree(partial_folder, ignore_errors=True)
    return out


def _check_target(out: Path, overwrite: bool) -> None:
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not (out / MANIFEST).is_file():
        raise FileExistsError(
            f"{out}: is there already and is no dataset of this package; choose another folder"
        )
    if not overwrite:
        raise FileExistsError(f"{out}: a dataset is there already; overwrite=True (--overwrite) replaces it")


def _put_in_place(made: Path, out: Path) -> None:
    if not out.exists():
        made.rename(out)
        return
    old = out.with_name(f".{out.name}.{os.getpid()}-{secrets.token_hex(4)}.old")
    out.rename(old)
    made.rename(out)
    shutil.rmtree(old, ignore_errors=True)


def _write_table(folder: Path, grain: str, table: pa.Table) -> None:
    """Write one table, one file per rollout; an empty table still says which columns it has."""
    rows = pa.array(np.arange(len(table)), pa.int64())
    owner = table.column(OWNER)
    plain = table.drop_columns([OWNER]).append_column("_row", rows).append_column("_owner", owner)
    metadata = {"table": grain, "schema_version": str(SCHEMA_VERSION)}
    for rollout, rows in _by_rollout(plain) or [(NO_ROLLOUT, np.zeros(0, dtype=np.int64))]:
        _write_file(folder / f"{PARTITION}={rollout}" / _PART, plain.take(pa.array(rows)), metadata)


def _by_rollout(table: pa.Table) -> list[tuple[int, Ints]]:
    """Return the places of each rollout's rows, by partition."""
    rollouts = integers(table, "rollout_id", NO_ROLLOUT)
    return [(rollout, np.flatnonzero(rollouts == rollout)) for rollout in np.unique(rollouts).tolist()]


def _write_file(path: Path, table: pa.Table, metadata: dict[str, str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(
        table.replace_schema_metadata(metadata), path, compression="zstd", row_group_size=_ROW_GROUP * 32
    )


@dataclass(frozen=True)
class _TokenJob:
    """The tokens of one rollout: which traces, where they lie, and where they go."""

    path: str
    traces: pa.Table
    refs: pa.Table
    size: int


def _write_tokens(
    run: Run, folder: Path, engine: Engine | None, workers: int | None, progress: bool | None
) -> list[Problem]:
    settings = run.store.settings
    jobs = _token_jobs(run, folder)
    how = plan(
        engine or settings.engine,
        workers=workers or settings.workers,
        total_bytes=sum(job.size for job in jobs),
        address=settings.address if (engine or settings.engine) == "ray" else None,
    )
    results = map_chunks(
        partial(_write_token_files, options=settings.options),
        chunked(jobs, _job_size),
        how,
        lost=_lost_job,
        size=_job_size,
        progress=settings.progress if progress is None else progress,
        label="writing tokens",
    )
    problems = [problem for found in results for problem in found]
    for problem in problems:
        logger.warning("tokens left out: %s", problem)
    run.store.strictly(problems)
    return problems


def _job_size(job: _TokenJob) -> int:
    return job.size


def _lost_job(job: _TokenJob, why: str) -> list[Problem]:
    return [Problem(job.path, "its tokens were not written", why)]


def _token_jobs(run: Run, folder: Path) -> list[_TokenJob]:
    """Make one job per rollout that has tokens."""
    names = [column.name for column in columns_of("trace") if column.name in TOKEN_LISTS.names]
    table = run.table("trace")
    real = pc.invert(pc.fill_null(table.column("placeholder"), False))
    traces = table.select([*names, "prompt_tokens", "response_tokens"]).filter(real)
    refs, owner = refs_of(traces, run.store.token_refs)
    jobs = []
    for rollout, rows in _by_rollout(traces):
        mine = np.flatnonzero(np.isin(owner, rows))
        if len(mine):
            part = traces.take(pa.array(rows))
            counts = [pc.sum(part.column(name)).as_py() or 0 for name in ("prompt_tokens", "response_tokens")]
            path = str(folder / f"{PARTITION}={rollout}" / _PART)
            jobs.append(_TokenJob(path, part, refs.take(pa.array(mine)), _BYTES_PER_TOKEN * sum(counts)))
    return jobs


def _write_token_files(jobs: Sequence[_TokenJob], *, options: ReadOptions) -> list[Problem]:
    problems: list[Problem] = []
    for job in jobs:
        arrays = read_tokens(job.traces, job.refs, TokenFiles(options))
        metadata = {"table": TOKEN_TABLE, "schema_version": str(SCHEMA_VERSION)}
        table, path = _lists(arrays, job.traces), Path(job.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(
            table.replace_schema_metadata(metadata), path, compression="zstd", row_group_size=_ROW_GROUP
        )
        problems.extend(arrays.problems)
    return problems


def _lists(arrays: TokenArrays, traces: pa.Table) -> pa.Table:
    """Return token arrays as lists, one row per trace."""
    kept = pa.array(arrays.rows)
    rows = traces.take(kept)
    prompts = arrays.table.column("prompt_tokens").to_numpy()
    response = arrays.position >= np.repeat(prompts, np.diff(arrays.offsets))
    columns: dict[str, Any] = {
        name: one_array(rows.column(name)) for name in TOKEN_LISTS.names if name in rows.column_names
    }
    columns["prompt_ids"] = _list_array(arrays.ids, arrays.offsets, ~response)
    for name, values in (
        ("response_ids", arrays.ids),
        ("mask", arrays.mask),
        ("trainable", arrays.trainable),
        ("logprob", arrays.logprob),
        ("train_logprob", arrays.train_logprob),
        ("advantage", arrays.advantage),
    ):
        columns[name] = _list_array(values, arrays.offsets, response, known=name != "response_ids")
    return pa.Table.from_arrays(
        [columns[field.name].cast(field.type) for field in TOKEN_LISTS], schema=TOKEN_LISTS
    )


def _list_array(values: Any, offsets: Ints, chosen: Any, *, known: bool = False) -> pa.Array:
    """Return the chosen values as lists; with `known`, lists without a single value are missing."""
    ends = np.r_[0, np.cumsum(chosen)][offsets].astype(np.int32)
    flat = values[chosen]
    if not known:
        return pa.ListArray.from_arrays(pa.array(ends), pa.array(flat))
    there = ~np.isnan(flat) if flat.dtype.kind == "f" else flat != MISSING_FLAG
    some = np.diff(np.r_[0, np.cumsum(there)][ends]) > 0
    return pa.ListArray.from_arrays(pa.array(ends), pa.array(flat), mask=pa.array(~some))
