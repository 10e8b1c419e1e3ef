"""`Lab`: a connection to a rollout server, and what can be done with it from a cell without blocking it."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analysis.errors import LiveError, SubmissionError
from analysis.html import facts, scoped
from analysis.live.addresses import shown_url
from analysis.live.backends import Backend
from analysis.live.budgets import Budget
from analysis.live.handle import LiveHandle
from analysis.live.launching import resume_submission, start_submission
from analysis.live.plan import Plan, prompt_rows, refuse_unknown_keys
from analysis.live.preflight import Preflight, run_preflight
from analysis.live.registry import LiveFolder
from analysis.live.shield import shielded
from analysis.live.side_by_side import TrainingsSideBySide
from analysis.live.submission_handle import SubmissionHandle
from analysis.live.training import TrainingHandle
from analysis.live.training_start import start_trainings
from analysis.live.watching import Watch, watch

__all__ = ["Lab"]

_PREFLIGHT_SAMPLES = 8


class Lab:
    """A connection; made by `connect`. A context manager that closes itself at the end.

    Everything that it starts is in `handles` and ends with `close`, at the latest with the process.

    Parameters
    ----------
    backend
        The servers.
    runs
        Folder of live runs.

    Attributes
    ----------
    handles : dict
        What was started or taken up here, by name.
    """

    def __init__(self, backend: Backend, runs: Path) -> None:
        self.handles: dict[str, LiveHandle[Any]] = {}
        self._backend = backend
        self._runs = runs
        self._named: set[str] = set()
        self._closed = False
        self._lock = threading.Lock()
        # Weakly: a connection that nobody holds any more may go before the process does.
        self._exit_hook = _exit_hook(weakref.ref(self))
        atexit.register(self._exit_hook)

    # What it is

    @property
    def embedded(self) -> bool:
        """Whether the servers are the embedded stack of this process."""
        return self._backend.embedded

    @property
    def polar_url(self) -> str:
        """Base URL of the rollout server, without credentials."""
        return shown_url(self._backend.polar_url)

    @property
    def router_url(self) -> str | None:
        """Base URL of the router, without credentials; None if nobody named one."""
        url = self._backend.router_url
        return None if url is None else shown_url(url)

    @property
    def runs_dir(self) -> Path:
        """Folder of live runs."""
        return self._runs

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    # What can be done with it

    def prompts(self, count: int = 8, *, seed: int = 0) -> list[dict[str, Any]]:
        """Return questions for the embedded stack's agent: rows that `submit` takes.

        Parameters
        ----------
        count
            How many.
        seed
            Equal seeds give equal questions.

        Raises
        ------
        SubmissionError
            On other servers, whose agents take prompts of yours.
        """
        return self._backend.prompts(count, seed)

    def preflight(
        self, prompts: Any = None, *, probe: bool = True, timeout: float = 60.0, **keys: Any
    ) -> Preflight:
        """Check configuration, templates, servers, gateways and the way to the engine.

        Parameters
        ----------
        prompts
            As in `submit`; by default a made-up one, or one of the embedded stack's.
        probe
            Also ask for one generation, and run one task to its end.
        timeout
            Seconds that the probe task may take.
        **keys
            As in `submit`.

        Raises
        ------
        SubmissionError
            If prompts or keys are of no form that is known.
        """
        self._require_open()
        if prompts is None and self.embedded:
            prompts = self.prompts(1)
        rows = () if prompts is None else prompt_rows(prompts)
        plan = Plan(rows or ({"prompt": "Say hello."},), _PREFLIGHT_SAMPLES, self._keys(keys))
        args = plan.arguments(
            polar_url=self._backend.polar_url, run_dir=self._runs, callback_host=self._backend.callback_host
        )
        return run_preflight(
            args, router_url=self._backend.router_url, prompts=rows, probe=probe, timeout=timeout
        )

    def submit(
        self,
        prompts: Any,
        n_samples: int = 8,
        *,
        name: str | None = None,
        max_seconds: float | None = None,
        max_tokens: int | None = None,
        max_sessions: int | None = None,
        max_in_flight: int = 64,
        **keys: Any,
    ) -> SubmissionHandle:
        """Roll prompts out through the bridge's own path; returns at once.

        Parameters
        ----------
        prompts
            Texts, chat messages, rows with ``prompt``, ``label`` and ``metadata``, a data frame of these, or
            the path of a JSONL file; one or many.
        n_samples
            Sessions per prompt.
        name
            Of its folder. A named submission to servers that somebody else runs outlives the kernel: its
            tasks are left running when the process ends, and `attach` takes them up.
        max_seconds, max_tokens, max_sessions
            Bounds; see `analysis.live.budgets.Budget`. What is done when one is reached is kept.
        max_in_flight
            Sessions under way at a time.
        **keys
            The bridge's keys, with or without ``polar_`` before them, such as ``task_template``; they
            override those of the connection.

        Returns
        -------
        SubmissionHandle
            Shows itself live, can be awaited, waited for and cancelled; ``.run`` is the run so far.

        Raises
        ------
        SubmissionError, ConfigError, TemplateError
            If the prompts, a key or the rendered request cannot be used; nothing was sent then.
        RunNameError
            If the name is taken.
        """
        self._require_open()
        try:
            budget = Budget(max_seconds, max_tokens, max_sessions)
        except ValueError as error:
            raise SubmissionError(str(error)) from None
        plan = Plan(prompt_rows(prompts), n_samples, self._keys(keys), max_in_flight, budget)
        with shielded():
            handle = start_submission(self._backend, self._runs, plan, name)
            self._adopt(handle, named=name is not None)
        return handle

    def attach(self, name: str, *, resubmit: bool = False) -> LiveHandle[Any]:
        """Take up a live run by its name, as after a restart of the kernel.

        Results of tasks that the server still knows are collected. Prompts whose tasks it has forgotten are
        in `SubmissionHandle.lost`.

        Parameters
        ----------
        name
            Of the run.
        resubmit
            Also submit what the server has forgotten and what was never submitted.

        Raises
        ------
        RunNotFoundError
            If there is no such run.
        RunBusyError
            If another process drives it.
        """
        self._require_open()
        known = self.handles.get(name)
        if known is not None and not known.done:
            return known
        folder = LiveFolder.find(self._runs, name)
        with shielded():
            handle: LiveHandle[Any]
            if folder.read().kind == "training":
                handle = TrainingHandle(folder, None)
                handle.start()
                self.handles[name] = handle
            else:
                handle = resume_submission(self._backend, folder, resubmit=resubmit)
                self._adopt(handle, named=True)
        return handle

    def train(
        self,
        estimator: Any = None,
        *,
        rollouts: int = 10,
        seed: int = 0,
        name: str | None = None,
        **settings: Any,
    ) -> TrainingHandle | TrainingsSideBySide:
        """Train a tiny policy end to end, through the production hook, on an embedded stack of its own.

        Returns at once.

        Parameters
        ----------
        estimator
            Advantage estimator: a registered name, ``module:attribute``, an object of
            `slime_bridge.advantages`; None for the bridge's default. A list of them trains one beside the
            other, with everything else equal.
        rollouts
            Training rollouts, each with one optimiser step.
        seed
            Decides questions, initial policy and sampling.
        name
            Of its folder; with several estimators, what the names begin with.
        **settings
            Further fields of `analysis.lab.settings.LabSettings`.

        Returns
        -------
        TrainingHandle or TrainingsSideBySide
            Shows live curves; ``.run`` is the run so far.

        Raises
        ------
        LiveError
            If the connection is not to the embedded stack: there, Slime trains.
        SubmissionError
            If an estimator or a setting cannot be used.
        """
        self._require_open()
        if not self.embedded:
            raise LiveError(
                "training from a notebook is for the embedded stack: live.connect() without URLs. With Polar "
                "and a router of your own, Slime trains; follow it with lab.watch(run_dir)"
            )
        with shielded():  # a process that no handle leads to would train on
            started = start_trainings(
                self._runs, estimator, rollouts=rollouts, seed=seed, name=name, settings=settings
            )
            for handle in [started] if isinstance(started, TrainingHandle) else started:
                self.handles[handle.name] = handle
        return started

    def watch(self, run_dir: str | os.PathLike[str], *, interval: float = 1.0) -> Watch:
        """Follow a run that goes on elsewhere; see `analysis.live.watch`."""
        self._require_open()
        with shielded():
            watched = watch(run_dir, interval=interval)
            self.handles[f"watch {watched.folder}"] = watched
        return watched

    # The end

    def close(self) -> None:
        """End everything that was started here: submissions, also on the server, trainings, servers.

        Harmless to repeat. An interrupt that comes meanwhile is raised when all is done.
        """
        with shielded():
            self._end(leaving=frozenset())

    def _end(self, leaving: frozenset[str]) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        atexit.unregister(self._exit_hook)
        running = [handle for handle in self.handles.values() if not handle.done]
        for handle in running:
            if handle.name in leaving and isinstance(handle, SubmissionHandle):
                handle.detach()
            else:
                handle.cancel()
        for handle in running:
            close = getattr(handle, "close", None)
            if close is not None and not handle.done:
                close()
        self._backend.close()

    def _leave(self) -> None:
        """End with the process: named work on servers of others goes on there."""
        self._end(leaving=frozenset() if self.embedded else frozenset(self._named))

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return "\n".join(f"{label}: {text}" for label, text in self._pairs())

    def _repr_html_(self) -> str:
        return str(scoped(facts(self._pairs())))

    # Inner workings

    def _pairs(self) -> list[tuple[str, str]]:
        where = "embedded stack of this process" if self.embedded else "servers of their own"
        running = [handle.name for handle in self.handles.values() if not handle.done]
        return [
            ("connection", f"{where}{', closed' if self._closed else ''}"),
            ("rollout server", self.polar_url),
            ("router", self.router_url or "not named"),
            ("runs", str(self._runs)),
            ("under way", ", ".join(running) or "nothing"),
        ]

    def _keys(self, given: Mapping[str, Any]) -> dict[str, Any]:
        named = {key if key.startswith("polar_") else f"polar_{key}": value for key, value in given.items()}
        keys = {**self._backend.keys, **named}
        if "polar_task_template" not in keys:
            raise SubmissionError(
                "nothing says what a task looks like: pass task_template={...} to submit, or config= with a "
                "polar_task_template (the file of --custom-config-path) to live.connect"
            )
        refuse_unknown_keys(keys, named)
        return keys

    def _adopt(self, handle: SubmissionHandle, *, named: bool) -> None:
        self.handles[handle.name] = handle
        if named:
            self._named.add(handle.name)

    def _require_open(self) -> None:
        if self._closed:
            raise LiveError("this connection is closed; make a new one with live.connect")


def _exit_hook(reference: weakref.ref[Lab]) -> Any:
    def leave() -> None:
        lab = reference()
        if lab is not None:
            lab._leave()

    return leave
