"""How callback bodies are received: exact at every size, in memory that is given back, whatever peers do."""

from __future__ import annotations

import gc
import json
import weakref
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from slime_bridge._body import MAPPED_BYTES, joined, mapped
from slime_bridge._task_head import leading_task_id, read_task_head, starts_like_object
from slime_bridge.callbacks import CallbackListener
from slime_bridge.protocol import decode_task_payload
from tests.slime_bridge.callback_peers import Peer, head, nonzero, result, until
from tests.slime_bridge.loops import run_real

SIZES = [MAPPED_BYTES - 1, MAPPED_BYTES, MAPPED_BYTES + 1, 5_000_001]


def _resident_mb() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1e3
    raise AssertionError("no VmRSS")


class TestContent:
    @pytest.mark.parametrize("pieces", ["one write", "head first", "small pieces", "chunked"])
    @pytest.mark.parametrize("size", SIZES)
    def test_body_is_exact(self, size: int, pieces: str) -> None:
        """Around the size where memory changes, however the bytes come, the body is what was sent."""
        body = result(size)

        async def main() -> None:
            async with CallbackListener("127.0.0.1") as listener:
                handle = listener.register("t-1")
                peer = await Peer.open(listener)
                start_line = head(handle, None if pieces == "chunked" else size)
                if pieces == "one write":
                    await peer.send(start_line + body)
                elif pieces == "chunked":
                    await peer.send(start_line)
                    for start in range(0, size, 99_991):
                        piece = body[start : start + 99_991]
                        await peer.send(b"%x\r\n%s\r\n" % (len(piece), piece))
                    await peer.send(b"0\r\n\r\n")
                else:
                    await peer.send(start_line)
                    await until(lambda: handle.receiving)
                    step = 70_001 if pieces == "small pieces" else size
                    for start in range(0, size, step):
                        await peer.send(body[start : start + step])
                        await anyio.lowlevel.checkpoint()
                assert await peer.status() == 200
                await peer.end()
                taken = handle.take()
                assert taken is not None
                assert taken == body
                assert not handle.receiving
                assert isinstance(taken, bytes) == (size < MAPPED_BYTES)
                assert nonzero(listener) == {"accepted": 1}

        run_real(main())

    def test_view_is_read_like_bytes(self) -> None:
        """Everything that looks into a body takes one in memory of its own, and nobody can change it."""
        record: dict[str, Any] = {
            "task_id": "t-1",
            "status": "completed",
            "results": [],
            "x": "y" * MAPPED_BYTES,
        }
        body = joined([json.dumps(record).encode()])
        assert isinstance(body, memoryview)
        assert body.readonly
        assert starts_like_object(body)
        assert leading_task_id(body) == "t-1"
        assert read_task_head(body).status == "completed"
        assert decode_task_payload(body).task_id == "t-1"
        tolerant = joined([json.dumps({**record, "n": float("nan"), "s": "\ud800"}).encode()])
        assert read_task_head(tolerant).task_id == "t-1"
        assert decode_task_payload(tolerant).status == "completed"

    def test_sender_that_asks_first(self) -> None:
        """`Expect: 100-continue` gets its interim answer before a large body too."""
        body = result(MAPPED_BYTES + 10)

        async def main() -> None:
            async with CallbackListener("127.0.0.1") as listener:
                handle = listener.register("t-1")
                peer = await Peer.open(listener)
                await peer.send(head(handle, len(body), "Expect: 100-continue\r\n"))
                assert await peer.status() == 100
                await peer.reader.readuntil(b"\r\n")
                await peer.send(body)
                assert await peer.status() == 200
                await peer.end()
                assert handle.take() == body

        run_real(main())

    @pytest.mark.parametrize("size", [100, MAPPED_BYTES + 10])
    def test_what_follows_the_body_is_not_part_of_it(self, size: int) -> None:
        """A second request on the connection is not answered and changes nothing."""
        body = result(size)

        async def main() -> None:
            async with CallbackListener("127.0.0.1") as listener:
                handle = listener.register("t-1")
                peer = await Peer.open(listener)
                await peer.send((head(handle, size) + body) * 2)
                answer = await peer.reader.readuntil(b'{"status": "accepted"}')
                assert answer.startswith(b"HTTP/1.1 200")
                await peer.end()
                assert handle.take() == body
                assert nonzero(listener) == {"accepted": 1}

        run_real(main())

    def test_half_closed_sender_gets_its_answer(self) -> None:
        """A peer that has sent everything may say so."""
        body = result(MAPPED_BYTES + 10)

        async def main() -> None:
            async with CallbackListener("127.0.0.1") as listener:
                handle = listener.register("t-1")
                peer = await Peer.open(listener)
                await peer.send(head(handle, len(body)) + body)
                peer.writer.write_eof()
                assert await peer.status() == 200
                await peer.end()
                assert handle.take() == body

        run_real(main())

    def test_large_late_body_is_read_and_dropped(self) -> None:
        """Whoever is too late is answered like the others, after its last byte."""
        body = result(3_000_000)

        async def main() -> None:
            async with CallbackListener("127.0.0.1") as listener:
                handle = listener.register("t-1")
                handle.close()
                peer = await Peer.open(listener)
                await peer.send(head(handle, len(body)) + body)
                assert await peer.status() == 200
                await peer.end()
                assert nonzero(listener) == {"late": 1}

        run_real(main())


