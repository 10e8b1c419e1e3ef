from __future__ import annotations

import json
import logging
import random
from collections.abc import Awaitable, Callable

import aiohttp
import anyio
import httpx
import pytest

from slime_bridge.client import PolarClient
from slime_bridge.poller import PollSchedule, Signal, StatusPoller, is_running
from slime_bridge.retry import Fuse
from tests.slime_bridge.loops import run_virtual
from tests.slime_bridge.transports import HandlerTransport


class _Server:
    """The status list of a rollout server, with the times at which it was asked."""

    def __init__(self) -> None:
        self.tasks: dict[str, str] = {}
        self.asked: list[float] = []
        self.answers: list[httpx.Response | Exception] = []
        self.before_answer: Callable[[], Awaitable[None]] | None = None

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/rollout/status"
        self.asked.append(anyio.current_time())
        answer = json.dumps({"tasks": self.tasks}).encode()
        if self.before_answer is not None:
            await self.before_answer()
        if self.answers:
            special = self.answers.pop(0)
            if isinstance(special, Exception):
                raise special
            return special
        return httpx.Response(200, content=answer)


def _scenario(
    main: Callable[[_Server, StatusPoller], Awaitable[None]], schedule: PollSchedule | None = None
) -> _Server:
    """Run a test beside a poller whose clock jumps; the poller ends with the test."""
    server = _Server()

    async def run() -> None:
        fuse = Fuse(clock=anyio.current_time)
        async with PolarClient("http://polar", transport=HandlerTransport(server), fuse=fuse) as client:
            poller = StatusPoller(client, schedule=schedule, rng=random.Random(0))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(poller.run)
                await main(server, poller)
                tasks.cancel_scope.cancel()

    run_virtual(run())
    return server


def test_polls_start_early_and_back_off() -> None:
    """A short task is found within seconds, a long one does not cost a request a second."""

    async def main(server: _Server, poller: StatusPoller) -> None:
        server.tasks["t"] = "running"
        await anyio.sleep(100)
        poller.watch("t")
        await anyio.sleep(80)
        assert [round(at - 100) for at in server.asked] == [2, 4, 8, *range(13, 80, 5)]
        assert poller.polls == 17

    _scenario(main)


def test_nothing_is_asked_while_nothing_is_watched() -> None:
    """An idle worker leaves the server alone, and closed watches count as none."""

    async def main(server: _Server, poller: StatusPoller) -> None:
        server.tasks["t"] = "running"
        watch = poller.watch("t")
        await anyio.sleep(5)
        watch.close()
        watch.close()
        asked = len(server.asked)
        await anyio.sleep(1000)
        assert len(server.asked) == asked

    _scenario(main)


def test_one_request_for_all_tasks() -> None:
    """Five hundred tasks cost as many requests as one."""

    async def main(server: _Server, poller: StatusPoller) -> None:
        for n in range(500):
            server.tasks[f"t-{n}"] = "running"
            poller.watch(f"t-{n}")
        await anyio.sleep(30)
        assert len(server.asked) == 7

    _scenario(main)


def test_steady_flow_of_new_tasks_does_not_speed_polling_up() -> None:
    """However many tasks start, requests keep their least distance."""

    async def main(server: _Server, poller: StatusPoller) -> None:
        for n in range(1000):
            server.tasks[f"t-{n}"] = "running"
            poller.watch(f"t-{n}")
            await anyio.sleep(0.01)
        gaps = [later - sooner for sooner, later in zip(server.asked, server.asked[1:], strict=False)]
        assert min(gaps) >= 0.5

    _scenario(main)


def test_polling_pauses_while_callbacks_work() -> None:
    """With callbacks coming, a poll only looks for tasks without one; without them it is early again."""

    async def main(server: _Server, poller: StatusPoller) -> None:
        poller.callbacks_work = True
        server.tasks["t"] = "running"
        watch = poller.watch("t")
        await anyio.sleep(17)
        assert server.asked == pytest.approx([5, 10, 15])
        watch.close()
        poller.callbacks_work = False
        server.tasks["u"] = "running"
        poller.watch("u")
        await anyio.sleep(2.5)
        assert server.asked[-1] == pytest.approx(19)

    _scenario(main)


