"""Task callbacks: one honest POST, and every way in which a script lets it go wrong."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

import pytest

from analysis.lab.polar_server.delivery import CALLBACK_TIMEOUT
from analysis.lab.polar_server.testing import Fault, FaultScript, SessionProfile, serve_polar
from tests.analysis.lab.polar_peers import callback_sink, get, submit


def _run(fault: Fault | None, posts: int, **changes: Any) -> tuple[Any, list[Any], list[Any], str]:
    """Submit one task, wait for `posts` callbacks; return answers, what arrived, what was sent, the URL."""
    script = FaultScript(faults=[fault] if fault else [], sessions=SessionProfile(reward=0.5))
    with callback_sink() as sink, serve_polar(script=script) as polar:
        answer = submit(polar, "t-1", callback_url=sink.url, **changes)
        polar.wait_until(lambda: len(polar.callbacks) >= posts)
        status = get(polar, "/rollout/task/t-1").json()
        return (answer, status), list(sink.received), polar.callbacks, sink.url


def test_the_true_callback_is_one_task_result():
    """JSON, Polar's keys, no signature, sent after the task shows as completed."""
    (_, status), received, sent, url = _run(None, 1, num_samples=2)
    (got,) = received
    assert url.endswith(got.path)
    assert got.headers["content-type"] == "application/json"
    assert not {"authorization", "x-polar-control-token"} & set(got.headers)
    body = got.json()
    assert list(body) == ["task_id", "status", "results", "result_paths"]
    assert body["results"] == status["results"]
    assert [(record.kind, record.status) for record in sent] == [("result", 200)]


def test_a_refused_callback_is_not_tried_again():
    """An answer other than 2xx, and no answer at all, end the delivery; the task stays completed."""
    with socket.socket() as closed, callback_sink(status=500) as sink, serve_polar() as polar:
        closed.bind(("127.0.0.1", 0))
        submit(polar, "refused", callback_url=f"http://127.0.0.1:{closed.getsockname()[1]}/x")
        submit(polar, "failing", callback_url=sink.url)
        submit(polar, "odd", callback_url="no url at all")
        polar.wait_until(lambda: len(polar.callbacks) == 3)
        by_task = {record.task_id: record for record in polar.callbacks}
        assert by_task["refused"].status is None
        assert by_task["refused"].error.startswith("HttpError: cannot connect")
        assert by_task["failing"].status == 500
        assert by_task["odd"].error is not None
        assert {record.status for record in polar.tasks.values()} == {"completed"}
        assert len(sink.received) == 1
    assert CALLBACK_TIMEOUT == 10.0


def test_no_url_no_callback():
    """A task without a callback URL is only polled."""
    with serve_polar() as polar:
        submit(polar, "t-1")
        polar.wait_until(lambda: polar.tasks["t-1"].status == "completed")
        submit(polar, "t-2")
        polar.wait_until(lambda: polar.tasks["t-2"].status == "completed")
        assert polar.callbacks == []


def test_lost():
    """`callback_lost`: completed, and nothing is sent."""
    script = FaultScript(faults=[Fault("callback_lost", tasks=[0])])
    with callback_sink() as sink, serve_polar(script=script) as polar:
        submit(polar, "lost", callback_url=sink.url)
        submit(polar, "sent", callback_url=sink.url)
        polar.wait_until(lambda: polar.callbacks)
        assert [r.task_id for r in polar.callbacks] == ["sent"]
        assert polar.tasks["lost"].status == "completed"
        assert polar.fired == {"callback_lost": 1}


def test_late():
    """`callback_late`: polling sees the result long before the callback comes."""
    script = FaultScript(faults=[Fault("callback_late", seconds=0.4)])
    with callback_sink() as sink, serve_polar(script=script) as polar:
        submit(polar, "late", callback_url=sink.url)
        completed = polar.wait_until(lambda: polar.tasks["late"].status == "completed" and time.monotonic())
        assert sink.received == []
        polar.wait_until(lambda: polar.callbacks)
        assert polar.callbacks[0].time - completed > 0.2


def test_duplicate():
    """`callback_duplicate`: the same body again, `count` times."""
    _, received, sent, _ = _run(Fault("callback_duplicate", count=2), 3)
    assert len({got.body for got in received}) == 1
    assert [record.kind for record in sent] == ["result", "callback_duplicate", "callback_duplicate"]


