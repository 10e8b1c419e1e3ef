"""One prompt group's way through the rollout server: requests out, results in, samples and a verdict.

`TaskBuilder` makes the task requests of a group, and `GroupRunner.run` takes a group in flight to its
verdict. Decoding, conversion and judging run in a worker thread unless a result is small: a heavy one never
keeps the loop from answering a callback. Which group runs when, and what becomes of a failure, is decided
elsewhere: errors come out as they are.
"""

from __future__ import annotations

import copy
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
import msgspec

from slime_bridge import _slime
from slime_bridge._messages import prompt_to_instruction_text
from slime_bridge._threads import run_in_thread
from slime_bridge.acceptance import Accepted, Rejected, judge
from slime_bridge.collect import CollectedTask, CollectEvent, CollectEventKind, Collector, collect_task
from slime_bridge.config import PolarSlimeConfig, render_instruction, render_task_payload
from slime_bridge.conversion.groups import GroupConversion, convert_group
from slime_bridge.groups import Group
from slime_bridge.journal.schema import EventLog
from slime_bridge.protocol import MalformedSession, SessionResult, TaskRequest, decode_task_payload

__all__ = ["GroupRunner", "JudgedGroup", "PromptGroup", "TaskBuilder", "prompt_group"]

PromptGroup = list[Any]
"""The samples of one prompt, as the data source gave them: one per session."""

_DEFAULT_TIMEOUT_SECONDS = 600.0
# Below this, judging a group costs less than the way to a thread and back: a millisecond or two.
_INLINE_BYTES = 64 * 1024


def prompt_group(
    prompt: Any,
    *,
    sessions: int,
    group_index: int,
    label: Any = None,
    metadata: Mapping[str, Any] | None = None,
) -> PromptGroup:
    """Make a group as Slime's default data source would: one sample per session, numbered throughout.

    Parameters
    ----------
    prompt
        Text, or chat messages.
    sessions
        How many sessions the group runs, at least 1.
    group_index
        Number of the prompt, from 0.
    label, metadata
        Of the prompt; each sample gets its own copy of the metadata.
    """
    sample = _slime.sample_class()
    return [
        sample(
            prompt=copy.deepcopy(prompt),
            label=label,
            metadata=copy.deepcopy(dict(metadata or {})),
            index=group_index * sessions + position,
            group_index=group_index,
        )
        for position in range(sessions)
    ]


@dataclass(frozen=True, slots=True)
class JudgedGroup:
    """What came back for a group.

    Parameters
    ----------
    conversion
        Its samples and what became of each session.
    verdict
        Whether it may be trained on.
    seconds
        From the server's receipt of the last attempt to the complete result.
    """

    conversion: GroupConversion
    verdict: Accepted | Rejected
    seconds: float


class TaskBuilder:
    """Renders the task requests of prompt groups.

    Parameters
    ----------
    config
        The configuration.
    args
        Trainer arguments, for templates.
    """

    def __init__(self, config: PolarSlimeConfig, args: Any) -> None:
        self.args = args
        self._config = config
        # A trainer that was killed and restarted must not meet the task ids of its former life.
        self._run = secrets.token_hex(4)

    def parts(self, prompt: PromptGroup) -> list[PromptGroup]:
        """Split a group into tasks: all samples in one, or with scoring mode ``individual`` one each."""
        return [[sample] for sample in prompt] if self._config.scoring_mode == "individual" else [prompt]

    def request(
        self, part: PromptGroup, *, rollout_id: int, position: int, policy_version: int, unique: str
    ) -> TaskRequest:
        """Render one task request.

        Parameters
        ----------
        part
            The samples of the task.
        rollout_id, position
            Rollout and position within it, for templates.
        policy_version
            Goes into the task's metadata.
        unique
            Tells this request apart from every other one of this process; ends the task id.

        Raises
        ------
        TemplateError, ConfigError
            If the prompt is blank, or does not fit the template.
        """
        common = {
            "args": self.args,
            "config": self._config,
            "sample": part[0],
            "rollout_id": rollout_id,
            "task_position": position,
            "num_rollouts": len(part),
        }
        text = prompt_to_instruction_text(part[0].prompt)
        payload = render_task_payload(
            **common,
            instruction=render_instruction(**common, prompt_text=text),
            policy_version=policy_version,
            task_id_suffix=f"-{self._run}-{unique}",
        )
        return TaskRequest.from_payload(payload)

    def check(self, prompt: PromptGroup, *, rollout_id: int, position: int) -> None:
        """Render a group's requests to see that they can be made; raises as `request`."""
        for part in self.parts(prompt):
            self.request(
                part, rollout_id=rollout_id, position=position, policy_version=rollout_id, unique="0"
            )


