"""What becomes of each group: the scheduler's steps, booked, counted, journalled and watched.

- A result with bad content: rejected; a fresh prompt takes its place.
- No result (deadline, task failed, forgotten too often, undecodable): back into the queue after a growing
  pause, with the prompt as it was drawn; given up after ``polar_max_prompt_attempts`` such failures, or
  ``polar_max_prompt_deadlines`` deadlines.
- No result because the server was away: back into the queue, without counting against the prompt.
- The request was refused for good (4xx): held, and replaced. When the server accepts another request, the
  fault was the prompt's and it is given up; when refusals go on, the set-up is at fault: the run stops, and
  all held prompts are still there.

Everything here is synchronous and belongs to one thread at a time.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Sequence
from typing import Any

from slime_bridge.acceptance import Accepted, Rejected, RejectReason, too_stale
from slime_bridge.batch import DeliveredGroup, DrawnGroup, Report, Step
from slime_bridge.config import PolarSlimeConfig
from slime_bridge.errors import (
    BridgeError,
    InfrastructureError,
    InfrastructureStreakError,
    ProtocolError,
    SubmitRejectedError,
    TaskFailedError,
)
from slime_bridge.group_task import JudgedGroup, PromptGroup
from slime_bridge.groups import GroupState, SchedulerCounts
from slime_bridge.health import HealthMonitor
from slime_bridge.journal import EventLog, prompt_fields
from slime_bridge.ledger import Ledger, LedgerSnapshot
from slime_bridge.retry import RetryPolicy
from slime_bridge.scheduler import Scheduler
from slime_bridge.window import RolloutWindow

__all__ = ["GroupFlow", "failure_reason"]

logger = logging.getLogger(__name__)

_PAUSE = RetryPolicy(initial=1.0, factor=2.0, max_delay=60.0)


class GroupFlow:
    """The groups of one worker.

    Parameters
    ----------
    config
        The configuration.
    journal
        Notes every event.
    rng
        Source of the jitter of pauses.
    keep_samples
        Keep the samples of rejected groups until the next batch.
    asks_filter
        Let the call ask the trainer's filter about each accepted group.

    Attributes
    ----------
    stop_reason : BridgeError or None
        Why the worker has to stop; set once.
    last_error : str
        The latest failure, for progress lines.
    """

    def __init__(
        self,
        config: PolarSlimeConfig,
        journal: EventLog,
        *,
        rng: random.Random | None = None,
        keep_samples: bool = False,
        asks_filter: bool = False,
    ) -> None:
        self.stop_reason: BridgeError | None = None
        self.last_error = ""
        self.window = RolloutWindow(keep_samples)
        self.ledger = Ledger()
        self._config = config
        self._journal = journal
        self._rng = rng if rng is not None else random.Random()
        self._health = HealthMonitor(config)
        self._refusals = 0
        self._ended: list[int] = []
        self._asks_filter = asks_filter
        self._undecided: dict[int, tuple[DrawnGroup, JudgedGroup]] = {}
        surplus = (config.over_sampling_batch_size or 0) > config.rollout_batch_size
        self.scheduler: Scheduler[PromptGroup, JudgedGroup] = Scheduler(
            max_groups=config.max_groups_in_flight,
            max_sessions=config.max_sessions_in_flight,
            max_staleness=config.max_staleness,
            window=config.max_groups_in_flight if config.fully_async else None,
            max_failures=config.max_prompt_attempts,
            max_deadlines=config.max_prompt_deadlines,
            draw_quantum=(config.over_sampling_batch_size or 1) if surplus else 1,
            observer=self.ledger,
        )

    # The call

    @property
    def calling(self) -> bool:
        """Whether a call is in progress."""
        return self.scheduler.calling

    def begin(self, rollout_id: int, wanted: int) -> None:
        """Begin a call; one that an interrupt left behind is ended first."""
        self.scheduler.end_request()
        note = self.scheduler.request(rollout_id, wanted)
        if note is not None:
            logger.warning(
                "Rollout id %d is %s: %s",
                rollout_id,
                "asked for again" if note == "repeated" else "lower than the one before",
                "groups carry the id of the call that submitted them, and their lag is counted from it"
                if note == "repeated"
                else "groups under way carry this id from now on, and their lag is counted from it",
            )
        self._journal.record("rollout_requested", rollout_id=rollout_id, wanted=wanted)

    def add(self, prompts: Sequence[PromptGroup]) -> None:
        """Take drawn prompts in."""
        for group in self.scheduler.add([(prompt, len(prompt)) for prompt in prompts], time.monotonic()):
            self._journal.record(
                "group_drawn",
                group=group.group_id,
                group_index=group.prompt[0].group_index,
                sample_indices=[sample.index for sample in group.prompt],
                **(prompt_fields(group.prompt[0].prompt) if self._journal.path is not None else {}),
            )

    def step(self, *, away: bool) -> Step:
        """Move the call on; `away` says that the server is not there, so drawing prompts is no use."""
        stale: list[int] = []
        for group, lag in self.scheduler.reject_stale(RejectReason.TOO_STALE):
            stale.append(group.group_id)
            self._undecided.pop(group.group_id, None)
            self._note_rejected(group, group.result, too_stale(lag, self._config.max_staleness))
        counts = self.scheduler.counts(time.monotonic())
        undecided = [(group_id, judged) for group_id, (_, judged) in sorted(self._undecided.items())]
        draw = 0 if away or undecided else self.scheduler.to_draw()
        batch = [] if undecided else self.scheduler.take()
        ended, self._ended = self._ended, []
        return Step(
            batch=batch,
            draw=draw,
            ended=ended,
            stale=stale,
            pending=self.scheduler.pending,
            counts=counts,
            undecided=undecided,
        )

    def decided(self, group_id: int, verdict: Accepted | Rejected) -> None:
        """Hear what the trainer's filter says of a group that `step` has asked about."""
        group, judged = self._undecided.pop(group_id)
        if group.state is not GroupState.BUFFERED:
            return  # somebody stopped the worker meanwhile
        self._note_verdict(group, verdict)
        if isinstance(verdict, Rejected):
            self.scheduler.drop(group_id, verdict.reason)
            self._note_rejected(group, judged, verdict)
        else:
            self.window.accept()
        self._health.filtered(verdict)

    def take_ended(self) -> list[int]:
        """Return ``group_index`` of the prompts that ended without training since this was last asked."""
        ended, self._ended = self._ended, []
        return ended

    def moves(self, *, away: bool) -> bool:
        """Tell whether the call has something to do: take a batch, draw prompts, or stop waiting in vain."""
        if not self.calling:
            return False
        # Asked after every step of every group: nothing here looks at each of them.
        return (
            self.stop_reason is not None
            or self.scheduler.enough
            or bool(self._undecided)
            or not self.scheduler.pending
            or (not away and self.scheduler.to_draw() > 0)
        )

    def prune(self, dropped: Sequence[tuple[DeliveredGroup, Rejected]]) -> None:
        """Reject groups that `step` has handed out and the call does not want."""
        for delivery, verdict in dropped:
            self.scheduler.drop(delivery.group.group_id, verdict.reason)
            self._note_rejected(delivery.group, delivery.result, verdict)

    def commit(self, batch: Sequence[DeliveredGroup], totals: dict[str, float], processed: int = 0) -> Report:
        """Make the call's batch final.

        Parameters
        ----------
        batch
            What `step` handed out.
        processed
            Rejected groups, the oldest, whose samples the trainer's hook has seen.
        totals
            Counts since the worker started, by metric name without ``polar/``.
        """
        now = time.monotonic()
        counts = self.scheduler.counts(now)
        self.scheduler.commit()
        self._health.delivered()
        del self.window.rejected_samples[:processed]
        for delivery in batch:
            self._journal.record(
                "group_delivered",
                group=delivery.group.group_id,
                rollout_id=delivery.rollout_id,
                policy_version=delivery.policy_version,
                staleness=delivery.staleness,
                staleness_in_flight=delivery.staleness_in_flight,
                staleness_in_queue=delivery.staleness_in_queue,
            )
        snapshot = self.ledger.check(self.scheduler.counts(now))
        return Report(counts, snapshot, self.window.close(now, totals))

    def counts(self) -> SchedulerCounts:
        """Count the groups in each live state."""
        return self.scheduler.counts(time.monotonic())

    def audit(self) -> LedgerSnapshot:
        """Return the books, checked against the scheduler."""
        return self.ledger.check(self.counts())

    # The server

    def admit(self, limit: int | None) -> list[DrawnGroup]:
        """Put groups into flight, at most `limit` of them where that is not None; none once it is to stop."""
        if self.stop_reason is not None:
            return []
        admitted = self.scheduler.admit(time.monotonic(), limit)
        self.window.counters["deferred_queue_dequeues"] += sum(group.admissions > 1 for group in admitted)
        return admitted

    def next_ready_in(self) -> float:
        """Tell in how many seconds a queued group ends its pause; infinity where none is in one."""
        now = time.monotonic()
        return self.scheduler.next_ready_at(now) - now

    def stamp(self, group_id: int) -> int:
        """Return the policy version that a new attempt of this group carries."""
        return self.scheduler.restamp(group_id, time.monotonic())

    def server_accepted(self) -> None:
        """Hear that the server took a request: requests that it refused before were at fault themselves."""
        self._refusals = 0
        self.window.counters["submitted_tasks"] += 1
        for group in self.scheduler.give_up_suspended("submit_rejected"):
            self._note_given_up(group)

    def judged(self, group: DrawnGroup, judged: JudgedGroup) -> None:
        """Book a group whose result was judged."""
        if not self.scheduler.in_flight(group.group_id):
            return
        verdict, sessions = judged.verdict, judged.conversion.sessions
        rejected = verdict if isinstance(verdict, Rejected) else None
        undecided = self._asks_filter and rejected is None
        if not undecided:
            self._note_verdict(group, verdict)
        if rejected is not None:
            self.scheduler.reject(group.group_id, rejected.reason)
            self._note_rejected(group, judged, rejected)
        else:
            self.scheduler.accept(group.group_id, judged, time.monotonic())
            self.window.counters["output_queue_full_waits"] += self.scheduler.at_rest
            if undecided:
                self._undecided[group.group_id] = group, judged
            else:
                self.window.accept()
        self.stop(self._health.judged(sessions, rejected, verdict.numbers["trainable_tokens"]))

    def failed(self, group: DrawnGroup, reason: str, error: Exception) -> None:
        """Put a group without a result back into the queue, or give its prompt up."""
        if not self.scheduler.in_flight(group.group_id):
            return
        self.last_error = f"{type(error).__name__}: {error}"
        counted = reason != "outage"
        pause = _PAUSE.delay(group.failures + 1, self._rng) if counted else 0.0
        again = self.scheduler.requeue(
            group.group_id,
            reason=reason,
            error=self.last_error,
            ready_at=time.monotonic() + pause,
            counted=counted,
            expired=reason == "deadline",
        )
        if not again:
            self._note_given_up(group)
            return
        self.window.counters["requeued_groups"] += 1
        logger.info("Group %d goes back into the queue (%s): %s", group.group_id, reason, self.last_error)
        self._journal.record("group_requeued", group=group.group_id, reason=reason, detail=self.last_error)

    def refused(self, group: DrawnGroup, error: SubmitRejectedError) -> None:
        """Hold a group whose request the server refused for good."""
        if not self.scheduler.in_flight(group.group_id):
            return
        self.last_error = str(error)
        self._refusals += 1
        if self._refusals == 1:
            logger.error("The rollout server refused a task request: %s", error)
        self.scheduler.suspend(group.group_id, reason="submit_rejected", error=self.last_error)
        self._journal.record(
            "group_requeued", group=group.group_id, reason="submit_rejected", detail=self.last_error
        )
        if self._refusals >= self._health.give_up_limit:
            stop = InfrastructureStreakError(
                f"the rollout server refused {self._refusals} task requests in a row and accepted none in "
                f"between; the last answer: {error}"
            )
            stop.__cause__ = error
            self.stop(stop)

    def stop(self, reason: BridgeError | None) -> None:
        """Note why the worker has to stop; None and later reasons change nothing."""
        if reason is not None and self.stop_reason is None:
            self.stop_reason = reason
            logger.error("The rollout worker stops: %s", reason)

    # The end

    def end(self, groups: Sequence[DrawnGroup], state: GroupState, reason: str = "") -> None:
        """Close groups that nobody will finish: returned to the data source, or abandoned."""
        self.scheduler.end(groups, state, reason)
        self.window.counters[f"{state}_groups"] += len(groups)
        for group in groups:
            self._journal.record(f"group_{state}", group=group.group_id, reason=reason)

    def _note_verdict(self, group: DrawnGroup, verdict: Accepted | Rejected) -> None:
        self._journal.record(
            "verdict",
            group=group.group_id,
            accepted=isinstance(verdict, Accepted),
            reason=verdict.reason if isinstance(verdict, Rejected) else None,
            numbers=verdict.numbers,
        )

    def _note_rejected(self, group: DrawnGroup, judged: JudgedGroup | None, verdict: Rejected) -> None:
        self._note_ended(group)
        self.window.reject(judged, verdict.reason, verdict.numbers.get("filter_reason"))
        why = judged and next((s.detail for s in judged.conversion.sessions if s.detail), None)
        logger.info(
            "Group %d is rejected (%s): %s%s", group.group_id, verdict.reason, verdict.numbers, why or ""
        )
        fields: dict[str, Any] = {
            "group": group.group_id,
            "reason": str(verdict.reason),
            "numbers": verdict.numbers,
        }
        self._journal.record("group_rejected", **fields)
        if judged is not None:
            samples = judged.conversion.samples
            self._journal.rejected_group(**fields, rollout_id=self.scheduler.version, samples=samples)

    def _note_given_up(self, group: DrawnGroup) -> None:
        self._note_ended(group)
        self.window.counters["given_up_groups"] += 1
        logger.warning(
            "The prompt of group %d (group_index %s) is given up after %d attempts: %s",
            group.group_id,
            group.prompt[0].group_index,
            group.admissions,
            group.last_error,
        )
        self._journal.record(
            "group_given_up",
            group=group.group_id,
            group_index=group.prompt[0].group_index,
            attempts=group.admissions,
            last_error=group.last_error,
        )
        self.stop(self._health.gave_up(group.last_error))

    def _note_ended(self, group: DrawnGroup) -> None:
        if group.prompt[0].group_index is not None:
            self._ended.append(group.prompt[0].group_index)


def failure_reason(error: BridgeError) -> str | None:
    """Return the short word for a failure that is no verdict on the content; None for other errors."""
    if isinstance(error, InfrastructureError):
        return error.reason
    if isinstance(error, TaskFailedError):
        return "task_failed"
    return "undecodable" if isinstance(error, ProtocolError) else None
