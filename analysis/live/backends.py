"""What stands behind a connection: servers somebody else runs, or the embedded stack of this process.

Both tell the same: where the rollout server and the router are, and which keys a submission takes if nobody
says otherwise.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import yaml

from analysis.errors import (
    ConnectError,
    LabError,
    PolarUnreachableError,
    RouterUnreachableError,
    SubmissionError,
)
from analysis.lab.arguments import REWARD_KEY, task_template
from analysis.lab.processes import ChildProcess, http_status
from analysis.lab.run_folder import RunFolder
from analysis.lab.settings import LabSettings
from analysis.lab.stack import Stack
from analysis.lab.task_shelf import ShelfTask
from analysis.live.addresses import Addresses, is_loopback, shown_url
from analysis.live.shield import shielded
from slime_bridge.client import PolarClient
from slime_bridge.errors import BridgeError
from slime_bridge.loop_thread import LoopThread, first_cause

__all__ = ["Backend", "EmbeddedBackend", "ExternalBackend", "read_keys"]

TOKEN_VARIABLE = "POLAR_CONTROL_PLANE_TOKEN"
_LOOK_SECONDS = 0.1
_WARM_START_SECONDS = 600.0
_SESSION_TIMEOUT = 30.0
_PROMPT_SEEDS = 700_000_000
"""Questions of a notebook share none with those of trainings and evaluations."""
_TOKENIZER_FILES = ("tokenizer*", "chat_template*", "special_tokens_map.json", "vocab.json", "merges.txt")


class Backend(Protocol):
    """Servers behind a connection."""

    embedded: bool
    polar_url: str
    router_url: str | None
    callback_host: str | None

    @property
    def tokenizer(self) -> Path | None:
        """Folder with the policy's tokenizer; None if nobody knows."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Sent with requests of our own."""

    @property
    def keys(self) -> Mapping[str, Any]:
        """The bridge's keys that a submission takes by default, without addresses."""

    def prompts(self, count: int, seed: int) -> list[dict[str, Any]]:
        """Return prompts that the agents behind this connection can work on."""

    def close(self) -> None:
        """Release everything; harmless to repeat."""


class ExternalBackend:
    """A running rollout server, and perhaps its router.

    Parameters
    ----------
    addresses
        Where they are.
    keys
        Default keys of submissions.
    callback_host
        Name or address under which the server reaches this machine; None if it cannot, unless it is this
        machine.
    trust_env
        Follow the environment's proxy variables.
    """

    embedded = False
    tokenizer: Path | None = None

    def __init__(
        self,
        addresses: Addresses,
        *,
        keys: Mapping[str, Any],
        callback_host: str | None = None,
        trust_env: bool = False,
    ) -> None:
        self.polar_url = addresses.polar
        self.router_url = addresses.router
        self.callback_host = callback_host or ("127.0.0.1" if is_loopback(addresses.polar) else None)
        self.keys = {**keys, **({"polar_trust_env": True} if trust_env else {})}
        self._trust_env = trust_env

    @property
    def headers(self) -> Mapping[str, str]:
        """Sent with requests of our own."""
        token = os.environ.get(TOKEN_VARIABLE)
        return {"X-Polar-Control-Token": token} if token else {}

    def check(self, timeout: float) -> None:
        """Make sure that the servers answer.

        Raises
        ------
        PolarUnreachableError, RouterUnreachableError
            If one does not within the time, or is something else.
        """
        _check_polar(self.polar_url, timeout, self._trust_env)
        if self.router_url is not None:
            _check_router(self.router_url, timeout)

    def prompts(self, count: int, seed: int) -> list[dict[str, Any]]:
        """Refuse: what a server's agents can work on is known to whoever runs it."""
        raise SubmissionError(
            "questions of its own has only the embedded stack; pass prompts of yours to submit"
        )

    def close(self) -> None:
        """Nothing is held between submissions."""


def _check_polar(url: str, timeout: float, trust_env: bool) -> None:
    problem: list[BaseException] = []

    async def ask() -> None:
        try:
            token = os.environ.get(TOKEN_VARIABLE) or None
            async with PolarClient(url, timeout=timeout, trust_env=trust_env, control_token=token) as client:
                await client.health()
                await client.list_statuses()
        except BridgeError as error:
            problem.append(error)

    failures: list[BaseException] = []
    thread = LoopThread(
        ask, name="live-connect", on_end=lambda error: failures.extend([error] if error else [])
    )
    try:
        while not thread.join(_LOOK_SECONDS):
            pass
    finally:
        thread.cancel()
    if problem or failures:
        error = problem[0] if problem else first_cause(failures[0])
        raise PolarUnreachableError(
            f"no Polar rollout server answers at {shown_url(url)}: {error}; check polar_url and whether the "
            "server is up, or name none for the embedded stack"
        ) from error


def _check_router(url: str, timeout: float) -> None:
    shown = shown_url(url)
    seen = {}
    for path in ("/liveness", "/health", "/v1/models"):
        status = http_status(f"{url.rstrip('/')}{path}", timeout=timeout)
        if status == 200:
            return
        if status is None:
            raise RouterUnreachableError(
                f"no router answers at {shown} within {timeout:g} s; check router_url and whether it is "
                "up, or leave router_url out: sessions do not need it"
            )
        seen[path] = status
    answers = ", ".join(f"{path}: {status}" for path, status in seen.items())
    raise RouterUnreachableError(f"what answers at {shown} is no SGLang router ({answers})")


