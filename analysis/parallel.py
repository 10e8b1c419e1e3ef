"""One function over many files: in this process, in several, or on a Ray cluster, with the same results.

Work is cut into chunks of neighbouring files by size alone, so that neither the engine nor the number of
workers changes what is computed together: results are the same bit for bit, in the same order. Knows nothing
about what the files hold.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from analysis.errors import EngineUnavailableError
from analysis.ray_pool import RayPool
from analysis.worker_pool import Lost, WorkerPool

__all__ = [
    "ENGINES",
    "EarlyWorkers",
    "Engine",
    "Lost",
    "Plan",
    "available_cpus",
    "chunked",
    "map_chunks",
    "plan",
]

T = TypeVar("T")
R = TypeVar("R")

Engine = Literal["auto", "serial", "processes", "ray"]
ENGINES: tuple[Engine, ...] = ("auto", "serial", "processes", "ray")

CHUNK_BYTES = 8 * 2**20
"""A chunk is closed when it holds this much: some tenths of a second of work, little to hold in memory."""

CHUNK_FILES = 256
"""Most files in a chunk, however small they are."""

PROCESSES_FROM_BYTES = 96 * 2**20
"""From here on starting processes pays; below, they start longer than the work takes."""

_BAR_DELAY = 1.0
_MAX_WORKERS = 32


@dataclass(frozen=True)
class Plan:
    """How the work is done.

    Attributes
    ----------
    engine
        ``serial``, ``processes`` or ``ray``.
    workers
        Processes or tasks at once, the caller included; None lets Ray use its whole cluster.
    address
        Of the Ray cluster; None for the ``RAY_ADDRESS`` of the environment, else one of our own.
    """

    engine: Engine = "serial"
    workers: int | None = 1
    address: str | None = None


def available_cpus() -> int:
    """Return how many CPUs this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def plan(
    engine: Engine = "auto", *, workers: int | None = None, total_bytes: int = 0, address: str | None = None
) -> Plan:
    """Choose how to do the work.

    Parameters
    ----------
    engine
        ``serial``, ``processes``, ``ray``, or ``auto``: processes where there are several CPUs and enough
        bytes for them to pay. Ray is used only when asked for.
    workers
        Processes or tasks at once; by default one per CPU.
    total_bytes
        Size of everything that is to be read.
    address
        Of a Ray cluster.

    Raises
    ------
    ValueError
        An unknown engine, fewer than one worker, or an address without ``engine="ray"``.
    """
    if engine not in ENGINES:
        raise ValueError(f"engine must be one of {', '.join(ENGINES)}, got {engine!r}")
    if workers is not None and workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    if engine == "ray":
        return Plan("ray", workers, address)
    if address is not None:
        raise ValueError(f'address={address!r} names a Ray cluster; it needs engine="ray", not {engine!r}')
    count = workers or min(available_cpus(), _MAX_WORKERS)
    pays = total_bytes >= PROCESSES_FROM_BYTES and count > 1
    if engine == "processes" or (engine == "auto" and pays):
        return Plan("processes", count)
    return Plan("serial", 1)


def chunked(
    items: Iterable[T],
    size: Callable[[T], int],
    *,
    chunk_bytes: int | None = None,
    chunk_items: int | None = None,
) -> list[list[T]]:
    """Cut items into runs of neighbours that hold about as many bytes each; nothing is reordered.

    Parameters
    ----------
    items
        In the order of their results.
    size
        Bytes of an item.
    chunk_bytes, chunk_items
        A chunk is closed once it reaches either; `CHUNK_BYTES` and `CHUNK_FILES` by default.
    """
    most_bytes = CHUNK_BYTES if chunk_bytes is None else chunk_bytes
    most_items = CHUNK_FILES if chunk_items is None else chunk_items
    chunks: list[list[T]] = []
    room = 0
    for item in items:
        if room <= 0 or len(chunks[-1]) >= most_items:
            chunks.append([])
            room = most_bytes
        chunks[-1].append(item)
        room -= max(1, size(item))
    return chunks


