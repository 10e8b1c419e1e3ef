"""What failed in a thread keeps nothing of what it was given, without waiting for the garbage collector."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import anyio
import httpx
import pytest

from slime_bridge._body import joined
from slime_bridge._threads import run_in_thread
from slime_bridge.callbacks import CallbackListener
from slime_bridge.client import PolarClient
from slime_bridge.collect import CollectedTask, CollectEvent, CollectEventKind, Collector, collect_task
from slime_bridge.errors import ProtocolError
from slime_bridge.protocol import TaskRequest
from tests.slime_bridge.callback_peers import until
from tests.slime_bridge.loops import run_real
from tests.slime_bridge.rollouts import Source
from tests.slime_bridge.test_group_task import group, runner
from tests.slime_bridge.transports import HandlerTransport

BROKEN = b'{"task_id": "t-1", "status": "completed", "results": [], "x": "' + b"y" * 3_000_000


@pytest.fixture(autouse=True)
def without_collector() -> Iterator[None]:
    """Nothing frees what refers to itself."""
    gc.disable()
    yield
    gc.enable()


def body() -> tuple[memoryview, weakref.ref[object]]:
    """Return a record that breaks off, in a mapping of its own, and a way to see that it has gone."""
    record = joined([BROKEN])
    assert isinstance(record, memoryview)
    return record, weakref.ref(record.obj)


def test_results_and_errors_come_out_as_they_are() -> None:
    """With the lines where it failed, for whoever reads the log."""

    async def main() -> None:
        limiter = anyio.CapacityLimiter(1)
        assert await run_in_thread(divmod, 7, 2, limiter=limiter) == (3, 1)
        with pytest.raises(ZeroDivisionError) as caught:
            await run_in_thread(lambda: 1 // 0, limiter=limiter)
        assert "<lambda>" in [entry.name for entry in caught.traceback]

    run_real(main())


def test_a_callback_that_is_no_result_is_let_go() -> None:
    """The attempt goes on waiting, and must not do so with the memory of what it rejected."""

    async def main() -> None:
        submitted = anyio.Event()
        rejected = anyio.Event()

        def answer(request: httpx.Request) -> httpx.Response:
            if request.method == "POST":
                submitted.set()
            return httpx.Response(
                200, json={"task_id": "t-1", "status": "running", "tasks": {"t-1": "running"}}
            )

        def note(event: CollectEvent) -> None:
            if event.kind is CollectEventKind.REJECTED_CALLBACK:
                rejected.set()

        def request(attempt: int) -> TaskRequest:
            fields = {"task_id": "t-1", "instruction": "x", "agent": {"harness": "shell"}, "num_samples": 1}
            return TaskRequest.from_payload(fields)

        async with (
            CallbackListener("127.0.0.1") as listener,
            PolarClient("http://polar", transport=HandlerTransport(answer)) as client,
            Collector(client, listener=listener) as collector,
            anyio.create_task_group() as tasks,
        ):

            async def collect() -> None:
                await collect_task(collector, request, deadline=anyio.current_time() + 60, on_event=note)

            tasks.start_soon(collect)
            await submitted.wait()
            [handle] = listener._handles.values()
            record, memory = body()
            handle._deliver(record)
            del record
            await rejected.wait()
            await until(lambda: memory() is None)  # the thread lets go at its own pace
            tasks.cancel_scope.cancel()

    run_real(main(), within=10)


def test_a_result_that_cannot_be_decoded_is_let_go() -> None:
    """Its group waits in the queue for another try, with the prompt alone."""

    async def main() -> None:
        record, memory = body()
        task = CollectedTask("t-1", 1, record, "callback", 0.0, 1.0)
        said = ""
        try:
            await runner().judge(group(Source().get_samples(1)[0]), [task])
        except ProtocolError as exc:
            said = str(exc)
        assert "not JSON" in said
        del record, task
        await until(lambda: memory() is None)

    run_real(main(), within=10)
