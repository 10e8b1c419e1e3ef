"""Evaluation over Polar: every prompt of every dataset once, with results that failures cannot improve.

An evaluation runs in a thread and event loop of its own, also when the caller is inside a running loop, and
leaves nothing behind: no worker, no port, no drawn prompt. Whatever happens to single tasks, the trainer gets
a complete result: a session without an answer counts as 0. Only what is wrong before the first submit
(datasets, templates, configuration) raises. It knows nothing of training groups; a shared limit on sessions
comes as an object with `reserve` and `release`.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

import anyio
import anyio.to_thread

from slime_bridge._body import Body
from slime_bridge.capabilities import Capabilities
from slime_bridge.client import PolarClient, connection_limits
from slime_bridge.collect import Collector, collect_task, listening
from slime_bridge.config import PolarSlimeConfig, resolve_polar_slime_config
from slime_bridge.conversion.groups import convert_group
from slime_bridge.errors import BridgeError, CallbackBindError, ProtocolError, TaskFailedError
from slime_bridge.evaluation.gate import SessionGate, SessionSlots
from slime_bridge.evaluation.plan import EvalGroup, plan_evaluation
from slime_bridge.evaluation.results import (
    EvalGroupResult,
    dataset_block,
    dataset_metrics,
    overall_metrics,
    weight_versions,
)
from slime_bridge.journal import EventLog, NullJournal
from slime_bridge.loop_thread import LoopThread
from slime_bridge.protocol import TaskRequest, decode_task_payload

__all__ = ["SessionSlots", "run_evaluation"]

logger = logging.getLogger(__name__)

_PROGRESS_SECONDS = 60.0
_WATCH_SECONDS = 0.5
_STOP_SECONDS = 2.0
_SHOWN_ERRORS = 3
_LEARN_SECONDS = 5.0


def run_evaluation(
    args: Any,
    rollout_id: int,
    data_source: Any,
    *,
    config: PolarSlimeConfig | None = None,
    slots: SessionSlots | None = None,
    journal: EventLog | None = None,
) -> tuple[dict[str, dict[str, Any]], dict[str, float]]:
    """Evaluate all datasets.

    Parameters
    ----------
    args
        Trainer arguments.
    rollout_id
        The training rollout that the evaluation belongs to; part of task ids and metadata.
    data_source
        The training source, used only where there are no `eval_datasets`.
    config
        The bridge's configuration; resolved from `args` if None.
    slots
        The limit shared with training, None where nothing trains. Sessions of the evaluation stay within
        `polar_eval_max_concurrent_sessions`; unset, half the training's limit, all of it without `slots`.
    journal
        Receives an ``evaluation_summary``.

    Returns
    -------
    data : dict
        Per dataset the block that Slime logs and dumps; see `slime_bridge.evaluation.results.dataset_block`.
    metrics : dict
        Finite floats under ``polar/eval/``.

    Raises
    ------
    EvaluationError
        A dataset, its file or the manifest of files cannot be used; nothing was submitted then.
    ConfigError
        The configuration or a template cannot be used.
    """
    config = config if config is not None else resolve_polar_slime_config(args)
    groups = plan_evaluation(args, config, rollout_id, data_source)
    run = _Run(config, groups, _limit(config, groups, slots), slots)
    run.wait()
    return _report(args, rollout_id, run.results(), journal if journal is not None else NullJournal())


def _limit(config: PolarSlimeConfig, groups: Sequence[EvalGroup], slots: SessionSlots | None) -> int:
    share = config.max_sessions_in_flight if slots is None else config.max_sessions_in_flight // 2
    limit = config.eval_max_concurrent_sessions or share
    # A task cannot be split: its sessions fit together, or it would never start.
    return max(limit, *(len(group.samples) for group in groups))


@dataclass(frozen=True, slots=True)
class _Result:
    group: EvalGroup
    result: EvalGroupResult


class _Run:
    """One evaluation in its own thread."""

    def __init__(
        self, config: PolarSlimeConfig, groups: Sequence[EvalGroup], limit: int, slots: SessionSlots | None
    ) -> None:
        # A missing reward is counted here whatever training does with it, and never raised.
        self._config = dataclasses.replace(config, missing_reward="zero")
        self._groups = groups
        self._results: dict[int, EvalGroupResult] = {}
        self._errors: list[str] = []
        self._gate = SessionGate(limit, slots)
        self._done = threading.Event()
        self._failure: BaseException | None = None
        self._running = 0
        token = ["control_token"] if config.control_plane_token is not None else []
        self._capabilities = Capabilities(config.rollout_url, token, NullJournal())

    def wait(self) -> None:
        """Run to the end; an interrupt of the calling thread stops the run within two seconds."""
        thread = LoopThread(self._main, name="polar-evaluation", on_end=self._ended)
        try:
            while not self._done.wait(_WATCH_SECONDS):
                pass
        except BaseException:  # an interrupt stops the run before it goes on to the trainer
            thread.cancel()
            thread.join(_STOP_SECONDS)
            raise
        thread.join(_STOP_SECONDS)
        if self._failure is not None:
            # Not even this may end the training: what has no result counts as failed.
            logger.error("The evaluation broke off", exc_info=self._failure)
            self._errors.append(f"{type(self._failure).__name__}: {self._failure}")

    def results(self) -> list[_Result]:
        """Return one result per group, in order; groups without one are stood in for."""
        reason = self._errors[-1] if self._errors else "the evaluation ended before it was submitted"
        return [
            _Result(group, self._results.get(number) or _missing(group, self._config, reason))
            for number, group in enumerate(self._groups)
        ]

    def _ended(self, error: BaseException | None) -> None:
        self._failure = error
        self._done.set()

    async def _main(self) -> None:
        config = self._config
        tasks = max(1, min(len(self._groups), self._gate.limit))
        client = PolarClient(
            config.rollout_url,
            timeout=config.request_timeout,
            limits=connection_limits(tasks),
            trust_env=config.trust_env,
            control_token=config.control_plane_token,
        )
        try:
            async with (
                client,
                listening(config, without=_polls_instead) as listener,
                Collector(client, listener=listener) as collector,
            ):
                async with anyio.create_task_group() as running:
                    running.start_soon(self._watch, client, running.cancel_scope)
                    async with anyio.create_task_group() as group_tasks:
                        for number, group in enumerate(self._groups):
                            await self._gate.acquire(len(group.samples))
                            group_tasks.start_soon(self._evaluate, number, group, collector)
                        self._gate.drain()
                    running.cancel_scope.cancel()
                if self._capabilities.wanted:
                    with anyio.move_on_after(_LEARN_SECONDS):
                        await self._capabilities.learn(client)
        finally:
            self._gate.close()

    async def _evaluate(self, number: int, group: EvalGroup, collector: Collector) -> None:
        started = anyio.current_time()
        self._running += 1
        body: Body = b""
        error = None
        try:
            deadline = started + group.deadline_seconds
            build = partial(self._request, group)
            body = (await collect_task(collector, build, deadline=deadline)).body
        except TaskFailedError as exc:
            body, error = exc.body, str(exc)
        except Exception as exc:  # a surprise with one task must not take the others' results along
            error = f"{type(exc).__name__}: {exc}"
            if not isinstance(exc, BridgeError):
                logger.exception("Evaluation: an unexpected error")
        finally:
            self._running -= 1
            self._gate.release(len(group.samples))
        convert = partial(_converted, group, self._config, body, error, started, anyio.current_time())
        result = await anyio.to_thread.run_sync(convert)
        self._results[number] = result
        if result.error is not None:
            self._note(f"{group.dataset}[{group.position}]: {result.error}")

    def _request(self, group: EvalGroup, attempt: int) -> TaskRequest:
        request = group.build_request(attempt)
        self._capabilities.note(request)
        return request

    def _note(self, error: str) -> None:
        self._errors.append(error)
        if len(self._errors) <= _SHOWN_ERRORS:
            logger.warning("Evaluation without a result, counted as failed: %s", error)

    async def _watch(self, client: PolarClient, scope: anyio.CancelScope) -> None:
        """Show progress, and give the rest up when the server stays away too long."""
        shown = anyio.current_time()
        while True:
            await anyio.sleep(_WATCH_SECONDS)
            if client.fuse.outage_seconds() > self._config.outage_timeout:
                self._note(
                    f"the rollout server at {client.base_url} stayed away for more than "
                    f"{self._config.outage_timeout:g} s (polar_outage_timeout): {client.fuse.last_error}"
                )
                scope.cancel()
            if anyio.current_time() - shown >= _PROGRESS_SECONDS:
                shown = anyio.current_time()
                logger.info(
                    "Evaluation: %d of %d prompts done, %d running; last error: %s",
                    len(self._results),
                    len(self._groups),
                    self._running,
                    self._errors[-1] if self._errors else "none",
                )


def _polls_instead(error: CallbackBindError) -> None:
    # With a fixed port this is usual: the training worker has it.
    logger.info("The evaluation polls for results, because it cannot listen for callbacks: %s", error)


def _converted(
    group: EvalGroup, config: PolarSlimeConfig, body: Body, error: str | None, started: float, ended: float
) -> EvalGroupResult:
    """Decode and convert a task's record; whatever is wrong with it, every session gets an outcome."""
    results = []
    if body:
        try:
            results = decode_task_payload(body, flat_arrays=True).results
        except ProtocolError as exc:
            error = f"{type(exc).__name__}: {exc}"
    try:
        conversion = convert_group(results, group.samples, config=config)
    except Exception as exc:  # a result that conversion trips over is no reason to lose the evaluation
        logger.exception("Evaluation: a result cannot be converted")
        return dataclasses.replace(
            _missing(group, config, f"{type(exc).__name__}: {exc}"), started=started, ended=ended
        )
    return EvalGroupResult(conversion, error, started, ended)


