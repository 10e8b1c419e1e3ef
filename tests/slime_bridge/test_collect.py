from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import anyio
import httpx
import pytest

from analysis.lab.polar_server.testing import Fault, FaultScript, PolarHandle, SessionProfile, serve_polar
from slime_bridge.callbacks import CallbackListener
from slime_bridge.client import PolarClient
from slime_bridge.collect import (
    CollectedTask,
    CollectEvent,
    CollectEventKind,
    Collector,
    collect_task,
)
from slime_bridge.errors import InfrastructureError, SubmitRejectedError, TaskFailedError, TemplateError
from slime_bridge.poller import PollSchedule
from slime_bridge.protocol import SessionResult, TaskRequest, decode_task_payload
from slime_bridge.retry import Fuse, RetryPolicy
from tests.slime_bridge.loops import run_real, run_virtual
from tests.slime_bridge.transports import HandlerTransport, refused

Step = Callable[[httpx.Request], Awaitable[httpx.Response | None]]


def _build(attempt: int, *, name: str = "t") -> TaskRequest:
    return TaskRequest(
        task_id=f"{name}-a{attempt}", instruction=name, agent={"harness": "lab"}, num_samples=2
    )


async def _hang(request: httpx.Request) -> httpx.Response:
    await anyio.sleep_forever()
    raise AssertionError


def _answer(status: int, detail: str = "") -> Step:
    async def step(request: httpx.Request) -> httpx.Response:
        return httpx.Response(status, json={"detail": detail})

    return step


def _raise(error: Exception) -> Step:
    async def step(request: httpx.Request) -> httpx.Response:
        raise error

    return step


async def _normal(request: httpx.Request) -> None:
    """Answer as the server ordinarily does."""


class _Polar:
    """A rollout server in memory, on whatever clock the loop has.

    `steps` holds, per route, what to do with the next requests before the server's ordinary answer; the last
    one is repeated where `for_ever` says so. Tasks end `duration` seconds after their submit, None: never.
    """

    def __init__(self, *, duration: float | None = 3.0, status: str = "completed") -> None:
        self.duration = duration
        self.status = status
        self.accepted: dict[str, float] = {}
        self.requests: list[tuple[str, str]] = []
        self.steps: dict[str, list[Step]] = {}
        self.for_ever: set[str] = set()
        self.can_cancel = True
        self.body: Callable[[str, str], bytes] = lambda task_id, status: json.dumps(
            {"task_id": task_id, "status": status, "results": []}
        ).encode()

    def routes(self, route: str) -> list[str]:
        """Return the task ids of all requests to a route, in order."""
        return [task_id for name, task_id in self.requests if name == route]

    def status_of(self, task_id: str) -> str:
        age = anyio.current_time() - self.accepted[task_id]
        return self.status if self.duration is not None and age >= self.duration else "running"

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        route, task_id = self._route(request)
        self.requests.append((route, task_id))
        steps = self.steps.get(route, [])
        if steps:
            step = steps[0] if route in self.for_ever and len(steps) == 1 else steps.pop(0)
            special = await step(request)
            if special is not None:
                return special
        return self.ordinary(route, task_id)

    def ordinary(self, route: str, task_id: str) -> httpx.Response:
        if route == "status":
            return httpx.Response(200, json={"tasks": {name: self.status_of(name) for name in self.accepted}})
        if route == "submit":
            if task_id in self.accepted and self.status_of(task_id) == "running":
                return httpx.Response(409, json={"detail": f"task {task_id} is already running"})
            self.accepted[task_id] = anyio.current_time()
            return httpx.Response(200, json={"task_id": task_id, "status": "running"})
        if route == "cancel" and not self.can_cancel:
            return httpx.Response(405, json={"detail": "Method Not Allowed"})
        if task_id not in self.accepted:
            return httpx.Response(404, json={"detail": "Task not found"})
        return httpx.Response(200, content=self.body(task_id, self.status_of(task_id)))

    @staticmethod
    def _route(request: httpx.Request) -> tuple[str, str]:
        path = request.url.path
        if path.endswith("/submit"):
            return "submit", json.loads(request.content)["task_id"]
        if path == "/rollout/status":
            return "status", ""
        return {"GET": "task", "DELETE": "cancel"}[request.method], path.rsplit("/", 1)[1]


class _Log:
    """What `collect_task` reported."""

    def __init__(self) -> None:
        self.events: list[CollectEvent] = []

    def __call__(self, event: CollectEvent) -> None:
        self.events.append(event)

    @property
    def kinds(self) -> list[str]:
        return [event.kind.value for event in self.events]

    def of(self, kind: CollectEventKind) -> list[CollectEvent]:
        return [event for event in self.events if event.kind is kind]


def _virtual(
    polar: _Polar,
    main: Callable[[Collector, _Log], Awaitable[Any]],
    **options: Any,
) -> Any:
    """Run a test with a collector that only polls, at a server in memory, on a clock that jumps."""

    async def run() -> Any:
        transport = HandlerTransport(polar)
        fuse = Fuse(clock=anyio.current_time)
        async with PolarClient("http://polar", transport=transport, fuse=fuse) as client:
            async with Collector(client, rng=random.Random(0), **options) as collector:
                return await main(collector, _Log())

    return run_virtual(run())


