"""One submission on its way: every prompt through the bridge's own path, once, within bounds.

Requests, deadlines, retries, callbacks with polling as the truth, conversion, verdict and journal are the
bridge's (`slime_bridge.group_task`, `slime_bridge.collect`). What is here is the order of things where nobody
trains: no policy lag and no replacement for what is rejected; each prompt runs until it has a verdict, its
attempts are used up, or a bound or somebody ends it all.

`Submission.main` is the coroutine of a thread's event loop. Raw results are kept as the server sent them, one
file per task, before anything is made of them.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio

from analysis.lab.files import atomic_path
from analysis.live.adoption import Adopted, collect_running
from analysis.live.budgets import Spent
from analysis.live.group_records import (
    DrawnGroup,
    record_adopted,
    record_drawn,
    record_given_up,
    record_verdict,
)
from analysis.live.plan import Plan
from analysis.live.recorder import Recorder
from analysis.live.services import Services, open_client, open_services, watch_events
from slime_bridge.client import PolarClient
from slime_bridge.collect import CollectedTask
from slime_bridge.config import PolarSlimeConfig
from slime_bridge.errors import (
    BridgeError,
    InfrastructureError,
    MissingRewardError,
    PolarOutageError,
    ProtocolError,
    SubmitRejectedError,
    TaskFailedError,
    TaskUnknownError,
)
from slime_bridge.group_task import GroupRunner, JudgedGroup, PromptGroup, TaskBuilder, prompt_group
from slime_bridge.retry import RetryPolicy

__all__ = ["Outcome", "Submission", "result_path"]

logger = logging.getLogger(__name__)

_PAUSE = RetryPolicy(initial=0.5, factor=2.0, max_delay=30.0)
_LOOK_SECONDS = 0.1
_CANCEL_SECONDS = 2.0
_DEFAULT_TIMEOUT = 600.0
_LOST = "forgotten"
_FAILURES = (InfrastructureError, TaskFailedError, ProtocolError, MissingRewardError)


@dataclass(frozen=True)
class Outcome:
    """How a submission ended.

    Attributes
    ----------
    kind
        ``finished``, ``budget``, ``cancelled`` or ``detached``.
    reason
        Which bound, as a sentence; empty otherwise.
    """

    kind: str
    reason: str = ""


@dataclass
class Submission:
    """One submission, or the rest of one; `main` is run once.

    Parameters
    ----------
    plan
        What to do.
    config, args
        The bridge's configuration and the arguments it was read from.
    recorder
        Hears everything.
    results
        Folder of raw results.
    listens
        Whether the server can post results to this machine; else they are polled.
    headers
        Sent with requests for events.
    fresh
        Numbers of the prompts to submit.
    adopted
        Groups to take over.
    resubmits
        Whether groups whose tasks the server has forgotten are submitted again.

    Attributes
    ----------
    outcome
        How it ended; None before, and after a failure.
    lost
        Numbers of prompts whose tasks the server has forgotten, or ended without a result.
    """

    plan: Plan
    config: PolarSlimeConfig
    args: Any
    recorder: Recorder
    results: Path
    listens: bool = True
    headers: Mapping[str, str] = field(default_factory=dict)
    fresh: Sequence[int] = ()
    adopted: Sequence[Adopted] = ()
    resubmits: bool = False
    outcome: Outcome | None = field(default=None, init=False)
    lost: list[int] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._builder = TaskBuilder(self.config, self.args)
        self._rng = random.Random()
        self._started = time.monotonic()
        self._scope: anyio.CancelScope | None = None
        self._services: Services | None = None
        self._failure: BridgeError | None = None
        self._accepted_any = False
        self._admitted = 0
        self._adopted_open = {task_id for adopted in self.adopted for task_id in adopted.task_ids}
        self._detaching = False

    def check(self) -> None:
        """Render a request for every prompt, so that one or a template that cannot be used raises here.

        One, because those of a prompt differ in nothing but the number of their sample.

        Raises
        ------
        TemplateError, ConfigError
            As `slime_bridge.group_task.TaskBuilder.request`.
        """
        for index in self.fresh:
            self._builder.check(self._prompt(index, 1), rollout_id=0, position=index)

    def spent(self) -> Spent:
        """Return what was used so far."""
        return Spent(time.monotonic() - self._started, self.recorder.tokens, self._admitted)

    def detach(self) -> None:
        """Leave tasks on the server alone when the loop ends; call it in the loop."""
        self._detaching = True
        if self._services is not None:
            self._services.client.leaves_tasks = True

    async def main(self) -> None:
        """Run until every prompt has its end, a bound is reached, or the loop is cancelled.

        Raises
        ------
        SubmitRejectedError
            The server refused the first request: the set-up is at fault, not a prompt.
        PolarOutageError
            The server stayed away for longer than ``polar_outage_timeout``.
        """
        self._started = time.monotonic()
        wanted = len(self.fresh) + len(self.adopted)
        self.recorder.record("rollout_requested", rollout_id=0, wanted=wanted)
        concurrency = self.plan.groups_in_flight
        try:
            async with open_services(self.config, concurrency=concurrency, listens=self.listens) as services:
                self._services = services
                services.client.leaves_tasks = self._detaching
                with anyio.CancelScope() as self._scope:
                    async with anyio.create_task_group() as watchers:
                        watchers.start_soon(self._watch_bounds, services.client)
                        watchers.start_soon(self._watch_events, services.client)
                        await self._run_all(services)
                        watchers.cancel_scope.cancel()
        except anyio.get_cancelled_exc_class():
            self.outcome = Outcome("detached" if self._detaching else "cancelled")
            raise
        finally:
            await self._cancel_adopted()
        if self._failure is not None:
            raise self._failure
        self.outcome = self.outcome or Outcome("finished")

    # Groups

    async def _run_all(self, services: Services) -> None:
        runner = GroupRunner(
            config=self.config,
            builder=self._builder,
            collector=services.collector,
            journal=self.recorder,
            stamp=lambda group_id: 0,
            on_event=lambda group_id, event: None,
            on_collected=self._keep,
        )
        slots = anyio.Semaphore(self.plan.groups_in_flight)
        async with anyio.create_task_group() as groups:
            for number, adopted in enumerate(self.adopted):
                groups.start_soon(self._adopt, runner, services, self._draw(number, adopted.index), adopted)
            for number, index in enumerate(self.fresh, start=len(self.adopted)):
                await slots.acquire()
                refusal = self.plan.budget.refuses(self.spent(), self.plan.n_samples)
                if refusal is not None:
                    self._end(refusal, cancel=self.plan.budget.reached(self.spent()) is not None)
                    break
                self._admitted += self.plan.n_samples
                groups.start_soon(self._submit, runner, self._draw(number, index), slots)

    def _prompt(self, index: int, sessions: int) -> PromptGroup:
        row = self.plan.rows[index]
        return prompt_group(
            row["prompt"],
            sessions=sessions,
            group_index=index,
            label=row.get("label"),
            metadata=row.get("metadata"),
        )

    def _draw(self, number: int, index: int) -> DrawnGroup:
        now = time.monotonic()
        group = DrawnGroup(
            number, self._prompt(index, self.plan.n_samples), self.plan.n_samples, index, now, now
        )
        record_drawn(self.recorder, group)
        return group

    async def _submit(self, runner: GroupRunner, group: DrawnGroup, slots: anyio.Semaphore) -> None:
        try:
            await self._to_its_end(group, lambda: runner.run(group))
        finally:
            slots.release()

    async def _adopt(
        self, runner: GroupRunner, services: Services, group: DrawnGroup, adopted: Adopted
    ) -> None:
        for task_id in adopted.task_ids:
            record_adopted(self.recorder, group, task_id)

        async def collect() -> JudgedGroup:
            if group.admissions > 1 and self.resubmits:
                return await runner.run(group)
            try:
                tasks = [await self._running_task(services, task_id) for task_id in adopted.task_ids]
            except (TaskUnknownError, TaskFailedError) as error:
                self.lost.append(adopted.index)
                raise InfrastructureError(str(error), reason=_LOST) from error
            return await runner.judge(group, tasks, began=adopted.since)

        await self._to_its_end(group, collect)
        self._adopted_open.difference_update(adopted.task_ids)

    async def _running_task(self, services: Services, task_id: str) -> CollectedTask:
        now = anyio.current_time()
        kept = result_path(self.results, task_id)
        if kept.exists():
            # The earlier process had the result and ended before it was judged.
            return CollectedTask(task_id, 1, await anyio.Path(kept).read_bytes(), "poll", now, now)
        deadline = now + self.config.group_deadline(_DEFAULT_TIMEOUT)
        return await collect_running(services.client, services.collector.poller, task_id, deadline=deadline)

    async def _to_its_end(self, group: DrawnGroup, attempt: Callable[[], Awaitable[JudgedGroup]]) -> None:
        """Try a group until it has a verdict or is given up; ended early, it is abandoned."""
        try:
            while True:
                group.admissions += 1
                try:
                    judged = await attempt()
                except SubmitRejectedError as error:
                    self._refused(group, error)
                    return
                except _FAILURES as error:
                    if not self._tries_again(group, error):
                        return
                    await anyio.sleep(_PAUSE.delay(max(group.failures, 1), self._rng))
                else:
                    self._judged(group, judged)
                    return
        except anyio.get_cancelled_exc_class():
            reason = self.outcome.reason if self.outcome is not None else "cancelled"
            if self._detaching:
                self.recorder.record("group_returned", group=group.group_id, reason="detached")
            else:
                self.recorder.record("group_abandoned", group=group.group_id, reason=reason)
            raise

    def _judged(self, group: DrawnGroup, judged: JudgedGroup) -> None:
        self._accepted_any = True
        record_verdict(self.recorder, group, judged)
        reached = self.plan.budget.reached(self.spent())
        if reached is not None:
            self._end(reached, cancel=True)

    def _refused(self, group: DrawnGroup, error: SubmitRejectedError) -> None:
        record_given_up(self.recorder, group, error)
        if not self._accepted_any:
            # The first request of all: the next ones would fare no better.
            self._fail(error)

    def _tries_again(self, group: DrawnGroup, error: BridgeError) -> bool:
        reason = getattr(error, "reason", type(error).__name__)
        group.failures += reason != "outage"
        lost = reason == _LOST and not self.resubmits
        final = lost or isinstance(error, MissingRewardError)
        if final or group.failures >= self.config.max_prompt_attempts:
            record_given_up(self.recorder, group, error)
            return False
        detail = f"{type(error).__name__}: {error}"
        self.recorder.record("group_requeued", group=group.group_id, reason=reason, detail=detail)
        return True

    # The end

    def _end(self, reason: str, *, cancel: bool) -> None:
        if self.outcome is None:
            self.outcome = Outcome("budget", reason)
        if cancel and self._scope is not None:
            self._scope.cancel()

    def _fail(self, error: BridgeError) -> None:
        if self._failure is None:
            self._failure = error
        if self._scope is not None:
            self._scope.cancel()

    async def _cancel_adopted(self) -> None:
        """Cancel what was taken over and has no end, also when this ends before anything had begun."""
        if self._detaching or not self._adopted_open:
            return
        with anyio.CancelScope(shield=True, deadline=anyio.current_time() + _CANCEL_SECONDS):
            async with open_client(self.config) as client, anyio.create_task_group() as tasks:
                for task_id in self._adopted_open:
                    tasks.start_soon(_cancel, client, task_id)

    # The surroundings

    async def _watch_bounds(self, client: PolarClient) -> None:
        fuse, limit = client.fuse, self.config.outage_timeout
        while True:
            reached = self.plan.budget.reached(self.spent())
            if reached is not None:
                self._end(reached, cancel=True)
            if fuse.outage_seconds() > limit:
                self._fail(
                    PolarOutageError(
                        f"the rollout server at {client.base_url} stayed away for more than {limit:g} s "
                        f"(polar_outage_timeout): {fuse.last_error}"
                    )
                )
            await anyio.sleep(_LOOK_SECONDS)

    async def _watch_events(self, client: PolarClient) -> None:
        await watch_events(
            client,
            self.config,
            self.recorder.hear_event,
            headers=self.headers,
            under_way=self.recorder.tasks_under_way,
        )

    def _keep(self, task: CollectedTask) -> None:
        """Write a result as it came; called in the thread that converts it."""
        path = result_path(self.results, task.task_id)
        if not path.exists():
            with atomic_path(path) as partial:
                partial.write_bytes(task.body)


async def _cancel(client: PolarClient, task_id: str) -> None:
    try:
        await client.cancel_task(task_id)
    except BridgeError as error:
        logger.info("Task %s could not be cancelled on the server: %s", task_id, error)


def result_path(folder: Path, task_id: str) -> Path:
    """Return where a task's result is kept."""
    return folder / f"{quote(task_id, safe='')}.json"
