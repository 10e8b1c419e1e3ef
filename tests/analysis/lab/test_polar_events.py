"""Server-sent events: framing, order, pings, slow readers, and no replay."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx

from analysis.lab.polar_server.events import QUEUE_SIZE, EventHub
from analysis.lab.polar_server.testing import ServerSettings, serve_polar
from tests.analysis.lab.polar_peers import shelf_policy, stub_engine, submit
from tests.analysis.lab.test_polar_agents import _request, _seed


def _follow(response: httpx.Response, until: str) -> list[dict[str, Any]]:
    """Read events until one of the given type came; check the framing on the way."""
    events = []
    for line in response.iter_lines():
        if not line:
            continue
        assert line.startswith("data: "), line
        event = json.loads(line.removeprefix("data: "))
        assert set(event) == {"type", "ts", "data"}
        assert event["ts"].endswith("+00:00")
        events.append(event)
        if event["type"] == until:
            return events
    raise AssertionError(f"the stream ended before {until}")


def test_a_task_is_told_from_start_to_end():
    """hello, created, states of each session, progress, completed: in this order."""
    with (
        serve_polar() as polar,
        httpx.Client(base_url=polar.url, trust_env=False, verify=False, timeout=20) as client,
    ):
        submit(polar, "before")
        with client.stream("GET", "/events") as response:
            assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
            assert response.headers["cache-control"] == "no-cache"
            assert response.headers["x-accel-buffering"] == "no"
            polar.wait_until(lambda: polar.server.hub.subscribers)
            submit(polar, "t-1", num_samples=2, agent={"harness": "h", "model_name": "m"})
            events = _follow(response, "task.completed")
    names = [event["type"] for event in events]
    assert names[0] == "hello"
    assert "before" not in {event["data"].get("task_id") for event in events}
    created = events[1]
    assert created["type"] == "task.created"
    assert created["data"] == {
        "task_id": "t-1",
        "status": "running",
        "harness": "h",
        "model": "m",
        "num_samples": 2,
    }
    states: dict[str, list[str]] = {}
    for event in events:
        if event["type"] == "session.state_changed":
            states.setdefault(event["data"]["session_id"], []).append(event["data"]["status"])
            assert ("node_id" in event["data"]) == (event["data"]["status"] != "DISPATCHING")
    assert list(states.values()) == [["DISPATCHING", "REGISTERED", "COMPLETED"]] * 2
    progress = [event["data"]["completed_sessions"] for event in events if event["type"] == "task.updated"]
    assert progress == [1, 2]
    assert events[-1]["data"] == {"task_id": "t-1", "status": "completed", "completed_sessions": 2}


def test_silence_is_filled_with_pings():
    """A quiet stream shows that it is alive."""
    with serve_polar(settings=ServerSettings(ping_seconds=0.05)) as polar:
        with httpx.stream(
            "GET", f"{polar.url}/events", trust_env=False, verify=False, timeout=20
        ) as response:
            events = _follow(response, "ping")
        assert [event["type"] for event in events] == ["hello", "ping"]
        polar.wait_until(lambda: polar.server.hub.subscribers == 0)


def test_gateways_tell_the_stages():
    """Stages between REGISTERED and the end are on the gateway's own stream; POST_RUN comes twice."""
    with (
        stub_engine(shelf_policy) as engine,
        serve_polar(agents=True, inference_url=engine.url) as polar,
        httpx.stream(
            "GET", f"{polar.gateways['node-1'].url}/events", trust_env=False, verify=False, timeout=20
        ) as response,
    ):
        polar.wait_until(lambda: polar.server.gateways["node-1"].hub.subscribers)
        submit(polar, "t-1", **_request(_seed(named_item=False)))
        states = []
        for line in response.iter_lines():
            if line.startswith("data: "):
                event = json.loads(line[6:])
                if event["type"] == "session.state_changed":
                    assert set(event["data"]) == {"session_id", "task_id", "status"}
                    states.append(event["data"]["status"])
            if states[-1:] == ["COMPLETED"]:
                break
    assert states == [
        "INITIALIZING", "READY", "RUNNING", "POST_RUN", "POST_RUN", "BUILDING", "EVALUATING", "COMPLETED",
    ]  # fmt: skip


def test_a_slow_reader_loses_the_oldest_events():
    """The queue of a subscriber is bounded; what is lost is old."""

    async def play() -> list[int]:
        hub = EventHub()
        stream = hub.stream(ping_seconds=10)
        assert b'"hello"' in await anext(stream)
        for number in range(QUEUE_SIZE + 10):
            hub.publish("x", number=number)
        seen = [json.loads((await anext(stream))[6:])["data"]["number"] for _ in range(QUEUE_SIZE)]
        await stream.aclose()
        assert hub.subscribers == 0
        hub.publish("x", number=0)
        return seen

    assert asyncio.run(play()) == list(range(10, QUEUE_SIZE + 10))


def test_an_open_stream_does_not_keep_the_server_alive():
    """The end of the server ends the stream."""
    with serve_polar() as polar:
        stream = httpx.stream("GET", f"{polar.url}/events", trust_env=False, verify=False, timeout=20)
        response = stream.__enter__()
        polar.wait_until(lambda: polar.server.hub.subscribers)
    try:
        response.read()
    except httpx.HTTPError:
        pass
    finally:
        stream.__exit__(None, None, None)
