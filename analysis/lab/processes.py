"""Child processes that never outlive their owner: the engine, the router and whatever else a run starts.

A child gets a session of its own, so that Ctrl-C in the terminal reaches only the parent, which then stops
the child in order. On Linux the kernel kills the child when the parent dies, however it dies; elsewhere, and
as a second net, an exit hook does while the parent ends normally. Output goes to a file. Stopping is SIGTERM,
then SIGKILL after a bound, to the child and everything in its process group.

Knows nothing about what the children do; readiness is a URL that answers 200.
"""

from __future__ import annotations

import atexit
import contextlib
import http.client
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

from analysis.errors import ProcessError, ProcessExitedError, ProcessNotReadyError

__all__ = ["ChildProcess", "free_port", "http_status"]

logger = logging.getLogger(__name__)

_LOG_TAIL_LINES = 20

# Runs between fork and the child's own program, as a program of its own: Python code between fork and exec of
# a threaded parent can deadlock. Asks for the death signal, then makes sure that the parent did not die
# before it asked.
_LAUNCHER = """\
import ctypes, os, sys
parent, number, argv = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
if sys.platform == "linux":
    ctypes.CDLL(None, use_errno=True).prctl(1, number)
    if os.getppid() != parent:
        os._exit(1)
try:
    os.execvp(argv[0], argv)
except OSError as error:
    sys.exit(f"{argv[0]}: {error.strerror}")
"""

_handed_out: set[int] = set()
_handed_out_lock = threading.Lock()


def free_port(host: str = "127.0.0.1") -> int:
    """Give a TCP port that nobody listens on, different at each call of this process.

    The port is free when it is found, not reserved: bind it soon.
    """
    with _handed_out_lock:
        for _ in range(100):
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
                probe.bind((host, 0))
                port = int(probe.getsockname()[1])
            if port not in _handed_out:
                _handed_out.add(port)
                return port
    raise ProcessError(f"no free port found on {host} that was not handed out before")


