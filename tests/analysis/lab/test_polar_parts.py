"""Small parts of the Polar-compatible server: gate, pools, nodes, evaluators, agent settings, names."""

from __future__ import annotations

import asyncio
import math
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.lab.polar_server.agents import AgentError, ToolAgentSettings, make_agent
from analysis.lab.polar_server.evaluators import (
    EvalResult,
    EvaluatorError,
    attach_rewards,
    make_evaluator,
)
from analysis.lab.polar_server.gate import GenerationGate, StagePool
from analysis.lab.polar_server.models import AgentSpec
from analysis.lab.polar_server.node_models import NodeRegistrationRequest, NodeStageMetrics
from analysis.lab.polar_server.nodes import NodeRegistry, UnknownNodeError
from analysis.lab.polar_server.proxy import Capture, completion_metadata, transform_chat
from analysis.lab.polar_server.state import new_session_id


def test_the_gate_counts_and_waits():
    """Calls in flight hold a pause up; later calls wait for the gate to open."""

    async def play() -> list[str]:
        gate, log = GenerationGate(), []

        async def call(name: str, release: asyncio.Event) -> None:
            async with gate.call():
                log.append(f"in {name}")
                await release.wait()
            log.append(f"out {name}")

        first, second = asyncio.Event(), asyncio.Event()
        tasks = [asyncio.create_task(call("a", first))]
        await asyncio.sleep(0)
        pausing = asyncio.create_task(gate.pause(20))
        await asyncio.sleep(0)
        tasks.append(asyncio.create_task(call("b", second)))
        await asyncio.sleep(0)
        assert (gate.paused, gate.inflight, log) == (True, 1, ["in a"])
        first.set()
        assert await pausing
        assert (gate.inflight, log) == (0, ["in a", "out a"])
        gate.resume()
        second.set()
        await asyncio.gather(*tasks)
        assert await gate.pause(0), "nothing in flight: no wait at all"
        return log

    assert asyncio.run(play()) == ["in a", "out a", "in b", "out b"]


def test_a_call_that_is_cancelled_leaves_the_gate():
    """An agent that is killed in the middle of a call does not block the next pause."""

    async def play() -> None:
        gate = GenerationGate()

        async def call() -> None:
            async with gate.call():
                await asyncio.Event().wait()

        task = asyncio.create_task(call())
        await asyncio.sleep(0)
        assert not await gate.pause(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert await gate.pause(1)

    asyncio.run(play())


@given(st.integers(1, 4), st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=20))
def test_pools_keep_their_limit_and_lose_no_worker(workers: int, visitors: list[tuple[int, bool]]):
    """Whoever comes and whoever is cancelled: never more than the limit, all served, nothing left."""

    async def play() -> None:
        pool, inside, served = StagePool(workers), 0, 0

        async def visit(priority: int) -> None:
            nonlocal inside, served
            async with pool.worker(priority):
                inside += 1
                assert inside <= workers
                try:
                    await asyncio.sleep(0)
                    served += 1
                finally:
                    inside -= 1

        tasks = [asyncio.create_task(visit(priority)) for priority, _ in visitors]
        await asyncio.sleep(0)
        for task, (_, wanted) in zip(tasks, visitors, strict=True):
            if wanted:
                task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        cancelled = sum(isinstance(result, asyncio.CancelledError) for result in results)
        assert served + cancelled == len(visitors)
        assert cancelled <= sum(wanted for _, wanted in visitors)
        assert (inside, pool.active, pool.queued) == (0, 0, 0)

    asyncio.run(play())


def test_pools_serve_by_priority_then_arrival():
    """The highest priority first; equals in order of arrival."""

    async def play() -> list[str]:
        pool, order = StagePool(1), []

        async def visit(name: str, priority: int) -> None:
            async with pool.worker(priority):
                order.append(name)

        await pool.acquire()
        tasks = [
            asyncio.create_task(visit(n, p)) for n, p in (("a", 0), ("b", 5), ("c", 5), ("d", 9), ("e", 0))
        ]
        await asyncio.sleep(0)
        assert pool.queued == 5
        pool.release()
        await asyncio.gather(*tasks)
        return order

    assert asyncio.run(play()) == ["d", "b", "c", "a", "e"]


