"""The same results in the same order from every engine, and no process left behind however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from analysis.errors import EngineUnavailableError, WorkerError
from analysis.parallel import Plan, available_cpus, chunked, map_chunks, plan, somebody_watches
from analysis.worker_pool import WorkerPool
from tests.analysis import pool_jobs

ROOT = Path(__file__).resolve().parents[2]
SERIAL = Plan("serial")
PROCESSES = Plan("processes", 3)


def lost(item: object, why: str) -> tuple[object, str]:
    return item, why


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with Path(f"/proc/{pid}/stat").open() as stat:
        return stat.read().rpartition(")")[2].split()[0] != "Z"


def _until(condition: object, seconds: float = 20.0) -> bool:
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


def test_chunks_are_neighbours_cut_by_size_and_count() -> None:
    """Chunks depend on sizes alone; nothing is reordered, a file bigger than a chunk stands alone."""
    sizes = [5, 5, 90, 1, 1, 1, 200, 3]
    chunks = chunked(range(8), sizes.__getitem__, chunk_bytes=10, chunk_items=2)
    assert chunks == [[0, 1], [2], [3, 4], [5, 6], [7]]
    assert chunked([], len) == []
    assert chunked([b"", b"", b""], len, chunk_items=2) == [[b"", b""], [b""]]


def test_plan_takes_processes_only_where_they_pay() -> None:
    """`auto` is serial for little data; Ray is never chosen by itself."""
    assert plan("auto", total_bytes=1000) == SERIAL
    assert plan("auto", total_bytes=2**40, workers=1) == SERIAL
    assert plan("auto", total_bytes=2**40, workers=2) == Plan("processes", 2)
    assert plan("processes").workers == min(available_cpus(), 32)
    assert plan("ray", address="ray://head:10001") == Plan("ray", None, "ray://head:10001")


@pytest.mark.parametrize(
    ("engine", "options", "named"),
    [
        ("threads", {}, "serial"),
        ("serial", {"workers": 0}, "at least 1"),
        ("auto", {"address": "ray://head:10001"}, 'engine="ray"'),
    ],
)
def test_plan_refuses_what_cannot_be_meant(engine: str, options: dict[str, object], named: str) -> None:
    """An unknown engine, no workers, an address that nobody would use: said at once, with what is allowed."""
    with pytest.raises(ValueError, match=named):
        plan(engine, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("how", [SERIAL, PROCESSES])
@pytest.mark.parametrize("count", [0, 1, 50])
def test_results_come_in_order(how: Plan, count: int) -> None:
    """Whoever computes them, and however few there are."""
    chunks = chunked(range(count), lambda item: 1, chunk_bytes=3)
    results = map_chunks(pool_jobs.square, chunks, how, lost=lost)
    assert [number for chunk in results for number in chunk] == [n * n for n in range(count)]


def test_caller_and_workers_share_the_work() -> None:
    """Three processes: two workers, and the caller instead of waiting."""
    chunks = [[number] for number in range(60)]
    done = list(map_chunks(pool_jobs.pid_and_items, chunks, PROCESSES, lost=lost))
    assert [items for _, items in done] == chunks
    pids = {pid for pid, _ in done}
    assert os.getpid() in pids
    assert len(pids) == 3


def test_a_result_bigger_than_the_pipe_and_work_bigger_than_the_pipe() -> None:
    """Neither side waits for the other while both want to send."""
    chunks = [[4, "x" * 2_000_000] for _ in range(12)]
    done = map_chunks(pool_jobs.megabytes, chunks, PROCESSES, lost=lost)
    assert [len(result) for result in done] == [4 * 2**20] * 12


def test_a_worker_goes_on_while_the_caller_is_busy(tmp_path: Path) -> None:
    """A finished result that nobody takes yet does not keep the next piece waiting."""
    chunks = [[str(tmp_path), os.getpid(), piece] for piece in range(3)]
    with WorkerPool(pool_jobs.wait_for_worker, 2) as pool:
        first, second, third = pool.map(chunks)
    assert third is True
    assert len(first) == len(second) == 4 * 2**20


def test_only_the_item_that_kills_its_worker_is_lost() -> None:
    """A file that brings a process down is named; its neighbours, and the caller, live."""
    items = [*range(40), "poison", *range(40, 80)]
    chunks = chunked(items, lambda item: 1, chunk_bytes=7)
    results: list[object] = []
    with WorkerPool(pool_jobs.deadly, 3) as pool:
        # The caller takes no part here: it would die too.
        for chunk, result in zip(chunks, _workers_only(pool, chunks), strict=True):
            if result is None:
                results.extend(
                    single[0] if isinstance(single, list) else single.why
                    for single in pool.map_isolated([[item] for item in chunk])
                )
            else:
                results.extend(result)
    assert [item for item in results if isinstance(item, int)] == list(range(80))
    assert results[40] == "the worker process was killed by signal 9 (9 often means: out of memory)"


def _workers_only(pool: WorkerPool, chunks: list[list[object]]) -> Iterator[list[object] | None]:
    for result in pool.map_isolated(chunks):
        yield result if isinstance(result, list) else None


def test_a_lost_chunk_is_computed_item_by_item(monkeypatch: pytest.MonkeyPatch) -> None:
    """`map_chunks` asks again for every item of a chunk whose worker died, and `lost` names the culprit."""
    monkeypatch.setattr(WorkerPool, "map", WorkerPool.map_isolated)
    chunks = [[1, 2], [3, "poison", 4], [5]]
    results = list(map_chunks(pool_jobs.deadly, chunks, PROCESSES, lost=lost))
    assert results[:2] == [[1, 2], [3]]
    assert results[2] == (
        "poison",
        "the worker process was killed by signal 9 (9 often means: out of memory)",
    )
    assert results[3:] == [[4], [5]]


def test_workers_killed_from_outside_lose_nothing() -> None:
    """A worker that is killed over a harmless chunk: its work is done elsewhere."""
    chunks = [[number] for number in range(80)]
    results: list[list[object]] = []
    with WorkerPool(pool_jobs.pid_and_items, 3) as pool:
        for number, result in enumerate(pool.map(chunks)):
            results.append(result[1] if isinstance(result, tuple) else ["lost"])
            if number == 5:
                for pid in pool.pids:
                    os.kill(pid, signal.SIGKILL)
    lost_ones = [place for place, items in enumerate(results) if items == ["lost"]]
    assert len(lost_ones) <= 2  # what they were computing at that moment
    assert all(items == [place] for place, items in enumerate(results) if place not in lost_ones)


@pytest.mark.parametrize("how", [SERIAL, PROCESSES])
def test_an_error_of_the_function_comes_out(how: Plan) -> None:
    """Strict loading relies on it: the type and the text survive the way out of a worker."""
    chunks = [[number] for number in [*range(30), -7, *range(30)]]
    with pytest.raises(WorkerError, match="negative: -7"):
        list(map_chunks(pool_jobs.picky, chunks, how, lost=lost))


def test_workers_do_without_libraries_that_they_are_told_to() -> None:
    """What is not imported costs no time in each of them; the caller is not touched."""
    with WorkerPool(pool_jobs.imports, 2, without=("fractions",)) as pool:
        assert list(pool.map_isolated([["fractions"], ["decimal"]])) == [False, True]
    assert pool_jobs.imports(["fractions"])


def test_an_error_that_cannot_travel_becomes_its_text() -> None:
    """An exception class that cannot be unpickled must not hang or hide the failure."""
    with WorkerPool(pool_jobs.unpicklable, 2) as pool, pytest.raises(WorkerError, match="1 and 2"):
        list(pool.map_isolated([[1, 2]]))


def test_workers_that_cannot_start_are_done_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An interpreter that dies at once: the caller does everything itself and says so."""
    monkeypatch.setattr("analysis.worker_pool._START", "raise SystemExit(3) # {fd} {without}")
    chunks = [[number] for number in range(40)]
    assert [r[0] for r in map_chunks(pool_jobs.square, chunks, PROCESSES, lost=lost)] == [
        n * n for n in range(40)
    ]
    assert "exit code 3" in caplog.text


