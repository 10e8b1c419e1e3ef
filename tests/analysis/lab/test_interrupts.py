"""Signals end a run once, in order, and never get lost."""

from __future__ import annotations

import os
import signal

import pytest

from analysis.lab.interrupts import Interrupted, Interrupts


def _send(signum: int = signal.SIGINT) -> None:
    os.kill(os.getpid(), signum)
    # The handler runs between two bytecodes of the main thread.
    for _ in range(1000):
        pass


@pytest.mark.parametrize(
    ("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_each_signal_raises_with_its_exit_code(signum: int, code: int) -> None:
    """Ctrl-C, `kill` and a closed terminal all raise where the main thread is."""
    with Interrupts() as interrupts:
        with pytest.raises(Interrupted) as ended:
            _send(signum)
        assert ended.value.exit_code == code
        assert interrupts.received == signum


def test_handlers_are_given_back() -> None:
    """After the block the process's own handlers are in place again."""
    before = [signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    with Interrupts():
        assert signal.getsignal(signal.SIGINT) != before[0]
    assert [signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


def test_an_ignored_signal_stays_ignored() -> None:
    """Under nohup a closed terminal does not end the run."""
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            _send(signal.SIGHUP)
            assert interrupts.received is None
    finally:
        signal.signal(signal.SIGHUP, previous)


def test_a_swallowed_signal_comes_back_at_the_next_safe_point() -> None:
    """Code that eats every exception only delays the end."""
    with Interrupts() as interrupts:
        interrupts.check()
        try:
            _send()
        except BaseException:  # the very thing under test
            pass
        with pytest.raises(Interrupted):
            interrupts.check()


def test_an_error_after_a_signal_is_its_consequence() -> None:
    """A library that makes its own error of the interruption does not hide it; other errors stay."""
    error = RuntimeError("initialisation failed")
    with Interrupts() as interrupts:
        assert interrupts.cause(error) is error
        with pytest.raises(Interrupted):
            _send(signal.SIGTERM)
        cause = interrupts.cause(error)
        assert isinstance(cause, Interrupted)
        assert cause.signum == signal.SIGTERM


def test_clean_up_is_not_disturbed() -> None:
    """Once the end has begun, more signals are only acknowledged, and the first one stays the cause."""
    repeats: list[int] = []
    with Interrupts(on_wait=lambda: repeats.append(1)) as interrupts:
        with pytest.raises(Interrupted):
            _send()
        with interrupts.shielded():
            _send()
            _send(signal.SIGTERM)
            interrupts.check()
        assert len(repeats) == 2
        assert interrupts.received == signal.SIGINT


def test_a_signal_during_an_orderly_shutdown_is_not_forgotten() -> None:
    """Ctrl-C while processes are being stopped after a good run still ends the rest of it, afterwards."""
    done: list[str] = []

    def shutdown(interrupts: Interrupts) -> None:
        with interrupts.shielded():
            _send()
            done.append("stopped")

    with Interrupts() as interrupts, pytest.raises(Interrupted):
        shutdown(interrupts)
    assert done == ["stopped"]


def test_an_error_inside_the_shield_is_not_replaced() -> None:
    """A clean-up that fails says so, even if a signal came meanwhile."""

    def shutdown(interrupts: Interrupts) -> None:
        with interrupts.shielded():
            _send()
            raise OSError("disk full")

    with Interrupts() as interrupts, pytest.raises(OSError, match="disk full"):
        shutdown(interrupts)
