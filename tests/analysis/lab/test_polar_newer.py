"""What newer servers add: cancelling, early stop, priorities, control token, agent budgets, masked traces."""

from __future__ import annotations

import math
from typing import Any

import httpx
import pytest

from analysis.lab.polar_server.models import NewerSessionTiming
from analysis.lab.polar_server.testing import (
    Fault,
    FaultScript,
    NodeSettings,
    ServerSettings,
    SessionProfile,
    serve_polar,
)
from analysis.lab.polar_server.training_filter import mask_unusable
from tests.analysis.lab.polar_peers import callback_sink, get, shelf_policy, stub_engine, submit
from tests.analysis.lab.test_polar_agents import _request, _seed


def _cancel(polar: Any, task_id: str, **query: Any) -> httpx.Response:
    return httpx.delete(
        f"{polar.url}/rollout/task/{task_id}", params=query, trust_env=False, verify=False, timeout=20
    )


def test_a_running_task_can_be_cancelled():
    """Unfinished sessions end as ERROR, finished ones keep their result, and nothing is called back."""
    script = FaultScript(faults=[Fault("session_endless", sessions=[1, 2])])
    with callback_sink() as sink, serve_polar(script=script, newer=True) as polar:
        submit(polar, "t-1", num_samples=3, callback_url=sink.url)
        polar.wait_until(lambda: polar.tasks["t-1"].completed_sessions == 1)
        body = _cancel(polar, "t-1").json()
        assert (body["status"], body["total_sessions"], body["completed_sessions"]) == ("cancelled", 3, 3)
        assert [r["status"] for r in body["results"]] == ["COMPLETED", "ERROR", "ERROR"]
        assert body["results"][1]["error"] == "session cancelled"
        assert get(polar, "/rollout/task/t-1").json()["status"] == "cancelled"
        assert polar.cancelled == ["t-1"]
        assert polar.running_sessions == 0
        assert _cancel(polar, "t-1").json()["status"] == "cancelled", "cancelling twice is harmless"
        assert submit(polar, "t-1").status_code == 200, "the id is free again"
        assert sink.received == []


def test_finished_and_unknown_tasks():
    """A finished task stays as it is; an unknown one is 404, or leaves a tombstone against late submits."""
    with serve_polar(newer=True) as polar:
        submit(polar, "t-1")
        polar.wait_until(lambda: polar.tasks["t-1"].status == "completed")
        assert _cancel(polar, "t-1").json()["status"] == "completed"
        assert _cancel(polar, "t-2").json() == {"detail": "Task not found"}
        answer = _cancel(polar, "t-2", register_if_missing="true")
        assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")
        assert submit(polar, "t-2").status_code == 409
        assert polar.cancelled == ["t-2"]


def test_cancelling_kills_agents():
    """Running agents are stopped and their model calls with them."""
    with (
        stub_engine(shelf_policy, held=True) as engine,
        serve_polar(agents=True, newer=True, inference_url=engine.url) as polar,
    ):
        submit(polar, "t-1", num_samples=2, **_request(_seed(named_item=True)))
        polar.wait_until(lambda: engine.waiting == 2)
        assert [r["error"] for r in _cancel(polar, "t-1").json()["results"]] == ["session cancelled"] * 2
        polar.wait_until(lambda: polar.gateways["node-1"].inflight == 0)
        assert polar.server.gateways["node-1"].sessions == {}


def test_early_stop_cancels_the_stragglers():
    """Once enough sessions are usable the rest become placeholders, and the task completes and calls back."""
    faults = [Fault("session_endless", sessions=[3, 4]), Fault("no_token_ids", sessions=[0])]
    with callback_sink() as sink, serve_polar(script=FaultScript(faults=faults), newer=True) as polar:
        answer = submit(
            polar, "t-1", num_samples=5, early_stop_min_usable_sessions=2, callback_url=sink.url,
            metadata={"group_id": 1},
        )  # fmt: skip
        assert answer.status_code == 200
        polar.wait_until(lambda: polar.callbacks)
        results = sink.received[0].json()["results"]
        assert [r["status"] for r in results] == ["COMPLETED"] * 3 + ["ERROR"] * 2
        for stopped in results[3:]:
            for note in (stopped["metadata"], stopped["trajectory"]["metadata"]):
                assert note["early_stop_cancelled"] is True
                assert note["fully_masked"] is True
                assert note["early_stop_reason"] == "minimum_usable_sessions_reached"
                assert note["early_stop_min_usable_sessions"] == note["early_stop_usable_sessions"] == 2
                assert note["early_stop_elapsed_ms"] >= 0
            assert stopped["trajectory"]["traces"] == []
            assert stopped["metadata"]["group_id"] == 1