def _collect(polar: _Polar, *, deadline: float = 600.0, **options: Any) -> tuple[Any, _Log, float]:
    """Collect one task; return its result or error, what was reported, and the seconds it took."""

    async def main(collector: Collector, log: _Log) -> tuple[Any, _Log, float]:
        outcome: Any
        try:
            outcome = await collect_task(collector, _build, deadline=deadline, on_event=log)
        except Exception as exc:
            outcome = exc
        return outcome, log, anyio.current_time()

    result: tuple[Any, _Log, float] = _virtual(polar, main, **options)
    return result


class TestPolling:
    def test_result_is_found(self) -> None:
        """Without any callback, a task of three seconds is there after four."""
        polar = _Polar(duration=3.0)
        task, log, seconds = _collect(polar)
        assert isinstance(task, CollectedTask)
        assert (task.task_id, task.attempt, task.via) == ("t-a1", 1, "poll")
        assert (task.submitted_at, task.received_at, seconds) == (0.0, 4.0, 4.0)
        assert decode_task_payload(task.body).status == "completed"
        assert log.kinds == ["submitted", "polled"]
        assert log.events[0].detail == {"conflict": False}
        assert log.events[1].detail == {"status": "completed", "bytes": len(task.body)}
        assert polar.routes("task") == ["t-a1"]
        assert polar.routes("cancel") == []
        assert "results" not in repr(task)

    def test_hundred_tasks_share_their_polls(self) -> None:
        """A hundred tasks in flight cost one status request at a time, and one download each."""
        polar = _Polar(duration=25.0)

        async def main(collector: Collector, log: _Log) -> None:
            async def one(name: str) -> None:
                await collect_task(collector, lambda attempt: _build(attempt, name=name), deadline=600.0)

            async with anyio.create_task_group() as tasks:
                for n in range(100):
                    tasks.start_soon(one, f"t{n}")

        _virtual(polar, main)
        assert len(polar.routes("status")) == 7
        assert len(polar.routes("task")) == len(set(polar.routes("task"))) == 100

    def test_failed_task_is_found_in_seconds_while_callbacks_work(self) -> None:
        """A task that failed gets no callback; that those of other tasks arrive does not hide it for long."""
        polar = _Polar(duration=41.0, status="failed")

        async def main(collector: Collector, log: _Log) -> float:
            collector.poller.callbacks_work = True
            with pytest.raises(TaskFailedError):
                await collect_task(collector, _build, deadline=600.0, on_event=log)
            return anyio.current_time()

        assert _virtual(polar, main) == 45.0
        assert len(polar.routes("status")) == 9

    @pytest.mark.parametrize("status", ["failed", "cancelled", "new-kind-of-end"])
    def test_other_ends_are_errors_that_keep_the_record(self, status: str) -> None:
        """A task that failed as a whole is no timeout, and what it did produce is not lost."""
        polar = _Polar(status=status)
        error, log, _ = _collect(polar)
        assert isinstance(error, TaskFailedError)
        assert error.status == status
        assert json.loads(error.body)["task_id"] == "t-a1"
        assert log.kinds == ["submitted", "polled"]
        assert polar.routes("cancel") == []

    def test_cancelling_is_no_end(self) -> None:
        """A task that is being cancelled still has to end."""
        polar = _Polar(duration=None)

        async def main(collector: Collector, log: _Log) -> None:
            async with anyio.create_task_group() as tasks:

                async def collect() -> None:
                    with pytest.raises(TaskFailedError):
                        await collect_task(collector, _build, deadline=600.0)

                tasks.start_soon(collect)
                await anyio.sleep(1)
                polar.duration, polar.status = 0.0, "cancelling"
                await anyio.sleep(60)
                assert polar.routes("task") == []
                polar.status = "cancelled"

        _virtual(polar, main)

    def test_not_a_number_in_the_record_is_accepted(self) -> None:
        """Records with bare NaN or half a surrogate pair, as Python's writers emit them, are results."""
        polar = _Polar()
        polar.body = lambda task_id, status: (
            b'{"task_id":"%s","status":"%s","x":NaN,"y":"\\ud800"}' % (task_id.encode(), status.encode())
        )
        task, _, _ = _collect(polar)
        assert isinstance(task, CollectedTask)
        assert b"NaN" in task.body

    def test_another_tasks_record_is_never_accepted(self) -> None:
        """A server that mixes tasks up gives no result at all, after a few tries."""
        polar = _Polar()
        polar.body = lambda task_id, status: b'{"task_id":"other","status":"completed","results":[]}'
        error, log, _ = _collect(polar)
        assert isinstance(error, InfrastructureError)
        assert error.reason == "bad_answer"
        assert "returned another one" in str(error)
        assert polar.routes("task") == ["t-a1"] * 5
        assert log.kinds == ["submitted", "cancelled"]

    @pytest.mark.parametrize(
        "bad", [b"<html>", b"[]", b'{"task_id":"t-a1"', b'{"task_id":"t-a1","status":null}', b""]
    )
    def test_garbage_is_asked_for_again(self, bad: bytes) -> None:
        """One broken answer costs one more poll."""
        polar = _Polar()
        bodies = [bad]
        good = polar.body
        polar.body = lambda task_id, status: bodies.pop() if bodies else good(task_id, status)
        task, log, _ = _collect(polar)
        assert isinstance(task, CollectedTask)
        assert len(polar.routes("task")) == 2
        assert log.kinds == ["submitted", "polled"]

    def test_refused_download_is_tried_again(self) -> None:
        """A proxy's 403 in between does not end an accepted task."""
        polar = _Polar()
        polar.steps["task"] = [_answer(403, "go away")]
        task, _, _ = _collect(polar)
        assert isinstance(task, CollectedTask)

    def test_missing_in_the_list_but_known_is_not_forgotten(self) -> None:
        """The list is a hint: only the task's own 404 counts."""
        polar = _Polar(duration=3.0)

        async def empty(request: httpx.Request) -> httpx.Response:
            return httpx.Response(200, json={"tasks": {}})

        polar.steps["status"] = [empty, empty]
        task, log, _ = _collect(polar)
        assert isinstance(task, CollectedTask)
        assert task.attempt == 1
        assert "forgotten" not in log.kinds

    def test_server_without_a_status_list(self) -> None:
        """Where the cheap route is missing, each task is asked for by itself."""
        polar = _Polar(duration=20.0)
        polar.steps["status"], polar.for_ever = [_answer(404, "Not Found")], {"status"}
        task, _, seconds = _collect(polar)
        assert isinstance(task, CollectedTask)
        assert seconds < 40.0
        assert len(polar.routes("task")) <= 6


