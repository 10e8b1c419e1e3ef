"""Scheduler: what may be drawn, admitted, delivered, and what happens to everything else."""

import math

import pytest

from slime_bridge.groups import GroupState, RequestNote, Transition
from slime_bridge.ledger import Ledger
from slime_bridge.scheduler import Scheduler


def make(**settings):
    defaults = {"max_groups": 8, "max_sessions": 64, "max_staleness": 2}
    return Scheduler(**{**defaults, **settings})


def draw(scheduler, count=None, *, sessions=1, now=0.0):
    count = scheduler.to_draw() if count is None else count
    return scheduler.add([(f"prompt {i}", sessions) for i in range(count)], now)


def run(scheduler, *groups, now=1.0):
    for group in groups:
        scheduler.accept(group.group_id, f"result {group.group_id}", now)


def delivered(scheduler):
    batch = scheduler.take()
    scheduler.commit()
    scheduler.end_request()
    return [delivery.group.group_id for delivery in batch]


class TestDrawing:
    def test_nothing_is_drawn_or_admitted_before_a_call(self):
        """No group is submitted that no call has asked for."""
        scheduler = make()
        assert scheduler.to_draw() == 0
        draw(scheduler, 2)
        assert scheduler.admit(0.0) == []

    def test_a_call_draws_what_it_asked_for(self):
        """Without a window the call's own number is the limit."""
        scheduler = make()
        scheduler.request(0, 3)
        assert scheduler.to_draw() == 3
        draw(scheduler)
        assert scheduler.to_draw() == 0

    def test_nothing_is_drawn_between_calls(self):
        """The data source belongs to the calls."""
        scheduler = make(window=8)
        scheduler.request(0, 2)
        run(scheduler, *draw_and_admit(scheduler)[:2])
        assert len(delivered(scheduler)) == 2
        assert scheduler.to_draw() == 0

    def test_window_is_granted_once_and_refilled_by_what_was_consumed(self):
        """Fully async: the first call opens the window, each later one replaces what the former consumed."""
        scheduler = make(window=8)
        scheduler.request(0, 2)
        assert scheduler.to_draw() == 8
        groups = draw_and_admit(scheduler)
        run(scheduler, *groups[:5])
        assert delivered(scheduler) == [0, 1]
        scheduler.request(1, 2)
        assert scheduler.to_draw() == 2

    def test_rejected_group_is_replaced_while_the_call_waits(self):
        """A rejection gives its credit back."""
        scheduler = make(window=8)
        scheduler.request(0, 2)
        groups = draw_and_admit(scheduler)
        scheduler.reject(groups[0].group_id, "zero_trainable")
        assert scheduler.to_draw() == 1

    def test_rejection_between_calls_is_made_good_by_the_next(self):
        """The window never shrinks for good."""
        scheduler = make(window=8)
        scheduler.request(0, 2)
        groups = draw_and_admit(scheduler)
        run(scheduler, *groups[:2])
        delivered(scheduler)
        scheduler.reject(groups[7].group_id, "zero_trainable")
        assert scheduler.to_draw() == 0
        scheduler.request(1, 2)
        assert scheduler.to_draw() == 3

    def test_call_larger_than_the_window_is_served(self):
        """A window below the batch must not starve the call."""
        scheduler = make(window=2, max_groups=2)
        scheduler.request(0, 5)
        for _ in range(5):
            draw(scheduler)
            run(scheduler, *scheduler.admit(0.0))
        assert delivered(scheduler) == [0, 1, 2, 3, 4]

    def test_draw_stops_at_free_slots(self):
        """Prompts that could not be submitted anyway stay in the data source."""
        scheduler = make(max_groups=2)
        scheduler.request(0, 5)
        assert scheduler.to_draw() == 2
        draw(scheduler)
        assert scheduler.to_draw() == 0
        run(scheduler, scheduler.admit(0.0)[0])
        assert scheduler.to_draw() == 1

    def test_over_sampling_draws_in_quanta(self):
        """The surplus serves the next call."""
        scheduler = make(draw_quantum=6)
        scheduler.request(0, 4)
        assert scheduler.to_draw() == 6
        run(scheduler, *draw_and_admit(scheduler))
        assert delivered(scheduler) == [0, 1, 2, 3]
        scheduler.request(1, 2)
        assert scheduler.to_draw() == 0
        assert delivered(scheduler) == [4, 5]

    def test_positions_restart_with_each_call(self):
        """A template's task position counts within its call."""
        scheduler = make()
        scheduler.request(0, 2)
        assert [group.position for group in draw(scheduler, 2)] == [0, 1]
        run(scheduler, *scheduler.admit(0.0))
        delivered(scheduler)
        scheduler.request(1, 2)
        assert [group.position for group in draw(scheduler, 2)] == [0, 1]

    def test_group_without_sessions_is_refused(self):
        """An empty group can never be run."""
        scheduler = make()
        with pytest.raises(ValueError, match="at least one session"):
            scheduler.add([("prompt", 0)], 0.0)


