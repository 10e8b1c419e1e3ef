"""The rollout server's routes over real sockets: bodies, status codes and error texts as Polar gives them."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from analysis.lab.polar_server.testing import Fault, FaultScript, Lognormal, SessionProfile, serve_polar
from tests.analysis.lab.polar_peers import get, submit, task

SLOW = FaultScript(faults=[Fault("task_endless")])


@pytest.fixture(scope="module")
def polar():
    """One server for all tests that only look."""
    with serve_polar() as handle:
        yield handle


def _done(polar: Any, task_id: str) -> dict[str, Any]:
    polar.wait_until(lambda: polar.tasks[task_id].status != "running")
    return get(polar, f"/rollout/task/{task_id}").json()


def test_submit_answers_at_once_with_exactly_two_fields(polar):
    """200, not 201; the task runs in the background."""
    answer = submit(polar, "plain")
    assert (answer.status_code, answer.json()) == (200, {"task_id": "plain", "status": "running"})
    assert answer.headers["content-type"] == "application/json"


def test_a_finished_task_shows_all_sessions(polar):
    """`TaskStatus` in Polar's key order; session ids are `sk-polar-<uuid4>`."""
    submit(polar, "full", num_samples=3, metadata={"group_id": "g"})
    body = _done(polar, "full")
    assert list(body) == [
        "task_id", "status", "total_sessions", "completed_sessions", "results", "result_paths",
    ]  # fmt: skip
    assert (body["status"], body["total_sessions"], body["completed_sessions"]) == ("completed", 3, 3)
    assert body["result_paths"] == []
    (first, *_) = body["results"]
    assert list(first) == [
        "session_id", "task_id", "status", "trajectory", "timing", "node_id", "error", "metadata",
    ]  # fmt: skip
    pattern = r"sk-polar-[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
    assert all(re.fullmatch(pattern, r["session_id"]) for r in body["results"])
    assert len({r["session_id"] for r in body["results"]}) == 3
    assert first["metadata"] == {"group_id": "g"}


def test_unknown_names_and_routes_are_told_apart(polar):
    """404 `Task not found` means forgotten, `Not Found` means the wrong path."""
    expected = {
        "/rollout/task/none": "Task not found",
        "/rollout/task/submit": "Task not found",
        "/tasks/none/sessions": "Task not found",
        "/nodes/none": "Node not found",
        "/nowhere": "Not Found",
        "/rollout/task/a%2Fb": "Not Found",
    }
    for path, detail in expected.items():
        answer = get(polar, path)
        assert (answer.status_code, answer.json()) == (404, {"detail": detail}), path


def test_wrong_methods_are_405(polar):
    """Also HEAD on a GET route, and DELETE of a task, which the baseline does not have."""
    for method, path in (("GET", "/rollout/task/submit/"), ("PUT", "/tasks"), ("DELETE", "/rollout/task/x")):
        answer = httpx.request(method, f"{polar.url}{path}", trust_env=False, verify=False)
        assert answer.status_code in (405, 307), (method, path)
    assert httpx.delete(f"{polar.url}/rollout/task/x", trust_env=False, verify=False).json() == {
        "detail": "Method Not Allowed"
    }
    assert httpx.head(f"{polar.url}/health", trust_env=False, verify=False).status_code == 405


def test_a_trailing_slash_is_redirected(polar):
    """307 to the route without it, also for a submit."""
    for method, path in (("GET", "/tasks/"), ("POST", "/rollout/task/submit/")):
        answer = httpx.request(method, f"{polar.url}{path}", json=task(), trust_env=False, verify=False)
        assert answer.status_code == 307
        assert answer.headers["location"].endswith(path.rstrip("/"))