class TestSubmit:
    def test_refused_submit_is_sent_again_without_asking(self) -> None:
        """A request that surely did not arrive needs no look-up."""
        polar = _Polar()
        polar.steps["submit"] = [_raise(refused())] * 2
        task, log, _ = _collect(polar)
        assert isinstance(task, CollectedTask)
        assert polar.routes("submit") == ["t-a1"] * 3
        assert polar.routes("task") == ["t-a1"]
        retries = log.of(CollectEventKind.RETRY)
        assert [(event.detail["what"], event.detail["reason"]) for event in retries] == [
            ("submit", "refused")
        ] * 2
        assert log.kinds == ["retry", "retry", "submitted", "polled"]

    def test_accepted_submit_without_an_answer_is_never_sent_again(self) -> None:
        """The task runs once, although nobody heard the receipt."""
        polar = _Polar()

        async def accept_and_lose(request: httpx.Request) -> httpx.Response:
            polar.ordinary("submit", "t-a1")
            raise aiohttp.SocketTimeoutError("lost")

        polar.steps["submit"] = [accept_and_lose]
        task, log, _ = _collect(polar)
        assert isinstance(task, CollectedTask)
        assert polar.routes("submit") == ["t-a1"]
        assert log.kinds == ["retry", "submitted", "polled"]

    @pytest.mark.parametrize("error", [aiohttp.SocketTimeoutError("x"), aiohttp.ServerDisconnectedError("x")])
    def test_unheard_submit_is_sent_again_after_asking(self, error: Exception) -> None:
        """The server does not know the task, so the same request goes out once more."""
        polar = _Polar()
        polar.steps["submit"] = [_raise(error)]
        task, _, _ = _collect(polar)
        assert isinstance(task, CollectedTask)
        assert polar.requests[:3] == [("submit", "t-a1"), ("task", "t-a1"), ("submit", "t-a1")]
        assert task.attempt == 1

    def test_submit_without_any_answer_ends_at_the_deadline(self) -> None:
        """A server that swallows requests holds a group no longer than its deadline."""
        polar = _Polar()
        for route in ("submit", "task", "cancel"):
            polar.steps[route] = [_hang]
            polar.for_ever.add(route)
        error, log, seconds = _collect(polar, deadline=100.0)
        assert isinstance(error, InfrastructureError)
        assert error.reason in {"deadline", "outage"}
        assert seconds == pytest.approx(100.5)
        assert log.kinds[-1] == "cancelled"
        assert not log.events[-1].detail["acknowledged"]

    def test_conflict_is_acceptance(self) -> None:
        """409 says that the task runs: nothing is sent again, and its result is taken."""
        polar = _Polar()
        polar.steps["submit"] = [_answer(409, "task t-a1 is already running")]
        polar.accepted["t-a1"] = 0.0
        task, log, _ = _collect(polar)
        assert isinstance(task, CollectedTask)
        assert polar.routes("submit") == ["t-a1"]
        assert log.events[0].detail == {"conflict": True}

    @pytest.mark.parametrize("status", [400, 401, 404, 413, 422])
    def test_refusal_is_final(self, status: int) -> None:
        """A request that the server will never take is sent once, and not cancelled either."""
        polar = _Polar()
        polar.steps["submit"] = [_answer(status, "no good")]
        error, log, seconds = _collect(polar)
        assert isinstance(error, SubmitRejectedError)
        assert error.status_code == status
        assert "no good" in str(error)
        assert polar.requests == [("submit", "t-a1")]
        assert log.kinds == []
        assert seconds == 0.0

    def test_another_tasks_receipt_is_no_receipt(self) -> None:
        """The task is looked up before it counts as accepted."""
        polar = _Polar()

        async def mix_up(request: httpx.Request) -> httpx.Response:
            polar.ordinary("submit", "t-a1")
            return httpx.Response(200, json={"task_id": "other", "status": "running"})

        polar.steps["submit"] = [mix_up]
        task, log, _ = _collect(polar)
        assert isinstance(task, CollectedTask)
        assert log.of(CollectEventKind.RETRY)[0].detail["reason"] == "bad_answer"
        assert polar.routes("submit") == ["t-a1"]

    def test_tries_are_bounded(self) -> None:
        """A request that always fails while others succeed is given up long before the deadline."""
        polar = _Polar()
        polar.steps["submit"], polar.for_ever = [_answer(500, "broken")], {"submit"}
        error, log, seconds = _collect(polar, deadline=100_000.0)
        assert isinstance(error, InfrastructureError)
        assert error.reason == "server_error"
        assert "broken" in str(error)
        assert len(polar.routes("submit")) == 10
        assert seconds < 120
        assert log.kinds[-1] == "cancelled"

    def test_request_that_cannot_be_encoded_is_an_error(self) -> None:
        """Nothing is sent, and the error names the path of the value."""
        polar = _Polar()

        async def main(collector: Collector, log: _Log) -> None:
            def build(attempt: int) -> TaskRequest:
                return _build(attempt).replace(metadata={"x": float("nan")})

            with pytest.raises(TemplateError, match=r"metadata"):
                await collect_task(collector, build, deadline=10.0)

        _virtual(polar, main)
        assert polar.requests == []