def draw_and_admit(scheduler, now=0.0):
    draw(scheduler, now=now)
    return scheduler.admit(now)


class TestAdmission:
    def test_caps_hold_for_groups_and_sessions(self):
        """Never more in flight than allowed, whichever cap is met first."""
        scheduler = make(max_groups=3, max_sessions=8)
        scheduler.request(0, 10)
        scheduler.add([("p", 3) for _ in range(5)], 0.0)
        assert len(scheduler.admit(0.0)) == 2
        counts = scheduler.counts(0.0)
        assert (counts.in_flight, counts.in_flight_sessions, counts.queued) == (2, 6, 3)

    def test_oldest_first_without_overtaking(self):
        """A large group at the head is not starved by small ones behind it."""
        scheduler = make(max_sessions=4)
        scheduler.request(0, 4)
        scheduler.add([("a", 3), ("b", 2), ("c", 1)], 0.0)
        assert [g.prompt for g in scheduler.admit(0.0)] == ["a"]
        scheduler.reject(0, "x")
        assert [g.prompt for g in scheduler.admit(0.0)] == ["b", "c"]

    def test_group_above_the_session_cap_runs_alone(self):
        """A cap below one group's size must not stop the run."""
        scheduler = make(max_sessions=2)
        scheduler.request(0, 2)
        scheduler.add([("a", 5), ("b", 5)], 0.0)
        assert [g.prompt for g in scheduler.admit(0.0)] == ["a"]

    def test_back_off_is_respected(self):
        """A requeued group waits, others pass."""
        scheduler = make()
        scheduler.request(0, 2)
        first, second = draw_and_admit(scheduler)
        assert scheduler.requeue(first.group_id, reason="deadline", error="late", ready_at=5.0, counted=True)
        assert scheduler.admit(4.9) == []
        assert scheduler.next_ready_at(4.9) == 5.0
        assert scheduler.admit(5.0) == [first]
        assert scheduler.next_ready_at(5.0) == math.inf
        assert (first.prompt, first.admissions, first.last_error) == ("prompt 0", 2, "late")
        assert second.admissions == 1

    def test_limit_holds_admission_back(self):
        """A server that is not well gets a few groups, not all."""
        scheduler = make()
        scheduler.request(0, 5)
        draw(scheduler)
        assert len(scheduler.admit(0.0, limit=1)) == 1
        assert scheduler.admit(0.0, limit=1) == []
        assert len(scheduler.admit(0.0)) == 4

    def test_reserved_sessions_share_the_cap(self):
        """Evaluation and training together never exceed the cap."""
        scheduler = make(max_sessions=4)
        scheduler.request(0, 4)
        assert scheduler.reserve(3)
        draw(scheduler, 4)
        assert len(scheduler.admit(0.0)) == 1
        assert not scheduler.reserve(1)
        scheduler.release(3)
        assert len(scheduler.admit(0.0)) == 3
        with pytest.raises(ValueError, match="cannot release"):
            scheduler.release(1)

    def test_refused_claim_comes_before_new_groups(self):
        """Evaluation that had to wait is not starved by training."""
        scheduler = make(max_sessions=4)
        scheduler.request(0, 4)
        draw(scheduler, 2, sessions=2)
        first, second = scheduler.admit(0.0)
        draw(scheduler, 1, sessions=2)
        assert not scheduler.reserve(3)
        scheduler.reject(first.group_id, "x")
        assert scheduler.admit(0.0) == []
        scheduler.reject(second.group_id, "x")
        assert scheduler.admit(0.0) == []
        assert scheduler.reserve(3)
        scheduler.release(3)
        assert len(scheduler.admit(0.0)) == 1

    def test_withdrawn_claim_blocks_nobody(self):
        """An evaluation that was given up leaves no gap."""
        scheduler = make(max_sessions=2)
        scheduler.request(0, 2)
        draw(scheduler, 1, sessions=2)
        (first,) = scheduler.admit(0.0)
        draw(scheduler, 1, sessions=2)
        assert not scheduler.reserve(2)
        scheduler.release(0)
        scheduler.reject(first.group_id, "x")
        assert len(scheduler.admit(0.0)) == 1


