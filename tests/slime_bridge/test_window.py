"""The window between two batches: each event is counted in exactly one of them."""

import math

from slime_bridge.acceptance import Accepted
from slime_bridge.conversion.groups import GroupConversion, SessionOutcome
from slime_bridge.group_task import JudgedGroup
from slime_bridge.groups import Delivery, Group
from slime_bridge.window import RolloutWindow, delivered_facts

JUDGED = JudgedGroup(GroupConversion(["a"], [SessionOutcome(0), SessionOutcome(1)]), Accepted({}), 2.0)


def test_window_reports_once_and_begins_anew():
    """A rejection is in the metrics of the next batch, not of two."""
    window = RolloutWindow()
    window.accept()
    window.reject(JUDGED, "zero_trainable")
    window.reject(None, "too_stale")
    window.counters["requeued_groups"] += 1
    first = window.close(10.0, {"polled_results": 5.0})
    assert [(facts.reason, len(facts.sessions), facts.seconds) for facts in first.rejected] == [
        ("zero_trainable", 2, 2.0),
        ("too_stale", 0, None),
    ]
    assert (first.decisions.accepted, first.decisions.rejected) == (1, 2)
    assert math.isnan(first.decisions.seconds)
    assert first.counters == {"requeued_groups": 1, "polled_results": 5.0}
    second = window.close(12.5, {"polled_results": 6.0})
    assert (second.rejected, second.decisions.accepted, second.decisions.seconds) == ([], 0, 2.5)
    assert second.counters == {"polled_results": 1.0}


def test_samples_of_rejected_groups_are_kept_on_request():
    """Only for a hook that wants them, until it has seen them."""
    plain, keeping = RolloutWindow(), RolloutWindow(keep_samples=True)
    for window in (plain, keeping):
        window.reject(JUDGED, "filtered", "zero_std")
        window.reject(None, "too_stale")
        assert window.close(0.0, {}).filter_drops == {"zero_std": 1}
        assert window.close(0.0, {}).filter_drops == {}
    assert (plain.rejected_samples, keeping.rejected_samples) == ([], [["a"]])


def test_delivered_facts_carry_the_lag():
    """The metrics see what the trainer gets."""
    delivery = Delivery(Group(0, [], 2, 0, 0.0, 0.0), JUDGED, 5, 3, 2, 1, 1)
    facts = delivered_facts(delivery)
    assert (facts.staleness, facts.staleness_in_flight, facts.staleness_in_queue) == (2, 1, 1)
    assert (facts.reason, facts.seconds, len(facts.sessions)) == (None, 2.0, 2)