class TestMemory:
    def test_large_body_is_unmapped_with_its_last_reference(self) -> None:
        """Without waiting for the collector, and also when sessions were decoded from it."""
        session = {
            "session_id": "s",
            "task_id": "t-1",
            "status": "COMPLETED",
            "trajectory": {"status": "COMPLETED"},
        }
        record = {"task_id": "t-1", "status": "completed", "results": [session], "x": "y" * MAPPED_BYTES}
        body = json.dumps(record).encode()

        async def main() -> None:
            async with CallbackListener("127.0.0.1") as listener:
                handle = listener.register("t-1")
                peer = await Peer.open(listener)
                await peer.send(head(handle, len(body)) + body)
                assert await peer.status() == 200
                await peer.end()
                await until(lambda: not listener._exchanges)
                taken = handle.take()
                assert isinstance(taken, memoryview)
                memory = weakref.ref(taken.obj)
                decoded = decode_task_payload(taken)
                handle.close()
                del taken
                assert memory() is None
                assert decoded.results[0].session_id == "s"

        gc.disable()
        try:
            run_real(main())
        finally:
            gc.enable()

    @pytest.mark.parametrize("end", ["ended", "reset", "idle", "stopped", "attempt closed"])
    def test_memory_of_a_body_that_never_came_is_given_back(
        self, end: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A broken upload leaves nothing, is counted as before, and does not keep the whole body out."""
        body = result(2_000_000)
        made: list[weakref.ref[Any]] = []

        def watched(size: int) -> memoryview:
            memory = mapped(size)
            made.append(weakref.ref(memory.obj))
            return memory

        monkeypatch.setattr("slime_bridge._callback_http.mapped", watched)

        async def main() -> None:
            idle = 0.2 if end == "idle" else 15.0
            async with CallbackListener("127.0.0.1", idle_timeout=idle) as listener:
                handle = listener.register("t-1")
                peer = await Peer.open(listener)
                await peer.send(head(handle, len(body)) + body[:1_000_000])
                await until(lambda: handle.receiving)
                expected = {"idle": {"slow": 1}, "stopped": {}, "attempt closed": {"late": 1}}
                if end == "ended":
                    peer.writer.close()
                elif end == "reset":
                    peer.reset()
                elif end == "stopped":
                    await listener.close()
                    await peer.end()
                elif end == "idle":
                    assert await peer.status() == 408
                    await peer.end()
                else:
                    handle.close()
                    await peer.send(body[1_000_000:])
                    assert await peer.status() == 200
                    await peer.end()
                await handle.wait_received()
                await until(lambda: not listener._exchanges)
                assert nonzero(listener) == expected.get(end, {"cut": 1})
                assert handle.take() is None
                assert [memory() for memory in made] == [None]

        gc.disable()
        try:
            run_real(main())
        finally:
            gc.enable()

    def test_announcing_much_takes_nothing(self) -> None:
        """Many connections that each announce a gigabyte cost the pages that they fill."""

        async def main() -> None:
            async with CallbackListener("127.0.0.1") as listener:
                handle = listener.register("t-1")
                before = _resident_mb()
                peers = [await Peer.open(listener) for _ in range(100)]
                for peer in peers:
                    await peer.send(head(handle, 1 << 30) + b"{")
                await until(lambda: handle._uploads == 100)
                assert _resident_mb() - before < 50
                for peer in peers:
                    peer.writer.transport.abort()
                await handle.wait_received()
                await until(lambda: listener.counts["cut"] == 100)

        run_real(main())

    def test_more_than_the_system_has_is_refused(self) -> None:
        """A body that no memory can be reserved for is an answer and a count, and the next one is taken."""

        async def main() -> None:
            async with CallbackListener("127.0.0.1", max_body_bytes=1 << 62) as listener:
                handle = listener.register("t-1")
                peer = await Peer.open(listener)
                await peer.send(head(handle, 1 << 61) + b"{")
                assert await peer.status() == 503
                await peer.end()
                assert not handle.receiving
                assert nonzero(listener) == {"refused": 1}
                peer = await Peer.open(listener)
                await peer.send(head(handle, 100) + result(100))
                assert await peer.status() == 200
                await peer.end()
                assert handle.take() == result(100)

        run_real(main())