class TestForgetting:
    def test_forgotten_task_is_submitted_again_under_a_new_id(self) -> None:
        """A restart of the server costs a poll, not the prompt, and old results never meet new ones."""
        polar = _Polar(duration=20.0)

        async def main(collector: Collector, log: _Log) -> CollectedTask:
            async with anyio.create_task_group() as tasks:

                async def restart() -> None:
                    await anyio.sleep(5)
                    polar.accepted.clear()

                tasks.start_soon(restart)
                task = await collect_task(collector, _build, deadline=600.0, on_event=log)
            assert log.kinds == ["submitted", "forgotten", "resubmitted", "polled"]
            assert [event.attempt for event in log.events] == [1, 1, 2, 2]
            return task

        task = _virtual(polar, main)
        assert (task.task_id, task.attempt) == ("t-a2", 2)
        assert polar.routes("submit") == ["t-a1", "t-a2"]
        assert polar.routes("cancel") == []

    def test_server_that_always_forgets_is_given_up(self) -> None:
        """A server that loses every task, such as several behind one address, is named."""
        polar = _Polar()
        polar.steps["status"], polar.for_ever = [_forgetful(polar)], {"status"}
        error, log, _ = _collect(polar, max_task_attempts=3)
        assert isinstance(error, InfrastructureError)
        assert error.reason == "forgotten"
        assert "forgot the task 3 times" in str(error)
        assert polar.routes("submit") == ["t-a1", "t-a2", "t-a3"]
        assert log.kinds.count("forgotten") == 3

    def test_deadline_covers_all_attempts(self) -> None:
        """A second attempt gets what the first has left."""
        polar = _Polar(duration=None)
        polar.steps["status"] = [_forgetful(polar)]
        error, log, seconds = _collect(polar, deadline=30.0)
        assert isinstance(error, InfrastructureError)
        assert error.reason == "deadline"
        assert seconds == 30.0
        assert "resubmitted" in log.kinds
        assert polar.routes("cancel") == ["t-a2"]

    def test_impossible_number_of_attempts_is_refused(self) -> None:
        """No attempt at all would be no collection."""
        with pytest.raises(ValueError, match="max_task_attempts"):
            Collector(PolarClient("http://polar"), max_task_attempts=0)


def _forgetful(polar: _Polar) -> Step:
    async def step(request: httpx.Request) -> None:
        polar.accepted.clear()

    return step