def test_no_worker_is_left_when_the_caller_loses_interest(tmp_path: Path) -> None:
    """Closing the iterator half way, or an error in the loop body, ends the workers at once."""
    chunks = [[number] for number in range(200)]
    with WorkerPool(pool_jobs.pid_and_items, 3) as pool:
        with closing(pool.map(chunks)) as results:
            next(results)
        pids = pool.pids
        assert len(pids) == 2
    assert not any(_alive(pid) for pid in pids)


_SCRIPT = """
    from tests.analysis import pool_jobs
    from analysis.parallel import Plan, map_chunks
    print("ready", flush=True)
    list(map_chunks(pool_jobs.slow, [[{folder!r}]] * 8, Plan("processes", 3), lost=lambda item, why: None))
"""


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_ctrl_c_and_a_killed_caller_leave_no_orphans(tmp_path: Path, end: signal.Signals) -> None:
    """A plain script without a main guard; Ctrl-C ends it soon, and its workers with it in any case."""
    code = textwrap.dedent(_SCRIPT.format(folder=str(tmp_path)))
    script = tmp_path / "script.py"
    script.write_text(code)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env
    ) as caller:
        try:
            begun = [tmp_path / "script.py"]

            def all_busy() -> bool:
                begun[:] = [path for path in tmp_path.iterdir() if path.name.isdigit()]
                return len(begun) == 3

            assert _until(all_busy)
            caller.send_signal(end)
            assert caller.wait(timeout=20) != 0
        finally:
            caller.kill()
    pids = [int(path.name) for path in begun]
    assert _until(lambda: not any(_alive(pid) for pid in pids))


def test_progress_bar_is_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    """No bar where nobody watches; one that counts bytes where it is asked for."""
    chunks = [[10], [20]]
    list(map_chunks(pool_jobs.square, chunks, SERIAL, lost=lost, size=int))
    assert capsys.readouterr().err == ""
    list(map_chunks(pool_jobs.square, chunks, SERIAL, lost=lost, size=int, progress=True, label="reading"))
    shown = capsys.readouterr().err
    assert "reading" in shown
    assert "30.0" in shown


@pytest.mark.parametrize(
    ("shell", "watched"), [("ZMQInteractiveShell", True), ("TerminalInteractiveShell", False)]
)
def test_a_notebook_is_watched(
    shell: str, watched: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a notebook the bar is shown without a terminal; IPython elsewhere says nothing about one."""
    instance = type(shell, (), {})()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: instance))
    assert somebody_watches() is watched


def test_ray_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """`engine="ray"` without Ray says what to install and what to use instead."""
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(EngineUnavailableError, match="pip install ray"):
        list(map_chunks(pool_jobs.square, [[1]], Plan("ray", 1), lost=lost))
