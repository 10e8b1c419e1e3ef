"""From a task request to its result: submit, wait for the callback or poll, under one deadline.

A callback is a hint, polling is the truth: the result is the same whatever gets lost on the way. Training
and evaluation share this path. It does not know groups, samples or verdicts, and it does not decode results;
the body comes back as received, checked only for whose it is.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import TracebackType

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from slime_bridge._attempt import Attempt, Services, TaskForgottenError
from slime_bridge._collected import CollectedTask, CollectEvent, CollectEventKind
from slime_bridge.callbacks import CallbackListener
from slime_bridge.client import PolarClient
from slime_bridge.config import PolarSlimeConfig
from slime_bridge.errors import CallbackBindError, InfrastructureError
from slime_bridge.poller import PollSchedule, StatusPoller
from slime_bridge.protocol import TaskRequest
from slime_bridge.retry import RetryPolicy

__all__ = ["CollectEvent", "CollectEventKind", "CollectedTask", "Collector", "collect_task", "listening"]


class Collector:
    """What all collections of one worker share; an async context manager that runs the status poller.

    Enter and leave it in one task, around all its collections. A failure of the poller itself cancels that
    task and is raised on leaving.

    Parameters
    ----------
    client
        The rollout server; owned by the caller.
    listener
        A started listener, owned by the caller; None to poll only.
    retry
        Policy for submits, downloads and polls.
    schedule
        When to poll.
    rng
        Source of all jitter.
    max_task_attempts
        How many task ids to try while the server keeps forgetting them.
    callback_grace
        Seconds that a callback gets after a poll has found its task ended, unless the last callback got lost.
    cancel_timeout
        Seconds for telling the server that a task was given up.

    Attributes
    ----------
    poller : StatusPoller
        The shared poller.
    """

    def __init__(
        self,
        client: PolarClient,
        *,
        listener: CallbackListener | None = None,
        retry: RetryPolicy | None = None,
        schedule: PollSchedule | None = None,
        rng: random.Random | None = None,
        max_task_attempts: int = 5,
        callback_grace: float = 1.0,
        cancel_timeout: float = 0.5,
    ) -> None:
        if max_task_attempts < 1:
            raise ValueError(f"max_task_attempts must be at least 1, got {max_task_attempts}")
        policy = retry if retry is not None else RetryPolicy()
        source = rng if rng is not None else random.Random()
        self.poller = StatusPoller(client, schedule=schedule, retry=policy, rng=source)
        self._max_task_attempts = max_task_attempts
        self._services = Services(
            client=client,
            listener=listener,
            poller=self.poller,
            retry=policy,
            rng=source,
            callback_grace=callback_grace,
            cancel_timeout=cancel_timeout,
        )
        self._tasks: TaskGroup | None = None

    async def caught_up(self) -> None:
        """Wait a moment while callbacks come in faster than they are received; before heavy work."""
        if self._services.listener is not None:
            await self._services.listener.caught_up()

    async def __aenter__(self) -> Collector:
        """Start polling for whatever will be watched."""
        self._tasks = await anyio.create_task_group().__aenter__()
        self._tasks.start_soon(self.poller.run, name="status poller")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        """Stop polling."""
        tasks, self._tasks = self._tasks, None
        if tasks is None:
            return None
        tasks.cancel_scope.cancel()
        try:
            return await tasks.__aexit__(kind, exc, traceback)
        except BaseExceptionGroup as group:
            # One failure is one exception: the caller's own as it was, or the poller's as itself.
            if len(group.exceptions) != 1:
                raise
            failure = group.exceptions[0]
        if failure is exc:
            return False
        raise failure


async def collect_task(
    collector: Collector,
    build_request: Callable[[int], TaskRequest],
    *,
    deadline: float,
    on_event: Callable[[CollectEvent], None] | None = None,
) -> CollectedTask:
    """Run one task to its end.

    Parameters
    ----------
    collector
        Entered around this call.
    build_request
        Makes the request of an attempt (1, 2, ...), each with a task id of its own. The callback URL is
        filled in here.
    deadline
        When to give up, as `anyio.current_time`; it covers every phase of every attempt. Telling the server
        may take `Collector`'s `cancel_timeout` longer.
    on_event
        Called for each step, in the loop's thread.

    Returns
    -------
    CollectedTask
        The result of a task with the status ``completed``.

    Raises
    ------
    SubmitRejectedError
        The server refused the request for good.
    TaskFailedError
        The task ended in another status; the error carries the record.
    InfrastructureError
        No result by the deadline or within the attempts; `reason` is ``outage`` (the deadline passed while
        the server was away), ``deadline``, ``forgotten``, ``bad_answer``, or that of the last
        `TransportError`.
    TemplateError
        The request cannot be encoded.

    Notes
    -----
    Cancelling the call is safe at any point: what may run on the server is cancelled there, as far as the
    server can.
    """
    services = collector._services
    attempt: Attempt | None = None
    with anyio.CancelScope(deadline=deadline):
        for number in range(1, collector._max_task_attempts + 1):
            await anyio.lowlevel.checkpoint_if_cancelled()
            attempt = Attempt(services, build_request(number), number, on_event)
            try:
                return await attempt.run()
            except TaskForgottenError:
                # Everybody's task is forgotten at the same moment: jitter spreads the submits that follow.
                await anyio.sleep(services.retry.delay(number, services.rng))
        raise InfrastructureError(
            f"the server forgot the task {collector._max_task_attempts} times, last {_describe(attempt)}",
            reason="forgotten",
        )
    reason = "outage" if services.client.fuse.is_open else "deadline"
    raise InfrastructureError(f"no result by the deadline: {_describe(attempt)}", reason=reason)


def _describe(attempt: Attempt | None) -> str:
    return attempt.describe() if attempt is not None else "nothing was submitted"


@asynccontextmanager
async def listening(
    config: PolarSlimeConfig, *, without: Callable[[CallbackBindError], None]
) -> AsyncIterator[CallbackListener | None]:
    """Listen for callbacks where they can be had; None, after a word to `without`, where one has to poll.

    Parameters
    ----------
    config
        Names the advertised host, the address to bind and the port.
    without
        Is told why nothing can listen.
    """
    listener = CallbackListener(
        config.callback_host, bind_host=config.callback_bind_host, port=config.callback_port
    )
    try:
        await listener.start()
    except CallbackBindError as error:
        without(error)
        yield None
        return
    try:
        yield listener
    finally:
        await listener.close()
