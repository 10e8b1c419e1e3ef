"""One attempt at one task: submit it under its own id, then take its result from a callback or from polling.

The polling side runs until a callback body arrives, which interrupts it wherever it stands; a body that
turns out to be no result of this attempt is put aside and the polling side goes on. Deadlines and further
attempts are the caller's.
"""

from __future__ import annotations

import enum
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import anyio

from slime_bridge._body import Body
from slime_bridge._collected import CollectedTask, CollectEvent, CollectEventKind, Via
from slime_bridge._task_head import TaskHead, read_task_head
from slime_bridge._threads import run_in_thread
from slime_bridge.callbacks import CallbackHandle, CallbackKind, CallbackListener
from slime_bridge.client import PolarClient
from slime_bridge.errors import (
    InfrastructureError,
    ProtocolError,
    SubmitRejectedError,
    TaskConflictError,
    TaskFailedError,
    TaskUnknownError,
    TransportError,
)
from slime_bridge.poller import Signal, StatusPoller, Watch, is_running
from slime_bridge.protocol import TaskRequest, encode_task_request
from slime_bridge.retry import RetryPolicy, call_with_retry

__all__ = ["Attempt", "Services", "TaskForgottenError"]

logger = logging.getLogger(__name__)

# Below this, checking a body costs less than the way to a thread and back.
_INLINE_BYTES = 1 << 20
# Polar gives its callback up after ten seconds without progress.
_RECEIVE_SECONDS = 10.0
_MAX_BAD_ANSWERS = 5

T = TypeVar("T")


class TaskForgottenError(Exception):
    """Raised when the server no longer knows a task that it had accepted."""


@dataclass(kw_only=True)
class Services:
    """What the attempts of one worker share; see `slime_bridge.collect.Collector`."""

    client: PolarClient
    listener: CallbackListener | None
    poller: StatusPoller
    retry: RetryPolicy
    rng: random.Random
    callback_grace: float
    cancel_timeout: float
    missed_a_callback: bool = False
    # Parsing holds the interpreter: several threads of it would only leave less to the loop.
    parsing: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(1))


class _State(enum.Enum):
    NEW = "not submitted"
    UNCERTAIN = "submitted without an answer"
    ACCEPTED = "accepted"
    OVER = "over"