def map_chunks(
    function: Callable[[Sequence[T]], R],
    chunks: Sequence[Sequence[T]],
    how: Plan,
    *,
    lost: Callable[[T, str], R],
    size: Callable[[T], int] = lambda item: 1,
    progress: bool | None = None,
    label: str = "loading",
    without: Sequence[str] = (),
    started: WorkerPool | None = None,
) -> Generator[R, None, None]:
    """Yield ``function(chunk)`` in the order of the chunks.

    Parameters
    ----------
    function
        Takes a chunk; for other engines than ``serial`` importable by name. What it raises comes out here.
    chunks
        From `chunked`.
    how
        From `plan`.
    lost
        Called with an item that killed the process which worked on it, and with how it ended; gives the
        item's result. The other items of its chunk are computed one by one, each giving a result of its own.
    size
        Bytes of an item, for the progress bar.
    progress
        Whether to show a bar; None for one that appears after a second, in a terminal or a notebook.
    label
        What the bar says.
    without
        As in `analysis.worker_pool.WorkerPool`.
    started
        A pool for the same function, from `EarlyWorkers`, to be used where processes are.

    Raises
    ------
    EngineUnavailableError
        Ray was asked for and cannot be had.
    """
    total = sum(size(item) for chunk in chunks for item in chunk)
    with _bar(total, progress, label) as advance, _pool(function, how, len(chunks), without, started) as pool:
        results = map(function, chunks) if pool is None else pool.map(chunks)
        for chunk, result in zip(chunks, results, strict=True):
            if pool is not None and isinstance(result, Lost):
                singles = [[item] for item in chunk]
                for item, single in zip(chunk, pool.map_isolated(singles), strict=True):
                    yield lost(item, single.why) if isinstance(single, Lost) else single
            else:
                yield result
            advance(sum(size(item) for item in chunk))


class EarlyWorkers:
    """Worker processes that start while it is still being found out what there is to do; a context manager.

    An interpreter starts as long as it takes to list some ten thousand files: neither waits for the other.

    Parameters
    ----------
    function, without
        As in `analysis.worker_pool.WorkerPool`.
    engine, workers
        As in `plan`.

    Attributes
    ----------
    pool, without
        For `map_chunks`; no pool as long as one process does the work.
    """

    def __init__(
        self, function: Callable[[Any], Any], engine: Engine, workers: int | None, without: Sequence[str] = ()
    ) -> None:
        self._function = function
        self._engine = engine
        self._workers = workers
        self.without = without
        self._bytes = 0
        self.pool: WorkerPool | None = None

    def expect(self, size: int) -> None:
        """Take note of so many more bytes to read."""
        chunks = self._bytes // CHUNK_BYTES
        self._bytes += size
        if self._engine == "ray" or self._bytes // CHUNK_BYTES == chunks:
            return
        how = plan(self._engine, workers=self._workers, total_bytes=self._bytes)
        if how.engine == "processes":
            self.pool = self.pool or WorkerPool(self._function, 1, without=self.without)
            self.pool.grow(min(how.workers or 1, self._bytes // CHUNK_BYTES))

    def __enter__(self) -> EarlyWorkers:
        return self

    def __exit__(self, *_: object) -> None:
        if self.pool is not None:
            self.pool.close()
            self.pool = None


@contextmanager
def _pool(
    function: Callable[[Any], Any], how: Plan, chunks: int, without: Sequence[str], started: WorkerPool | None
) -> Iterator[WorkerPool | RayPool | None]:
    if how.engine == "ray":
        with RayPool(function, how.workers, address=how.address) as ray_pool:
            yield ray_pool
    elif how.engine == "processes" and chunks:
        count = min(how.workers or available_cpus(), chunks)
        with nullcontext(started) if started else WorkerPool(function, count, without=without) as worker_pool:
            worker_pool.grow(count)
            yield worker_pool
    elif how.engine in ("serial", "processes"):
        yield None
    else:
        raise EngineUnavailableError(f"engine {how.engine!r} has to be resolved with plan() first")


@contextmanager
def _bar(total: int, progress: bool | None, label: str) -> Iterator[Callable[[int], None]]:
    """Give a function that moves the bar on by so many bytes."""
    if progress is False or (progress is None and not somebody_watches()):
        yield lambda amount: None
        return
    from tqdm.auto import tqdm

    options = {"unit": "B", "unit_scale": True, "unit_divisor": 1024, "leave": False}
    with tqdm(total=total, desc=label, delay=0 if progress else _BAR_DELAY, **options) as bar:
        yield bar.update


def somebody_watches() -> bool:
    """Whether output is a terminal or a notebook."""
    shell = sys.modules.get("IPython")
    instance = shell.get_ipython() if shell is not None else None
    if instance is not None and type(instance).__name__ == "ZMQInteractiveShell":
        return True
    return bool(getattr(sys.stderr, "isatty", lambda: False)())