def _registration(node_id: str, **changes: Any) -> NodeRegistrationRequest:
    workers = {"max_init_workers": 2, "max_run_workers": 2, "max_postrun_workers": 2}
    return NodeRegistrationRequest(
        node_id=node_id, gateway_url=f"http://{node_id}/", **{**workers, **changes}
    )


def test_nodes_age_and_come_back():
    """Healthy for two and a half intervals; a heartbeat makes it healthy again and clears reservations."""
    registry = NodeRegistry()
    node = registry.register(_registration("a", heartbeat_interval_seconds=10))
    node.dispatch_reservations = 2
    node.last_heartbeat = datetime.now(UTC) - timedelta(seconds=24)
    assert node.healthy
    node.last_heartbeat -= timedelta(seconds=2)
    assert not node.healthy
    assert registry.pick() is None
    registry.heartbeat("a", NodeStageMetrics(run_inflight=1))
    assert (node.healthy, node.dispatch_reservations, node.metrics.run_inflight) == (True, 0, 1)
    assert registry.pick() is node


def test_placement_prefers_the_emptiest_node():
    """Least run pressure, then post-run, init, total, id; full, draining and excluded nodes are left out."""
    registry = NodeRegistry()
    nodes = {name: registry.register(_registration(name)) for name in "abc"}

    def picked() -> str | None:
        node = registry.pick()
        return node.node_id if node is not None else None

    assert picked() == "a"
    nodes["a"].metrics = NodeStageMetrics(run_inflight=1)
    assert picked() == "b"
    nodes["b"].metrics = NodeStageMetrics(postrun_inflight=1)
    assert picked() == "c"
    nodes["c"].dispatch_reservations = 1
    assert picked() == "c"
    nodes["c"].dispatch_reservations = 8
    assert picked() == "b"
    nodes["b"].draining = True
    nodes["a"].metrics = NodeStageMetrics(postrun_inflight=2, postrun_queue_depth=2)
    assert picked() is None


def test_registering_again_keeps_metrics_and_draining():
    """A node that registers anew is fresh and healthy, but still drained and as loaded as before."""
    registry = NodeRegistry()
    first = registry.register(_registration("a"))
    first.metrics = NodeStageMetrics(run_inflight=3)
    registry.drain("a")
    second = registry.register(_registration("a"))
    assert (second.draining, second.metrics.run_inflight, second.dispatch_reservations) == (True, 3, 0)
    with pytest.raises(UnknownNodeError, match="Unknown gateway node: x"):
        registry.drain("x")


def _traces(count: int) -> dict[str, Any]:
    return {"status": "COMPLETED", "metadata": {}, "traces": [{"reward": None} for _ in range(count)]}


@pytest.mark.parametrize(
    ("result", "rewards"),
    [
        (EvalResult(outcome_reward=0.5), [0.5, 0.5]),
        (EvalResult(outcome_reward=0.5, trace_rewards=[1.0, None]), [1.0, None]),
        (EvalResult(), [None, None]),
        (EvalResult(outcome_reward=math.nan), [None, None]),
    ],
)
def test_rewards_are_attached_as_polar_does(result: EvalResult, rewards: list[float | None]):
    """Trace rewards win, an outcome is broadcast, neither leaves null, non-finite numbers become null."""
    trajectory = _traces(2)
    attach_rewards(trajectory, "mine", result)
    assert [trace["reward"] for trace in trajectory["traces"]] == rewards
    assert trajectory["metadata"]["evaluation"]["strategy"] == "mine"


def test_evaluator_metadata_wins():
    """An evaluator may overwrite even `outcome_reward` in the metadata, not in the traces."""
    trajectory = _traces(1)
    attach_rewards(trajectory, "mine", EvalResult(1.0, metadata={"outcome_reward": "odd", "mode": "x"}))
    assert trajectory["metadata"]["evaluation"] == {
        "strategy": "mine",
        "outcome_reward": "odd",
        "trace_rewards": None,
        "mode": "x",
    }
    assert trajectory["traces"][0]["reward"] == 1.0


