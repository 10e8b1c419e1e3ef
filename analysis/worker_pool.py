"""Worker processes that call one function on one piece of work after another, for `analysis.parallel`.

A worker is a fresh interpreter that imports the function by name. The caller's own script is never imported
again, so that a plain script or a notebook needs no ``if __name__ == "__main__"``, and nothing is forked from
a process that has threads. The caller lends a hand itself instead of waiting.

A worker ends when its pipe closes, so that none outlives the caller, however that ends. Ctrl-C in a terminal
reaches only the caller, which then kills the workers: they only read.

Knows nothing about what is computed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import subprocess
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.abc import MetaPathFinder
from multiprocessing.connection import Connection, Pipe, wait
from queue import SimpleQueue
from types import TracebackType
from typing import Any

from analysis.errors import WorkerError

__all__ = ["Lost", "WorkerPool", "serve"]

logger = logging.getLogger(__name__)

_QUEUED_PER_WORKER = 2  # one in work and one waiting: the next begins without a round trip
_AHEAD_PER_WORKER = 4
_START = "from analysis.worker_pool import serve; serve({fd}, {without!r})"


@dataclass(frozen=True)
class Lost:
    """Stands for the result of a piece of work that its worker did not survive.

    Attributes
    ----------
    exit_code
        Of the worker; negative is a signal's number, None where it is not known.
    """

    exit_code: int | None

    @property
    def why(self) -> str:
        """The exit code in words."""
        if self.exit_code is None:
            return "the worker process died"
        if self.exit_code < 0:
            return f"the worker process was killed by signal {-self.exit_code} (9 often means: out of memory)"
        return f"the worker process exited with code {self.exit_code}"


@dataclass
class _Worker:
    """One child and what it was given, in order."""

    process: subprocess.Popen[bytes]
    pipe: Connection
    given: deque[int] = field(default_factory=deque)
    greeted: bool = False

    def close(self) -> None:
        self.process.kill()
        self.pipe.close()
        self.process.wait()


class WorkerPool:
    """Workers for one function; use as a context manager.

    Parameters
    ----------
    function
        Importable by name; takes one piece of work, returns its result. Both must be picklable.
    workers
        Processes that compute, the caller included: ``workers - 1`` are started.
    without
        Names of libraries that the started ones shall not import, whatever tries to: each costs time.
    """

    def __init__(self, function: Callable[[Any], Any], workers: int, *, without: Sequence[str] = ()) -> None:
        self._function = function
        self._without = tuple(without)
        self._blob = pickle.dumps(function)
        self._wanted = max(1, workers) - 1
        self._workers: list[_Worker] = []

    def __enter__(self) -> WorkerPool:
        try:
            self.grow(self._wanted + 1)
        except BaseException:
            self.close()
            raise
        return self

    def grow(self, workers: int) -> None:
        """Have at least so many processes compute, the caller included; starting one does not wait for it."""
        while len(self._workers) < workers - 1:
            self._workers.append(self._start())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers that live."""
        return [worker.process.pid for worker in self._workers if worker.process.poll() is None]

    def close(self) -> None:
        """End all workers at once; harmless to repeat."""
        while self._workers:
            self._workers.pop().close()

    def map(self, work: Sequence[Any]) -> Iterator[Any]:
        """Yield the function's results in the order of `work`.

        At most a few results per worker wait to be taken, so that memory stays bounded.

        Yields
        ------
        Any
            The result, or `Lost` where the worker died over it.

        Raises
        ------
        Exception
            Whatever the function raised, for the first piece of work (in order of completion) that failed.
        """
        done: dict[int, Any] = {}
        waiting = deque(range(len(work)))
        for wanted in range(len(work)):
            while wanted not in done:
                limit = wanted + _AHEAD_PER_WORKER * (len(self._workers) + 1)
                self._hand_out(work, waiting, limit)
                mine = bool(waiting) and waiting[0] < limit
                if not self._collect(done, waiting, block=not mine) and mine:
                    index = waiting.popleft()
                    done[index] = self._function(work[index])
            yield done.pop(wanted)

    def map_isolated(self, work: Sequence[Any]) -> Iterator[Any]:
        """Yield results in order like `map`, one piece at a time and never in the caller's own process.

        The way to go on after a loss: each piece either gives its result or is `Lost` by itself.
        """
        worker: _Worker | None = None
        try:
            for item in work:
                worker = worker or self._start()
                answer = _ask(worker, item)
                if isinstance(answer, Lost):
                    worker.close()
                    worker = None
                yield answer
        finally:
            if worker is not None:
                worker.close()

    def _start(self) -> _Worker:
        ours, theirs = Pipe()
        paths = [os.path.abspath(path) for path in sys.path]
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-c", _START.format(fd=theirs.fileno(), without=self._without)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                start_new_session=True,
            )
        worker = _Worker(process, ours)
        with contextlib.suppress(OSError):  # a child that died at once is noticed when it should answer
            ours.send_bytes(self._blob)
        return worker

    def _hand_out(self, work: Sequence[Any], waiting: deque[int], limit: int) -> None:
        """Give every worker that has room its next piece, the idle ones first.

        The last pieces are not given ahead: nobody shall wait for one that has two of them.
        """
        for queued in range(_QUEUED_PER_WORKER):
            kept = len(self._workers) if queued else 0
            for worker in self._workers:
                if len(waiting) > kept and waiting[0] < limit and len(worker.given) == queued:
                    index = waiting.popleft()
                    worker.given.append(index)
                    _send(worker, index, work[index])

    def _collect(self, done: dict[int, Any], waiting: deque[int], *, block: bool) -> bool:
        """Take in what workers have sent; say whether there was anything."""
        pipes = {worker.pipe: worker for worker in self._workers if worker.given}
        ready = wait(list(pipes), timeout=None if block else 0) if pipes else []
        for pipe in ready:
            worker = pipes[pipe]  # type: ignore[index]
            try:
                kind, index, value = pickle.loads(worker.pipe.recv_bytes())
            except (EOFError, OSError):
                self._bury(worker, done, waiting)
                continue
            if kind == "error":
                raise value
            worker.greeted = True
            if kind == "result":
                worker.given.popleft()
                done[index] = value
        return bool(ready)

    def _bury(self, worker: _Worker, done: dict[int, Any], waiting: deque[int]) -> None:
        """Book a dead worker: what it worked on is lost, what it had not begun waits again."""
        self._workers.remove(worker)
        code = _exit_code(worker)
        worker.close()
        if worker.greeted:
            done[worker.given.popleft()] = Lost(code)
            self._workers.append(self._start())
        else:
            logger.warning("a worker process did not start (exit code %s); going on with fewer", code)
        again = sorted([*waiting, *worker.given])
        waiting.clear()
        waiting.extend(again)


