"""What other processes read is the same bit for bit, and they begin before all files are found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import analysis
from analysis import discovery
from analysis.lab.run_folder import RunFolder
from analysis.parallel import EarlyWorkers, Plan, map_chunks
from analysis.worker_pool import WorkerPool
from tests.analysis import pool_jobs
from tests.analysis.test_loading import load, same, write_session

ARRAYS = ("ids", "position", "mask", "trainable", "logprob", "train_logprob", "advantage", "turn")


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry per worker that was started: how many there were before."""
    seen: list[int] = []
    real = WorkerPool._start

    def spy(pool: WorkerPool) -> Any:
        seen.append(len(pool.pids))
        return real(pool)

    monkeypatch.setattr(WorkerPool, "_start", spy)
    return seen


@pytest.mark.parametrize("only_workers", [False, True])
def test_frames_and_tokens_are_the_same(
    embedded: RunFolder, monkeypatch: pytest.MonkeyPatch, starts: list[int], only_workers: bool
) -> None:
    """With the work shared between caller and worker, and with all of it on the other side."""
    (embedded.polar_results / "ses_torn.json").write_text("{")
    monkeypatch.setattr("analysis.parallel.CHUNK_FILES", 4)
    monkeypatch.setattr("analysis.parallel.CHUNK_BYTES", 50_000)
    if only_workers:
        monkeypatch.setattr(WorkerPool, "map", WorkerPool.map_isolated)
    serial = load(embedded.root)
    assert not starts
    processes = load(embedded.root, engine="processes", workers=2)
    assert starts
    assert same(serial, processes)
    assert serial.problems.equals(processes.problems)
    assert serial.skipped.equals(processes.skipped)
    one, other = serial.token_arrays(), processes.token_arrays()
    for name in ARRAYS:
        assert getattr(one, name).tobytes() == getattr(other, name).tobytes()


def test_workers_start_while_files_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, starts: list[int]
) -> None:
    """As many as the bytes so far are worth; all of them end with the load."""
    for number in range(6):
        write_session(tmp_path, f"s{number}", tokens=200)
    monkeypatch.setattr("analysis.parallel.CHUNK_BYTES", 2000)
    real = discovery.discover
    at_the_end: list[int] = []

    def spy(*arguments: Any, **options: Any) -> Any:
        found = real(*arguments, **options)
        at_the_end.append(len(starts))
        return found

    monkeypatch.setattr(discovery, "discover", spy)
    pools: list[WorkerPool] = []
    close = WorkerPool.close
    monkeypatch.setattr(WorkerPool, "close", lambda pool: (pools.append(pool), close(pool)))
    run = analysis.load(tmp_path, index=False, engine="processes", workers=3)
    assert len(run.sessions()) == 6
    assert at_the_end == [2]
    assert starts == [0, 1]
    assert pools
    assert not any(pool.pids for pool in pools)
    run.refresh()
    assert len(starts) == 2


def test_no_worker_for_little_or_for_other_engines(starts: list[int]) -> None:
    """Less than two chunks are done sooner alone; Ray brings its own; `auto` waits until they pay."""
    for engine, workers, sizes in (
        ("processes", 4, [8 * 2**20, 1]),
        ("processes", 1, [2**40]),
        ("serial", None, [2**40]),
        ("ray", 2, [2**40]),
        ("auto", 2, [90 * 2**20, 1]),
    ):
        with EarlyWorkers(pool_jobs.square, engine, workers) as early:  # type: ignore[arg-type]
            for size in sizes:
                early.expect(size)
            assert not starts
    with EarlyWorkers(pool_jobs.square, "auto", 2) as early:
        early.expect(97 * 2**20)
        assert early.pool is not None
        how = Plan("processes", 3)
        results = map_chunks(
            pool_jobs.square, [[1], [2], [3]], how, lost=lambda item, why: [], started=early.pool
        )
        assert list(results) == [[1], [4], [9]]
        assert len(starts) == 2  # the plan may want more than were started
        assert early.pool.pids
    assert early.pool is None


def test_an_error_while_files_are_found_leaves_no_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, starts: list[int]
) -> None:
    """Ctrl-C, say."""
    write_session(tmp_path, "s1", tokens=2000)
    monkeypatch.setattr("analysis.parallel.CHUNK_BYTES", 1000)
    monkeypatch.setattr(discovery, "_duplicates", lambda files: (_ for _ in ()).throw(KeyboardInterrupt))
    pools: list[WorkerPool] = []
    close = WorkerPool.close
    monkeypatch.setattr(WorkerPool, "close", lambda pool: (pools.append(pool), close(pool)))
    with pytest.raises(KeyboardInterrupt):
        analysis.load(tmp_path, index=False, engine="processes", workers=2)
    assert starts == [0]
    assert pools
    assert not any(pool.pids for pool in pools)
