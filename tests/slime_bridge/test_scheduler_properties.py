"""Random schedules: conservation, caps, staleness bound, no double delivery, no lost group.

``SCHEDULER_SCHEDULES=10000`` runs that many schedules in place of the default number.
"""

import itertools
import os

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from slime_bridge.groups import GroupState
from slime_bridge.ledger import Ledger
from slime_bridge.scheduler import Scheduler

SCHEDULES = int(os.environ.get("SCHEDULER_SCHEDULES", "100"))
LIMITS = st.sampled_from([None, None, None, 0, 1, 2])
OUTCOMES = st.sampled_from(
    ["accept"] * 8
    + ["reject", "reject", "suspend"]
    + [(0.0, True, False), (0.0, False, False), (3.0, True, True), (3.0, False, True)]
)

pytestmark = pytest.mark.timeout(60 + SCHEDULES)


class Schedules(RuleBasedStateMachine):
    """A data source, a server and a trainer that do anything in any order around one scheduler.

    The machine keeps its own books from what it was handed and compares them with the scheduler and the
    ledger after every step.
    """

    source = 0  # prompts drawn from the data set so far

    @initialize(
        max_groups=st.integers(1, 6),
        max_sessions=st.integers(1, 12),
        max_staleness=st.integers(0, 3),
        window=st.none() | st.integers(1, 8),
        max_failures=st.integers(1, 4),
        max_deadlines=st.integers(1, 3),
        draw_quantum=st.integers(1, 3),
        first=st.integers(0, 5),
    )
    def build(self, first, **limits):
        self.limits = limits
        self.rollout_id = first - 1
        self.now = 0.0
        self.returned = []  # prompts given back to the data source
        self.ended = {}  # prompt -> how
        self.start()

    def start(self):
        self.ledger = Ledger()
        self.scheduler = Scheduler(observer=self.ledger, **self.limits)
        self.version = None  # what a submission must carry
        self.wanted = 0  # of the running call, 0 between calls
        self.drawn = 0
        self.delivered = []
        self.flying = {}  # group id -> group
        self.accepted = set()
        self.suspended = set()
        self.versions = {}  # group id -> stamp as the server saw it
        self.failures = {}  # group id -> failures that count
        self.deadlines = {}  # group id -> of these, whole deadlines
        self.reserved = 0
        self.closed = False

    def finish(self, group, how):
        assert group.prompt not in self.ended, f"{group.prompt}: {self.ended[group.prompt]}, then {how}"
        self.ended[group.prompt] = how

    def draw(self):
        if self.returned:
            prompt = self.returned.pop(0)
            del self.ended[prompt]  # it begins a new life
            return prompt
        self.source += 1
        return self.source - 1

    # The trainer

    @precondition(lambda self: not self.closed and not self.wanted)
    @rule(step=st.sampled_from([1, 1, 1, 1, 2, 0, -1]), wanted=st.integers(1, 5))
    def call(self, step, wanted):
        self.rollout_id = self.version = max(0, self.rollout_id + step)
        self.scheduler.request(self.rollout_id, wanted)
        # After a jump back the age of what is under way counts from there.
        self.versions = {group: min(version, self.version) for group, version in self.versions.items()}
        self.wanted = wanted

    @precondition(lambda self: not self.closed and self.wanted)
    @rule(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4), limit=LIMITS)
    def pull(self, sizes, limit):
        number = self.scheduler.to_draw()
        self.scheduler.add(
            [(self.draw(), s) for s, _ in zip(itertools.cycle(sizes), range(number))], self.now
        )
        self.drawn += number
        self.admit(limit)

    @precondition(lambda self: not self.closed and self.wanted)
    @rule(commit=st.sampled_from([True, True, True, False]), pruned=st.sampled_from([0, 0, 0, 1, 2]))
    def collect(self, commit, pruned):
        for group, staleness in self.scheduler.reject_stale("too_stale"):
            assert staleness == self.rollout_id - self.versions[group.group_id] > self.limits["max_staleness"]
            self.flying.pop(group.group_id, None)
            self.accepted.discard(group.group_id)
            self.finish(group, "rejected")
        batch = self.scheduler.take()
        if not batch:
            assert len(self.accepted) < self.wanted
            return
        assert [delivery.group.group_id for delivery in batch] == sorted(self.accepted)[: self.wanted]
        for delivery in batch:
            version = self.versions[delivery.group.group_id]
            assert delivery.policy_version == version
            assert 0 <= delivery.staleness == self.rollout_id - version <= self.limits["max_staleness"]
            assert min(delivery.staleness_in_flight, delivery.staleness_in_queue) >= 0
            assert delivery.staleness == delivery.staleness_in_flight + delivery.staleness_in_queue
            assert delivery.result == f"result of {delivery.group.prompt}"
        for delivery in batch[:pruned]:
            self.scheduler.drop(delivery.group.group_id, "all_wrong")
            self.accepted.remove(delivery.group.group_id)
            self.finish(delivery.group, "rejected")
        if commit:
            assert self.scheduler.commit() == len(batch[pruned:])
            for delivery in batch[pruned:]:
                self.finish(delivery.group, "delivered")
                self.delivered.append(delivery.group.group_id)
                self.accepted.remove(delivery.group.group_id)
        self.interrupt()

    @precondition(lambda self: not self.closed and self.wanted)
    @rule()
    def interrupt(self):
        self.scheduler.end_request()
        self.wanted = 0

    # The server

    @precondition(lambda self: not self.closed and self.version is not None)
    @rule(limit=LIMITS)
    def admit(self, limit):
        before = len(self.flying)
        for group in self.scheduler.admit(self.now, limit):
            assert group.group_id not in self.suspended
            assert group.ready_at <= self.now
            assert group.policy_version == self.version
            self.flying[group.group_id] = group
            self.versions[group.group_id] = self.version
        if limit is not None:
            assert len(self.flying) <= max(before, limit)

    @precondition(lambda self: not self.closed and self.flying)
    @rule(data=st.data())
    def new_attempt(self, data):
        group_id = self.some_flying(data)
        self.versions[group_id] = self.scheduler.restamp(group_id, self.now)
        assert self.versions[group_id] == self.version

    @precondition(lambda self: not self.closed and self.flying)
    @rule(data=st.data(), outcomes=st.lists(OUTCOMES, min_size=1, max_size=6))
    def complete(self, data, outcomes):
        for outcome in outcomes[: len(self.flying)]:
            group = self.flying.pop(self.some_flying(data))
            if outcome == "accept":
                self.scheduler.accept(group.group_id, f"result of {group.prompt}", self.now)
                self.accepted.add(group.group_id)
            elif outcome == "reject":
                self.scheduler.reject(group.group_id, "zero_trainable")
                self.finish(group, "rejected")
            elif outcome == "suspend":
                self.scheduler.suspend(group.group_id, reason="submit_rejected", error="422")
                self.suspended.add(group.group_id)
            else:
                self.fail(group, *outcome)

    def some_flying(self, data):
        return data.draw(st.sampled_from(sorted(self.flying)), label="group")

    def fail(self, group, delay, counted, expired):
        number = group.group_id
        self.failures[number] = self.failures.get(number, 0) + counted
        self.deadlines[number] = self.deadlines.get(number, 0) + (counted and expired)
        ready_at = self.now + delay
        again = self.scheduler.requeue(
            number, reason="deadline", error="late", ready_at=ready_at, counted=counted, expired=expired
        )
        enough = self.failures[number] >= self.limits["max_failures"]
        assert again == (not enough and self.deadlines[number] < self.limits["max_deadlines"])
        if not again:
            self.finish(group, "given up")

    @precondition(lambda self: not self.closed and self.suspended)
    @rule()
    def condemn(self):
        for group in self.scheduler.give_up_suspended("submit_rejected"):
            self.suspended.remove(group.group_id)
            self.finish(group, "given up")
        assert not self.suspended

    @precondition(lambda self: not self.closed)
    @rule(sessions=st.integers(1, 4))
    def evaluate(self, sessions):
        if self.reserved:
            self.scheduler.release(self.reserved)
            self.reserved = 0
        elif self.scheduler.reserve(sessions):
            self.reserved = sessions

    @rule(seconds=st.sampled_from([0.5, 2.0, 10.0]))
    def wait(self, seconds):
        self.now += seconds

    # The end

    @precondition(lambda self: not self.closed)
    @rule(returned=st.booleans())
    def stop(self, returned):
        if self.wanted:
            self.interrupt()
        unfinished = self.scheduler.unfinished()
        self.scheduler.end(unfinished, GroupState.RETURNED if returned else GroupState.ABANDONED)
        for group in unfinished:
            self.finish(group, "returned" if returned else "abandoned")
        self.returned += [group.prompt for group in unfinished if returned]
        assert self.ledger.check().live == 0
        assert len(self.delivered) == len(set(self.delivered))
        self.flying, self.suspended, self.accepted = {}, set(), set()
        self.closed = True

    @precondition(lambda self: self.closed)
    @rule()
    def go_on(self):
        """Start another worker over the same data source."""
        self.start()

    # What holds after every step

    @invariant()
    def books_balance(self):
        if hasattr(self, "ledger"):
            counts = self.scheduler.counts(self.now)
            snapshot = self.ledger.check(counts)
            assert snapshot.drawn == self.drawn
            assert snapshot.delivered == len(self.delivered)
            assert counts.in_flight == len(self.flying)
            assert counts.suspended == len(self.suspended)
            assert counts.buffered + counts.handed == len(self.accepted)

    @invariant()
    def caps_hold(self):
        if hasattr(self, "ledger"):
            counts = self.scheduler.counts(self.now)
            assert counts.in_flight <= self.limits["max_groups"]
            sessions = sum(group.sessions for group in self.flying.values()) + self.reserved
            alone = counts.in_flight + (self.reserved > 0) <= 1
            assert sessions <= self.limits["max_sessions"] or alone

    @invariant()
    def no_prompt_is_lost(self):
        if hasattr(self, "ledger"):
            live = [group.prompt for group in self.scheduler.unfinished()]
            assert sorted([*live, *self.ended]) == list(range(self.source))


TestSchedules = Schedules.TestCase
TestSchedules.settings = settings(
    max_examples=SCHEDULES,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