def _send(worker: _Worker, index: int, item: Any) -> None:
    with contextlib.suppress(OSError):  # a dead worker: noticed when it should answer
        worker.pipe.send_bytes(pickle.dumps((index, item)))


def _ask(worker: _Worker, item: Any) -> Any:
    """Have one piece computed and wait for it."""
    _send(worker, 0, item)
    try:
        while True:
            kind, _, value = pickle.loads(worker.pipe.recv_bytes())
            if kind == "error":
                raise value
            if kind == "result":
                return value
    except (EOFError, OSError):
        return Lost(_exit_code(worker))


def _exit_code(worker: _Worker) -> int | None:
    try:
        return worker.process.wait(timeout=1.0)
    except subprocess.TimeoutExpired:
        return None


class _Absent(MetaPathFinder):
    """Makes libraries look as if they were not installed."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = frozenset(names)

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        """Raise ModuleNotFoundError for them; others are found as usual."""
        if fullname in self._names:
            raise ModuleNotFoundError(f"{fullname} is not used in worker processes", name=fullname)


def serve(descriptor: int, without: Sequence[str] = ()) -> None:
    """Be a worker: answer every piece of work that comes through the pipe; end at once when it closes."""
    sys.meta_path.insert(0, _Absent(without))
    pipe = Connection(descriptor)
    work: SimpleQueue[bytes] = SimpleQueue()
    # A thread of its own receives: the caller must never wait to hand out work while it is handed a result.
    threading.Thread(target=_receive, args=(pipe, work), daemon=True).start()
    # Another one sends: the caller takes results in only between two pieces of its own work, for which the
    # next piece must not wait. It hands out two at a time, so that no more than their results ever wait.
    answers: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_send_all, args=(pipe, answers), daemon=True).start()
    function = pickle.loads(work.get())
    answers.put(pickle.dumps(("ready", -1, None)))
    while True:
        index, item = pickle.loads(work.get())
        try:
            answer = pickle.dumps(("result", index, function(item)), protocol=5)
        except Exception as error:  # whatever it is, the caller raises it
            answer = _pickled_error(index, error)
        answers.put(answer)


def _receive(pipe: Connection, work: SimpleQueue[bytes]) -> None:
    try:
        while True:
            work.put(pipe.recv_bytes())
    except (EOFError, OSError):
        os._exit(0)  # the caller is gone: so is the reason to go on with whatever is being computed


def _send_all(pipe: Connection, answers: SimpleQueue[bytes]) -> None:
    try:
        while True:
            pipe.send_bytes(answers.get())
    except OSError:
        os._exit(0)  # as above


def _pickled_error(index: int, error: Exception) -> bytes:
    """Pickle an error for the caller; one that cannot travel becomes its text."""
    text = "".join(traceback.format_exception(error))
    try:
        blob = pickle.dumps(("error", index, error))
        pickle.loads(blob)
    except Exception:  # an exception class may do anything while it is pickled
        return pickle.dumps(("error", index, WorkerError(f"in a worker process:\n{text}")))
    return blob
