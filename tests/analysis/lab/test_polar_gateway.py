"""The gateway over real sockets: generation gate, sessions, the model proxy, remote gateways."""

from __future__ import annotations

import json
import threading
from typing import Any

import httpx
import pytest

from analysis.lab.polar_server.testing import Fault, FaultScript, NodeSettings, ServerSettings, serve_polar
from tests.analysis.lab.polar_peers import get, shelf_policy, stub_engine, submit
from tests.analysis.lab.test_polar_agents import _request, _seed


def _client(url: str) -> httpx.Client:
    return httpx.Client(base_url=url, trust_env=False, verify=False, timeout=20.0)


def _chat(**changes: Any) -> dict[str, Any]:
    return {"model": "policy", "messages": [{"role": "user", "content": "Say 3"}], **changes}


@pytest.fixture
def stack():
    """An engine, a gateway in front of it, and a client of the gateway."""
    with (
        stub_engine(lambda messages, number: "Hi.") as engine,
        serve_polar(inference_url=engine.url) as polar,
        _client(polar.gateways["node-1"].url) as client,
    ):
        yield engine, polar, client


def test_the_gate_holds_calls_back_until_it_opens(stack):
    """Closed at once, later calls wait inside the gateway, and all of them are served afterwards."""
    engine, polar, client = stack
    gateway = polar.gateways["node-1"]
    state = client.post("/admin/inference/pause").json()
    assert state == {"paused": True, "inflight": 0, "base_url": engine.url, "engine": "sglang"}
    answers: list[int] = []
    threads = [
        threading.Thread(
            target=lambda: answers.append(
                httpx.post(
                    f"{gateway.url}/v1/chat/completions",
                    json=_chat(),
                    trust_env=False,
                    verify=False,
                    timeout=20,
                ).status_code
            )
        )
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    polar.wait_until(lambda: len(gateway.requests) == 4)
    assert (engine.requests, answers, gateway.inflight) == ([], [], 0)
    assert client.get("/admin/inference/status").json()["paused"] is True
    assert client.post("/admin/inference/pause").status_code == 200, "pausing twice is harmless"
    assert client.post("/admin/inference/resume").json()["paused"] is False
    for thread in threads:
        thread.join(20)
    assert answers == [200, 200, 200]
    assert client.post("/admin/inference/resume").status_code == 200, "resuming twice is harmless"


def test_a_pause_waits_for_calls_in_flight():
    """504 after the timeout, with the gate still closed; 200 once nothing is in flight."""
    with (
        stub_engine(lambda messages, number: "Hi.", held=True) as engine,
        serve_polar(inference_url=engine.url) as polar,
        _client(polar.gateways["node-1"].url) as client,
    ):
        gateway = polar.gateways["node-1"]
        caller = threading.Thread(
            target=lambda: httpx.post(
                f"{gateway.url}/v1/chat/completions", json=_chat(), trust_env=False, verify=False, timeout=20
            )
        )
        caller.start()
        polar.wait_until(lambda: gateway.inflight == 1)
        answer = client.post("/admin/inference/pause", params={"timeout_seconds": 0.1})
        assert (answer.status_code, answer.json()["paused"], answer.json()["inflight"]) == (504, True, 1)
        assert gateway.paused
        engine.hold.set()
        assert client.post("/admin/inference/pause", params={"timeout_seconds": 20}).status_code == 200
        caller.join(20)
        client.post("/admin/inference/resume")
        assert not gateway.paused


def test_calls_in_flight_can_be_made_up():
    """A test of a barrier needs no engine to see a pause that cannot finish."""
    with serve_polar(gateways=2) as polar:
        first, second = polar.gateways["node-1"], polar.gateways["node-2"]
        assert {node["gateway_url"] for node in get(polar, "/nodes").json()} == {first.url, second.url}
        second.add_inflight(2)
        with _client(second.url) as client:
            answer = client.post("/admin/inference/pause", params={"timeout_seconds": 0.05})
            assert (answer.status_code, answer.json()["inflight"]) == (504, 2)
            second.add_inflight(-2)
            assert client.post("/admin/inference/pause", params={"timeout_seconds": 5}).status_code == 200
        assert (first.paused, second.paused) == (False, True)


def test_gateways_fail_on_their_own():
    """Faults and outages of one gateway leave the rollout server and its siblings alone."""
    script = FaultScript(faults=[Fault("response_status", on="pause", server="node-2", status=500)])
    with serve_polar(script=script, gateways=2) as polar:
        first, second = polar.gateways["node-1"], polar.gateways["node-2"]
        assert (
            httpx.post(f"{first.url}/admin/inference/pause", trust_env=False, verify=False).status_code == 200
        )
        assert (
            httpx.post(f"{second.url}/admin/inference/pause", trust_env=False, verify=False).status_code
            == 500
        )
        assert (first.paused, second.paused) == (True, False)
        second.stop()
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{second.url}/health", trust_env=False, verify=False)
        assert get(polar, "/health").status_code == 200
        second.restart()
        assert httpx.get(f"{second.url}/health", trust_env=False, verify=False).status_code == 200


def test_health_shows_stages_and_the_engine(stack):
    """Always 200, with the engine's own health inside; an empty body counts as ok."""
    engine, polar, client = stack
    body = client.get("/health").json()
    assert (body["status"], body["node_id"], body["gateway_url"]) == (
        "ok",
        "node-1",
        polar.gateways["node-1"].url,
    )
    assert body["inference"] == {"status": "ok"}
    assert body["metrics"] == dict.fromkeys(
        [
            "init_queue_depth", "init_inflight", "ready_depth", "run_inflight", "postrun_queue_depth",
            "postrun_inflight",
        ],
        0,
    )  # fmt: skip
    assert (body["available_init"], body["available_run"], body["available_postrun"]) == (64, 64, 64)
    assert client.get("/").json() == {"status": "ok", "service": "polar-gateway"}
    assert client.head("/").status_code == 200
    assert client.get("/v1/models").json()["data"] == [{"id": "stub"}]


def test_a_dead_engine_is_reported_not_raised():
    """`/health` says error, models and chat give 502, nothing is captured."""
    with (
        serve_polar(inference_url="http://127.0.0.1:9") as polar,
        _client(polar.gateways["node-1"].url) as client,
    ):
        assert client.get("/health").json()["inference"]["status"] == "error"
        assert client.get("/v1/models").status_code == 502
        answer = client.post("/v1/chat/completions", json=_chat(), headers={"X-Session-Id": "s-1"})
        assert (answer.status_code, answer.json()["error"]["type"]) == (502, "upstream_error")
        assert client.get("/sessions/s-1/completions").json()["completions"] == []


def test_the_proxy_asks_for_ids_and_normalises_the_answer(stack):
    """Fields are added on a private copy; the agent gets the answer under the model name it used."""
    engine, _, client = stack
    body = _chat(
        messages=[
            {"role": "developer", "content": "One."},
            {"role": "user", "content": "Hi"},
            {"role": "system", "content": [{"type": "text", "text": "Two."}]},
        ],
        max_completion_tokens=7,
        store=True,
        stream_options={"x": 1},
    )
    answer = client.post("/v1/chat/completions", json=body, headers={"X-Session-Id": "s-1"}).json()
    (sent,) = engine.requests
    assert sent["messages"] == [
        {"role": "system", "content": "One.\n\nTwo."},
        {"role": "user", "content": "Hi"},
    ]
    assert (sent["logprobs"], sent["stream"], sent["store"], sent["max_tokens"]) == (True, False, True, 7)
    assert (sent["return_prompt_token_ids"], sent["return_meta_info"]) == (True, True)
    assert "stream_options" not in sent
    assert answer["model"] == "policy"
    (choice,) = answer["choices"]
    assert "meta_info" not in choice
    assert [entry["token_id"] for entry in choice["logprobs"]["content"]] == choice["token_ids"]
    (record,) = client.get("/sessions/s-1/completions").json()["completions"]
    assert record["original_request"] == body
    assert "logprobs" not in record["request"]
    assert record["completion_id"].startswith("msg_")
    assert len(record["completion_id"]) == 16
    assert record["timestamp"].endswith("+00:00")
    assert record["metadata"]["weight_version"] == "5"


def test_vllm_engines_are_asked_in_their_dialect():
    """Another flag for ids, and reasoning under another name."""
    node = NodeSettings(engine="vllm", model_served="served")
    with (
        stub_engine(lambda messages, number: "Hi.") as engine,
        serve_polar(inference_url=engine.url, settings=ServerSettings(nodes=(node,))) as polar,
        _client(polar.gateways["node-1"].url) as client,
    ):
        messages = [
            {"role": "assistant", "content": "x", "reasoning_content": "r"},
            {"role": "user", "content": "y"},
        ]
        client.post("/v1/chat/completions", json=_chat(messages=messages))
        (sent,) = engine.requests
    assert (sent["return_token_ids"], sent["top_logprobs"], sent["model"]) == (True, 0, "served")
    assert "return_meta_info" not in sent
    assert sent["messages"][0] == {"role": "assistant", "content": "x", "reasoning": "r"}


@pytest.mark.parametrize(
    ("headers", "query", "body", "expected"),
    [
        ({"X-Session-Id": "a"}, {}, {}, "a"),
        ({"Proxy-X-Session-Id": "b"}, {}, {}, "b"),
        ({}, {"session_id": "c", "key": "z"}, {}, "c"),
        ({}, {"key": "d"}, {}, "d"),
        ({}, {}, {"_proxy_session_id": "e"}, "e"),
        ({"Authorization": "Bearer known"}, {}, {}, "known"),
        ({"X-Api-Key": "known"}, {}, {}, "known"),
        ({"Authorization": "Bearer stranger"}, {}, {}, None),
    ],
)
def test_a_call_finds_its_session(stack, headers: Any, query: Any, body: Any, expected: str | None):
    """Explicit ids create sessions; keys count only when known; strangers get a session of their own."""
    _, polar, client = stack
    client.post("/sessions", json={"session_id": "known", "task_id": "t"})
    client.post("/v1/chat/completions", json=_chat(**body), headers=headers, params=query)
    captures = polar.server.gateways["node-1"].captures
    used = [key for key, capture in captures.items() if capture.records]
    assert used == [expected] if expected else len(used) == 1 and used[0] != "stranger"


def test_bare_sessions_are_created_read_and_deleted(stack):
    """A session without an agent only captures calls."""
    _, _, client = stack
    made = client.post("/sessions", json={"session_id": "s-1", "task_id": "t"}).json()
    assert (made["session_id"], made["task_id"], made["completion_count"], made["status"]) == (
        "s-1", "t", 0, "REGISTERED",
    )  # fmt: skip
    client.post("/v1/chat/completions", json=_chat(), headers={"Authorization": "Bearer s-1"})
    shown = client.get("/sessions/s-1").json()
    assert (shown["completion_count"], shown["result"]) == (1, None)
    assert client.delete("/sessions/s-1").json() == {
        "session_id": "s-1",
        "deleted": True,
        "messages_deleted": 1,
    }
    assert client.get("/sessions/s-1").status_code == 404
    assert client.delete("/sessions/s-1").status_code == 404
    assert client.get("/sessions/s-1/completions").json()["completions"] == []
    for path in ("/sessions/-bad", "/sessions/%20"):
        assert client.get(path).status_code == 400
    assert client.post("/sessions", json={"session_id": "!"}).status_code == 400
    assert (
        client.post("/sessions", content=b"{", headers={"content-type": "application/json"}).status_code
        == 400
    )
    assert len(client.post("/sessions", json={}).json()["session_id"]) == 36


def test_streams_are_replayed_in_one_chunk(stack):
    """One non-streaming engine call, one chunk with everything, then the end mark."""
    engine, _, client = stack
    answer = client.post("/v1/chat/completions", json=_chat(stream=True))
    assert answer.headers["content-type"].startswith("text/event-stream")
    first, end = [line for line in answer.text.split("\n\n") if line]
    chunk = json.loads(first.removeprefix("data: "))
    assert end == "data: [DONE]"
    assert chunk["object"] == "chat.completion.chunk"
    assert chunk["choices"][0]["delta"] == {"role": "assistant", "content": "Hi."}
    assert chunk["choices"][0]["finish_reason"] == "stop"
    assert engine.requests[0]["stream"] is False


@pytest.mark.parametrize(("body", "status"), [(b"{", 400), (b"[1]", 500)])
def test_bodies_that_are_no_request(stack, body: bytes, status: int):
    """Not JSON is 400; JSON that is no object is 500, as the baseline answers."""
    _, _, client = stack
    answer = client.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == status


def test_other_api_families_are_refused(stack):
    """Only chat completions are served here, and the answer says so."""
    _, _, client = stack
    assert client.post("/v1/messages", json={}).status_code == 404


def test_engine_errors_keep_their_status():
    """A body with an `error` key passes through; others are wrapped."""
    with (
        stub_engine(lambda messages, number: 429) as engine,
        serve_polar(inference_url=engine.url) as polar,
        _client(polar.gateways["node-1"].url) as client,
    ):
        answer = client.post("/v1/chat/completions", json=_chat())
        assert (answer.status_code, answer.json()) == (
            429,
            {"error": {"message": "scripted", "type": "stub"}},
        )


def test_dispatched_sessions_run_and_can_be_watched():
    """POST /sessions with an agent runs it; its result is there for a poll until it is deleted."""
    seed = _seed(named_item=False)
    request = _request(seed)
    dispatch = {
        **{key: request[key] for key in ("instruction", "agent", "builder", "evaluator", "metadata")},
        "session_id": "s-1",
        "task_id": "t",
        "remaining_timeout_seconds": 20,
    }
    with (
        stub_engine(shelf_policy, held=True) as engine,
        serve_polar(agents=True, inference_url=engine.url) as polar,
        _client(polar.gateways["node-1"].url) as client,
    ):
        answer = client.post("/sessions", json=dispatch).json()
        assert answer == {"session_id": "s-1", "task_id": "t", "status": "REGISTERED", "node_id": "node-1"}
        assert client.post("/sessions", json=dispatch).status_code == 409
        polar.wait_until(lambda: client.get("/sessions/s-1").json()["status"] == "RUNNING")
        (listed,) = client.get("/sessions").json()["sessions"]
        assert (listed["status"], listed["task_id"], listed["node_id"]) == ("RUNNING", "t", "node-1")
        assert client.get("/sessions", params={"status": "READY"}).json()["sessions"] == []
        assert client.get("/health").json()["active_status_counts"] == {"RUNNING": 1}
        engine.hold.set()
        result = polar.wait_until(lambda: client.get("/sessions/s-1").json()["result"])
        assert (result["status"], result["trajectory"]["traces"][0]["reward"]) == ("COMPLETED", 1.0)
        assert client.get("/sessions").json()["sessions"] == []
        assert client.post("/sessions", json={**dispatch, "session_id": "-"}).status_code == 409
        broken = client.post("/sessions", json={**dispatch, "remaining_timeout_seconds": 0})
        assert (broken.status_code, broken.headers["content-type"].split(";")[0]) == (500, "text/plain")


def test_a_session_cancelled_on_its_gateway_ends_as_an_error():
    """DELETE on the gateway: the task goes on with an ERROR session."""
    with (
        stub_engine(shelf_policy, held=True) as engine,
        serve_polar(agents=True, inference_url=engine.url) as polar,
        _client(polar.gateways["node-1"].url) as client,
    ):
        submit(polar, "t-1", **_request(_seed(named_item=False)))
        polar.wait_until(lambda: engine.waiting == 1)
        (session,) = client.get("/sessions").json()["sessions"]
        assert client.delete(f"/sessions/{session['session_id']}").json()["deleted"] is True
        polar.wait_until(lambda: polar.tasks["t-1"].status == "completed")
        (result,) = get(polar, "/rollout/task/t-1").json()["results"]
        assert (result["status"], result["error"]) == ("ERROR", "session cancelled")


@pytest.mark.parametrize("callbacks", [True, False])
def test_gateways_in_other_processes_are_served(callbacks: bool):
    """A node that registered itself gets sessions over HTTP; results come by callback, else by polling."""
    seed = _seed(named_item=True)
    quick = ServerSettings(dispatch_poll_seconds=0.05)
    lost = [] if callbacks else [Fault("response_status", path="/callbacks/session_result")]
    with (
        stub_engine(shelf_policy) as engine,
        serve_polar(agents=True, inference_url=engine.url) as other,
        serve_polar(FaultScript(faults=lost), agents=True, settings=quick) as polar,
    ):
        with _client(polar.url) as client:
            client.delete("/nodes/node-1")
            node = {
                "node_id": "elsewhere",
                "gateway_url": other.gateways["node-1"].url,
                "max_init_workers": 8,
                "max_run_workers": 8,
                "max_postrun_workers": 8,
            }
            client.post("/nodes/register", json=node)
        submit(polar, "t-1", num_samples=3, **_request(seed))
        polar.wait_until(lambda: polar.tasks["t-1"].status == "completed")
        results = get(polar, "/rollout/task/t-1").json()["results"]
        assert [r["trajectory"]["traces"][0]["reward"] for r in results] == [1.0] * 3
        assert {r["node_id"] for r in results} == {"node-1"}
        got = polar.requests_to("/callbacks/session_result")
        assert [record.status for record in got] == ([200] if callbacks else [503]) * 3
        assert other.server.gateways["node-1"].sessions == {}


def test_a_remote_gateway_that_is_gone_costs_the_placement_deadline():
    """Nobody takes the session: TIMEOUT, not a task that runs for ever."""
    with serve_polar(agents=True) as polar:
        with _client(polar.url) as client:
            client.delete("/nodes/node-1")
            node = {
                "node_id": "gone",
                "gateway_url": "http://127.0.0.1:9",
                "max_init_workers": 1,
                "max_run_workers": 1,
                "max_postrun_workers": 1,
            }
            client.post("/nodes/register", json=node)
        submit(polar, "t-1", **{**_request(_seed(named_item=False)), "timeout_seconds": 0.7})
        polar.wait_until(lambda: polar.tasks["t-1"].status == "completed")
        (result,) = get(polar, "/rollout/task/t-1").json()["results"]
        assert (result["status"], result["error"]) == ("TIMEOUT", "session timeout expired")
        assert result["trajectory"]["traces"] == []


def test_sessions_spread_over_the_nodes():
    """With two gateways the one with more room takes the next session."""
    with (
        stub_engine(shelf_policy) as engine,
        serve_polar(agents=True, gateways=2, inference_url=engine.url) as polar,
    ):
        submit(polar, "t-1", num_samples=8, **_request(_seed(named_item=True)))
        polar.wait_until(lambda: polar.tasks["t-1"].status == "completed")
        nodes = [r["node_id"] for r in get(polar, "/rollout/task/t-1").json()["results"]]
    assert nodes.count("node-1") == nodes.count("node-2") == 4
