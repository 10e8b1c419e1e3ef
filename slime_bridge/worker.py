"""The rollout worker: the trainer's thread on one side, the pipeline's event loop on the other.

A call to `PolarWorker.collect` draws prompts from the data source, waits for as many accepted groups as it
was asked for, and returns them oldest drawn first. The data source is touched by the calling thread alone,
and only while the call lasts; whatever was drawn goes on in the loop between calls, and with
``polar_fully_async`` the calls keep a whole window of groups under way.

How calls end:

- With the batch. Each group is delivered to exactly one call that returns it; an interrupt
  (KeyboardInterrupt, a signal handler's SystemExit) or an error in `finish` puts the batch back, and the next
  call gets it.
- With a typed error: the worker died, could not bind or find the server, the server stayed away too long,
  nothing trainable came, the data source is exhausted or gave something unusable. Before an error that ends
  the worker is raised, every unfinished prompt goes back to the data source.
- With `WorkerStoppedError`, when somebody else stops the worker.

How workers end: `PolarWorker.stop` returns within about two seconds whatever the server does. Tasks are
cancelled on the server as far as it answers in that time; unfinished prompts are returned to the data source
with ``add_samples``, or counted as abandoned and logged where that is impossible. At the interpreter's exit
they are abandoned: nobody would save the data source any more. Python dies of SIGTERM without running exit
hooks, so where the signal still has its default action and the worker is started in the main thread, a
handler turns it into ``SystemExit(143)``; a handler that somebody else has set (Ray's, a launcher's) is left
alone. A forked child shares nothing: there the worker is dead.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, ParamSpec, TypeVar

from slime_bridge.batch import Batch, Report, Step
from slime_bridge.config import PolarSlimeConfig
from slime_bridge.errors import BridgeError, DataSourceExhaustedError, WorkerError, WorkerStoppedError
from slime_bridge.filters import TrainerFilters
from slime_bridge.group_task import PromptGroup, TaskBuilder
from slime_bridge.groups import GroupState, SchedulerCounts
from slime_bridge.journal import EventLog, NullJournal
from slime_bridge.ledger import LedgerSnapshot
from slime_bridge.loop_thread import LoopDiedError, LoopThread, first_cause
from slime_bridge.pipeline import Pipeline
from slime_bridge.process_end import exit_on_sigterm, release_sigterm
from slime_bridge.prompt_source import PromptSource

__all__ = ["Batch", "PolarWorker"]

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

_STARTUP_SECONDS = 10.0
_STOP_SECONDS = 2.0
_LOOK_SECONDS = 0.5
_REDRAW_SECONDS = 1.0
_LAST_PROGRESS = 120.0


class PolarWorker:
    """One worker: one data source, one configuration, one event loop.

    Making it starts nothing; the first call to `collect` does.

    Parameters
    ----------
    config
        The configuration.
    args
        Trainer arguments, for templates.
    data_source
        Slime's data source, or anything with ``get_samples(number) -> list of groups``.
    journal
        Receives every event; closed when the worker stops. None keeps nothing.
    startup_timeout
        Seconds within which a server that has never answered must answer; 10 if None.
    progress_interval
        Seconds of waiting until the first progress line; each further one takes twice as long, up to 120.
    """

    def __init__(
        self,
        config: PolarSlimeConfig,
        args: Any,
        data_source: Any,
        *,
        journal: EventLog | None = None,
        startup_timeout: float | None = None,
        progress_interval: float = 10.0,
    ) -> None:
        self.config = config
        self.data_source = data_source
        self.journal = journal if journal is not None else NullJournal()
        self._progress_interval = progress_interval
        builder = TaskBuilder(config, args)
        self._filters = TrainerFilters(config, args)
        self._rollout_id = 0
        self._source = PromptSource(
            data_source, lambda group: builder.check(group, rollout_id=self._rollout_id, position=0)
        )
        self._ready = threading.Event()
        self._moved = threading.Event()
        self._pipeline = Pipeline(
            config,
            builder,
            self._filters,
            self.journal,
            startup_timeout=_STARTUP_SECONDS if startup_timeout is None else startup_timeout,
            on_ready=self._ready.set,
            on_move=self._moved.set,
        )
        self._loop: LoopThread | None = None
        self._error: BaseException | None = None
        self._reported = False
        self._stopped = False
        self._calling = threading.Lock()
        self._caller: int | None = None
        self._ending = threading.RLock()
        self._pid = os.getpid()

    @property
    def usable(self) -> bool:
        """Whether a call makes sense: the worker was neither stopped, nor has it reported its own end."""
        return not self._stopped and not self._reported and self._pid == os.getpid()

    def counts(self) -> SchedulerCounts:
        """Count the groups in each live state."""
        return self._in_loop(self._pipeline.flow.counts)

    def ledger(self) -> LedgerSnapshot:
        """Return the books, checked against the scheduler."""
        return self._in_loop(self._pipeline.flow.audit)

    @property
    def inactive_features(self) -> dict[str, str]:
        """What is asked for and has no effect, by key or feature, each with its reason."""
        return self._pipeline.capabilities.inactive

    def reserve(self, sessions: int) -> bool:
        """Take session slots for work outside the worker, as evaluation does; False if they are not free."""
        return self._in_loop(self._pipeline.reserve, sessions)

    def release(self, sessions: int) -> None:
        """Give slots taken with `reserve` back; 0 withdraws a claim that was refused."""
        self._in_loop(self._pipeline.release, sessions)

    # The trainer's call

    def collect(
        self, rollout_id: int, wanted: int | None = None, *, finish: Callable[[Batch], None] | None = None
    ) -> tuple[Batch, Report]:
        """Wait for accepted groups.

        Parameters
        ----------
        rollout_id
            The trainer's rollout; groups submitted from now on carry it as their policy version.
        wanted
            Groups, `rollout_batch_size` if None.
        finish
            Called with the batch before it counts as delivered; raising puts it back.

        Returns
        -------
        batch : Batch
            The groups and their samples.
        report : Report
            The numbers for metrics.

        Raises
        ------
        WorkerError
            The worker cannot go on, or serves another call.
        CallbackBindError, ConfigError
            The worker cannot start.
        DataSourceError, TemplateError
            The data source is exhausted, or gave something that cannot be submitted.
        """
        if self._pid != os.getpid():
            raise WorkerError("this worker belongs to the parent process; a fork does not have its loop")
        if not self._calling.acquire(blocking=False):
            raise WorkerError("another call is waiting for groups; a worker serves one call at a time")
        try:
            self._caller = threading.get_ident()
            self._start()
            return self._serve(rollout_id, wanted or self.config.rollout_batch_size, finish)
        finally:
            if self._ended:
                self._finish(give_back=True)
            self._caller = None
            self._calling.release()

    def _serve(
        self, rollout_id: int, wanted: int, finish: Callable[[Batch], None] | None
    ) -> tuple[Batch, Report]:
        self._rollout_id = rollout_id
        try:
            self._in_loop(self._pipeline.begin, rollout_id, wanted)
            batch = self._pruned(self._wait(rollout_id, wanted))
            batch.annotate()
            rejected = self._in_loop(self._pipeline.flow.window.rejected_samples.copy)
            self._filters.finish(batch.groups, rejected, self.data_source)
            if finish is not None:
                finish(batch)
            self._source.delivered(batch.group_indices, rollout_id)
            return batch, self._in_loop(self._pipeline.commit, batch.deliveries, len(rejected))
        finally:
            self._in_loop(self._pipeline.flow.scheduler.end_request)

    def _wait(self, rollout_id: int, wanted: int) -> Batch:
        began, redraw_at, interval = time.monotonic(), 0.0, self._progress_interval
        next_progress = began + interval
        while True:
            self._moved.clear()
            if self._ended:
                self._raise_end()
            step = self._in_loop(self._pipeline.step)
            self._source.given_up(step.ended)
            for group_id, judged in step.undecided:
                verdict = self._filters.judge(judged.conversion.samples, judged.verdict)
                self._in_loop(self._pipeline.flow.decided, group_id, verdict)
            if step.undecided:
                continue
            if step.batch:
                if step.draw:
                    # A batch that was ready when the call came: the window is filled up all the same, so that
                    # work goes on while the trainer trains. Having no prompt left is the next call's trouble.
                    self._source.draw(step.draw, self._take)
                return Batch(rollout_id, step.batch, time.monotonic() - began)
            now = time.monotonic()
            if step.draw and (now >= redraw_at or not step.pending):
                if self._source.draw(step.draw, self._take):
                    continue
                if not step.pending:
                    self._raise_exhausted(step, wanted)
                redraw_at = now + _REDRAW_SECONDS
            if now >= next_progress:
                flow, away = self._pipeline.flow, self._pipeline.outage_seconds
                text = step.describe(now - began, away, flow.last_error)
                logger.info("Rollout %d has waited %s", rollout_id, text)
                interval = min(2 * interval, _LAST_PROGRESS)
                next_progress = now + interval
            self._moved.wait(min(next_progress - now, _REDRAW_SECONDS if step.draw else _LAST_PROGRESS))

    def _pruned(self, batch: Batch) -> Batch:
        """Leave out what the trainer's settings prune."""
        sessions = [delivery.result.conversion.sessions for delivery in batch.deliveries]
        surplus = self._filters.surplus(sessions, batch.rollout_id)
        if not surplus:
            return batch
        dropped = [(batch.deliveries[number], verdict) for number, verdict in surplus.items()]
        self._in_loop(self._pipeline.flow.prune, dropped)
        kept = [delivery for number, delivery in enumerate(batch.deliveries) if number not in surplus]
        return Batch(batch.rollout_id, kept, batch.wait_seconds)

    def _take(self, groups: Sequence[PromptGroup], taken: Callable[[], None]) -> None:
        def add() -> None:
            self._pipeline.add(groups)
            taken()

        self._in_loop(add)

    def _raise_exhausted(self, step: Step, wanted: int) -> NoReturn:
        counts, last = step.counts, self._pipeline.flow.last_error
        raise DataSourceExhaustedError(
            f"the data source has no prompts left: {counts.buffered} of {wanted} groups are accepted, "
            f"{counts.suspended} were refused by the server, and nothing else is under way"
            + (f"; the last failure: {last}" if last else "")
        )

    # Start and end

    @property
    def _ended(self) -> bool:
        """Whether the worker cannot go on."""
        return self._stopped or self._error is not None or self._pipeline.flow.stop_reason is not None

    def _start(self) -> None:
        """Start the loop, and wait until it has bound its listener and found the server."""
        if self._loop is None and not self._ended:
            atexit.register(self.stop, give_back=False)
            exit_on_sigterm(self)
            self._loop = LoopThread(self._pipeline.main, name="polar-worker", on_end=self._on_end)
        while not self._ready.wait(_LOOK_SECONDS) and not self._ended:
            pass
        if self._ended:
            self._raise_end()

    def _on_end(self, error: BaseException | None) -> None:
        """Note how the loop ended; runs in its thread."""
        if not self._stopped:
            self._error = first_cause(error) if error is not None else WorkerError("its event loop has ended")
            if not isinstance(self._error, BridgeError):
                logger.error("The rollout worker has died", exc_info=error)
        self._ready.set()
        self._moved.set()

    def _raise_end(self) -> NoReturn:
        """End what is left of the worker, in the thread of the call, and raise why it cannot go on."""
        reason = self._pipeline.flow.stop_reason or self._error
        self._reported = True
        self._end_loop(time.monotonic() + _STOP_SECONDS)
        self._finish(give_back=True)
        if reason is None:
            raise WorkerStoppedError("the worker was stopped while this call was waiting")
        if isinstance(reason, BridgeError):
            raise reason
        raise WorkerError(f"the rollout worker died of {type(reason).__name__}: {reason}") from reason

    def begin_stop(self) -> None:
        """Start to end the worker without waiting; `stop` does the rest."""
        if self._pid != os.getpid():
            return
        self._stopped = True
        self._moved.set()
        if self._loop is not None:
            self._loop.cancel()

    def stop(self, *, timeout: float | None = None, give_back: bool = True) -> None:
        """End the worker: stop its tasks, return its unfinished prompts, close its journal.

        Harmless to repeat, and from any thread. A call that waits in another thread gets `WorkerStoppedError`
        and returns the prompts itself; if it does not within the time, they are counted as abandoned.

        Parameters
        ----------
        timeout
            Seconds that this may take, two if None.
        give_back
            Whether unfinished prompts go back to the data source; without it they are abandoned.
        """
        if self._pid != os.getpid():
            return
        deadline = time.monotonic() + (_STOP_SECONDS if timeout is None else timeout)
        self.begin_stop()
        self._end_loop(deadline)
        if self._caller == threading.get_ident():
            return  # called from inside the call, by a signal handler or the source: its end does the rest
        if self._calling.acquire(timeout=max(0.0, deadline - time.monotonic())):
            try:
                self._finish(give_back=give_back)
            finally:
                self._calling.release()
        else:
            logger.warning("A call still uses the data source; unfinished prompts cannot go back to it")
            self._settle(give_back=False)

    def _end_loop(self, deadline: float) -> None:
        if self._loop is not None:
            self._loop.cancel()
            if not self._loop.join(max(0.0, deadline - time.monotonic())):
                logger.warning("The worker's event loop does not end in time; it is left to itself")

    def _settle(self, *, give_back: bool) -> None:
        """Give every group that no call holds its final state."""
        with self._ending:
            self._pipeline.close()
            flow = self._pipeline.flow
            groups = flow.scheduler.unfinished()
            if not groups:
                return
            taken = [False] * len(groups)
            if give_back:
                taken = self._source.give_back([group.prompt for group in groups])
            for state, took in ((GroupState.RETURNED, True), (GroupState.ABANDONED, False)):
                ended = [group for group, back in zip(groups, taken, strict=True) if back is took]
                if ended:
                    flow.end(ended, state)
                    logger.warning(
                        "%d unfinished groups are %s, %d of them complete and not delivered: group_index %s",
                        len(ended),
                        "returned to the data source" if took else "abandoned",
                        sum(group.result is not None for group in ended),
                        [group.prompt[0].group_index for group in ended][:20],
                    )

    def _finish(self, *, give_back: bool) -> None:
        """Settle everything and let go of journal and exit hooks; the caller holds the right to call."""
        self._stopped = True
        self._settle(give_back=give_back)
        if give_back:
            self._source.given_up(self._pipeline.flow.take_ended())
        atexit.unregister(self.stop)
        release_sigterm(self)
        self.journal.close(1.0)

    def _in_loop(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function where the groups live: in the loop, or right here once there is no loop any more."""
        if self._loop is not None:
            try:
                return self._loop.call(function, *args, **kwargs)
            except LoopDiedError:
                logger.debug("The loop has ended; its groups are settled here")
        return function(*args, **kwargs)