class TestOutages:
    @pytest.mark.parametrize(
        ("route", "what"), [("submit", {"submit"}), ("status", set()), ("task", {"result"})]
    )
    def test_bursts_of_errors(self, route: str, what: set[str]) -> None:
        """503, resets and refusals on submit, poll or download are ridden out."""
        polar = _Polar()
        polar.steps[route] = [
            _answer(503),
            _raise(aiohttp.ClientOSError("x")),
            _answer(502),
            _answer(504),
            _raise(refused()),
        ]
        task, log, seconds = _collect(polar)
        assert isinstance(task, CollectedTask)
        assert task.attempt == 1
        assert seconds < 30
        assert {event.detail["what"] for event in log.of(CollectEventKind.RETRY)} == what

    def test_download_that_always_fails_is_no_outage_for_ever(self) -> None:
        """As long as polls succeed, one task's broken record uses up its tries, not its whole deadline."""
        polar = _Polar()
        polar.steps["task"], polar.for_ever = [_answer(500, "broken")], {"task"}
        error, log, seconds = _collect(polar, deadline=100_000.0)
        assert isinstance(error, InfrastructureError)
        assert error.reason == "server_error"
        assert "the result request failed" in str(error)
        assert seconds < 300

    def test_long_outage_costs_time_and_nothing_else(self) -> None:
        """Ten minutes without a server use up no tries, and few requests."""
        polar = _Polar()
        for route in ("submit", "task"):
            polar.steps[route] = [_until(600.0)]
            polar.for_ever.add(route)
        task, log, seconds = _collect(polar, deadline=3600.0)
        assert isinstance(task, CollectedTask)
        assert 600.0 < seconds < 610.0
        assert len(polar.requests) < 1250
        assert log.of(CollectEventKind.SUBMITTED)[0].at < 601.0

    def test_outage_at_the_deadline_is_told_apart(self) -> None:
        """A prompt whose time ran out because the server was away is not to blame."""
        polar = _Polar()
        polar.steps["submit"], polar.for_ever = [_raise(refused())], {"submit"}
        polar.steps["cancel"] = [_raise(refused())]
        error, _, seconds = _collect(polar, deadline=60.0)
        assert isinstance(error, InfrastructureError)
        assert error.reason == "outage"
        assert "Connection refused" in str(error)
        assert seconds == 60.0


def _until(end: float) -> Step:
    async def step(request: httpx.Request) -> None:
        if anyio.current_time() < end:
            raise refused()

    return step


class TestGivingUp:
    def test_deadline_cancels_the_task_on_the_server(self) -> None:
        """A group that waits no longer leaves nothing running behind it."""
        polar = _Polar(duration=None)
        error, log, seconds = _collect(polar, deadline=50.0)
        assert isinstance(error, InfrastructureError)
        assert error.reason == "deadline"
        assert "t-a1 (attempt 1, accepted)" in str(error)
        assert seconds == 50.0
        assert polar.routes("cancel") == ["t-a1"]
        assert log.kinds == ["submitted", "cancelled"]
        assert log.events[-1].detail == {"acknowledged": True}

    def test_passed_deadline_sends_nothing(self) -> None:
        """A group whose time is over before it begins costs no request."""
        polar = _Polar()
        error, log, _ = _collect(polar, deadline=-1.0)
        assert isinstance(error, InfrastructureError)
        assert error.reason == "deadline"
        assert polar.routes("submit") == []
        assert log.kinds == []

    @pytest.mark.parametrize("how", ["scope", "task"])
    @pytest.mark.parametrize("when", [0.0, 1.0, 2.0, 5.0])
    def test_cancelled_call_cancels_the_task(self, how: str, when: float) -> None:
        """Whatever way and at whatever moment a collection is cancelled, the server is told."""
        polar = _Polar(duration=None)

        async def slow(request: httpx.Request) -> None:
            await anyio.sleep(1.0)

        polar.steps["submit"] = [slow]
        polar.steps["status"] = [slow]

        async def main(collector: Collector, log: _Log) -> None:
            call = collect_task(collector, _build, deadline=600.0, on_event=log)
            if how == "task":
                running = asyncio.ensure_future(call)
                await anyio.sleep(when + 0.5)
                running.cancel()
                await asyncio.wait([running])
                assert running.cancelled()
            else:
                with anyio.move_on_after(when + 0.5) as scope:
                    await call
                assert scope.cancelled_caught
            assert log.kinds[-1] == "cancelled"
            assert anyio.current_time() == pytest.approx(when + 0.5)

        _virtual(polar, main)
        assert polar.routes("cancel") == ["t-a1"]

    def test_telling_the_server_is_bounded(self) -> None:
        """A stop with a hundred tasks at a dead server takes half a second, not a timeout each."""
        polar = _Polar(duration=None)
        polar.steps["cancel"], polar.for_ever = [_hang], {"cancel"}

        async def main(collector: Collector, log: _Log) -> None:
            async with anyio.create_task_group() as tasks:

                async def one(name: str) -> None:
                    await collect_task(
                        collector, lambda n: _build(n, name=name), deadline=600.0, on_event=log
                    )

                for n in range(100):
                    tasks.start_soon(one, f"t{n}")
                await anyio.sleep(1.0)
                tasks.cancel_scope.cancel()
            assert anyio.current_time() == pytest.approx(1.5)
            assert log.kinds.count("cancelled") == 100

        _virtual(polar, main)

    def test_server_without_cancellation_is_asked_once(self) -> None:
        """An older server's 405 is remembered."""
        polar = _Polar(duration=None)
        polar.can_cancel = False

        async def main(collector: Collector, log: _Log) -> None:
            for n in range(3):
                with anyio.move_on_after(1.0):
                    await collect_task(
                        collector, lambda a, n=n: _build(a, name=f"t{n}"), deadline=600.0, on_event=log
                    )
            assert [event.detail for event in log.of(CollectEventKind.CANCELLED)] == [
                {"acknowledged": False}
            ] * 3

        _virtual(polar, main)
        assert len(polar.routes("cancel")) == 1

    def test_bug_in_a_listener_surfaces(self) -> None:
        """An exception of `on_event` reaches the caller, and the task is cancelled."""
        polar = _Polar(duration=None)

        async def main(collector: Collector, log: _Log) -> None:
            def broken(event: CollectEvent) -> None:
                if event.kind is CollectEventKind.SUBMITTED:
                    raise KeyError("bug")

            with pytest.raises(KeyError, match="bug"):
                await collect_task(collector, _build, deadline=600.0, on_event=broken)

        _virtual(polar, main)
        assert polar.routes("cancel") == ["t-a1"]