@dataclass(kw_only=True, eq=False)
class GroupRunner:
    """Runs groups in flight to their verdict.

    Parameters
    ----------
    config
        The configuration.
    builder
        Makes the requests.
    collector
        Entered around every run.
    journal
        Notes submissions and results.
    stamp
        Called with a group's id at each attempt; gives the policy version that it carries.
    on_event
        Told of each step of collecting, with the group's id.
    on_request
        Shown each request that is made.
    limiter
        Bounds the threads that convert.
    pushes_were_guarded
        Told a time (Unix seconds): whether every weight push since then waited until no turn was in flight.
    on_collected
        Shown each result as it was received, in a thread that converts, before anything is made of it.
    """

    config: PolarSlimeConfig
    builder: TaskBuilder
    collector: Collector
    journal: EventLog
    stamp: Callable[[int], int]
    on_event: Callable[[int, CollectEvent], None]
    on_request: Callable[[TaskRequest], None] = lambda request: None
    limiter: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(2))
    pushes_were_guarded: Callable[[float], bool] = lambda since: False
    on_collected: Callable[[CollectedTask], None] | None = None

    async def run(self, group: Group[PromptGroup, JudgedGroup]) -> JudgedGroup:
        """Take a group from its requests to its verdict.

        Raises
        ------
        SubmitRejectedError, TaskFailedError, InfrastructureError
            As `collect_task`.
        ProtocolError
            If a result does not decode.
        MissingRewardError
            If a reward is missing where that is an error.
        """
        began = time.time()
        parts = self.builder.parts(group.prompt)
        collected: list[CollectedTask | None] = [None] * len(parts)

        async def collect(index: int) -> None:
            collected[index] = await self._collect(group, parts, index)

        if len(parts) == 1:
            await collect(0)
        else:
            await _gather([partial(collect, index) for index in range(len(parts))])
        await self.collector.caught_up()
        return await self.judge(group, [task for task in collected if task is not None], began=began)

    async def judge(
        self, group: Group[PromptGroup, JudgedGroup], tasks: Sequence[CollectedTask], *, began: float = 0.0
    ) -> JudgedGroup:
        """Convert and judge the results of a group's tasks, wherever they were collected.

        Parameters
        ----------
        group
            The group.
        tasks
            One per part of the group (`TaskBuilder.parts`).
        began
            No session is older than this (Unix seconds).

        Raises
        ------
        ProtocolError, MissingRewardError
            As `run`.
        """
        parts = self.builder.parts(group.prompt)
        if self.on_collected is None and sum(len(task.body) for task in tasks) <= _INLINE_BYTES:
            return self._judge(group, parts, tasks, began)
        return await run_in_thread(
            self._judge, group, parts, tasks, began, abandon_on_cancel=True, limiter=self.limiter
        )

    async def _collect(
        self, group: Group[PromptGroup, JudgedGroup], parts: Sequence[PromptGroup], index: int
    ) -> CollectedTask:
        versions: dict[int, int] = {}

        def build(attempt: int) -> TaskRequest:
            version = versions[attempt] = self.stamp(group.group_id)
            part = f"s{index}" if len(parts) > 1 else ""
            request = self.builder.request(
                parts[index],
                rollout_id=version,
                position=group.position,
                policy_version=version,
                unique=f"{group.group_id}{part}-{group.admissions}.{attempt}",
            )
            self.on_request(request)
            return request

        def note(event: CollectEvent) -> None:
            if event.kind in (CollectEventKind.SUBMITTED, CollectEventKind.RESUBMITTED):
                version = versions[event.attempt]
                self.journal.record(
                    "task_submitted",
                    group=group.group_id,
                    task_id=event.task_id,
                    attempt=event.attempt,
                    policy_version=version,
                    rollout_id=version,
                )
            self.on_event(group.group_id, event)

        first = build(1)
        timeout = first.timeout_seconds
        seconds = self.config.group_deadline(
            _DEFAULT_TIMEOUT_SECONDS if timeout is msgspec.UNSET else timeout
        )
        return await collect_task(
            self.collector,
            lambda attempt: first if attempt == 1 else build(attempt),
            deadline=anyio.current_time() + seconds,
            on_event=note,
        )

    def _judge(
        self,
        group: Group[PromptGroup, JudgedGroup],
        parts: Sequence[PromptGroup],
        tasks: Sequence[CollectedTask],
        began: float = 0.0,
    ) -> JudgedGroup:
        """Decode, convert and judge, in whatever thread; no session is older than `began` (Unix seconds)."""
        results: list[SessionResult | MalformedSession | None] = []
        for part, task in zip(parts, tasks, strict=True):
            if self.on_collected is not None:
                self.on_collected(task)
            found = decode_task_payload(task.body, flat_arrays=True).results
            # With several tasks each one's sessions have their places, however many it gave.
            places = len(part) if len(parts) > 1 else len(found)
            results += [*found, *[None] * places][:places]
        conversion = convert_group(
            results,
            group.prompt,
            config=self.config,
            pushes_wait_for_turns=self.pushes_were_guarded(began),
        )
        judged = JudgedGroup(
            conversion,
            judge(conversion, settings=self.config),
            max(task.received_at for task in tasks) - min(task.submitted_at for task in tasks),
        )
        if self.journal.path is not None:
            self._note_result(group.group_id, tasks, judged)
        return judged

    def _note_result(self, group_id: int, tasks: Sequence[CollectedTask], judged: JudgedGroup) -> None:
        sessions = [session.to_dict() for session in judged.conversion.sessions]
        share = -(-len(sessions) // len(tasks))
        for index, task in enumerate(tasks):
            self.journal.record(
                "task_result",
                group=group_id,
                task_id=task.task_id,
                attempt=task.attempt,
                via=task.via,
                seconds=task.received_at - task.submitted_at,
                sessions=sessions[index * share : (index + 1) * share],
            )


async def _gather(jobs: Sequence[Callable[[], Awaitable[None]]]) -> None:
    """Run jobs together; the first failure stops the others and comes out as it is."""
    failures: list[Exception] = []

    async def run(job: Callable[[], Awaitable[None]]) -> None:
        try:
            await job()
        except Exception as exc:  # raised below, without the group that a task group wraps around it
            failures.append(exc)
            tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        for job in jobs:
            tasks.start_soon(run, job)
    if failures:
        raise failures[0]