@pytest.mark.parametrize(
    ("changes", "location"),
    [
        ({"early_stop_min_usable_sessions": 3, "num_samples": 2}, ["body"]),
        ({"early_stop_min_usable_sessions": 0}, ["body", "early_stop_min_usable_sessions"]),
        ({"dispatch_priority": 101}, ["body", "dispatch_priority"]),
        ({"metadata": {"agent_timeout": True}}, ["body"]),
        ({"metadata": {"agent_timeout": -1}}, ["body"]),
        ({"metadata": {"eval_sampling_seed_base": -1}}, ["body"]),
    ],
)
def test_newer_fields_are_checked(changes: dict[str, Any], location: list[str]):
    """Bad values are 422 on a newer server, and ignored by the baseline."""
    with serve_polar(newer=True) as polar:
        answer = submit(polar, "t-1", **changes)
        assert answer.status_code == 422
        assert answer.json()["detail"][0]["loc"] == location
    with serve_polar() as polar:
        assert submit(polar, "t-1", **changes).status_code == 200


def test_the_baseline_has_no_cancel_route():
    """DELETE of a task is 405, which is how a client finds out."""
    with serve_polar() as polar:
        submit(polar, "t-1")
        assert _cancel(polar, "t-1").status_code == 405


def test_the_control_token_guards_nodes_and_session_results():
    """401 without it; submits need it only where that is asked for."""
    node = {"node_id": "n", "gateway_url": "http://x", "max_init_workers": 1, "max_run_workers": 1}
    node["max_postrun_workers"] = 1
    result = {"session_id": "s", "task_id": "t", "status": "ERROR", "trajectory": {"status": "ERROR"}}
    with serve_polar(newer=True, control_token="secret") as polar:
        bodies = {"/nodes/register": node, "/nodes/n/heartbeat": {}, "/callbacks/session_result": result}
        for path, body in bodies.items():
            url = f"{polar.url}{path}"
            assert httpx.post(url, json=body, trust_env=False, verify=False).status_code == 401
            headers = {"X-Polar-Control-Token": "secret"}
            assert (
                httpx.post(url, json=body, headers=headers, trust_env=False, verify=False).status_code == 200
            )
        assert submit(polar, "t-1").status_code == 200
    settings = ServerSettings(newer=True, control_token="secret", protect_submit=True)
    with serve_polar(settings=settings) as polar:
        assert submit(polar, "t-1").status_code == 401


def test_agents_have_a_budget_of_their_own():
    """An agent that runs out of its own time keeps its tokens trainable, with reward 0 and a note."""
    request = _request(_seed(named_item=True), settings={"tool_latency_median": 60.0})
    request["metadata"] = {**request["metadata"], "agent_timeout": 0.4}
    with stub_engine() as engine, serve_polar(agents=True, newer=True, inference_url=engine.url) as polar:
        submit(polar, "t-1", **request)
        polar.wait_until(lambda: polar.tasks["t-1"].status == "completed")
        (result,) = get(polar, "/rollout/task/t-1").json()["results"]
    assert (result["status"], result["error"]) == ("TIMEOUT", "session execution timeout")
    (trace,) = result["trajectory"]["traces"]
    assert set(trace["loss_mask"]) == {1}
    assert trace["reward"] == 0.0
    note = trace["metadata"]["training_filter"]
    assert (note["trainable"], note["masked"], note["reason"]) == (True, False, "agent_timeout")
    agent = result["trajectory"]["metadata"]["agent_result"]
    assert (agent["status"], agent["timeout_source"], agent["timeout_stage"]) == ("timeout", "agent", "exec")
    timing = NewerSessionTiming.model_validate(result["timing"])
    assert timing.e2e_ms >= timing.agent_exec_ms >= 300