FAST = PollSchedule(first=0.05, factor=2.0, max_interval=0.2, min_gap=0.02, max_duty=1.0)
NEVER = PollSchedule(first=1000.0, max_interval=1000.0)
QUICK = RetryPolicy(initial=0.02, max_delay=0.2)
CALLBACK_FIRST = 1.0
"""Grace for a callback that a test wants before the poll's download, on a slow machine too."""


@asynccontextmanager
async def _bridge(
    polar: PolarHandle, *, schedule: PollSchedule = FAST, timeout: float = 5.0, grace: float = 0.05
) -> AsyncIterator[tuple[Collector, CallbackListener]]:
    """Client, listener and collector at a real server."""
    fuse = Fuse(probe_interval=0.1)
    async with (
        PolarClient(polar.url, timeout=timeout, fuse=fuse) as client,
        CallbackListener("127.0.0.1") as listener,
        Collector(
            client,
            listener=listener,
            retry=QUICK,
            schedule=schedule,
            rng=random.Random(0),
            callback_grace=grace,
        ) as collector,
    ):
        yield collector, listener


def _script(*faults: Fault, duration: float = 0.0) -> FaultScript:
    return FaultScript(seed=1, sessions=SessionProfile(duration=duration), faults=list(faults))


def _over_sockets(
    script: FaultScript, *, posts: int = 1, **options: Any
) -> tuple[CollectedTask, _Log, dict[str, int]]:
    """Collect one task at a real server; return it, the report, and what so many posts were counted as."""
    with serve_polar(script) as polar:

        async def main() -> tuple[CollectedTask, _Log, dict[str, int]]:
            async with _bridge(polar, **options) as (collector, listener):
                log = _Log()
                deadline = anyio.current_time() + 25.0
                task = await collect_task(collector, _build, deadline=deadline, on_event=log)
                # Late and duplicate bodies come after the result.
                while sum(listener.counts.values()) < posts:  # noqa: ASYNC110 - the listener has no event for it
                    await anyio.sleep(0.01)
                return task, log, {kind: count for kind, count in listener.counts.items() if count}

        return run_real(main())