@pytest.mark.parametrize(
    ("changes", "location", "kind"),
    [
        ({"num_samples": 0}, ["body", "num_samples"], "greater_than_equal"),
        ({"timeout_seconds": 0}, ["body", "timeout_seconds"], "greater_than"),
        ({"instruction": None}, ["body", "instruction"], "string_type"),
        ({"agent": {}}, ["body", "agent"], "value_error"),
        ({"agent": {"harness": "a", "import_path": "b:C"}}, ["body", "agent"], "value_error"),
        ({"agent": {"harness": "shell"}}, ["body", "agent"], "value_error"),
        ({"agent": {"harness": "x", "env": {"A": 1}}}, ["body", "agent", "env", "A"], "string_type"),
        ({"runtime": {"image": "  "}}, ["body", "runtime", "image"], "value_error"),
        ({"runtime": {"image": "i", "backend": "podman"}}, ["body", "runtime", "backend"], "literal_error"),
        (
            {"runtime": {"image": "i", "prepare": [{"type": "exec"}]}},
            ["body", "runtime", "prepare", 0],
            "value_error",
        ),
        ({"builder": {}}, ["body", "builder", "strategy"], "missing"),
        ({"metadata": []}, ["body", "metadata"], "dict_type"),
    ],
)
def test_bad_requests_get_the_422_envelope(polar, changes: dict[str, Any], location: list[Any], kind: str):
    """A list of objects with type, loc, msg and input."""
    answer = submit(polar, "bad", **changes)
    assert answer.status_code == 422
    (error,) = answer.json()["detail"]
    assert (error["loc"], error["type"]) == (location, kind)
    assert {"msg", "input"} <= set(error)
    if kind == "value_error":
        assert error["msg"].startswith("Value error, ")


@pytest.mark.parametrize(
    "task_id", ["", ".", "..", "a/b", "x/../../y", "a b", "-a", "n" * 201, "a\x00b", "über"]
)
def test_task_ids_that_could_leave_their_folder_are_refused(polar, task_id: str):
    """Safer than the baseline, which writes outside its folder for such ids."""
    answer = submit(polar, task_id)
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"] == ["body", "task_id"]


def test_malformed_and_untyped_bodies_are_422(polar):
    """Broken JSON is `json_invalid`, and a body without its content type is no JSON."""
    url = f"{polar.url}/rollout/task/submit"
    broken = httpx.post(
        url, content=b"{nope", headers={"content-type": "application/json"}, trust_env=False, verify=False
    )
    assert (broken.status_code, broken.json()["detail"][0]["type"]) == (422, "json_invalid")
    assert httpx.post(url, content=b'{"task_id":"t"}', trust_env=False, verify=False).status_code == 422


def test_lax_numbers_and_unknown_keys_are_accepted(polar):
    """Numeric strings become numbers; unknown keys anywhere are dropped."""
    body = task("lax", num_samples="2", timeout_seconds="1.5", future=1, agent={"harness": "x", "typo": 1})
    answer = httpx.post(f"{polar.url}/rollout/task/submit", json=body, trust_env=False, verify=False)
    assert answer.status_code == 200
    assert _done(polar, "lax")["total_sessions"] == 2


def test_a_running_task_conflicts_and_a_finished_one_is_replaced():
    """409 only while it runs; afterwards everything runs again with new session ids."""
    with serve_polar(script=FaultScript(faults=[Fault("task_slow", seconds=30, tasks=[1])])) as polar:
        submit(polar, "again")
        first = _done(polar, "again")["results"][0]["session_id"]
        assert submit(polar, "again").status_code == 200
        second = _done(polar, "again")["results"][0]["session_id"]
        assert first != second
        assert submit(polar, "slow").status_code == 200
        answer = submit(polar, "slow")
        assert (answer.status_code, answer.json()) == (409, {"detail": "task slow is already running"})
        assert polar.submits == 3
        assert len(polar.history) == 3