def http_status(url: str, *, timeout: float = 2.0) -> int | None:
    """Status code of a GET, never redirected or proxied; None when nothing answers in `timeout` seconds."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=timeout)
    try:
        connection.request("GET", parts.path + (f"?{parts.query}" if parts.query else ""))
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


class ChildProcess:
    """A program that runs as long as its owner wants, at most as long as its owner lives.

    Parameters
    ----------
    argv
        Program and arguments; no shell.
    name
        For messages.
    log_path
        Gets stdout and stderr, appended. Its folder is created.
    env
        Added to the parent's environment.
    ready_url
        Answers 200 once the child is ready; `wait_ready` needs it.
    stop_timeout
        Seconds between SIGTERM and SIGKILL.
    cwd
        Working folder; the parent's when None.

    Examples
    --------
    >>> with ChildProcess(["sleep", "60"], name="nap", log_path=Path("nap.log")) as child:  # doctest: +SKIP
    ...     child.pid
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        name: str,
        log_path: Path,
        env: Mapping[str, str] | None = None,
        ready_url: str | None = None,
        stop_timeout: float = 5.0,
        cwd: Path | None = None,
    ) -> None:
        self.argv = list(argv)
        self.name = name
        self.log_path = log_path
        self.ready_url = ready_url
        self.stop_timeout = stop_timeout
        self._env = dict(env or {})
        self._cwd = cwd
        self._process: subprocess.Popen[bytes] | None = None
        self._failure: BaseException | None = None
        self._lock = threading.Lock()
        self._started = threading.Event()
        self._exited = threading.Event()
        self._keeper: threading.Thread | None = None

    @property
    def pid(self) -> int | None:
        """Process id, also its group's; None before the start."""
        return self._process.pid if self._process is not None else None

    @property
    def returncode(self) -> int | None:
        """Exit status (negative: killed by that signal), None while it runs."""
        return self._process.returncode if self._process is not None and self._exited.is_set() else None

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and not self._exited.is_set()

    def start(self) -> ChildProcess:
        """Start the program and return at once.

        Raises
        ------
        ProcessError
            When it was started before or cannot be started at all.
        """
        if self._keeper is not None:
            raise ProcessError(f"{self.name} was started before; make a new ChildProcess")
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        # The kernel's death signal is tied to the thread that forked, not to the process: this thread lives
        # as long as the child, so a child started from a short-lived thread is not killed when that thread
        # ends.
        self._keeper = threading.Thread(target=self._keep, name=f"keeper-{self.name}", daemon=True)
        atexit.register(self._signal_group, signal.SIGKILL)
        self._keeper.start()
        try:
            self._started.wait()
        except BaseException:  # an interrupt here would leave a child that nobody knows
            self._started.wait()
            self.stop()
            raise
        if self._failure is not None:
            self._keeper.join()
            atexit.unregister(self._signal_group)
            raise ProcessError(f"{self.name} cannot be started: {self._failure}") from self._failure
        logger.debug("started %s as process %s", self.name, self.pid)
        return self

    def _keep(self) -> None:
        launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), str(int(signal.SIGKILL))]
        try:
            with self.log_path.open("ab") as log:
                process = subprocess.Popen(
                    [*launcher, *self.argv],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **self._env},
                    cwd=self._cwd,
                    start_new_session=True,
                )
        except OSError as error:
            self._failure = error
            self._started.set()
            return
        self._process = process
        self._started.set()
        # Waiting without reaping keeps the group's number taken while what is left of the group is killed.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        self._signal_group(signal.SIGKILL)
        with self._lock:
            process.wait()
            self._exited.set()

    def wait_ready(self, timeout: float = 60.0, *, interval: float = 0.05) -> None:
        """Wait until `ready_url` answers 200.

        Parameters
        ----------
        timeout
            Seconds to wait at most.
        interval
            Seconds between two looks.

        Raises
        ------
        ProcessExitedError
            As soon as the child has ended.
        ProcessNotReadyError
            After `timeout` seconds.
        """
        if self.ready_url is None:
            raise ProcessError(f"{self.name} has no ready_url to wait for")
        deadline = time.monotonic() + timeout
        status: int | None = None
        while True:
            if not self.running:
                raise ProcessExitedError(f"{self.name} {self._how_it_ended()}\n{self.log_tail()}")
            status = http_status(self.ready_url)
            if status == 200:
                return
            if time.monotonic() >= deadline:
                saw = "no answer" if status is None else f"status {status}"
                late = f"{self.name} was not ready after {timeout:g} s: {saw} at {self.ready_url}"
                raise ProcessNotReadyError(f"{late}\n{self.log_tail()}")
            self._exited.wait(interval)

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the child to end by itself; return its exit status, or None after `timeout` seconds."""
        self._exited.wait(timeout)
        return self.returncode

    def stop(self) -> int | None:
        """End the child and its group; return its exit status. Harmless when it has ended or never started.

        An interrupt (Ctrl-C) while waiting kills at once and is raised again.
        """
        if self._process is None:
            return None
        try:
            if self.running:
                self._signal_group(signal.SIGTERM)
            if not self._exited.wait(self.stop_timeout):
                logger.warning("%s ignored SIGTERM for %g s; killing it", self.name, self.stop_timeout)
        finally:
            if self.running:
                self._signal_group(signal.SIGKILL)
            self._exited.wait(self.stop_timeout)
            atexit.unregister(self._signal_group)
        if self._keeper is not None:
            self._keeper.join(self.stop_timeout)
        return self.returncode

    def log_tail(self, lines: int = _LOG_TAIL_LINES) -> str:
        """Last lines of the log, for messages."""
        try:
            text = self.log_path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            return f"(no log: {error})"
        return f"--- end of {self.log_path} ---\n" + "\n".join(text.splitlines()[-lines:])

    def __enter__(self) -> ChildProcess:
        return self.start() if self._keeper is None else self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _signal_group(self, number: signal.Signals) -> None:
        # Until it is reaped, which the lock excludes, the group keeps its number: this cannot hit a stranger.
        with self._lock:
            if self._process is not None and not self._exited.is_set():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, number)

    def _how_it_ended(self) -> str:
        code = self.returncode
        if code is None:
            return "was not started"
        return f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"