class TestCallbacks:
    def test_result_comes_by_callback(self) -> None:
        """The ordinary way: nothing is polled, nothing is downloaded."""
        task, log, counts = _over_sockets(_script(), schedule=NEVER)
        assert task.via == "callback"
        assert log.kinds == ["submitted", "callback"]
        assert counts == {"accepted": 1}
        payload = decode_task_payload(task.body)
        assert len(payload.results) == 2
        assert task.received_at >= task.submitted_at

    def test_callback_before_the_receipt(self) -> None:
        """A server that is faster with the result than with its answer is believed."""
        task, log, counts = _over_sockets(_script(Fault("callback_early")), schedule=NEVER)
        assert task.via == "callback"
        assert log.kinds == ["submitted", "callback"]
        assert counts == {"accepted": 1}

    def test_callback_makes_up_for_a_lost_receipt(self) -> None:
        """A submit that is carried out and never answered ends with the callback, not with a timeout."""
        script = _script(Fault("response_hang", on="submit", processed=True))
        task, log, _ = _over_sockets(script, schedule=NEVER, timeout=20.0)
        assert task.via == "callback"
        assert log.kinds == ["submitted", "callback"]

    def test_callback_interrupts_a_download_that_hangs(self) -> None:
        """Whichever way works first gives the result."""
        script = _script(Fault("callback_late", seconds=0.4), Fault("response_hang", on="task"))
        task, log, _ = _over_sockets(script, timeout=20.0, grace=0.0)
        assert task.via == "callback"
        assert log.kinds == ["submitted", "callback"]

    def test_lost_callback_costs_a_poll(self, caplog: pytest.LogCaptureFixture) -> None:
        """Polling delivers, and one line tells where callbacks should arrive."""
        with caplog.at_level(logging.WARNING, logger="slime_bridge"):
            task, log, counts = _over_sockets(_script(Fault("callback_lost")), posts=0)
        assert task.via == "poll"
        assert log.kinds == ["submitted", "polled"]
        assert counts == {}
        assert len(caplog.messages) == 1
        assert "polar_callback_host" in caplog.messages[0]
        assert "http://127.0.0.1:" in caplog.messages[0]

    def test_late_callback_changes_nothing(self) -> None:
        """After the poll has delivered, the callback is acknowledged, counted and dropped."""
        task, _, counts = _over_sockets(_script(Fault("callback_late", seconds=2.0)))
        assert task.via == "poll"
        assert counts == {"late": 1}

    def test_duplicates_change_nothing(self) -> None:
        """One result is one result, however often it is posted."""
        task, log, counts = _over_sockets(
            _script(Fault("callback_duplicate", count=3)), posts=4, schedule=NEVER
        )
        assert task.via == "callback"
        assert log.kinds == ["submitted", "callback"]
        assert counts == {"accepted": 1, "duplicate": 3}

    def test_forged_callback_changes_nothing(self) -> None:
        """Who does not know the address cannot deliver a reward of 999."""
        task, _, counts = _over_sockets(_script(Fault("callback_forged")), posts=2, schedule=NEVER)
        results = decode_task_payload(task.body).results
        rewards = [t.reward for r in results if isinstance(r, SessionResult) for t in r.trajectory.traces]
        assert rewards
        assert 999.0 not in rewards
        assert counts == {"accepted": 1, "forged": 1}

    @pytest.mark.parametrize(
        ("kind", "via"), [("callback_foreign", "callback"), ("callback_foreign_only", "poll")]
    )
    def test_another_tasks_result_changes_nothing(self, kind: str, via: str) -> None:
        """A result with another id is not taken, even at the right address."""
        schedule, posts = (NEVER, 2) if via == "callback" else (FAST, 1)
        task, _, counts = _over_sockets(
            _script(Fault(kind)), posts=posts, schedule=schedule, grace=CALLBACK_FIRST
        )
        assert task.via == via
        assert decode_task_payload(task.body).task_id == "t-a1"
        assert counts["foreign"] == 1

    @pytest.mark.parametrize("value", ["text", "truncated", "list", "empty", "null", "not_utf8"])
    def test_malformed_callback_is_made_up_for_by_polling(self, value: str) -> None:
        """Garbage is counted, never delivered, and the poll finds the result."""
        script = _script(Fault("callback_malformed", value=value))
        task, log, counts = _over_sockets(script, grace=CALLBACK_FIRST)
        assert task.via == "poll"
        assert counts == {"malformed": 1}
        assert ("rejected_callback" in log.kinds) == (value in ("truncated", "not_utf8"))
        assert len(decode_task_payload(task.body).results) == 2

    def test_callback_that_says_running_is_ignored(self) -> None:
        """A record of a task that still runs is no result."""
        task, log, counts = _over_sockets(_script(Fault("callback_running")), grace=CALLBACK_FIRST)
        assert task.via == "poll"
        assert counts == {"malformed": 1}
        assert "rejected_callback" in log.kinds

    def test_callback_in_the_other_shape_is_fine(self) -> None:
        """The shape that polling returns is understood from a callback too."""
        task, _, _ = _over_sockets(_script(Fault("callback_status_shape")), schedule=NEVER)
        assert task.via == "callback"

    def test_huge_callback(self) -> None:
        """Eight megabytes are checked off the loop and delivered whole."""
        task, _, _ = _over_sockets(_script(Fault("callback_huge", count=8_000_000)), schedule=NEVER)
        assert task.via == "callback"
        assert len(task.body) > 7_900_000

    @pytest.mark.parametrize("via", ["callback", "poll"])
    def test_slow_callback_is_not_downloaded_beside(self, via: str) -> None:
        """While a body is coming in, polling waits for it; one that breaks off is made up for."""
        fault = Fault("callback_slow", seconds=1.0) if via == "callback" else Fault("callback_cut")
        task, _, counts = _over_sockets(_script(fault), grace=CALLBACK_FIRST)
        assert task.via == via
        assert counts == ({"accepted": 1} if via == "callback" else {"cut": 1})

    def test_unreachable_address_is_made_up_for(self) -> None:
        """Behind NAT no callback arrives; every result does, and the second sooner than the first."""
        with serve_polar(_script()) as polar:

            async def main() -> None:
                async with (
                    PolarClient(polar.url) as client,
                    # Nobody answers on another loopback address.
                    CallbackListener("127.0.0.3", bind_host="127.0.0.2") as listener,
                    Collector(client, listener=listener, schedule=FAST, callback_grace=0.3) as collector,
                ):
                    for name in ("first", "second"):
                        deadline = anyio.current_time() + 25.0
                        task = await collect_task(
                            collector, lambda n, name=name: _build(n, name=name), deadline=deadline
                        )
                        assert task.via == "poll"
                    assert collector.poller.callbacks_work is False

            run_real(main())