def test_results_grow_in_completion_order_and_end_in_creation_order():
    """Order changes at the end; result paths keep the order of completion."""
    faults = [
        Fault("session_slow", sessions=[0], seconds=2.5),
        Fault("session_slow", sessions=[1], seconds=0.2),
    ]
    with serve_polar(script=FaultScript(faults=faults)) as polar:
        submit(polar, "order", num_samples=3)
        created = [s.session_id for s in polar.tasks["order"].sessions]
        polar.wait_until(lambda: polar.tasks["order"].completed_sessions == 2)
        running = get(polar, "/rollout/task/order").json()
        assert running["status"] == "running"
        assert [r["session_id"] for r in running["results"]] == [created[2], created[1]]
        assert get(polar, "/rollout/status").json()["pipeline"] == {"pending_sessions": 1}
        assert len(get(polar, "/tasks/order/sessions").json()["sessions"]) == 2
        done = _done(polar, "order")
        assert [r["session_id"] for r in done["results"]] == created
        assert [s.session_id for s in polar.tasks["order"].finished] == [created[2], created[1], created[0]]


def test_rollout_status_is_the_cheap_overview(polar):
    """Every task with its status, pending sessions, and the doubly nested nodes."""
    submit(polar, "overview")
    _done(polar, "overview")
    body = get(polar, "/rollout/status").json()
    assert set(body) == {"tasks", "pipeline", "nodes"}
    assert body["tasks"]["overview"] == "completed"
    assert body["nodes"]["nodes"][0]["node_id"] == "node-1"


def test_tasks_are_listed_newest_first_and_filtered():
    """Filters by status, harness and time; the limit is between 1 and 1000."""
    script = FaultScript(sessions=SessionProfile(reward=0.5), faults=[Fault("task_endless", tasks=[2])])
    with serve_polar(script=script) as polar:
        for name in ("one", "two"):
            submit(polar, name, num_samples=2, agent={"harness": name, "model_name": "m"})
            _done(polar, name)
        submit(polar, "three")
        listed = get(polar, "/tasks").json()["tasks"]
        assert [entry["task_id"] for entry in listed] == ["three", "two", "one"]
        assert listed[1] == {
            "task_id": "two",
            "status": "completed",
            "harness": "two",
            "model": "m",
            "num_samples": 2,
            "completed_sessions": 2,
            "errored_sessions": 0,
            "mean_reward": 0.5,
            "mean_traces": 1.0,
            "mean_completions": listed[1]["mean_completions"],
            "created_at": listed[1]["created_at"],
            "updated_at": listed[1]["updated_at"],
            "source": "live",
        }

        def ids(**query: Any) -> list[str]:
            return [entry["task_id"] for entry in get(polar, "/tasks", params=query).json()["tasks"]]

        assert ids(status="running") == ["three"]
        assert ids(status="nonsense") == []
        assert ids(harness="one") == ["one"]
        assert ids(since=listed[1]["updated_at"]) == ["three", "two"]
        assert ids(limit=1) == ["three"]
        for limit in (0, 1001, "x"):
            assert get(polar, "/tasks", params={"limit": limit}).status_code == 422


def test_session_entries_show_reward_and_timing():
    """Only finished sessions appear, with the last trace's reward."""
    with serve_polar(script=FaultScript(sessions=SessionProfile(reward=2.0))) as polar:
        submit(polar, "entries", num_samples=2)
        _done(polar, "entries")
        body = get(polar, "/tasks/entries/sessions").json()
        assert body["task_id"] == "entries"
        entry = body["sessions"][0]
        assert set(entry) == {"session_id", "task_id", "status", "node_id", "reward", "timing", "error"}
        assert (entry["reward"], entry["status"], entry["error"]) == (2.0, "COMPLETED", None)


def test_errors_leave_the_task_completed():
    """`completed` is not success: failed sessions are counted, not raised."""
    faults = [Fault("session_error", sessions=[0]), Fault("session_timeout", sessions=[1])]
    with serve_polar(script=FaultScript(faults=faults)) as polar:
        submit(polar, "sad", num_samples=3)
        body = _done(polar, "sad")
        assert [r["status"] for r in body["results"]] == ["ERROR", "TIMEOUT", "COMPLETED"]
        assert body["status"] == "completed"
        assert get(polar, "/tasks").json()["tasks"][0]["errored_sessions"] == 2


