"""The processes of a run: engines, the router in front of them, and the rollout server with its gateway.

All are started at once, since most of their start is importing libraries, and stopped in reverse order. Knows
how each is started and how an engine takes new weights; knows nothing about training.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from analysis.errors import EngineError
from analysis.lab.processes import ChildProcess, free_port
from analysis.lab.router import Router
from analysis.lab.run_folder import RunFolder
from analysis.lab.settings import LabSettings

__all__ = ["Stack"]

HOST = "127.0.0.1"
READY_TIMEOUT = 120.0
PUSH_TIMEOUT = 60.0
# One thread each: with more, small steps wait for each other on a busy machine.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


class Stack:
    """Everything that serves rollouts, on free loopback ports.

    Parameters
    ----------
    settings
        The run.
    folder
        Gets the logs and the rollout server's results.
    model
        Checkpoint that the engines load at their start.
    """

    def __init__(self, settings: LabSettings, folder: RunFolder, *, model: Path) -> None:
        self._folder = folder
        self._engines = [self._engine(settings, model, number) for number in range(settings.engines)]
        self.engine_urls = [_base(engine.ready_url) for engine in self._engines]
        self._router = Router(
            self.engine_urls, log_path=folder.logs / "router.log", host=HOST, ready_timeout=READY_TIMEOUT
        )
        self._rollout_server = self._make_rollout_server(settings)
        self.rollout_url = _base(self._rollout_server.ready_url)

    @property
    def router_host(self) -> str:
        """Address of the router."""
        return HOST

    @property
    def router_port(self) -> int:
        """Port of the router."""
        return self._router.port

    @property
    def processes(self) -> list[ChildProcess]:
        """Every process, in the order of their start."""
        return [*self._engines, self._router.process, self._rollout_server]

    def start(self) -> None:
        """Start every process and return at once."""
        for process in self.processes:
            process.start()

    def wait_ready(self, report: Callable[[str], None]) -> None:
        """Wait until everything answers; raises as `ChildProcess.wait_ready` does.

        Parameters
        ----------
        report
            Told, with one line, what is up.
        """
        for engine in self._engines:
            engine.wait_ready(READY_TIMEOUT)
        self._router.wait_ready()
        self._rollout_server.wait_ready(READY_TIMEOUT)
        engines = ", ".join(self.engine_urls)
        report(f"engine {engines}  router {self._router.url}  rollout server {self.rollout_url}")

    def push_weights(self, folder: Path, version: str) -> None:
        """Let every engine load new weights, without pausing what it generates.

        Parameters
        ----------
        folder
            A checkpoint whose weights file is complete.
        version
            Name that the engines report with every token sampled from now on.

        Raises
        ------
        EngineError
            If an engine cannot be reached or refuses them.
        """
        body = {"model_path": str(folder), "weight_version": version}
        for url in self.engine_urls:
            try:
                answer = httpx.post(
                    f"{url}/update_weights_from_disk", json=body, timeout=PUSH_TIMEOUT, trust_env=False
                )
            except httpx.HTTPError as error:
                raise EngineError(f"{url} did not take weights {version}: {error!r}") from error
            if answer.status_code != 200:
                raise EngineError(
                    f"{url} refused weights {version}: {answer.status_code} {answer.text[:300]}"
                )

    def stop(self) -> None:
        """End every process, the rollout server first; returns when all are gone."""
        # Sessions must stop asking before the router goes, the router before the engines: in this order
        # nothing is logged as a failure. One that cannot be stopped keeps none of the others.
        with ExitStack() as stops:
            for process in self.processes:
                stops.callback(process.stop)

    def _engine(self, settings: LabSettings, model: Path, number: int) -> ChildProcess:
        port = free_port(HOST)
        argv = [sys.executable, "-m", "analysis.lab.engine", "--checkpoint", str(model)]
        argv += ["--host", HOST, "--port", str(port), "--random-seed", str(settings.seed + number)]
        return ChildProcess(
            argv,
            name=f"engine-{number}",
            log_path=self._folder.logs / f"engine-{number}.log",
            env=ENVIRONMENT,
            ready_url=f"http://{HOST}:{port}/health",
        )

    def _make_rollout_server(self, settings: LabSettings) -> ChildProcess:
        port = free_port(HOST)
        argv = [sys.executable, "-m", "analysis.lab.polar_server", "--newer", "--no-completion-files"]
        argv += ["--host", HOST, "--port", str(port), "--router-url", self._router.url]
        argv += ["--save-dir", str(self._folder.polar_results)]
        argv += ["--max-init-workers", str(settings.run_workers)]
        argv += ["--max-run-workers", str(settings.run_workers)]
        return ChildProcess(
            argv,
            name="rollout-server",
            log_path=self._folder.logs / "rollout-server.log",
            env=ENVIRONMENT,
            ready_url=f"http://{HOST}:{port}/health",
        )


def _base(url: str | None) -> str:
    parts = urlsplit(url or "")
    return f"{parts.scheme}://{parts.netloc}"