class EmbeddedBackend:
    """The embedded stack: an engine with a tiny policy, the router, a rollout server; all on loopback.

    Making it starts nothing.

    Parameters
    ----------
    settings
        Seed of the policy, number of engines, how the agents' world misbehaves.
    keys
        Keys of submissions that override the lab's own.
    checkpoint
        Policy to serve, as a training leaves it in ``checkpoint/final``; the warm start of the seed if None.
    """

    embedded = True
    callback_host: str | None = "127.0.0.1"
    headers: Mapping[str, str] = {}

    def __init__(
        self, settings: LabSettings, *, keys: Mapping[str, Any] | None = None, checkpoint: Path | None = None
    ) -> None:
        self.settings = settings
        self._own_keys = dict(keys or {})
        self.polar_url = ""
        self.router_url: str | None = None
        self._checkpoint = checkpoint
        self._root: Path | None = None
        self._stack: Stack | None = None
        self._maker: ChildProcess | None = None

    @property
    def keys(self) -> Mapping[str, Any]:
        """Keys for the lab's own agent and task."""
        timeout = self.settings.troubles.session_timeout or _SESSION_TIMEOUT
        return {
            "polar_reward_key": REWARD_KEY,
            "polar_min_complete_accept_fraction": self.settings.min_complete_accept_fraction,
            "polar_task_template": task_template(self.settings, timeout),
            **self._own_keys,
        }

    @property
    def tokenizer(self) -> Path | None:
        """Folder with the policy's tokenizer."""
        return None if self._root is None else self._root / "tokenizer"

    def start(self, report: Callable[[str], None]) -> None:
        """Start everything and wait until it answers.

        Raises
        ------
        LabError
            If a part does not come up; nothing is left then.
        """
        try:
            self._start(report)
        except BaseException:  # an interrupt leaves nothing behind either
            self.close()
            raise

    def _start(self, report: Callable[[str], None]) -> None:
        self._root = Path(tempfile.mkdtemp(prefix="workbench-live-"))
        folder = RunFolder(self._root)
        model = folder.checkpoint / "live"
        if self._checkpoint is None:
            report("preparing the policy (the first time on a machine this takes half a minute)")
            self._make_policy(model)
        else:
            if not (self._checkpoint / "config.json").is_file():
                raise ConnectError(
                    f"{self._checkpoint} holds no checkpoint: expected config.json and weights"
                )
            shutil.copytree(self._checkpoint, model)
        folder.tokenizer.mkdir()
        for pattern in _TOKENIZER_FILES:
            for path in model.glob(pattern):
                shutil.copy(path, folder.tokenizer / path.name)
        report("starting engine, router and rollout server")
        self._stack = Stack(self.settings, folder, model=model)
        self._stack.start()
        self._stack.wait_ready(report)
        self._stack.push_weights(model, "0")
        self.polar_url = self._stack.rollout_url
        self.router_url = f"http://{self._stack.router_host}:{self._stack.router_port}"

    def _make_policy(self, model: Path) -> None:
        """Make the warm start in a process of its own: the kernel stays free of PyTorch."""
        assert self._root is not None
        argv = [sys.executable, "-m", "analysis.live.warm_policy", str(model)]
        argv += ["--seed", str(self.settings.seed), "--steps", str(self.settings.warm_start_steps)]
        argv += ["--skill", str(self.settings.demonstrator_skill)]
        log = self._root / "logs" / "warm-start.log"
        self._maker = ChildProcess(argv, name="warm start", log_path=log, env={"OMP_NUM_THREADS": "1"})
        self._maker.start()
        code = self._maker.wait(_WARM_START_SECONDS)
        if code != 0:
            raise LabError(f"the policy could not be made (exit code {code})\n{self._maker.log_tail()}")

    def prompts(self, count: int, seed: int) -> list[dict[str, Any]]:
        """Return questions of the lab's task; equal seeds give equal questions."""
        task = ShelfTask()
        first = _PROMPT_SEEDS + seed * 100_000
        return [dict(task.make_prompt(first + number)) for number in range(count)]

    def close(self) -> None:
        """Stop the processes and remove their folder."""
        with shielded(), contextlib.ExitStack() as steps:
            if self._root is not None:
                steps.callback(shutil.rmtree, self._root, ignore_errors=True)
            if self._stack is not None:
                steps.callback(self._stack.stop)
            if self._maker is not None:
                steps.callback(self._maker.stop)


def read_keys(config: str | os.PathLike[str] | Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the bridge's keys of a YAML file as ``--custom-config-path`` takes it, or of a mapping.

    Addresses in it are left out: where to connect to is the connection's.

    Raises
    ------
    SubmissionError
        If the file cannot be read or holds no mapping.
    """
    if config is None:
        return {}
    if isinstance(config, Mapping):
        content: Any = dict(config)
    else:
        try:
            content = yaml.safe_load(Path(config).read_text(encoding="utf-8"))
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise SubmissionError(f"{os.fspath(config)}: cannot be read as YAML: {error}") from error
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise SubmissionError("a configuration is a mapping of keys such as polar_task_template")
    own = ("polar_rollout_url", "polar_topology_path", "polar_run_dir", "polar_callback_host")
    return {key: value for key, value in content.items() if key not in own}
