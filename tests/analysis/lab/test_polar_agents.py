"""Sessions with real agents, gateway and evaluator, against a small engine over HTTP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from analysis.lab.polar_server.models import SessionResult
from analysis.lab.polar_server.testing import NodeSettings, ServerSettings, serve_polar
from analysis.lab.task_shelf import get_task
from tests.analysis.lab.polar_peers import get, prompt_ids, shelf_policy, stub_engine, submit

SHELF = get_task("shelf")


def _seed(*, named_item: bool) -> int:
    """Return the seed of an episode that names an item (three turns) or a shelf (two)."""
    return next(n for n in range(100) if ("with the" in SHELF.episode(n).prompt[0]["content"]) == named_item)


def _request(seed: int, **changes: Any) -> dict[str, Any]:
    settings = {"episode": {"task": "shelf", "episode_seed": seed}, **changes.pop("settings", {})}
    return {
        "instruction": SHELF.episode(seed).prompt[0]["content"],
        "agent": {"harness": "lab_tool_agent", "model_name": "policy", "settings": settings},
        "builder": {"strategy": "prefix_merging"},
        "evaluator": {"strategy": "lab_task"},
        "timeout_seconds": 20,
        "metadata": {"group_id": 4, "policy_version": 1},
        **changes,
    }


def _run(
    reply: Any,
    *,
    settings: ServerSettings | None = None,
    count: int = 1,
    structured: bool = False,
    **request: Any,
) -> Any:
    """Play one task; return its results and the engine."""
    with (
        stub_engine(reply, structured=structured) as engine,
        serve_polar(agents=True, inference_url=engine.url, settings=settings) as polar,
    ):
        answer = submit(polar, "t-1", num_samples=count, **request)
        assert answer.status_code == 200, answer.text
        polar.wait_until(lambda: polar.tasks["t-1"].status != "running", timeout=40)
        results = get(polar, "/rollout/task/t-1").json()["results"]
        for result in results:
            SessionResult.model_validate(result)
        return results, engine


@pytest.mark.parametrize(("named_item", "turns"), [(True, 3), (False, 2)])
def test_a_right_answer_is_rewarded(named_item: bool, turns: int):
    """Tool calls and replies merge into one trace whose sampled tokens alone are trainable."""
    seed = _seed(named_item=named_item)
    (result,), engine = _run(shelf_policy, **_request(seed))
    (trace,) = result["trajectory"]["traces"]
    assert (result["status"], result["error"], trace["reward"]) == ("COMPLETED", None, 1.0)
    assert trace["prompt_ids"] == prompt_ids(engine.requests[0]["messages"])
    assert len(engine.requests) == turns
    last = engine.requests[-1]["messages"]
    whole = trace["prompt_ids"] + trace["response_ids"]
    assert whole[: len(prompt_ids(last))] == prompt_ids(last)
    runs = "".join(map(str, trace["loss_mask"])).split("0")
    assert len([run for run in runs if run]) == turns
    sampled = [p for p, bit in zip(trace["response_logprobs"], trace["loss_mask"], strict=True) if bit]
    assert set(sampled) == {-0.25}
    assert result["trajectory"]["metadata"]["evaluation"] == {
        "strategy": "lab_task",
        "outcome_reward": 1.0,
        "trace_rewards": None,
        "mode": "lab_task",
        "resolved": True,
        "state": "completed",
        "turns": turns,
        "tool_errors": 0,
        "detail": "right answer",
    }
    roles = [message["role"] for message in trace["response_messages"]]
    assert roles == ["assistant", "tool"] * (turns - 1) + ["assistant"]


def test_each_turn_names_the_weights_that_served_it():
    """The engine's version overrides the submitted one per turn, as text and as a number."""

    def reply(messages: list[dict[str, Any]], number: int) -> str:
        engine.weight_version = str(7 + number)
        return shelf_policy(messages)

    with (
        stub_engine(lambda messages, number: reply(messages, number)) as engine,
        serve_polar(agents=True, inference_url=engine.url) as polar,
    ):
        submit(polar, "t-1", **_request(_seed(named_item=True)))
        polar.wait_until(lambda: polar.tasks["t-1"].status == "completed")
        (result,) = get(polar, "/rollout/task/t-1").json()["results"]
    (trace,) = result["trajectory"]["traces"]
    turns = trace["metadata"]["completion_metadata"]
    assert [turn["weight_version"] for turn in turns] == ["7", "8", "9"]
    assert [turn["policy_version"] for turn in turns] == [7, 8, 9]
    assert [turn["finish_reason"] for turn in turns] == ["stop"] * 3
    assert result["metadata"]["policy_version"] == 1
    assert result["trajectory"]["metadata"]["policy_version"] == 1