def test_early():
    """`callback_early`: the result is there before the submit is answered."""
    script = FaultScript(faults=[Fault("callback_early")])
    with callback_sink() as sink, serve_polar(script=script) as polar:
        answer = submit(polar, "early", callback_url=sink.url)
        assert answer.json() == {"task_id": "early", "status": "running"}
        assert len(sink.received) == 1
        polar.wait_until(lambda: polar.submissions[0].seconds is not None)
        assert polar.callbacks[0].time < polar.submissions[0].time + polar.submissions[0].seconds


@pytest.mark.parametrize("form", ["text", "truncated", "list", "empty", "null", "not_utf8"])
def test_malformed(form: str):
    """`callback_malformed`: bodies that are no task result."""
    _, received, sent, _ = _run(Fault("callback_malformed", value=form), 1)
    assert sent[0].kind == "callback_malformed"
    body = received[0].body
    try:
        data = json.loads(body)
    except ValueError:
        data = None
    assert not isinstance(data, dict)


def test_status_shape_and_running():
    """Callbacks in the shape of a task status, and one that claims to be still running."""
    _, received, _, _ = _run(Fault("callback_status_shape"), 1, num_samples=2)
    assert (received[0].json()["total_sessions"], len(received[0].json()["results"])) == (2, 2)
    _, received, _, _ = _run(Fault("callback_running"), 1)
    assert (received[0].json()["status"], received[0].json()["results"]) == ("running", [])


def _rewards(got: Any) -> set[float]:
    return {trace["reward"] for result in got.json()["results"] for trace in result["trajectory"]["traces"]}


def test_forged():
    """`callback_forged` does not know the path; `callback_forged_inside` does; the true one follows both."""
    _, received, _, url = _run(Fault("callback_forged"), 2)
    assert [_rewards(got) for got in received] == [{999.0}, {0.5}]
    assert [url.endswith(got.path) for got in received] == [False, True]
    _, received, _, url = _run(Fault("callback_forged_inside", value=-7.0), 2)
    assert [_rewards(got) for got in received] == [{-7.0}, {0.5}]
    assert all(url.endswith(got.path) for got in received)


def test_foreign():
    """Another task's result at this task's URL, before the true one or instead of it."""
    _, received, _, _ = _run(Fault("callback_foreign"), 2)
    assert [got.json()["task_id"] for got in received] == ["somebody-elses-task", "t-1"]
    _, received, _, _ = _run(Fault("callback_foreign_only", value="other"), 1)
    assert [got.json()["task_id"] for got in received] == ["other"]


def test_huge():
    """`callback_huge`: valid JSON of about `count` bytes."""
    _, received, _, _ = _run(Fault("callback_huge", count=2_000_000), 1)
    assert 1_900_000 < len(received[0].body) < 2_100_000
    assert received[0].json()["task_id"] == "t-1"


def test_cut():
    """`callback_cut`: the connection breaks in the middle of the body, and nothing follows."""
    _, received, sent, _ = _run(Fault("callback_cut"), 1)
    assert [record.kind for record in sent] == ["callback_cut"]
    assert all(not got.complete for got in received)


def test_slow():
    """`callback_slow`: the body arrives whole, in pieces over some time, with its true length announced."""
    _, received, sent, _ = _run(Fault("callback_slow", seconds=0.3), 1)
    assert received[0].json()["task_id"] == "t-1"
    assert int(received[0].headers["content-length"]) == len(received[0].body)
    assert sent[0].seconds > 0.2


def test_failed_tasks_never_call_back():
    """`task_failed`: the status says so, results are missing, no callback."""
    script = FaultScript(faults=[Fault("task_failed", tasks=[0])])
    with callback_sink() as sink, serve_polar(script=script) as polar:
        submit(polar, "t-1", callback_url=sink.url)
        polar.wait_until(lambda: polar.tasks["t-1"].status == "failed")
        submit(polar, "t-2", callback_url=sink.url)
        polar.wait_until(lambda: polar.callbacks)
        assert [record.task_id for record in polar.callbacks] == ["t-2"]
        body = get(polar, "/rollout/task/t-1").json()
        assert (body["status"], body["results"], body["completed_sessions"]) == ("failed", [], 0)