@pytest.mark.parametrize("status", ["completed", "failed", "cancelled", "something-new"])
def test_every_final_status_wakes_the_watcher(status: str) -> None:
    """A status that only later servers know ends the wait too."""

    async def main(server: _Server, poller: StatusPoller) -> None:
        server.tasks.update({"t": status, "u": "running", "v": "cancelling"})
        others = [poller.watch("u"), poller.watch("v")]
        assert await poller.watch("t").wait() is Signal.ENDED
        for other in others:
            with anyio.move_on_after(100) as scope:
                await other.wait()
            assert scope.cancelled_caught

    _scenario(main)
    assert not is_running(status)


def test_missing_task_is_reported_once_per_poll() -> None:
    """A task that the server does not list is worth a look each time."""

    async def main(server: _Server, poller: StatusPoller) -> None:
        watch = poller.watch("t")
        assert await watch.wait() is Signal.MISSING
        assert len(server.asked) == 1
        assert await watch.wait() is Signal.MISSING
        assert len(server.asked) == 2

    _scenario(main)


def test_answer_older_than_the_task_is_not_believed() -> None:
    """A list that was made before the task was accepted cannot miss it."""

    async def main(server: _Server, poller: StatusPoller) -> None:
        made, sent = anyio.Event(), anyio.Event()

        async def hold() -> None:
            server.before_answer = None
            made.set()
            await sent.wait()

        server.tasks["old"] = "running"
        server.before_answer = hold
        poller.watch("old")
        await made.wait()
        server.tasks["new"] = "running"
        watch = poller.watch("new")
        sent.set()
        with anyio.move_on_after(100) as scope:
            await watch.wait()
        assert scope.cancelled_caught

    _scenario(main)


def test_bursts_of_errors_are_ridden_out() -> None:
    """A 503 on the poll costs a moment, never the task."""

    async def main(server: _Server, poller: StatusPoller) -> None:
        server.tasks["t"] = "completed"
        server.answers = [httpx.Response(503), aiohttp.SocketTimeoutError("x"), httpx.Response(502)]
        assert await poller.watch("t").wait() is Signal.ENDED
        assert anyio.current_time() < 10

    _scenario(main)


def test_one_strange_answer_is_ridden_out_too() -> None:
    """A proxy's page in between does not end the listing."""

    async def main(server: _Server, poller: StatusPoller) -> None:
        server.tasks["t"] = "completed"
        server.answers = [httpx.Response(200, text="<html>"), httpx.Response(403)]
        assert await poller.watch("t").wait() is Signal.ENDED

    _scenario(main)


def test_server_without_a_list_is_noticed_and_each_task_looked_at(caplog: pytest.LogCaptureFixture) -> None:
    """Without the cheap route the watchers look themselves, at the same pace, and the log says so once."""

    async def main(server: _Server, poller: StatusPoller) -> None:
        server.answers = [httpx.Response(404, json={"detail": "Not Found"}) for _ in range(50)]
        watches = [poller.watch("t"), poller.watch("u")]
        for watch in watches:
            assert await watch.wait() is Signal.LOOK
        assert len(server.asked) == 3
        looks = 0
        with anyio.move_on_after(100):
            while True:
                await watches[0].wait()
                looks += 1
        assert 5 <= looks <= 10
        assert len(server.asked) == 3

    with caplog.at_level(logging.WARNING, logger="slime_bridge"):
        _scenario(main)
    assert len(caplog.messages) == 1
    assert "status list" in caplog.messages[0]


def test_expensive_list_is_asked_for_less_often() -> None:
    """A server that needs four seconds to list its tasks is not kept busy with it."""

    async def main(server: _Server, poller: StatusPoller) -> None:
        async def slow() -> None:
            await anyio.sleep(4.0)

        server.before_answer = slow
        server.tasks["t"] = "running"
        poller.watch("t")
        await anyio.sleep(200)
        gaps = [later - sooner for sooner, later in zip(server.asked, server.asked[1:], strict=False)]
        # Never more than the longest interval between an answer and the next request.
        assert all(gap == pytest.approx(19.0) for gap in gaps)

    _scenario(main)


@pytest.mark.parametrize(
    "options", [{"first": 0.0}, {"first": 20.0}, {"factor": 1.0}, {"max_duty": 0.0}, {"min_gap": -1.0}]
)
def test_impossible_schedule_is_refused(options: dict[str, float]) -> None:
    """A schedule that would poll without a pause, or never, is an error where it is written."""
    with pytest.raises(ValueError, match="poll schedule"):
        PollSchedule(**options)
