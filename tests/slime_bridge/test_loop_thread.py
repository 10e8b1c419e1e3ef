"""The loop in a thread: calls run whole or not at all, and a dead loop is noticed."""

import asyncio
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time

import anyio
import pytest

from slime_bridge.loop_thread import LoopDiedError, LoopThread


class Owner:
    """Starts a loop thread and remembers how it ended."""

    def __init__(self, main=anyio.sleep_forever):
        self.ended = threading.Event()
        self.error = None
        self.thread = LoopThread(main, name="test-loop", on_end=self.on_end)

    def on_end(self, error):
        self.error = error
        self.ended.set()


@pytest.fixture
def owner():
    made = Owner()
    yield made
    made.thread.cancel()
    assert made.thread.join(10)


def test_functions_run_in_the_loop_thread(owner):
    """The result and the exception come back."""
    assert owner.thread.call(threading.current_thread).name == "test-loop"
    assert not owner.thread.current
    assert owner.thread.call(lambda: owner.thread.current)
    with pytest.raises(ZeroDivisionError):
        owner.thread.call(lambda: 1 / 0)
    with pytest.raises(TimeoutError, match="own"):
        owner.thread.call(raise_timeout)


def raise_timeout():
    raise TimeoutError("its own")


def test_cancel_ends_the_coroutine(owner):
    """Cancelling from outside is no failure."""
    owner.thread.cancel()
    assert owner.ended.wait(10)
    assert owner.error is None
    with pytest.raises(LoopDiedError):
        owner.thread.call(threading.current_thread)
    owner.thread.soon(threading.current_thread)


async def crash():
    raise SystemExit(3)


def test_any_end_of_the_loop_is_reported():
    """Even a SystemExit, which libraries raise when they cannot bind, reaches the owner."""
    owner = Owner(crash)
    assert owner.ended.wait(10)
    assert isinstance(owner.error, SystemExit)
    with pytest.raises(LoopDiedError):
        owner.thread.call(threading.current_thread)


def test_caller_of_a_dying_loop_is_released():
    """A function that the loop never gets to does not block its caller for ever."""
    block, busy = threading.Event(), threading.Event()

    async def main():
        with anyio.move_on_after(0.3):
            await anyio.sleep_forever()

    owner = Owner(main)
    owner.thread.soon(lambda: (busy.set(), block.wait(20)))
    assert busy.wait(10)
    releases = []

    def caller():
        try:
            owner.thread.call(lambda: releases.append("ran"))
        except LoopDiedError:
            releases.append("died")

    waiting = threading.Thread(target=caller)
    waiting.start()
    block.set()
    waiting.join(20)
    assert len(releases) == 1


@pytest.mark.parametrize("started", [False, True])
def test_interrupted_call_ran_whole_or_not_at_all(owner, started, monkeypatch):
    """After an interrupt it is certain what happened."""
    block, busy, waiting, go, ran = *(threading.Event() for _ in range(4)), []
    if not started:
        owner.thread.soon(lambda: (busy.set(), block.wait(20)))
    result = owner.thread._result

    def waited(outcome):
        waiting.set()
        return result(outcome)

    monkeypatch.setattr(owner.thread, "_result", waited)

    def work():
        busy.set()
        go.wait(20)
        ran.append(True)

    def interrupt():
        busy.wait(20)
        waiting.wait(20)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        go.set()

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()  # interrupts only once the main thread waits inside the call
    with pytest.raises(KeyboardInterrupt):
        owner.thread.call(work)
    interrupter.join()
    monkeypatch.undo()
    if started:
        assert ran == [True]
    else:
        block.set()
        owner.thread.call(lambda: None)
        assert ran == []


def test_look_ups_do_not_keep_the_interpreter():
    """A name server that does not answer must not hold up the exit."""
    script = """
        import asyncio, socket, threading, time
        from slime_bridge.loop_thread import LoopThread
        began = threading.Event()
        def hang(*args, **kwargs):
            began.set()
            time.sleep(600)
        socket.getaddrinfo = hang
        async def main():
            await asyncio.get_running_loop().getaddrinfo("nowhere.invalid", 80)
        thread = LoopThread(main, name="loop", on_end=lambda error: None)
        assert began.wait(10)
        thread.cancel()
        assert thread.join(10)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, timeout=50)


def test_look_ups_work(owner):
    """The replaced executor resolves names."""
    found = []

    def look_up():
        task = asyncio.ensure_future(asyncio.get_running_loop().getaddrinfo("localhost", 80))
        task.add_done_callback(lambda done: found.append(done.result()))

    owner.thread.call(look_up)
    deadline = time.monotonic() + 20
    while not found and time.monotonic() < deadline:
        time.sleep(0.01)
    assert any(entry[0] in (socket.AF_INET, socket.AF_INET6) for entry in found[0])


def test_nothing_starts_at_import():
    """Import alone makes no thread."""
    script = "import threading, slime_bridge.loop_thread; assert threading.active_count() == 1"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=40)
