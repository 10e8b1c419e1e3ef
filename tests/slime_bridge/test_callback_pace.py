"""Callbacks that come slowly, and callbacks that come faster than they are received."""

from __future__ import annotations

import time
from typing import Any

import anyio
import anyio.lowlevel
import h11
import pytest

from slime_bridge import callbacks
from slime_bridge._body import MAPPED_BYTES
from slime_bridge._connection import Connection
from slime_bridge.callbacks import CallbackKind, CallbackListener
from slime_bridge.collect import CollectedTask
from tests.slime_bridge.callback_peers import Peer, head, result, until
from tests.slime_bridge.loops import run_real
from tests.slime_bridge.rollouts import Source
from tests.slime_bridge.test_group_task import collected, group, runner, session


class TestSlowSenders:
    def test_slow_but_steady_is_no_idling(self) -> None:
        """Each piece begins the idle time anew; a body that takes longer than that is complete."""

        async def one(listener: CallbackListener, body: bytes) -> None:
            handle = listener.register("t-1")
            peer = await Peer.open(listener)
            await peer.send(head(handle, len(body)))
            for start in range(0, len(body), len(body) // 5 + 1):
                await peer.send(body[start : start + len(body) // 5 + 1])
                await anyio.sleep(0.4)
            assert await peer.status() == 200
            await peer.end()
            assert handle.take() == body

        async def main() -> None:
            async with CallbackListener("127.0.0.1", idle_timeout=1.5) as listener:
                async with anyio.create_task_group() as tasks:
                    for size in (1000, 2 * MAPPED_BYTES):
                        tasks.start_soon(one, listener, result(size))
                assert listener.counts[CallbackKind.ACCEPTED] == 2

        run_real(main())

    @pytest.mark.parametrize("size", [100_000, MAPPED_BYTES + 1000])
    def test_pieces_wake_nobody(self, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """A body in hundreds of pieces wakes its task once, at its end."""
        body = result(size)
        pieces: list[int] = []
        wakes: list[int] = []
        received, wake = Connection.buffer_updated, Connection._wake

        def counted(connection: Connection, nbytes: int) -> None:
            pieces.append(nbytes)
            received(connection, nbytes)

        def counted_wake(connection: Connection, error: Exception | None = None) -> None:
            if connection._waiter is not None:
                wakes.append(len(pieces))
            wake(connection, error)

        async def main() -> None:
            async with CallbackListener("127.0.0.1") as listener:
                handle = listener.register("t-1")
                peer = await Peer.open(listener)
                await peer.send(head(handle, size))
                await until(lambda: handle.receiving)
                monkeypatch.setattr(Connection, "buffer_updated", counted)
                monkeypatch.setattr(Connection, "_wake", counted_wake)
                for start in range(0, size, 997):
                    await peer.send(body[start : start + 997])
                    await anyio.lowlevel.checkpoint()
                assert await peer.status() == 200
                monkeypatch.undo()
                await peer.end()
                assert handle.take() == body
                assert sum(pieces) == size
                assert len(pieces) > 20
                assert wakes[:1] == [len(pieces)]

        run_real(main())

    @pytest.mark.parametrize("late", [False, True])
    def test_tiny_chunks_leave_turns_to_others(self, late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        """A read that holds thousands of chunks is taken apart in stretches, also where it is dropped."""
        body = result(50_000)
        chunks = b"".join(b"2\r\n%s\r\n" % body[at : at + 2] for at in range(0, len(body), 2))
        parts = most = 0
        following = h11.Connection.next_event

        def counted(connection: h11.Connection) -> Any:
            nonlocal parts
            parts += 1
            return following(connection)

        async def take_turns() -> None:
            nonlocal parts, most
            while True:
                most, parts = max(most, parts), 0
                await anyio.lowlevel.checkpoint()

        monkeypatch.setattr(h11.Connection, "next_event", counted)

        async def main() -> None:
            async with CallbackListener("127.0.0.1") as listener, anyio.create_task_group() as tasks:
                tasks.start_soon(take_turns)
                handle = listener.register("t-1")
                if late:
                    handle.close()
                peer = await Peer.open(listener)
                await peer.send(head(handle, None) + chunks + b"0\r\n\r\n")
                assert await peer.status() == 200
                await peer.end()
                assert handle.take() == (None if late else body)
                tasks.cancel_scope.cancel()

        run_real(main())
        assert 0 < most < 1000


class TestCatchingUp:
    def test_nothing_to_wait_for(self) -> None:
        """Without uploads, and with one that the loop keeps up with, work begins at once."""

        async def main() -> None:
            async with CallbackListener("127.0.0.1") as listener:
                await listener.caught_up()
                handle = listener.register("t-1")
                peer = await Peer.open(listener)
                await peer.send(head(handle, 1 << 20) + b"{")
                await until(lambda: handle.receiving)
                with anyio.fail_after(0):
                    await listener.caught_up()
                peer.writer.transport.abort()
                await handle.wait_received()

        run_real(main())

    def test_backlog_is_waited_for_but_not_for_ever(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What the kernel held while the loop was busy makes work wait; an upload without end cannot."""
        monkeypatch.setattr(callbacks, "_CATCH_UP_SECONDS", 0.4)
        monkeypatch.setattr(callbacks, "_CAUGHT_UP_SECONDS", 0.2)

        async def main() -> None:
            async with CallbackListener("127.0.0.1") as listener:
                handle = listener.register("t-1")
                body = result(8_000_000)
                peer = await Peer.open(listener)
                await peer.send(head(handle, len(body)))
                await until(lambda: handle.receiving)
                peer.writer.write(body[:4_000_000])
                time.sleep(0.05)  # noqa: ASYNC251 - the loop is busy, and bytes wait in the kernel
                await peer.writer.drain()
                await until(lambda: listener._reception.backlog_at > 0)
                began = anyio.current_time()
                listener._reception.backlog_at = began
                await listener.caught_up()
                assert anyio.current_time() >= began + 0.2
                listener._reception.backlog_at = float("inf")
                await listener.caught_up()
                assert anyio.current_time() >= began + 0.59
                assert handle.receiving
                await peer.send(body[4_000_000:])
                assert await peer.status() == 200
                await peer.end()
                assert listener.counts[CallbackKind.ACCEPTED] == 1
                with anyio.fail_after(0):
                    await listener.caught_up()

        run_real(main())

    def test_conversion_begins_when_receiving_has_caught_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A group's result is decoded after the wait, not before."""
        steps: list[str] = []

        class Waiting:
            async def caught_up(self) -> None:
                steps.append("caught up")

        async def collect(*args: Any, **options: Any) -> CollectedTask:
            steps.append("collected")
            return collected(session(0), session(1))

        monkeypatch.setattr("slime_bridge.group_task.collect_task", collect)
        running = runner()
        running.collector = Waiting()
        running.on_collected = lambda task: steps.append("decoding")
        judged = anyio.run(running.run, group(Source().make(1)))
        assert len(judged.conversion.samples) == 2
        assert steps == ["collected", "caught up", "decoding"]