@pytest.mark.parametrize(
    ("reply", "state", "finish"),
    [
        ("Answer: x", "malformed", "stop"),
        (("Answer: 1", "length"), "truncated", "length"),
        (("Ans", "abort"), "aborted", "abort"),
        ('<tool_call>{"name": "count", "arguments": {"shelf": "A"}}</tool_call>', "turn_limit", "stop"),
        ("<tool_call>{oops</tool_call>", "malformed", "stop"),
    ],
)
def test_episodes_that_reach_no_answer_get_nothing(reply: Any, state: str, finish: str):
    """Malformed, truncated, cut and endless episodes complete with reward 0."""
    (result,), _ = _run(lambda messages, number: reply, **_request(_seed(named_item=False)))
    assert (result["status"], result["trajectory"]["traces"][0]["reward"]) == ("COMPLETED", 0.0)
    assert result["trajectory"]["traces"][0]["finish_reason"] == finish
    assert result["trajectory"]["metadata"]["evaluation"]["state"] == state


def test_structured_tool_calls_are_understood():
    """An engine that parses tool calls out of the text is answered in the same form."""
    (result,), engine = _run(
        shelf_policy,
        structured=True,
        **_request(_seed(named_item=False), builder={"strategy": "per_request"}),
    )
    history = engine.requests[-1]["messages"]
    assert result["trajectory"]["metadata"]["evaluation"]["state"] == "completed"
    assert history[1]["content"] is None
    assert history[1]["tool_calls"][0]["function"]["name"] == "count"
    assert history[2]["tool_call_id"] == history[1]["tool_calls"][0]["id"] == "call_engine"


def test_slow_tools_make_sessions_time_out():
    """An agent that runs out of time ends as TIMEOUT without traces, although it made calls."""
    request = _request(_seed(named_item=True), settings={"tool_latency_median": 60.0}, timeout_seconds=0.5)
    (result,), engine = _run(shelf_policy, **request)
    assert (result["status"], result["error"]) == ("TIMEOUT", "session execution timeout")
    assert result["trajectory"]["traces"] == []
    assert result["trajectory"]["metadata"]["record_count"] == 0
    assert len(engine.requests) == 1
    assert result["timing"]["run_ms"] >= 400


def test_crashing_agents_leave_what_was_captured():
    """A crash is an ERROR with traces at mask 1 and a reward of 0."""
    request = _request(_seed(named_item=True), settings={"failure_rate": 1.0})
    (result,), _ = _run(shelf_policy, **request)
    assert (result["status"], result["error"]) == ("ERROR", "step 0 exited with code 1")
    (trace,) = result["trajectory"]["traces"]
    assert set(trace["loss_mask"]) >= {1}
    assert trace["reward"] == 0.0


def test_some_agents_crash_and_the_same_ones_every_time():
    """Crashes depend on the episode, the sample and the seed, not on ids or time."""
    statuses = []
    for _ in range(2):
        request = _request(_seed(named_item=True), settings={"failure_rate": 0.5, "seed": 3})
        results, _ = _run(shelf_policy, count=12, **request)
        statuses.append([result["status"] for result in results])
    assert statuses[0] == statuses[1]
    assert {"ERROR", "COMPLETED"} == set(statuses[0])


def test_engine_failures_reach_the_agent():
    """Passing failures are tried again; lasting ones are the agent's failure."""
    request = _request(_seed(named_item=False))

    def once(messages: list[dict[str, Any]], number: int) -> Any:
        return 503 if number == 0 else shelf_policy(messages)

    (result,), engine = _run(once, **request)
    assert (result["status"], len(engine.requests)) == ("COMPLETED", 3)
    (result,), engine = _run(lambda messages, number: 400, **request)
    assert (result["status"], len(engine.requests)) == ("ERROR", 1)
    assert result["error"] == "no completions"


@pytest.mark.parametrize(
    ("changes", "status", "error", "traces"),
    [
        ({"agent": {"harness": "codex"}}, "ERROR", "agent execution failed: unknown harness 'codex'", 0),
        (
            {"agent": {"import_path": "no.such:Agent"}},
            "ERROR",
            "agent execution failed: agent 'no.such:Agent'",
            0,
        ),
        (
            {"agent": {"harness": "lab_tool_agent"}},
            "ERROR",
            "agent execution failed: neither agent.settings",
            0,
        ),
        (
            {"agent": {"harness": "lab_tool_agent", "settings": {"failure_rate": "often"}}},
            "ERROR",
            "agent execution failed: agent setting 'failure_rate' is not a number",
            0,
        ),
        ({"builder": {"strategy": "nope"}}, "ERROR", "post-run failed: unknown trajectory builder", 0),
        ({"builder": {"strategy": "prefix_merging", "config": {"x": 1}}}, "ERROR", "post-run failed: ", 0),
        ({"evaluator": {"strategy": "nope"}}, "ERROR", "evaluator failed: unknown evaluator 'nope'", 1),
        ({"evaluator": {"strategy": "lab_task", "config": {"x": 1}}}, "ERROR", "evaluator failed: ", 1),
        ({"evaluator": {"strategy": "session_completed"}}, "COMPLETED", None, 1),
        ({"evaluator": None}, "COMPLETED", None, 1),
    ],
)
def test_wrong_names_surface_in_the_session(changes: Any, status: str, error: str | None, traces: int):
    """Names are not checked at submit; the session says what was wrong, and may keep its traces."""
    (result,), _ = _run(shelf_policy, **{**_request(_seed(named_item=False)), **changes})
    assert result["status"] == status
    assert result["error"] is None if error is None else result["error"].startswith(error)
    assert len(result["trajectory"]["traces"]) == traces
    rewards = [trace["reward"] for trace in result["trajectory"]["traces"]]
    expected = {"session_completed": [1.0]}.get(
        (changes.get("evaluator") or {}).get("strategy"), [None] * traces
    )
    assert rewards == expected
    assert ("evaluation" in result["trajectory"]["metadata"]) == (expected == [1.0])


