"""Pausing the garbage collector: always switched back, also by several threads and after errors."""

from __future__ import annotations

import gc
import threading

import pytest

from slime_bridge._collection import collection_paused


@pytest.fixture(autouse=True)
def collector_is_on():
    gc.enable()
    yield
    gc.enable()


def test_it_pauses_and_resumes():
    """Nested pauses end with the outermost."""
    with collection_paused():
        with collection_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_an_error_resumes_too():
    """A conversion that fails must not leave the process without a collector."""
    with pytest.raises(ValueError, match="x"), collection_paused():
        raise ValueError("x")
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off():
    """Some trainers run without it on purpose."""
    gc.disable()
    with collection_paused():
        pass
    assert not gc.isenabled()


def test_threads_overlap():
    """The first thread to finish must not resume under the feet of the second."""
    entered, leave, left = threading.Event(), threading.Event(), threading.Event()

    def hold() -> None:
        with collection_paused():
            entered.set()
            leave.wait(10)
        left.set()

    thread = threading.Thread(target=hold)
    with collection_paused():
        thread.start()
        assert entered.wait(10)
    assert not gc.isenabled()
    leave.set()
    assert left.wait(10)
    thread.join()
    assert gc.isenabled()