class TestVersions:
    def test_stamp_is_the_latest_call_at_submission_and_stays(self):
        """A group submitted at 3 is of version 3, however late it comes."""
        scheduler = make(max_staleness=5, window=4)
        scheduler.request(3, 1)
        first, *rest = draw_and_admit(scheduler)
        run(scheduler, first)
        delivered(scheduler)
        for rollout_id in (4, 5):
            scheduler.request(rollout_id, 1)
            scheduler.end_request()
        scheduler.request(6, 1)
        assert rest[0].policy_version == 3
        run(scheduler, rest[0])
        (delivery,) = scheduler.take()
        assert (delivery.policy_version, delivery.staleness) == (3, 3)
        assert (delivery.staleness_in_flight, delivery.staleness_in_queue) == (3, 0)

    def test_new_attempt_is_stamped_anew(self):
        """What is resubmitted runs under the newer weights."""
        scheduler = make(window=2)
        scheduler.request(0, 1)
        first, second = draw_and_admit(scheduler)
        scheduler.end_request()
        scheduler.request(1, 1)
        assert scheduler.restamp(first.group_id, 2.0) == 1
        assert (first.policy_version, first.submitted_at) == (1, 2.0)
        assert second.policy_version == 0

    def test_lag_splits_into_flight_and_queue(self):
        """A group that finishes at once and waits three steps has staleness 3, all of it in the queue."""
        scheduler = make(window=4, max_staleness=3)
        scheduler.request(0, 1)
        first, second, *_ = draw_and_admit(scheduler)
        run(scheduler, first, second)
        delivered(scheduler)
        for rollout_id in (1, 2):
            scheduler.request(rollout_id, 1)
            scheduler.end_request()
        scheduler.request(3, 1)
        (delivery,) = scheduler.take()
        assert (delivery.staleness, delivery.staleness_in_flight, delivery.staleness_in_queue) == (3, 0, 3)

    @pytest.mark.parametrize("limit", [0, 1, 3])
    @pytest.mark.parametrize("lag", [0, 1, 2, 3, 4])
    def test_bound_is_exact(self, limit, lag):
        """Accepted exactly when rollout id - version is at most the limit; limit 0 admits one policy only."""
        scheduler = make(max_staleness=limit, window=1)
        scheduler.request(10, 1)
        run(scheduler, *draw_and_admit(scheduler))
        scheduler.end_request()
        scheduler.request(10 + lag, 1)
        stale = scheduler.reject_stale("too_stale")
        assert [lag for _, lag in stale] == ([] if lag <= limit else [lag])
        assert len(scheduler.take()) == (1 if lag <= limit else 0)

    def test_stale_groups_in_flight_end_too(self):
        """A result that would be rejected on arrival does not keep its slot."""
        scheduler = make(max_staleness=0, window=2)
        scheduler.request(0, 1)
        draw_and_admit(scheduler)
        scheduler.end_request()
        scheduler.request(1, 1)
        assert [group.group_id for group, _ in scheduler.reject_stale("too_stale")] == [0, 1]
        assert scheduler.to_draw() == 2
        assert scheduler.counts(0.0).in_flight_sessions == 0

    def test_take_never_hands_out_stale_groups(self):
        """The bound holds even when nobody asked for rejections first."""
        scheduler = make(max_staleness=0, window=1)
        scheduler.request(0, 1)
        run(scheduler, *draw_and_admit(scheduler))
        scheduler.end_request()
        scheduler.request(1, 1)
        assert scheduler.take() == []

    def test_first_id_is_taken_as_it_comes_and_odd_ids_are_noted(self):
        """A resumed run starts at its own step; repeats and jumps back are reported."""
        scheduler = make()
        notes = []
        for rollout_id in (7, 8, 8, 3):
            notes.append(scheduler.request(rollout_id, 1))
            scheduler.end_request()
        assert notes == [None, None, RequestNote.REPEATED, RequestNote.BACKWARDS]

    def test_after_a_jump_back_the_age_counts_from_there(self):
        """No negative lag, and nothing grows old unseen until the ids have caught up."""
        scheduler = make(max_staleness=1, window=3)
        scheduler.request(7, 1)
        buffered, flying, _ = draw_and_admit(scheduler)
        run(scheduler, buffered)
        scheduler.end_request()
        scheduler.request(3, 1)
        (delivery,) = scheduler.take()
        assert (delivery.policy_version, delivery.staleness) == (3, 0)
        assert (delivery.staleness_in_flight, delivery.staleness_in_queue) == (0, 0)
        scheduler.commit()
        scheduler.end_request()
        scheduler.request(4, 1)
        run(scheduler, flying)
        (delivery,) = scheduler.take()
        assert (delivery.staleness, delivery.staleness_in_flight, delivery.staleness_in_queue) == (1, 1, 0)
        scheduler.commit()
        scheduler.end_request()
        scheduler.request(5, 1)
        assert [lag for _, lag in scheduler.reject_stale("too_stale")] == [2]