def test_timing_and_node_of_a_session():
    """The four stage times are there, none negative, and the node is named."""
    settings = ServerSettings(nodes=(NodeSettings(node_id="gw-7", init_seconds=0.05),))
    (result,), _ = _run(shelf_policy, settings=settings, **_request(_seed(named_item=False)))
    assert result["node_id"] == "gw-7"
    assert list(result["timing"]) == ["register_to_init_queue_ms", "init_ms", "run_ms", "postrun_ms"]
    assert result["timing"]["init_ms"] >= 50
    assert all(value >= 0 for value in result["timing"].values())


def test_sessions_wait_for_workers_without_losing_their_budget_before_init():
    """With one worker per stage, eight sessions run one after the other, and all complete."""
    node = NodeSettings(max_init_workers=1, max_run_workers=1, max_postrun_workers=1)
    request = _request(_seed(named_item=False), settings={"tool_latency_median": 0.02})
    results, _ = _run(shelf_policy, settings=ServerSettings(nodes=(node,)), count=8, **request)
    assert [result["status"] for result in results] == ["COMPLETED"] * 8
    assert len({result["session_id"] for result in results}) == 8


def test_no_room_in_time_is_a_timeout_without_a_node():
    """A session that no node takes before the placement deadline ends as TIMEOUT."""
    settings = ServerSettings(
        nodes=(NodeSettings(max_init_workers=1, max_run_workers=1, max_postrun_workers=1),)
    )
    slow = _request(_seed(named_item=True), settings={"tool_latency_median": 60.0}, timeout_seconds=60.0)
    with (
        stub_engine() as engine,
        serve_polar(agents=True, inference_url=engine.url, settings=settings) as polar,
    ):
        submit(polar, "slow", num_samples=4, **slow)
        polar.wait_until(lambda: [s.status for s in polar.tasks["slow"].sessions] == ["REGISTERED"] * 4)
        submit(polar, "late", num_samples=2, **{**slow, "timeout_seconds": 0.4})
        polar.wait_until(lambda: polar.tasks["late"].status == "completed")
        results = get(polar, "/rollout/task/late").json()["results"]
        assert [(r["status"], r["error"], r["node_id"]) for r in results] == [
            ("TIMEOUT", "session timeout expired", None)
        ] * 2
        assert results[0]["timing"]["init_ms"] == 0.0
        node = get(polar, "/nodes").json()[0]
        assert sum(node["metrics"].values()) == 4


def test_everything_is_written_in_polars_layout(tmp_path: Path):
    """Session files without trajectory status and error; one numbered file per model call."""
    settings = ServerSettings(save_dir=tmp_path / "results")
    seed = _seed(named_item=True)
    (result,), _ = _run(shelf_policy, settings=settings, **_request(seed))
    folder = tmp_path / "results" / "task_t-1"
    (stored,) = folder.glob("ses_*.json")
    assert stored.name == f"ses_{result['session_id']}.json"
    data = json.loads(stored.read_text())
    kept = {key: value for key, value in result["trajectory"].items() if key not in ("status", "error")}
    assert data == {**result, "trajectory": kept}
    calls = sorted((folder / "sessions" / result["session_id"] / "completions").iterdir())
    assert [path.name[:9] for path in calls] == ["0001-msg_", "0002-msg_", "0003-msg_"]
    record = json.loads(calls[1].read_text())
    assert list(record) == [
        "completion_id", "timestamp", "session_id", "task_id", "api_type", "model_requested", "model_used",
        "transformed_request", "original_request", "response", "metadata", "__written_at",
    ]  # fmt: skip
    assert record["completion_id"] == calls[1].stem[5:]
    assert "logprobs" not in record["transformed_request"]
    assert record["response"]["choices"][0]["input_token_ids"]
    assert "meta_info" not in record["response"]["choices"][0]
    assert (record["metadata"]["group_id"], record["metadata"]["task_id"]) == (4, "t-1")
