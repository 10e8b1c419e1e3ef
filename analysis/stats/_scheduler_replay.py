"""The bridge's scheduler on recorded arrivals: one event loop around `slime_bridge.scheduler.Scheduler`.

The trainer's calls, the drawing of prompts, admission, verdicts, staleness and delivery go through the very
state machine that production uses; only time, sessions and the trainer are simulated. Prompts come in
recorded order, and again from the start when they run out.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from analysis.stats._arrivals import Arrivals, Job
from analysis.stats._engine import Engine
from slime_bridge.acceptance import Rejected, RejectReason, judge
from slime_bridge.adapter import SessionReason
from slime_bridge.config import PolarSlimeConfig
from slime_bridge.conversion.groups import GroupConversion, SessionOutcome
from slime_bridge.groups import Delivery, Group
from slime_bridge.scheduler import Scheduler

__all__ = ["Replayed", "ServedRollout", "replay_scheduler"]

_MOST_EVENTS = 5_000_000


@dataclass(frozen=True, slots=True)
class ServedRollout:
    """One simulated call; times in seconds from the start."""

    rollout_id: int
    requested: float
    delivered: float
    lags: tuple[tuple[int, int, int], ...]


@dataclass(slots=True, eq=False)
class Replayed:
    """What a simulation gave.

    Parameters
    ----------
    rollouts
        The calls, in order.
    rejected
        Groups, sessions and session-seconds by reason.
    stopped
        Sessions that were stopped as surplus, and the seconds that this saved.
    busy_seconds
        Session-seconds in service.
    beside_trainer
        Session-seconds in service while the trainer was busy elsewhere, and how many seconds it was.
    unfinished
        Groups and session-seconds that nobody waited for at the end.
    """

    rollouts: list[ServedRollout] = field(default_factory=list)
    rejected: dict[str, list[float]] = field(default_factory=dict)
    delivered: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    stopped: list[float] = field(default_factory=lambda: [0.0, 0.0])
    busy_seconds: float = 0.0
    beside_trainer: list[float] = field(default_factory=lambda: [0.0, 0.0])
    unfinished: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])


@dataclass(slots=True, eq=False)
class _Flight:
    """A group in flight."""

    number: int
    job: Job
    left: set[int]
    usable: int = 0
    spent: dict[int, float] = field(default_factory=dict)
    began: dict[int, float] = field(default_factory=dict)
    stopped: set[int] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class _Simulation:
    arrivals: Arrivals
    config: PolarSlimeConfig
    max_staleness: int
    early_stop: bool
    engine: Engine
    works: list[list[float]]
    busy: Callable[[int, float], float]
    result: Replayed = field(default_factory=Replayed)
    flights: dict[int, _Flight] = field(default_factory=dict)
    events: list[tuple[float, int, str, int, int]] = field(default_factory=list)
    scheduler: Scheduler[int, Job] = field(init=False)
    _jobs: itertools.cycle[int] = field(init=False)
    _ticket: itertools.count[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        config = self.config
        surplus = (config.over_sampling_batch_size or 0) > config.rollout_batch_size
        self.scheduler = Scheduler(
            max_groups=config.max_groups_in_flight,
            max_sessions=config.max_sessions_in_flight,
            max_staleness=self.max_staleness,
            window=config.max_groups_in_flight if config.fully_async else None,
            draw_quantum=(config.over_sampling_batch_size or 1) if surplus else 1,
        )
        self._jobs = itertools.cycle(range(len(self.arrivals.jobs)))

    def run(self) -> Replayed:
        """Serve every recorded rollout."""
        at = 0.0
        for number, rollout in enumerate(self.arrivals.rollouts):
            self._pass_beside_trainer(at)
            self.scheduler.request(rollout.rollout_id, rollout.wanted)
            handed = self._serve(number)
            at = handed + self.busy(number, handed)
        for flight in self.flights.values():
            self.result.unfinished[0] += 1
            self.result.unfinished[1] += len(flight.job.services)
            self.result.unfinished[2] += self._spent(flight)
        self.result.busy_seconds = self.engine.busy_seconds
        return self.result

    def _serve(self, number: int) -> float:
        requested = self.engine.now
        for _ in range(_MOST_EVENTS):
            batch = self._settle()
            if batch:
                lags = tuple((d.staleness, d.staleness_in_flight, d.staleness_in_queue) for d in batch)
                for delivery in batch:
                    self._count(self.result.delivered, delivery.result)
                self.scheduler.commit()
                self.scheduler.end_request()
                rollout = self.arrivals.rollouts[number].rollout_id
                self.result.rollouts.append(ServedRollout(rollout, requested, self.engine.now, lags))
                return self.engine.now
            self._step()
        raise RuntimeError("the simulated scheduler never served a rollout")

    def _settle(self) -> list[Delivery[int, Job]]:
        """Do what the worker does at each move: drop the stale, take a batch, draw, admit."""
        for group, _ in self.scheduler.reject_stale(RejectReason.TOO_STALE):
            flight = self.flights.pop(group.group_id, None)
            if flight is not None:
                for session in flight.left:
                    self.engine.cancel((group.group_id, session))
                self._reject(str(RejectReason.TOO_STALE), flight.job, self._spent(flight))
            elif group.result is not None:
                self._reject(str(RejectReason.TOO_STALE), group.result, float(group.result.services.sum()))
        wanted = self.scheduler.to_draw()
        batch = self.scheduler.take()
        if wanted:
            drawn = [next(self._jobs) for _ in range(wanted)]
            self.scheduler.add(
                [(job, len(self.arrivals.jobs[job].services)) for job in drawn], self.engine.now
            )
        for group in self.scheduler.admit(self.engine.now):
            self._submit(group)
        return batch

    def _submit(self, group: Group[int, Job]) -> None:
        job = self.arrivals.jobs[group.prompt]
        flight = _Flight(group.prompt, job, set(range(len(job.services))))
        self.flights[group.group_id] = flight
        waits = job.waits
        if self.engine.slots is not None and job.queued is not None:
            waits = waits - job.queued  # the engine makes them queue for a place
        for session, wait in enumerate(waits):
            delay = job.sending + job.lost + float(wait)
            self._later(self.engine.now + delay, "start", group.group_id, session)

    def _step(self) -> None:
        """Go to the next event."""
        due = self.events[0][0] if self.events else math.inf
        end = self.engine.next_end()
        if min(due, end) == math.inf:
            raise RuntimeError("the simulated scheduler waits for nothing")
        if end <= due:
            self.engine.advance(end)
            self._ended(*self.engine.pop())
            return
        self.engine.advance(due)
        _, _, kind, group, session = heapq.heappop(self.events)
        if kind == "start":
            self._started(group, session)
        else:
            self._judged(group)

    def _pass_beside_trainer(self, until: float) -> None:
        since, ran = self.engine.now, self.engine.busy_seconds
        self._pass(until)
        self.result.beside_trainer[0] += self.engine.busy_seconds - ran
        self.result.beside_trainer[1] += self.engine.now - since

    def _pass(self, until: float) -> None:
        """Let time pass between two calls: sessions end and queued groups start, but nothing is drawn."""
        while min(self.events[0][0] if self.events else math.inf, self.engine.next_end()) <= until:
            self._step()
            for group in self.scheduler.admit(self.engine.now):
                self._submit(group)
        self.engine.advance(until)

    def _started(self, group: int, session: int) -> None:
        flight = self.flights.get(group)
        if flight is None or session not in flight.left:
            return
        flight.began[session] = self.engine.now
        self.engine.submit((group, session), self.works[flight.number][session])

    def _ended(self, group: int, session: int) -> None:
        flight = self.flights[group]
        flight.left.discard(session)
        flight.spent[session] = self.engine.now - flight.began[session]
        outcome = flight.job.outcomes[session]
        flight.usable += outcome.usable and not outcome.early_stopped
        enough = self.config.early_stop_min_usable_sessions(len(flight.job.services))
        if self.early_stop and enough is not None and flight.usable >= enough and flight.left:
            for other in flight.left:
                self.engine.cancel((group, other))
                self.result.stopped[0] += 1
                self.result.stopped[1] += float(flight.job.services[other])
            flight.stopped = set(flight.left)
            flight.left.clear()
        if not flight.left:
            self._later(self.engine.now + flight.job.overhead, "judge", group, 0)

    def _judged(self, group: int) -> None:
        flight = self.flights.pop(group, None)
        if flight is None:
            return
        sessions = [
            _stopped(outcome) if place in flight.stopped else outcome
            for place, outcome in enumerate(flight.job.outcomes)
        ]
        verdict = judge(GroupConversion([], sessions), settings=self.config)
        if flight.job.filtered and not isinstance(verdict, Rejected):
            verdict = Rejected(RejectReason.FILTERED, verdict.numbers)
        if isinstance(verdict, Rejected):
            self.scheduler.reject(group, verdict.reason)
            self._reject(str(verdict.reason), flight.job, self._spent(flight))
        else:
            self.scheduler.accept(group, flight.job, self.engine.now)

    def _spent(self, flight: _Flight) -> float:
        running = sum(self.engine.now - flight.began[s] for s in flight.left if s in flight.began)
        return sum(flight.spent.values()) + running

    def _count(self, counts: list[float], job: Job) -> None:
        counts[0] += 1
        counts[1] += len(job.services)
        counts[2] += float(job.services.sum())

    def _reject(self, reason: str, job: Job, seconds: float) -> None:
        counts = self.result.rejected.setdefault(reason, [0.0, 0.0, 0.0])
        counts[0] += 1
        counts[1] += len(job.services)
        counts[2] += seconds

    def _later(self, at: float, kind: str, group: int, session: int) -> None:
        heapq.heappush(self.events, (at, next(self._ticket), kind, group, session))


def _stopped(outcome: SessionOutcome) -> SessionOutcome:
    return replace(
        outcome,
        completed=False,
        usable=False,
        early_stopped=True,
        trainable_tokens=0,
        reason=str(SessionReason.EARLY_STOPPED),
    )


def replay_scheduler(
    arrivals: Arrivals,
    config: PolarSlimeConfig,
    *,
    max_staleness: int,
    early_stop: bool,
    contention: float,
    slots: int | None,
    works: list[list[float]],
    busy: Callable[[int, float], float],
) -> Replayed:
    """Serve the recorded rollouts from the recorded arrivals under other settings.

    Parameters
    ----------
    arrivals
        The record.
    config
        The settings.
    max_staleness
        Largest accepted lag.
    early_stop
        Whether the server stops a group's stragglers once enough sessions are usable.
    contention, slots
        Of the `Engine`.
    works
        Work of each session of each job.
    busy
        Given the number of a rollout and when it was delivered, the seconds until the next call.
    """
    engine = Engine(contention=contention, slots=slots)
    simulation = _Simulation(arrivals, config, max_staleness, early_stop, engine, works, busy)
    return simulation.run()