class TestDelivery:
    def test_oldest_drawn_first_all_or_nothing(self):
        """Completion order does not matter; a batch is whole."""
        scheduler = make(window=6)
        scheduler.request(0, 3)
        groups = draw_and_admit(scheduler)
        run(scheduler, groups[4], groups[2])
        assert scheduler.take() == []
        run(scheduler, groups[0], groups[5])
        assert delivered(scheduler) == [0, 2, 4]

    def test_surplus_is_kept_and_delivered_once(self):
        """Ten groups finish before a call that wants four; three calls get each of them once."""
        scheduler = make(max_groups=10, window=10)
        seen = []
        for rollout_id in range(3):
            scheduler.request(rollout_id, 4)
            draw(scheduler)
            run(scheduler, *scheduler.admit(0.0))
            seen += delivered(scheduler)
        assert seen == list(range(12))

    def test_uncommitted_batch_goes_back(self):
        """A call that is interrupted after the hand-out loses nothing."""
        scheduler = make()
        scheduler.request(0, 2)
        run(scheduler, *draw_and_admit(scheduler))
        assert len(scheduler.take()) == 2
        assert scheduler.take() == []
        assert scheduler.unfinished() == []
        scheduler.end_request()
        scheduler.request(0, 2)
        assert scheduler.to_draw() == 0
        assert delivered(scheduler) == [0, 1]

    def test_two_calls_at_once_are_refused(self):
        """One call at a time is served."""
        scheduler = make()
        scheduler.request(0, 1)
        with pytest.raises(RuntimeError, match="rollout 0 has not ended"):
            scheduler.request(1, 1)
        with pytest.raises(ValueError, match="at least one group"):
            make().request(0, 0)