def _missing(group: EvalGroup, config: PolarSlimeConfig, error: str) -> EvalGroupResult:
    return EvalGroupResult(convert_group([], group.samples, config=config), error)


def _report(
    args: Any, rollout_id: int, results: Sequence[_Result], journal: EventLog
) -> tuple[dict[str, dict[str, Any]], dict[str, float]]:
    data: dict[str, dict[str, Any]] = {}
    every = [entry.result for entry in results]
    metrics = overall_metrics(every)
    failed: dict[str, list[str]] = {}
    for name, entries in groupby(results, key=lambda entry: entry.group.dataset):
        own = [entry.result for entry in entries]
        block = dataset_block(own, reward_key=getattr(args, "reward_key", None))
        data[name] = block
        metrics |= dataset_metrics(name, own, block["truncated"])
        failed[name] = [result.error for result in own if result.error is not None]
        stem = f"polar/eval/{name}"
        logger.info(
            "Evaluation %s of rollout %d: mean reward %.4f over %d sessions, %.1f%% completed",
            name,
            rollout_id,
            metrics[f"{stem}/reward_mean"],
            len(block["rewards"]),
            100 * metrics[f"{stem}/completed_rate"],
        )
    if all(result.error is not None for result in every):
        logger.error("No evaluation task gave a result; last error: %s", every[-1].error)
    journal.record(
        "evaluation_summary",
        rollout_id=rollout_id,
        metrics=metrics,
        failed_tasks={name: len(errors) for name, errors in failed.items()},
        errors=[error for errors in failed.values() for error in errors][:_SHOWN_ERRORS],
        weight_versions=weight_versions(every),
    )
    return data, metrics