class Attempt:
    """One attempt; `run` is awaited once.

    Parameters
    ----------
    services
        Client, listener, poller and policies.
    request
        The task; its callback URL is filled in here where there is a listener.
    number
        Attempts of the same task count from 1.
    on_event
        Told of each step.

    Attributes
    ----------
    last_error : str
        What went wrong last, empty if nothing did.
    """

    def __init__(
        self,
        services: Services,
        request: TaskRequest,
        number: int,
        on_event: Callable[[CollectEvent], None] | None,
    ) -> None:
        self.task_id = request.task_id
        self.last_error = ""
        self._services = services
        self._client = services.client
        self._request = request
        self._number = number
        self._on_event = on_event
        self._body = b""
        self._handle: CallbackHandle | None = None
        self._watch: Watch | None = None
        self._state = _State.NEW
        self._may_run = False
        self._submitted_at = 0.0
        self._bad_answers = 0

    def describe(self) -> str:
        """Return how far the attempt got, for messages."""
        last = f"; the last failure was: {self.last_error}" if self.last_error else ""
        return f"task {self.task_id} (attempt {self._number}, {self._state.value}){last}"

    async def run(self) -> CollectedTask:
        """Submit and wait; whatever ends the wait early cancels the task on the server.

        Raises
        ------
        TaskForgottenError
            The server does not know the task any more.
        SubmitRejectedError, TaskFailedError, InfrastructureError
            As `slime_bridge.collect.collect_task`.
        """
        try:
            if self._services.listener is not None:
                self._handle = self._services.listener.register(self.task_id)
                self._request = self._request.replace(callback_url=self._handle.url)
            self._body = encode_task_request(self._request)
            return await self._first_result()
        finally:
            if self._handle is not None:
                self._handle.close()
            if self._watch is not None:
                self._watch.close()
            if self._may_run and self._state is not _State.OVER:
                await self._cancel()

    async def _first_result(self) -> CollectedTask:
        """Return what comes first, the callback or the polled result."""
        handle = self._handle
        if handle is None:
            return await self._by_polling()
        while True:
            result: CollectedTask | None = None
            with anyio.CancelScope() as scope:
                handle.on_delivery = scope.cancel
                if handle.take() is None:
                    result = await self._by_polling()
            handle.on_delivery = None
            if result is None and handle.take() is not None:
                # Nothing here refers to the body: it may be rejected, and the wait for another one long.
                result = await self._by_callback(handle, await handle.body())
            if result is not None:
                return result

    async def _by_callback(self, handle: CallbackHandle, body: Body) -> CollectedTask | None:
        """Return the result in a callback body, None if it holds none of this attempt."""
        kind = CallbackKind.MALFORMED
        try:
            head = await self._read_head(body)
            if head.task_id == self.task_id and not is_running(head.status):
                if self._state is not _State.ACCEPTED:
                    self._note_accepted(conflict=False)
                return self._finish(head, body, "callback")
            problem = f"it reports the status {head.status[:40]!r}"
            if head.task_id != self.task_id:
                kind, problem = CallbackKind.FOREIGN, "it is another task's"
        except ProtocolError as exc:
            problem = str(exc)
        handle.reject(kind)
        self.last_error = f"the callback body was no result: {problem}"
        self._report(CollectEventKind.REJECTED_CALLBACK, kind=kind.value, error=problem)
        return None

    async def _by_polling(self) -> CollectedTask:
        """Submit if that is still to do, then wait for the poller and fetch what it found."""
        if self._state is not _State.ACCEPTED:
            await self._with_retry("submit", self._submit)
        if self._watch is None:
            self._watch = self._services.poller.watch(self.task_id)
        while True:
            if await self._watch.wait() is Signal.ENDED:
                await self._give_callback_a_chance()
            result = await self._fetch()
            if result is not None:
                return result

    async def _submit(self) -> None:
        """Make one try to get the task accepted; after a try without an answer, first ask whether it was."""
        if self._state is _State.UNCERTAIN and await self._is_known():
            self._note_accepted(conflict=False)
            return
        self._state, self._may_run = _State.UNCERTAIN, True
        conflict = False
        try:
            accepted = await self._client.submit(self._body)
        except TaskConflictError:
            conflict = True
        except SubmitRejectedError:
            self._state = _State.OVER
            raise
        except TransportError as exc:
            if not exc.ambiguous:
                self._state = _State.NEW
            raise
        except ProtocolError as exc:
            raise TransportError(str(exc), reason="bad_answer") from exc
        else:
            if accepted != self.task_id:
                raise TransportError(
                    f"submit of task {self.task_id} was answered with another task's receipt",
                    reason="bad_answer",
                )
        self._note_accepted(conflict=conflict)

    async def _is_known(self) -> bool:
        try:
            await self._client.get_task(self.task_id)
        except (TaskUnknownError, SubmitRejectedError, ProtocolError):
            # Whatever this answer means, a second submit of a running task is only answered with a conflict.
            return False
        return True

    def _note_accepted(self, *, conflict: bool) -> None:
        self._state = _State.ACCEPTED
        self._may_run = True
        self._submitted_at = anyio.current_time()
        kind = CollectEventKind.SUBMITTED if self._number == 1 else CollectEventKind.RESUBMITTED
        self._report(kind, conflict=conflict)

    async def _give_callback_a_chance(self) -> None:
        """Wait a moment for the callback of an ended task, which would make the download needless."""
        if self._handle is None:
            return
        if self._services.poller.callbacks_work is not False:
            await anyio.sleep(self._services.callback_grace)
        if self._handle.receiving:
            with anyio.move_on_after(_RECEIVE_SECONDS):
                await self._handle.wait_received()

    async def _fetch(self) -> CollectedTask | None:
        """Ask for the task's record; None while it runs, or when the answer could not be used."""
        try:
            body = await self._with_retry("result", lambda: self._client.get_task(self.task_id))
            head = await self._read_head(body)
            if head.task_id != self.task_id:
                raise ProtocolError(f"asked for task {self.task_id}, the server returned another one")
        except TaskUnknownError as exc:
            self._state, self.last_error = _State.OVER, str(exc)
            self._report(CollectEventKind.FORGOTTEN)
            raise TaskForgottenError(str(exc)) from exc
        except (SubmitRejectedError, ProtocolError, TaskConflictError) as exc:
            await self._bad_answer(exc)
            return None
        self._bad_answers = 0
        return None if is_running(head.status) else self._finish(head, body, "poll")

    async def _bad_answer(self, error: Exception) -> None:
        """Put up a few times with an answer that cannot be right; the callback may come yet."""
        self._bad_answers += 1
        self.last_error = str(error)
        logger.log(
            logging.WARNING if self._bad_answers == 1 else logging.DEBUG,
            "Fetching the result failed: %s",
            error,
        )
        if self._bad_answers >= _MAX_BAD_ANSWERS:
            raise InfrastructureError(
                f"no usable result for {self.describe()} after {self._bad_answers} answers",
                reason="bad_answer",
            ) from error
        await anyio.sleep(self._services.retry.delay(self._bad_answers, self._services.rng))

    def _finish(self, head: TaskHead, body: Body, via: Via) -> CollectedTask:
        """Close the attempt with a record whose status is final."""
        self._state = _State.OVER
        kind = CollectEventKind.CALLBACK if via == "callback" else CollectEventKind.POLLED
        self._report(kind, status=head.status, bytes=len(body))
        if via == "callback":
            self._services.poller.callbacks_work = True
        elif self._handle is not None and head.status == "completed":
            self._note_missed_callback()
        if head.status != "completed":
            raise TaskFailedError(
                f"task {self.task_id} ended with the status {head.status[:40]!r}",
                status=head.status,
                body=bytes(body),
            )
        return CollectedTask(
            task_id=self.task_id,
            attempt=self._number,
            body=body,
            via=via,
            submitted_at=self._submitted_at,
            received_at=anyio.current_time(),
        )

    def _note_missed_callback(self) -> None:
        self._services.poller.callbacks_work = False
        if self._services.missed_a_callback or self._services.listener is None:
            return
        self._services.missed_a_callback = True
        logger.warning(
            "Task %s had to be polled: its callback did not arrive at http://%s. If none does, Polar "
            "cannot reach that address (polar_callback_host), and every result waits for the next poll.",
            self.task_id,
            self._services.listener.address,
        )

    async def _with_retry(self, what: str, operation: Callable[[], Awaitable[T]]) -> T:
        """Repeat an operation under the policy; used-up tries are an infrastructure failure."""

        def on_retry(failures: int, delay: float, error: TransportError) -> None:
            self.last_error = str(error)
            self._report(
                CollectEventKind.RETRY,
                what=what,
                failures=failures,
                delay=delay,
                reason=error.reason,
                error=str(error),
            )

        services = self._services
        try:
            return await call_with_retry(
                operation, policy=services.retry, rng=services.rng, fuse=self._client.fuse, on_retry=on_retry
            )
        except TransportError as exc:
            self.last_error = str(exc)
            raise InfrastructureError(
                f"the {what} request failed {services.retry.max_attempts} times for {self.describe()}",
                reason=exc.reason,
            ) from exc

    async def _cancel(self) -> None:
        """Tell the server that nobody waits any more: best effort, bounded, also while being cancelled."""
        acknowledged = False
        with anyio.CancelScope(shield=True, deadline=anyio.current_time() + self._services.cancel_timeout):
            try:
                acknowledged = await self._client.cancel_task(self.task_id)
            except (TransportError, SubmitRejectedError, ProtocolError) as exc:
                logger.info("Task %s could not be cancelled on the server: %s", self.task_id, exc)
        self._report(CollectEventKind.CANCELLED, acknowledged=acknowledged)

    async def _read_head(self, body: Body) -> TaskHead:
        """Return id and status of a record; big bodies are checked off the loop."""
        if len(body) <= _INLINE_BYTES:
            return read_task_head(body)
        return await run_in_thread(read_task_head, body, limiter=self._services.parsing)

    def _report(self, kind: CollectEventKind, /, **detail: Any) -> None:
        if self._on_event is not None:
            self._on_event(CollectEvent(kind, self.task_id, self._number, anyio.current_time(), detail))
