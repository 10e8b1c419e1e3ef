"""Ledger: what is booked, what is refused, and that the books prove conservation."""

import pytest

from slime_bridge.errors import ConservationError
from slime_bridge.groups import GroupState, Transition
from slime_bridge.ledger import Ledger
from slime_bridge.scheduler import Scheduler

QUEUED, IN_FLIGHT, BUFFERED = GroupState.QUEUED, GroupState.IN_FLIGHT, GroupState.BUFFERED
HANDED, DELIVERED, REJECTED = GroupState.HANDED, GroupState.DELIVERED, GroupState.REJECTED


def book(ledger, group_id, *states, sessions=2, reason=""):
    before = None
    for after in states:
        ledger(Transition(group_id, before, after, sessions, reason))
        before = after


def test_each_final_state_is_counted_by_reason():
    """Every group and session ends in exactly one place, and the reasons add up."""
    ledger = Ledger()
    book(ledger, 0, QUEUED, IN_FLIGHT, BUFFERED, HANDED, DELIVERED)
    book(ledger, 1, QUEUED, IN_FLIGHT, REJECTED, reason="low_complete_fraction", sessions=3)
    book(ledger, 2, QUEUED, IN_FLIGHT, QUEUED, IN_FLIGHT, GroupState.GIVEN_UP, reason="deadline")
    book(ledger, 3, QUEUED, GroupState.RETURNED)
    book(ledger, 4, QUEUED, IN_FLIGHT, GroupState.ABANDONED)
    book(ledger, 5, QUEUED, IN_FLIGHT)
    snapshot = ledger.check()
    assert snapshot.drawn == 6
    assert snapshot.rejected == {"low_complete_fraction": 1}
    assert snapshot.given_up == {"deadline": 1}
    assert snapshot.requeued == {"deadline": 1}
    assert (snapshot.delivered, snapshot.returned, snapshot.abandoned, snapshot.live) == (1, 1, 1, 1)
    assert snapshot.submissions == 6
    assert snapshot.sessions["drawn"] == 13
    assert snapshot.sessions["rejected"] == 3
    assert snapshot.to_dict()["unaccounted"] == 0


@pytest.mark.parametrize(
    "bad",
    [
        Transition(0, HANDED, DELIVERED, 2),
        Transition(0, None, QUEUED, 2),
        Transition(0, QUEUED, IN_FLIGHT, 2),
        Transition(7, QUEUED, IN_FLIGHT, 2),
    ],
    ids=["delivered twice", "drawn twice", "risen from the dead", "never drawn"],
)
def test_impossible_histories_are_refused(bad):
    """A double delivery or a lost group is an error at the moment it happens."""
    ledger = Ledger()
    book(ledger, 0, QUEUED, IN_FLIGHT, BUFFERED, HANDED, DELIVERED)
    before = ledger.snapshot()
    with pytest.raises(ConservationError, match="cannot go from"):
        ledger(bad)
    assert ledger.snapshot() == before


def test_live_groups_cannot_skip_states():
    """A group that was never in flight cannot be delivered, nor change its size."""
    ledger = Ledger()
    book(ledger, 0, QUEUED)
    with pytest.raises(ConservationError):
        ledger(Transition(0, QUEUED, DELIVERED, 2))
    with pytest.raises(ConservationError):
        ledger(Transition(0, QUEUED, IN_FLIGHT, 3))
    with pytest.raises(ConservationError):
        ledger(Transition(0, IN_FLIGHT, BUFFERED, 2))


def test_disagreement_with_the_scheduler_is_found():
    """A change that bypasses the observer shows in the next check."""
    ledger = Ledger()
    scheduler = Scheduler(max_groups=4, max_sessions=4, max_staleness=0, observer=ledger)
    scheduler.request(0, 2)
    scheduler.add([("a", 1), ("b", 1)], 0.0)
    scheduler.admit(0.0)
    ledger.check(scheduler.counts(0.0))
    scheduler.observer = lambda transition: None
    scheduler.reject(0, "x")
    with pytest.raises(ConservationError, match=r"in_flight: the ledger has 2, the scheduler 1.*sessions"):
        ledger.check(scheduler.counts(0.0))


def test_memory_is_bounded_by_live_groups():
    """Weeks of rollouts leave counters, not records."""
    ledger = Ledger()
    for group_id in range(1000):
        book(ledger, group_id, QUEUED, IN_FLIGHT, REJECTED, reason="x")
    assert ledger._where == {}
    assert ledger.check().rejected == {"x": 1000}