class TestAgainstServer:
    def test_refused_for_two_seconds(self) -> None:
        """A server that comes back within the deadline costs no prompt and no attempt."""
        with serve_polar(_script()) as polar:

            async def main() -> None:
                async with _bridge(polar) as (collector, _):
                    await asyncio.to_thread(polar.refuse, 2.0)
                    log = _Log()
                    deadline = anyio.current_time() + 25.0
                    task = await collect_task(collector, _build, deadline=deadline, on_event=log)
                    assert task.attempt == 1
                    assert polar.submits == 1
                    assert log.of(CollectEventKind.RETRY)

            run_real(main())

    def test_restart_in_the_middle(self) -> None:
        """Tasks that the server forgot are submitted again, each once, under new ids."""
        with serve_polar(_script(Fault("session_endless", times=8))) as polar:

            async def main() -> list[CollectedTask]:
                results: list[CollectedTask] = []
                async with _bridge(polar) as (collector, _):

                    async def one(name: str) -> None:
                        deadline = anyio.current_time() + 25.0
                        results.append(
                            await collect_task(collector, lambda n: _build(n, name=name), deadline=deadline)
                        )

                    async with anyio.create_task_group() as tasks:
                        for n in range(4):
                            tasks.start_soon(one, f"t{n}")
                        await asyncio.to_thread(polar.wait_until, lambda: polar.submits == 4)
                        await asyncio.to_thread(polar.forget_all)
                return results

            results = run_real(main())
            assert sorted(task.task_id for task in results) == [f"t{n}-a2" for n in range(4)]
            assert polar.submits == 8

    @pytest.mark.parametrize(
        "fault",
        [
            Fault("connection_half_open", times=2),
            Fault("connection_reset", times=3),
            Fault("connection_garbage", times=3),
            Fault("response_hang", on="submit", times=1),
            Fault("response_hang", on="submit", times=1, processed=True),
            Fault("response_reset", on="submit", times=2, processed=True),
            Fault("response_cut", on="task", times=2),
            Fault("response_garbage", on="status", times=2, value="<html>"),
            Fault("response_empty", on="task", times=2),
            Fault("response_status", on="status", status=503, times=5),
            Fault("response_status", on="submit", status=503, times=3),
            Fault("response_status", on="task", status=502, times=3),
        ],
        ids=lambda fault: f"{fault.kind}-{fault.on}-{fault.processed}",
    )
    def test_every_network_fault_ends_in_the_result(self, fault: Fault) -> None:
        """With its callback lost as well, a task survives whatever happens to its requests, in one run."""
        with serve_polar(_script(Fault("callback_lost"), fault)) as polar:

            async def main() -> None:
                async with _bridge(polar, timeout=0.5) as (collector, _):
                    task = await collect_task(collector, _build, deadline=anyio.current_time() + 25.0)
                    assert decode_task_payload(task.body).status == "completed"
                    assert task.via == "poll"

            run_real(main())
            assert polar.submits == 1

    def test_conflict_about_a_task_that_nobody_runs(self) -> None:
        """A 409 that was no acceptance, such as for a cancelled id, ends in an attempt under a new id."""
        task, log, _ = _over_sockets(_script(Fault("task_conflict", times=1)))
        assert task.task_id == "t-a2"
        assert log.kinds[:3] == ["submitted", "forgotten", "resubmitted"]

    def test_newer_server_is_told_of_the_stop(self) -> None:
        """Tasks that nobody waits for are cancelled where the server can."""
        with serve_polar(_script(Fault("task_endless")), newer=True) as polar:

            async def main() -> None:
                async with _bridge(polar) as (collector, _):
                    with anyio.move_on_after(None) as scope:
                        async with anyio.create_task_group() as tasks:
                            for n in range(5):
                                tasks.start_soon(self._collect, collector, f"t{n}")
                            await asyncio.to_thread(polar.wait_until, lambda: polar.submits == 5)
                            scope.cancel()

            run_real(main())
            assert sorted(polar.cancelled) == [f"t{n}-a1" for n in range(5)]

    @staticmethod
    async def _collect(collector: Collector, name: str) -> None:
        await collect_task(collector, lambda n: _build(n, name=name), deadline=anyio.current_time() + 25.0)


def test_dead_poller_is_not_silent() -> None:
    """A bug in the poller ends the collections under it with an error instead of leaving them waiting."""
    polar = _Polar(duration=None)

    async def main(collector: Collector, log: _Log) -> None:
        def broken(*args: object) -> None:
            raise ZeroDivisionError

        collector.poller._tell = broken  # type: ignore[method-assign]
        await collect_task(collector, _build, deadline=600.0)

    with pytest.raises(ZeroDivisionError):
        _virtual(polar, main)


def test_errors_leave_the_collector_as_they_are() -> None:
    """The caller's own exception is not wrapped into a group."""

    async def main(collector: Collector, log: _Log) -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        _virtual(_Polar(), main)
