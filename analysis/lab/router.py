"""The real `sglang-router` as a child process, in front of one or more engines.

The router's defaults are made for a fleet and hurt a few local workers: five attempts per request, so that
one generation may run five times, a circuit breaker that shuts a restarted worker out for most of a minute,
and a fixed Prometheus port that a second router on the machine panics about. Here retries and breaker are off
(whoever sends a request decides about another try), health is checked every second, and both ports are free
ones.

Also understands the worker lists of routers that this module did not start, in the two forms that exist.
"""

from __future__ import annotations

import http.client
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

from analysis.errors import RouterError
from analysis.lab.processes import ChildProcess, free_port

__all__ = ["Router", "RouterWorker", "list_workers"]


@dataclass(frozen=True)
class RouterWorker:
    """A worker as its router sees it.

    Parameters
    ----------
    url
        Of the engine.
    healthy
        None when the router does not say.
    worker_id
        The router's name for it, None for routers that address workers by URL.
    """

    url: str
    healthy: bool | None = None
    worker_id: str | None = None


class Router:
    """A router process; a context manager that starts it, waits until it is ready, and stops it.

    Parameters
    ----------
    worker_urls
        Engines to route to; they may come up later than the router.
    log_path
        Gets its output.
    host
        Address to listen on.
    port
        A free one when None.
    policy
        ``cache_aware``, ``round_robin``, ``random`` or ``power_of_two``; the router's default when None.
    ready_timeout
        Seconds until a worker must be healthy.
    """

    def __init__(
        self,
        worker_urls: Sequence[str],
        *,
        log_path: Path,
        host: str = "127.0.0.1",
        port: int | None = None,
        policy: str | None = None,
        ready_timeout: float = 60.0,
    ) -> None:
        if not worker_urls:
            raise RouterError("a router needs at least one worker URL")
        self.port = free_port(host) if port is None else port
        self.url = f"http://{host}:{self.port}"
        self.prometheus_port = free_port(host)
        self._ready_timeout = ready_timeout
        self.process = ChildProcess(
            [sys.executable, "-m", "sglang_router.launch_router", *self._flags(host, worker_urls, policy)],
            name="router",
            log_path=log_path,
            ready_url=f"{self.url}/readiness",
        )

    def _flags(self, host: str, worker_urls: Sequence[str], policy: str | None) -> list[str]:
        flags = ["--host", host, "--port", str(self.port)]
        flags += ["--prometheus-host", host, "--prometheus-port", str(self.prometheus_port)]
        flags += ["--worker-urls", *worker_urls]
        flags += ["--worker-startup-check-interval", "1", "--health-check-interval-secs", "1"]
        flags += ["--disable-circuit-breaker", "--disable-retries", "--log-level", "warn"]
        return flags if policy is None else [*flags, "--policy", policy]

    def start(self) -> Router:
        """Start the process and return at once."""
        self.process.start()
        return self

    def wait_ready(self) -> None:
        """Wait until a worker is healthy; raises as `ChildProcess.wait_ready` does.

        The router's ``/health`` would answer 200 without any worker, so ``/readiness`` is asked.
        """
        self.process.wait_ready(self._ready_timeout)

    def stop(self) -> None:
        """End the process; requests in flight get a few seconds."""
        self.process.stop()

    def workers(self) -> list[RouterWorker]:
        """List its workers."""
        return list_workers(self.url)

    def __enter__(self) -> Router:
        try:
            self.start()
            self.wait_ready()
        except BaseException:  # an interrupt while waiting must not leave the process behind either
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def list_workers(url: str, *, timeout: float = 5.0) -> list[RouterWorker]:
    """List the workers of any router.

    Parameters
    ----------
    url
        The router's base URL.
    timeout
        Seconds per request.

    Returns
    -------
    list of RouterWorker
        From ``GET /workers``, or, where that does not exist, from the older ``GET /list_workers``.

    Raises
    ------
    RouterError
        When neither is answered in a known form, or nothing answers at all.
    """
    seen = []
    for path, read in (("/workers", _read_resource), ("/list_workers", _read_url_list)):
        status, body = _get(url, path, timeout)
        seen.append(f"GET {path}: {status}")
        workers = read(body) if status == 200 else None
        if workers is not None:
            return workers
    raise RouterError(f"{url} lists its workers in no known form ({', '.join(seen)}); is it a router?")


def _read_resource(body: object) -> list[RouterWorker] | None:
    entries = body.get("workers") if isinstance(body, dict) else None
    if not isinstance(entries, list):
        return None
    workers = []
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("url"), str):
            return None
        healthy, worker_id = entry.get("is_healthy"), entry.get("id")
        workers.append(
            RouterWorker(
                url=entry["url"],
                healthy=healthy if isinstance(healthy, bool) else None,
                worker_id=worker_id if isinstance(worker_id, str) else None,
            )
        )
    return workers


def _read_url_list(body: object) -> list[RouterWorker] | None:
    urls = body.get("urls") if isinstance(body, dict) else None
    if not isinstance(urls, list) or not all(isinstance(url, str) for url in urls):
        return None
    return [RouterWorker(url=url) for url in urls]


def _get(url: str, path: str, timeout: float) -> tuple[int, object]:
    """Status and JSON body (None when it is not JSON) of a GET that no proxy setting touches."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=timeout)
    try:
        connection.request("GET", parts.path.rstrip("/") + path)
        answer = connection.getresponse()
        body = answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise RouterError(f"no answer from {url}{path}: {error}") from error
    finally:
        connection.close()
    try:
        return answer.status, json.loads(body)
    except ValueError:
        return answer.status, None