class TestFailures:
    def test_prompt_is_given_up_after_the_bound(self):
        """A prompt that fails for ever cannot block the step."""
        scheduler = make(max_failures=3)
        scheduler.request(0, 1)
        draw(scheduler)
        answers = []
        for _ in range(3):
            (group,) = scheduler.admit(0.0)
            answers.append(
                scheduler.requeue(group.group_id, reason="failed", error="boom", ready_at=0.0, counted=True)
            )
        assert answers == [True, True, False]
        assert group.state is GroupState.GIVEN_UP
        assert scheduler.to_draw() == 1

    def test_outage_does_not_count_against_the_prompt(self):
        """A server that is down for long costs no prompt."""
        scheduler = make(max_failures=1)
        scheduler.request(0, 1)
        draw(scheduler)
        for _ in range(50):
            (group,) = scheduler.admit(0.0)
            assert scheduler.requeue(
                group.group_id, reason="outage", error="refused", ready_at=0.0, counted=False
            )

    def test_suspended_groups_wait_for_a_verdict(self):
        """A refused request is not repeated, and not given up before the server took another."""
        scheduler = make()
        scheduler.request(0, 2)
        first, second = draw_and_admit(scheduler)
        scheduler.suspend(first.group_id, reason="submit_rejected", error="422")
        assert scheduler.admit(99.0) == []
        assert scheduler.counts(0.0).suspended == 1
        assert scheduler.to_draw() == 1
        assert scheduler.give_up_suspended("submit_rejected") == [first]
        assert first.state is GroupState.GIVEN_UP
        assert second.state is GroupState.IN_FLIGHT

    def test_results_of_unknown_groups_are_told_apart(self):
        """Whoever is not in flight has no say."""
        scheduler = make()
        scheduler.request(0, 1)
        (group,) = draw_and_admit(scheduler)
        assert scheduler.in_flight(group.group_id)
        scheduler.reject(group.group_id, "x")
        assert not scheduler.in_flight(group.group_id)
        assert not scheduler.in_flight(99)


class TestEnd:
    def test_every_live_group_can_be_closed(self):
        """At the end nothing is left without a final state."""
        ledger = Ledger()
        scheduler = make(window=3, observer=ledger)
        scheduler.request(0, 1)
        groups = draw_and_admit(scheduler)
        run(scheduler, groups[0])
        scheduler.requeue(groups[1].group_id, reason="deadline", error="", ready_at=9.0, counted=True)
        scheduler.end_request()
        unfinished = scheduler.unfinished()
        assert [g.group_id for g in unfinished] == [0, 1, 2]
        scheduler.end(unfinished[:2], GroupState.RETURNED)
        scheduler.end(unfinished[2:], GroupState.ABANDONED, "no data source")
        snapshot = ledger.check(scheduler.counts(0.0))
        assert (snapshot.drawn, snapshot.returned, snapshot.abandoned, snapshot.live) == (3, 2, 1, 0)
        with pytest.raises(ValueError, match="returned or abandoned"):
            scheduler.end([], GroupState.DELIVERED)

    def test_counts_name_the_oldest(self):
        """The progress line can say how long the oldest group has been waiting."""
        scheduler = make()
        assert math.isnan(scheduler.counts(5.0).oldest_age)
        scheduler.request(0, 2)
        draw(scheduler, 1, now=1.0)
        draw(scheduler, 1, now=2.0)
        assert scheduler.counts(5.0).oldest_age == 4.0
        assert scheduler.counts(5.0).wanted == 2

    def test_observer_hears_every_change_with_its_reason(self):
        """The ledger can be kept from transitions alone."""
        heard = []
        scheduler = make(observer=heard.append)
        scheduler.request(0, 1)
        (group,) = draw_and_admit(scheduler)
        scheduler.reject(group.group_id, "zero_trainable")
        assert heard == [
            Transition(0, None, GroupState.QUEUED, 1),
            Transition(0, GroupState.QUEUED, GroupState.IN_FLIGHT, 1),
            Transition(0, GroupState.IN_FLIGHT, GroupState.REJECTED, 1, "zero_trainable"),
        ]


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_groups", 0), ("max_sessions", 0), ("max_failures", 0), ("draw_quantum", 0), ("max_staleness", -1)],
)
def test_impossible_settings_are_refused(name, value):
    """A scheduler that could never admit anything is an error, not a hang."""
    with pytest.raises(ValueError, match=name):
        make(**{name: value})