def test_nodes_register_beat_and_drain(polar):
    """A registered node is healthy, keeps its metrics, and leaves when it is drained and idle."""
    with httpx.Client(base_url=polar.url, trust_env=False, verify=False) as client:
        node = {
            "node_id": "extra",
            "gateway_url": "http://127.0.0.1:9///",
            "max_init_workers": 1,
            "max_run_workers": 1,
            "max_postrun_workers": 1,
        }
        info = client.post("/nodes/register", json=node).json()
        assert (info["gateway_url"], info["healthy"], info["draining"]) == ("http://127.0.0.1:9", True, False)
        assert info["heartbeat_interval_seconds"] == 30
        assert info["last_heartbeat"].endswith("Z")
        beat = client.post("/nodes/extra/heartbeat", json={"metrics": {"run_inflight": 2}}).json()
        assert beat["metrics"]["run_inflight"] == 2
        assert client.get("/nodes/extra").json()["metrics"]["run_inflight"] == 2
        assert [n["node_id"] for n in client.get("/nodes").json()] == ["extra", "node-1"]
        assert client.delete("/nodes/extra").json()["draining"] is True
        assert client.get("/nodes/extra").status_code == 200, "it still holds sessions"
        assert client.post("/nodes/extra/heartbeat", json={}).json()["metrics"]["run_inflight"] == 0
        assert client.get("/nodes/extra").status_code == 404
        for answer in (client.post("/nodes/extra/heartbeat", json={}), client.delete("/nodes/extra")):
            assert (answer.status_code, answer.json()) == (404, {"detail": "'Unknown gateway node: extra'"})
        assert client.post("/nodes/register", json={**node, "max_run_workers": 0}).status_code == 422


def test_session_callbacks_are_accepted_politely(polar):
    """Unknown sessions are swallowed; unknown timing keys are refused."""
    result = {
        "session_id": "s",
        "task_id": "t",
        "status": "COMPLETED",
        "trajectory": {"status": "COMPLETED", "unknown": 1},
        "future": True,
    }
    url = f"{polar.url}/callbacks/session_result"
    answer = httpx.post(url, json=result, trust_env=False, verify=False)
    assert (answer.status_code, answer.json()) == (200, {"status": "accepted"})
    for broken in (
        {**result, "timing": {"ready_queue_ms": 1}},
        {**result, "status": "DONE"},
        {**result, "trajectory": {"status": "RUNNING"}},
        {**result, "trajectory": {"status": "ERROR", "traces": [{"response_ids": [1], "loss_mask": [1, 1]}]}},
        {**result, "trajectory": {"status": "ERROR", "traces": [{"response_ids": [1], "loss_mask": [2]}]}},
        {
            **result,
            "trajectory": {"status": "ERROR", "traces": [{"response_ids": [1], "response_logprobs": []}]},
        },
    ):
        assert httpx.post(url, json=broken, trust_env=False, verify=False).status_code == 422


def test_health_and_documentation_are_served(polar):
    """`/health` counts node entries; the schema names the server as Polar does."""
    assert get(polar, "/health").json() == {"status": "ok", "nodes": 1}
    schema = get(polar, "/openapi.json").json()
    assert (schema["info"]["title"], schema["info"]["version"]) == ("Polar Rollout", "0.1.0")


def test_durations_make_sessions_take_time():
    """Long-tailed sessions run side by side, and the high-water mark counts them."""
    profile = SessionProfile(duration=Lognormal(0.05, 1.0, 0.3))
    with serve_polar(script=FaultScript(sessions=profile)) as polar:
        for number in range(3):
            submit(polar, f"t-{number}", num_samples=4)
        for number in range(3):
            _done(polar, f"t-{number}")
        assert 4 <= polar.max_running_sessions <= 12
        assert polar.running_sessions == 0
        assert 1 <= polar.max_running_tasks <= 3
