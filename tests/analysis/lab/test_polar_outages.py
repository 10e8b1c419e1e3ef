"""Requests, connections and whole servers that fail, over real sockets."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from analysis.lab.polar_server.testing import Fault, FaultScript, ServerSettings, serve_polar
from tests.analysis.lab.polar_peers import callback_sink, get, submit, task


def _play(*faults: Fault, **options: Any) -> Any:
    return serve_polar(script=FaultScript(faults=faults), **options)


def _outcome(call: Callable[[], httpx.Response]) -> str:
    """Return the status of an answer as text, or the name of what was raised instead."""
    try:
        return str(call().status_code)
    except httpx.HTTPError as error:
        return type(error).__name__


def _send(polar: Any, task_id: str, timeout: float = 10.0) -> str:
    url = f"{polar.url}/rollout/task/submit"
    return _outcome(
        lambda: httpx.post(url, json=task(task_id), timeout=timeout, trust_env=False, verify=False)
    )


def test_status_hides_the_server_from_a_request():
    """503 three times on submit; polls are not touched."""
    with _play(Fault("response_status", on="submit", status=503, times=3, value="busy")) as polar:
        answers = [submit(polar, "t-1") for _ in range(4)]
        assert [answer.status_code for answer in answers] == [503, 503, 503, 200]
        assert answers[0].json() == {"detail": "busy"}
        assert polar.submits == 1
        assert [record.status for record in polar.submissions] == [503, 503, 503, 200]
        assert [record.faults for record in polar.submissions[2:]] == [["response_status"], []]


@pytest.mark.parametrize("status", [400, 401, 404, 409, 422, 429, 500, 502])
def test_any_status_can_be_played(status: int):
    """Client errors and server errors alike."""
    with _play(Fault("response_status", on="submit", status=status)) as polar:
        assert submit(polar, "t-1").status_code == status
        assert polar.submits == 0


def test_an_answer_may_get_lost_after_the_work_was_done():
    """`processed` lets the server accept the task before the answer is replaced."""
    with _play(Fault("response_status", on="submit", processed=True, times=1)) as polar:
        assert submit(polar, "t-1").status_code == 503
        polar.wait_until(lambda: polar.tasks["t-1"].status == "completed")


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [("response_hang", "ReadTimeout"), ("response_reset", "ReadError")],
)
@pytest.mark.parametrize("processed", [False, True])
def test_hang_and_reset(kind: str, outcome: str, processed: bool):
    """No answer at all, with the task accepted or not."""
    with _play(Fault(kind, on="submit", tasks=[0], processed=processed)) as polar:
        assert _send(polar, "t-1", timeout=1.5) == outcome
        assert polar.submits == int(processed)
        assert _send(polar, "t-2") == "200"


def test_slow_answers_are_answers():
    """`response_slow` delays, and several faults of one request add up."""
    slow = Fault("response_slow", on="submit", seconds=0.2)
    with _play(slow, Fault("response_status", on="submit", times=1)) as polar:
        started = time.monotonic()
        assert submit(polar, "t-1").status_code == 503
        assert submit(polar, "t-1").status_code == 200
        assert time.monotonic() - started > 0.35


def test_polls_can_be_dripped_cut_and_garbled():
    """Bodies that come slowly, in half, as something else than JSON, or not at all."""
    faults = [
        Fault("response_drip", on="task", seconds=0.3, count=5, times=1),
        Fault("response_cut", on="task", skip=0, times=1),
        Fault("response_garbage", on="task", times=1),
        Fault("response_empty", on="task", times=1),
    ]
    with _play() as polar:
        submit(polar, "t-1")
        polar.wait_until(lambda: polar.tasks["t-1"].status == "completed")
        whole = get(polar, "/rollout/task/t-1").content
        polar.set_script(FaultScript(faults=[faults[0]]))
        started = time.monotonic()
        assert get(polar, "/rollout/task/t-1").content == whole
        assert time.monotonic() - started > 0.2
        polar.set_script(FaultScript(faults=[faults[1]]))
        broken = _outcome(lambda: get(polar, "/rollout/task/t-1"))
        assert broken in ("ReadError", "RemoteProtocolError")
        polar.set_script(FaultScript(faults=faults[2:3]))
        answer = get(polar, "/rollout/task/t-1")
        assert (answer.status_code, answer.text) == (200, "<html>not JSON</html>")
        polar.set_script(FaultScript(faults=faults[3:]))
        assert get(polar, "/rollout/task/t-1").content == b""
        assert get(polar, "/rollout/task/t-1").content == whole


def test_each_poll_has_luck_of_its_own():
    """A probability on polls makes some of them fail, not all polls of one task."""
    with _play(Fault("response_status", on="task", probability=0.5)) as polar:
        submit(polar, "t-1")
        seen = [get(polar, "/rollout/task/t-1").status_code for _ in range(30)]
        assert 5 < seen.count(503) < 25


def test_an_outage_refuses_connections_and_ends_by_itself():
    """Connections are refused, not just unanswered; sessions go on meanwhile and their callback arrives."""
    slow = Fault("session_slow", seconds=0.2)
    with callback_sink() as sink, _play(slow, Fault("outage", on="health", seconds=2.0)) as polar:
        submit(polar, "t-1", callback_url=sink.url)
        assert _outcome(lambda: get(polar, "/health")) == "ReadError"
        assert _send(polar, "t-2") == "ConnectError"
        polar.wait_until(lambda: sink.received)
        polar.wait_until(lambda: _send(polar, "t-3") == "200")
        assert "t-1" in polar.tasks
        assert polar.fired["outage"] == 1


def test_an_outage_can_begin_at_a_time():
    """`since` without another condition starts a timer."""
    with _play(Fault("outage", since=1.0, seconds=1.5)) as polar:
        port = int(polar.url.rsplit(":", 1)[1])
        assert get(polar, "/health").status_code == 200
        polar.wait_until(lambda: _outcome(lambda: get(polar, "/health")) == "ConnectError")
        polar.wait_until(lambda: _outcome(lambda: get(polar, "/health")) == "200")
        assert polar.url.endswith(f":{port}")
        assert polar.fired == {"outage": 1}


def test_live_connections_are_cut_by_an_outage():
    """A kept-alive connection does not survive it."""
    with _play() as polar, httpx.Client(base_url=polar.url, trust_env=False, verify=False) as client:
        assert client.get("/health").status_code == 200
        polar.refuse(1.5)
        assert _outcome(lambda: client.get("/health")) in ("ReadError", "ConnectError", "RemoteProtocolError")
        polar.wait_until(lambda: _outcome(lambda: client.get("/health")) == "200")


def test_a_restart_forgets_everything():
    """404 for what ran, in-flight results are swallowed, the id may be used again."""
    faults = [Fault("session_slow", seconds=30.0, tasks=[0]), Fault("restart", tasks=[1])]
    with callback_sink() as sink, _play(*faults) as polar:
        submit(polar, "t-1", callback_url=sink.url)
        assert _send(polar, "t-2") == "ReadError"
        assert get(polar, "/rollout/task/t-1").json() == {"detail": "Task not found"}
        assert get(polar, "/tasks").json() == {"tasks": []}
        assert polar.history[0].forgotten
        assert polar.running_sessions == 0
        assert submit(polar, "t-1", instruction="other").status_code == 200
        assert sink.received == []


def test_a_restart_may_take_time():
    """With `seconds` the port refuses meanwhile."""
    with _play(Fault("restart", on="health", seconds=1.5)) as polar:
        submit(polar, "t-1")
        assert _outcome(lambda: get(polar, "/health")) == "ReadError"
        assert _outcome(lambda: get(polar, "/health")) == "ConnectError"
        polar.wait_until(lambda: _outcome(lambda: get(polar, "/health")) == "200")
        assert polar.tasks == {}


def test_tasks_can_be_forgotten_one_by_one():
    """`task_forgotten`: only this one is unknown afterwards."""
    with _play(Fault("task_forgotten", tasks=[0]), Fault("task_endless", tasks=[0])) as polar:
        submit(polar, "t-1")
        submit(polar, "t-2")
        polar.wait_until(lambda: "t-1" not in polar.tasks)
        polar.wait_until(lambda: polar.tasks["t-2"].status == "completed")
        assert get(polar, "/rollout/task/t-1").status_code == 404


@pytest.mark.parametrize(
    ("kind", "outcomes"),
    [
        ("connection_reset", {"ConnectError", "ReadError", "WriteError", "RemoteProtocolError"}),
        ("connection_half_open", {"ReadTimeout"}),
        ("connection_garbage", {"RemoteProtocolError"}),
    ],
)
def test_each_broken_connection(kind: str, outcomes: set[str]):
    """The client sees what it should, and the next connection works."""
    with _play(Fault(kind, times=1)) as polar:
        assert _send(polar, "t-1", timeout=1.5) in outcomes
        assert _send(polar, "t-1") == "200"
        assert polar.submits == 1


def test_conflicts_and_endless_tasks():
    """`task_conflict` refuses a new id; `task_endless` never ends although its sessions do."""
    with _play(Fault("task_conflict", tasks=[0], times=1), Fault("task_endless", tasks=[1])) as polar:
        assert submit(polar, "t-1").json() == {"detail": "task t-1 is already running"}
        assert submit(polar, "t-1").status_code == 200
        submit(polar, "t-2", num_samples=2)
        polar.wait_until(lambda: polar.tasks["t-2"].completed_sessions == 2)
        assert get(polar, "/rollout/task/t-2").json()["status"] == "running"


def test_task_bodies_can_be_odd():
    """Foreign ids, unknown fields, padding, missing, extra and duplicate sessions, other statuses."""
    faults = [
        Fault("task_foreign_id", tasks=[0]),
        Fault("task_unknown_fields", tasks=[1]),
        Fault("task_huge", tasks=[2], count=100_000),
        Fault("session_missing", tasks=[3], sessions=[1]),
        Fault("session_extra", tasks=[4], count=2),
        Fault("session_duplicate", tasks=[5], sessions=[0]),
        Fault("task_status", tasks=[6], value="expired"),
    ]
    with _play(*faults) as polar:
        for number in range(7):
            submit(polar, f"t-{number}", num_samples=3)
        polar.wait_until(lambda: all(record.status != "running" for record in polar.tasks.values()))
        bodies = [get(polar, f"/rollout/task/t-{number}") for number in range(7)]
        data = [body.json() for body in bodies]
        assert data[0]["task_id"] == "somebody-elses-task"
        assert data[1]["future_field"]["nested"] == [1, None, {"deep": True}]
        assert len(bodies[2].content) > 100_000
        created = [s.session_id for s in polar.tasks["t-3"].sessions]
        assert [r["session_id"] for r in data[3]["results"]] == [created[0], created[2]]
        assert data[3]["total_sessions"] == 3
        assert len(data[4]["results"]) == 5
        assert len({r["session_id"] for r in data[5]["results"]}) == 3
        assert len(data[5]["results"]) == 4
        assert data[6]["status"] == "expired"


def test_stop_and_restart_keep_the_port():
    """A stopped server refuses, and comes back on the same port with nothing in memory."""
    with _play() as polar:
        submit(polar, "t-1")
        url = polar.url
        polar.stop()
        assert _outcome(lambda: get(polar, "/health")) == "ConnectError"
        polar.restart()
        assert polar.url == url
        assert get(polar, "/rollout/task/t-1").status_code == 404
        assert submit(polar, "t-1").status_code == 200


def test_forget_all_loses_what_is_in_flight():
    """In-memory state is gone, without a gap in the service."""
    with callback_sink() as sink, _play(Fault("session_slow", seconds=30)) as polar:
        submit(polar, "t-1", callback_url=sink.url)
        polar.wait_until(lambda: polar.running_sessions == 1)
        polar.forget_all()
        assert polar.running_sessions == 0
        assert get(polar, "/rollout/task/t-1").status_code == 404
        assert get(polar, "/health").status_code == 200
        assert sink.received == []


def test_the_port_is_free_after_the_end():
    """Nothing of the server is left: no thread, no listening socket."""
    with _play() as polar:
        port = int(polar.url.rsplit(":", 1)[1])
        held = httpx.Client(base_url=polar.url, trust_env=False, verify=False)
        held.get("/health")
        polar.server.engine.set_script(FaultScript(faults=[Fault("response_hang", on="health")]))
        assert _outcome(lambda: held.get("/health", timeout=0.2)) == "ReadTimeout"
    held.close()
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))
    with pytest.raises(RuntimeError, match="not running"):
        polar.forget_all()


def test_a_taken_port_is_an_error_at_the_start():
    """The reason reaches the caller, and nothing keeps running."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        settings = ServerSettings(port=taken.getsockname()[1])
        with pytest.raises(OSError, match="cannot bind"), serve_polar(settings=settings):
            pass


def test_waiting_gives_up_with_the_state_in_its_text():
    """A condition that never holds is a TimeoutError that says what the server saw."""
    with _play() as polar:
        submit(polar, "t-1")
        with pytest.raises(TimeoutError, match="1 submits"):
            polar.wait_until(lambda: False, timeout=0.2)


def test_memory_can_be_bounded():
    """With `keep_results` only the latest finished tasks hold results; counts go on."""
    settings = ServerSettings(keep_results=2, keep_requests=3)
    with serve_polar(settings=settings) as polar:
        for number in range(5):
            submit(polar, f"t-{number}", num_samples=2)
            polar.wait_until(lambda n=number: polar.history[n].status == "completed")
        polar.wait_until(lambda: list(polar.tasks) == ["t-3", "t-4"])
        assert len(get(polar, "/rollout/task/t-4").json()["results"]) == 2
        assert get(polar, "/rollout/task/t-0").status_code == 404
        assert (polar.submits, len(polar.requests)) == (5, 3)
        assert all(session.result is None for session in polar.history[0].sessions)
