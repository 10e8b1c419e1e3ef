"""A server's events, taken apart and followed through whatever breaks."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.lab.polar_server.testing import PolarHandle, serve_polar
from analysis.live import event_stream
from analysis.live.event_stream import EventParser, follow_events

STREAM = b'data: {"type": "hello"}\n\n: comment\nid: 3\ndata: no json\ndata: [1]\ndata:{"type": "x"}\n\n'


@given(st.lists(st.integers(1, len(STREAM)), max_size=8))
def test_pieces_do_not_matter(cuts: list[int]) -> None:
    """However the bytes arrive, the events are the same, and what is none is skipped."""
    parser, found, start = EventParser(), [], 0
    for end in [*sorted(cuts), len(STREAM)]:
        found += parser.feed(STREAM[start:end])
        start = end
    assert found == [{"type": "hello"}, {"type": "x"}]


def test_an_endless_event_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory is bounded; the next event is read."""
    monkeypatch.setattr(event_stream, "_MAX_EVENT_BYTES", 100)
    parser = EventParser()
    assert list(parser.feed(b"data: " + b"x" * 500)) == []
    assert list(parser.feed(b"xxx\n" + b'data: {"a": 1}\n')) == [{"a": 1}]


def follow_until(polar: PolarHandle, wanted: str, after_hello: Any = None) -> list[str]:
    """Follow until an event of this type came."""
    seen: list[str] = []

    async def main() -> None:
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:

                def take(event: dict[str, Any]) -> None:
                    seen.append(event["type"])
                    if event["type"] == "hello" and after_hello is not None:
                        tasks.start_soon(anyio.to_thread.run_sync, after_hello)
                    if event["type"] == wanted:
                        tasks.cancel_scope.cancel()

                tasks.start_soon(follow_events, polar.url, take)

    anyio.run(main)
    return seen


def test_events_are_followed() -> None:
    """From the hello on."""
    with serve_polar() as polar:
        publish = lambda: polar.run(lambda: polar.server.hub.publish("task.created", task_id="t"))  # noqa: E731
        assert follow_until(polar, "task.created", publish) == ["hello", "task.created"]


def test_a_broken_stream_is_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a pause, as long as somebody follows."""
    monkeypatch.setattr(event_stream, "_FIRST_PAUSE", 0.01)
    hellos: list[int] = []

    with serve_polar() as polar:

        def once() -> None:
            hellos.append(1)
            if len(hellos) == 1:
                polar.refuse(0.05)
            else:
                polar.run(lambda: polar.server.hub.publish("task.created", task_id="t"))

        assert follow_until(polar, "task.created", once).count("hello") == 2


def test_a_server_without_a_stream_is_left_alone() -> None:
    """Not even asked again."""
    with serve_polar(gateways=1) as polar:
        anyio.run(follow_events, f"{polar.url}/nowhere", lambda event: None)
        assert len(polar.requests_to("/nowhere/events")) == 1