def test_failed_sessions_are_masked():
    """A crashed agent's traces carry nothing to train on, and say what was taken from them."""
    request = _request(_seed(named_item=True), settings={"failure_rate": 1.0})
    with stub_engine() as engine, serve_polar(agents=True, newer=True, inference_url=engine.url) as polar:
        submit(polar, "t-1", **request)
        polar.wait_until(lambda: polar.tasks["t-1"].status == "completed")
        (result,) = get(polar, "/rollout/task/t-1").json()["results"]
    (trace,) = result["trajectory"]["traces"]
    assert set(trace["loss_mask"]) == {0}
    note = trace["metadata"]["training_filter"]
    assert (note["masked"], note["reason"], note["original_reward"]) == (True, "session_error", 0.0)
    evaluation = result["trajectory"]["metadata"]["evaluation"]
    assert (evaluation["outcome_reward"], evaluation["reward_discarded"]) == (0.0, True)


def _trajectory(status: str, **changes: Any) -> dict[str, Any]:
    trace = {"response_ids": [1, 2], "loss_mask": [1, 1], "response_logprobs": [-0.1, -0.2], "reward": 1.0}
    return {"status": status, "error": "e", "metadata": {}, "traces": [{**trace, "metadata": {}, **changes}]}


@pytest.mark.parametrize(
    ("changes", "mask", "reason"),
    [
        ({}, [1, 1], "agent_timeout"),
        ({"response_logprobs": [-0.1, math.nan]}, [0, 0], "agent_timeout_unaligned"),
        ({"response_logprobs": None}, [0, 0], "agent_timeout_unaligned"),
        ({"loss_mask": [1]}, [0, 0], "agent_timeout_unaligned"),
    ],
)
def test_only_sound_traces_of_an_agent_timeout_stay_trainable(changes: Any, mask: list[int], reason: str):
    """Aligned and finite, or masked."""
    trajectory = _trajectory("TIMEOUT", **changes)
    mask_unusable(trajectory, agent_timeout=True)
    (trace,) = trajectory["traces"]
    assert (trace["loss_mask"], trace["reward"]) == (mask, 0.0)
    assert trace["metadata"]["training_filter"]["reason"] == reason
    assert trace["metadata"]["training_filter"]["original_reward"] == 1.0


def test_completed_sessions_are_left_alone():
    """Nothing is masked in a session that completed."""
    trajectory = _trajectory("COMPLETED")
    mask_unusable(trajectory, agent_timeout=False)
    assert trajectory == _trajectory("COMPLETED")


def test_higher_priorities_start_earlier():
    """Among waiting sessions the one with the highest priority gets the next init worker."""
    node = NodeSettings(max_init_workers=1, max_run_workers=8, max_postrun_workers=8, init_seconds=0.4)
    settings = ServerSettings(nodes=(node,), newer=True)
    with (
        stub_engine(shelf_policy) as engine,
        serve_polar(agents=True, inference_url=engine.url, settings=settings) as polar,
    ):
        request = _request(_seed(named_item=False))
        submit(polar, "low", num_samples=4, **request)
        submit(polar, "high", num_samples=1, dispatch_priority=50, **request)
        polar.wait_until(lambda: all(record.status == "completed" for record in polar.tasks.values()))
        waits = [
            result["timing"]["register_to_init_queue_ms"]
            for name in ("low", "high")
            for result in get(polar, f"/rollout/task/{name}").json()["results"]
        ]
    assert waits[-1] < max(waits[:-1])


def test_sampling_seeds_are_handed_to_the_samples():
    """With a seed base every sample gets its own seed, in its metadata and in its model calls."""
    request = _request(_seed(named_item=False))
    request["metadata"] = {"eval_sampling_seed_base": 100}
    with stub_engine() as engine, serve_polar(agents=True, newer=True, inference_url=engine.url) as polar:
        submit(polar, "t-1", num_samples=3, **request)
        polar.wait_until(lambda: polar.tasks["t-1"].status == "completed")
        results = get(polar, "/rollout/task/t-1").json()["results"]
        assert [r["metadata"]["eval_sampling_seed"] for r in results] == [100, 101, 102]
        assert {body["seed"] for body in engine.requests} == {100, 101, 102}


def test_scripted_sessions_may_show_newer_timing():
    """The fault kind for unknown fields puts integers and maps into `timing`."""
    script = FaultScript(sessions=SessionProfile(), faults=[Fault("session_unknown_fields")])
    with serve_polar(script=script, newer=True) as polar:
        submit(polar, "t-1")
        polar.wait_until(lambda: polar.tasks["t-1"].status == "completed")
        timing = get(polar, "/rollout/task/t-1").json()["results"][0]["timing"]
    assert isinstance(timing["ready_queue_ms"], int)
    assert timing["runtime_exec_ms_by_category"] == {"agent": 1.5}