def test_a_wrong_number_of_trace_rewards_writes_nothing():
    """The session becomes an ERROR whose text begins as Polar's does."""
    trajectory = _traces(2)
    with pytest.raises(EvaluatorError, match="^evaluator returned 1 trace rewards for 2 traces"):
        attach_rewards(trajectory, "mine", EvalResult(trace_rewards=[1.0]))
    assert trajectory == _traces(2)


class NotAnEvaluator:
    """Has no coroutine `evaluate`."""

    def evaluate(self) -> None:
        """Return at once."""


@pytest.mark.parametrize(
    ("strategy", "text"),
    [
        ("nope", "unknown evaluator"),
        ("x.y:Z", "cannot be constructed"),
        (f"{__name__}:NotAnEvaluator", "cannot|coroutine"),
    ],
)
def test_unusable_evaluators_are_named(strategy: str, text: str):
    """Misspelt names and classes without the right method say so."""
    with pytest.raises(EvaluatorError, match=text):
        make_evaluator(strategy, {})


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"temperature": "hot"}, "'temperature' is not a number: 'hot'"),
        ({"max_turns": []}, "'max_turns' is not a number"),
        ({"failure_rate": 1.5}, "within 0 and 1"),
        ({"tool_latency_median": -1}, "not negative"),
    ],
)
def test_wrong_agent_settings_are_named(settings: dict[str, Any], text: str):
    """A value that cannot be used is an error, not a default."""
    with pytest.raises(AgentError, match=text):
        make_agent(AgentSpec(harness="lab_tool_agent", settings=settings))


def test_agent_settings_are_read_leniently():
    """Numbers as text, nulls and unknown keys are fine, as templates make them."""
    read = ToolAgentSettings.from_settings({"temperature": "0.5", "max_turns": "3", "seed": None, "other": 1})
    assert (read.temperature, read.max_turns, read.seed, read.model_retries) == (0.5, 3, 0, 2)


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ({}, {}),
        ({"metadata": {"weight_version": "7"}}, {"weight_version": "7", "policy_version": 7}),
        (
            {"choices": [{"meta_info": {"weight_version": 8}}]},
            {"weight_version": "8", "policy_version": 8},
        ),
        ({"metadata": {"weight_version": "default"}}, {"weight_version": "default"}),
        (
            {
                "metadata": {"weight_version": "6"},
                "choices": [
                    {
                        "finish_reason": "abort",
                        "meta_info": {
                            "weight_versions": [
                                {"version": "5", "start": 0, "end": 3},
                                {"version": "6", "start": 3, "end": 4},
                            ]
                        },
                    }
                ],
            },
            {"weight_version": "5", "policy_version": 5, "finish_reason": "abort"},
        ),
    ],
)
def test_completion_metadata_names_the_weights(response: dict[str, Any], expected: dict[str, Any]):
    """What the engine says overrides the submitted version; spans of several versions are kept."""
    capture = Capture("s", "t", metadata={"group_id": 1, "session_id": "mine"})
    got = completion_metadata(capture, response)
    spans = got.pop("weight_versions", None)
    assert got == {"session_id": "mine", "task_id": "t", "group_id": 1, **expected}
    assert (spans is not None) == ("abort" in str(response))


def test_thinking_is_off_for_models_that_think_by_default():
    """Polar's default for one model family, which a request may override."""
    messages = [{"role": "user", "content": "x"}]
    assert transform_chat({"messages": messages}, "org/Qwen3.5-9B")["chat_template_kwargs"] == {
        "enable_thinking": False
    }
    own = {"messages": messages, "chat_template_kwargs": {"enable_thinking": True}}
    assert transform_chat(own, "qwen3.5")["chat_template_kwargs"] == {"enable_thinking": True}
    assert "chat_template_kwargs" not in transform_chat({"messages": messages}, "other")


@given(st.integers(0, 2**64 - 1))
def test_session_ids_have_polars_form(seed: int):
    """`sk-polar-` and a version-4 UUID, random or by seed."""
    pattern = r"sk-polar-[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
    for made in (new_session_id(), new_session_id(seed)):
        assert re.fullmatch(pattern, made)
    assert new_session_id(seed) == new_session_id(seed)
    assert new_session_id(seed) != new_session_id(seed ^ 1)
