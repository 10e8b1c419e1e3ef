"""Courtesies: one at a time, a short wait, one warning."""

import threading

from slime_bridge._courtesy import Courtesy


def test_steps_run_in_order_and_a_failure_stops_none(caplog):
    """Each step is its own courtesy; what went wrong is said once."""
    done = []
    work = Courtesy("Somebody", timeout=10)
    work.run([lambda: done.append(1), lambda: 1 / 0, lambda: done.append(2), lambda: 1 / 0])
    assert done == [1, 2]
    assert [r.getMessage() for r in caplog.records] == [
        "Somebody refused: ZeroDivisionError: division by zero"
    ]


def test_work_that_hangs_is_left_to_itself(caplog):
    """The caller goes on; what comes meanwhile is left out, and later work is done again."""
    release, done = threading.Event(), []
    work = Courtesy("Somebody", timeout=0.05)
    work.run([lambda: release.wait(30)])
    work.run([lambda: done.append("left out")])
    assert not work.wait(0)
    assert len(caplog.records) == 1
    release.set()
    assert work.wait(10)
    work.run([lambda: done.append("again")])
    assert work.wait(10)
    assert done == ["again"]


def test_nothing_to_wait_for():
    """Before any work."""
    assert Courtesy("Somebody", timeout=1).wait(0)
