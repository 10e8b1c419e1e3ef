"""Random schedules: conservation, caps, staleness bound, no double delivery, no lost group.

``SCHEDULER_SCHEDULES=10000`` runs that many schedules in place of the default number.
"""

import os

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from slime_bridge.groups import GroupState
from slime_bridge.ledger import Ledger
from slime_bridge.scheduler import Scheduler

SCHEDULES = int(os.environ.get("SCHEDULER_SCHEDULES", "400"))

pytestmark = pytest.mark.timeout(60 + SCHEDULES // 10)


class Schedules(RuleBasedStateMachine):
    """A data source, a server and a trainer that do anything in any order around one scheduler."""

    @initialize(
        max_groups=st.integers(1, 6),
        max_sessions=st.integers(1, 12),
        max_staleness=st.integers(0, 3),
        window=st.none() | st.integers(1, 8),
        max_failures=st.integers(1, 4),
        draw_quantum=st.integers(1, 3),
        first=st.integers(0, 5),
    )
    def build(self, first, **limits):
        self.ledger = Ledger()
        self.scheduler = Scheduler(observer=self.ledger, **limits)
        self.now = 0.0
        self.rollout_id = first - 1
        self.wanted = 0  # of the running call, 0 between calls
        self.source = 0  # next prompt
        self.buffer = []  # prompts given back to the data source
        self.drawn = []  # prompts in draw order
        self.flying = {}  # group id -> group
        self.versions = {}  # group id -> stamp as the server saw it
        self.ended = {}  # prompt -> how
        self.delivered = []  # (rollout id, group id, version)
        self.suspended = set()
        self.reserved = 0
        self.closed = False

    def draw(self):
        if self.buffer:
            return self.buffer.pop(0)
        self.source += 1
        return self.source - 1

    def some_flying(self, data):
        return data.draw(st.sampled_from(sorted(self.flying)), label="group")

    def finish(self, group, how):
        prompt = group.prompt
        assert prompt not in self.ended, f"prompt {prompt} ended {self.ended[prompt]} and {how}"
        self.ended[prompt] = how

    # The trainer

    @precondition(lambda self: not self.closed and not self.wanted)
    @rule(step=st.sampled_from([1, 1, 1, 1, 2, 0, -1]), wanted=st.integers(1, 5))
    def call(self, step, wanted):
        self.rollout_id = max(0, self.rollout_id + step)
        self.scheduler.request(self.rollout_id, wanted)
        self.wanted = wanted

    @precondition(lambda self: not self.closed and self.wanted)
    @rule(sizes=st.lists(st.integers(1, 4), min_size=18, max_size=18))
    def pull(self, sizes):
        number = self.scheduler.to_draw()
        prompts = [(self.draw(), size) for size, _ in zip(sizes, range(number), strict=False)]
        assert len(prompts) == number
        for prompt, _ in prompts:
            self.ended.pop(prompt, None)  # a prompt that was returned begins a new life
            self.drawn.append(prompt)
        self.scheduler.add(prompts, self.now)

    @precondition(lambda self: not self.closed and self.wanted)
    @rule(commit=st.booleans())
    def collect(self, commit):
        for group, staleness in self.scheduler.reject_stale("too_stale"):
            assert staleness == self.rollout_id - self.versions[group.group_id] > self.scheduler.max_staleness
            self.flying.pop(group.group_id, None)
            self.finish(group, "rejected")
        batch = self.scheduler.take()
        if not batch:
            assert self.scheduler.counts(self.now).buffered < self.wanted
            return
        assert len(batch) == self.wanted
        ids = [delivery.group.group_id for delivery in batch]
        assert ids == sorted(ids)
        for delivery in batch:
            version = self.versions[delivery.group.group_id]
            assert delivery.policy_version == version
            assert delivery.staleness == self.rollout_id - version <= self.scheduler.max_staleness
            assert delivery.staleness == delivery.staleness_in_flight + delivery.staleness_in_queue
            assert delivery.result == f"result of {delivery.group.prompt}"
        if commit:
            assert self.scheduler.commit() == self.wanted
            for delivery in batch:
                self.finish(delivery.group, "delivered")
                self.delivered.append(delivery.group.group_id)
        self.scheduler.end_request()
        self.wanted = 0

    @precondition(lambda self: not self.closed and self.wanted)
    @rule()
    def interrupt(self):
        self.scheduler.end_request()
        self.wanted = 0

    # The server

    @precondition(lambda self: not self.closed)
    @rule(limit=st.none() | st.integers(0, 3))
    def admit(self, limit):
        for group in self.scheduler.admit(self.now, limit):
            assert group.group_id not in self.suspended
            self.flying[group.group_id] = group
            self.versions[group.group_id] = self.rollout_id

    @precondition(lambda self: not self.closed and self.flying)
    @rule(data=st.data())
    def new_attempt(self, data):
        group_id = self.some_flying(data)
        self.versions[group_id] = self.scheduler.restamp(group_id, self.now)
        assert self.versions[group_id] == self.rollout_id

    @precondition(lambda self: not self.closed and self.flying)
    @rule(
        data=st.data(),
        outcome=st.sampled_from(["accept", "accept", "accept", "reject", "requeue", "suspend"]),
    )
    def complete(self, data, outcome):
        group_id = self.some_flying(data)
        group = self.flying.pop(group_id)
        if outcome == "accept":
            self.scheduler.accept(group_id, f"result of {group.prompt}", self.now)
        elif outcome == "reject":
            self.scheduler.reject(group_id, "zero_trainable")
            self.finish(group, "rejected")
        elif outcome == "suspend":
            self.scheduler.suspend(group_id, reason="submit_rejected", error="422")
            self.suspended.add(group_id)
        else:
            again = self.scheduler.requeue(
                group_id,
                reason="deadline",
                error="late",
                ready_at=self.now + data.draw(st.sampled_from([0.0, 1.0, 5.0])),
                counted=data.draw(st.booleans()),
            )
            if not again:
                assert group.failures == self.scheduler.max_failures
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

    @precondition(lambda self: not self.closed and not self.wanted)
    @rule(returned=st.booleans())
    def stop(self, returned):
        unfinished = self.scheduler.unfinished()
        self.scheduler.end(unfinished, GroupState.RETURNED if returned else GroupState.ABANDONED)
        for group in unfinished:
            self.finish(group, "returned" if returned else "abandoned")
            if returned:
                self.buffer.append(group.prompt)
        assert self.ledger.check().live == 0
        assert len(self.delivered) == len(set(self.delivered))
        self.flying, self.suspended = {}, set()
        self.closed = True

    @precondition(lambda self: self.closed)
    @rule()
    def resume(self):
        """Go on with a new worker over the same data source."""
        limits = {
            name: getattr(self.scheduler, name)
            for name in (
                "max_groups",
                "max_sessions",
                "max_staleness",
                "window",
                "max_failures",
                "draw_quantum",
            )
        }
        self.ledger = Ledger()
        self.scheduler = Scheduler(observer=self.ledger, **limits)
        self.versions, self.delivered, self.drawn = {}, [], []
        self.reserved = 0
        self.closed = False

    @invariant()
    def books_balance(self):
        if not hasattr(self, "ledger"):
            return
        counts = self.scheduler.counts(self.now)
        snapshot = self.ledger.check(counts)
        assert snapshot.drawn == len(self.drawn)
        assert counts.in_flight == len(self.flying)
        assert counts.suspended == len(self.suspended)

    @invariant()
    def caps_hold(self):
        if not hasattr(self, "ledger"):
            return
        counts = self.scheduler.counts(self.now)
        assert counts.in_flight <= self.scheduler.max_groups
        sessions = counts.in_flight_sessions + counts.reserved_sessions
        alone = counts.in_flight + (counts.reserved_sessions > 0) <= 1
        assert sessions <= self.scheduler.max_sessions or alone

    @invariant()
    def no_prompt_is_lost(self):
        if not hasattr(self, "ledger"):
            return
        live = {group.prompt for group in self.scheduler.unfinished()}
        assert not live & set(self.ended)
        waiting = set(self.buffer)
        assert {p for p, how in self.ended.items() if how == "returned"} == waiting
        assert live | set(self.ended) == set(range(self.source))


TestSchedules = Schedules.TestCase
TestSchedules.settings = settings(
    max_examples=SCHEDULES,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
