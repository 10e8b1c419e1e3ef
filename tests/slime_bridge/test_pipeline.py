"""The loop's side of the worker: outages that nobody notices, odd servers, counts of what happened."""

import pytest

from analysis.lab.polar_server.testing import Fault, FaultScript, SessionProfile, serve_polar
from slime_bridge.errors import TransportError
from tests.slime_bridge.rollouts import Source, group_indices, running

QUICK = SessionProfile(duration=0.02)


def open_fuse(worker):
    fuse = worker._pipeline._fuse
    worker._in_loop(lambda: [fuse.record_failure(TransportError("no answer")) for _ in range(fuse.threshold)])
    assert worker._pipeline.away


def test_outage_without_work_in_flight_is_seen_to_end():
    """The fuse opens while nothing is under way: a probe closes it, or the next call would wait for ever."""
    with serve_polar(FaultScript(sessions=QUICK)) as polar, running(polar, Source()) as worker:
        worker.collect(0)
        open_fuse(worker)
        batch, report = worker.collect(1)
    assert group_indices(batch) == [4, 5, 6, 7]
    assert report.window.counters["outages"] == 1
    assert report.window.counters["outage_seconds"] > 0


def test_nothing_is_drawn_while_the_server_is_away():
    """A dead server costs no prompts, however long the call waits."""
    source = Source()
    with serve_polar(FaultScript(sessions=QUICK)) as polar:
        with running(polar, source, polar_outage_timeout=1.5) as worker:
            worker.collect(0)
            polar.stop()
            open_fuse(worker)
            with pytest.raises(TimeoutError, match="has been away"):
                worker.collect(1)
    assert source.drawn == [0, 1, 2, 3]


@pytest.mark.parametrize("status", [404, 401, 200])
def test_server_without_a_health_record_is_tried_all_the_same(status):
    """An answer is an answer; whether it is a rollout server shows at the first submit."""
    faults = [Fault("response_status", on="health", status=status)]
    if status == 200:
        faults = [Fault("response_garbage", on="health")]
    with serve_polar(FaultScript(sessions=QUICK, faults=faults)) as polar, running(polar, Source()) as worker:
        batch, _ = worker.collect(0)
        assert len(batch.groups) == 4


def test_server_that_comes_up_late_is_waited_for():
    """Trainer and server are started together."""
    faults = [Fault("response_status", on="health", status=503, times=3)]
    with serve_polar(FaultScript(sessions=QUICK, faults=faults)) as polar, running(polar, Source()) as worker:
        batch, _ = worker.collect(0)
        assert len(batch.groups) == 4
        assert polar.fired["response_status"] == 3


def test_counts_of_delivery_are_those_of_the_window():
    """Callbacks and polls are reported once, for the rollout that they belong to."""
    faults = [Fault("callback_duplicate", tasks=[5]), Fault("callback_lost", tasks=[0])]
    with serve_polar(FaultScript(sessions=QUICK, faults=faults)) as polar, running(polar, Source()) as worker:
        _, first = worker.collect(0)
        _, second = worker.collect(1)
        polar.wait_until(lambda: len(polar.callbacks) >= 8)
        _, third = worker.collect(2)
    counts = [report.window.counters for report in (first, second, third)]
    assert [count["polled_results"] for count in counts] == [1, 0, 0]
    assert [count["callbacks/accepted"] for count in counts] == [3, 4, 4]
    assert [count["submitted_tasks"] for count in counts] == [4, 4, 4]
    assert sum(count["callbacks/late"] + count["callbacks/duplicate"] for count in counts) == 1
