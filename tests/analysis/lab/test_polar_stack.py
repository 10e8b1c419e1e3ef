"""The server in front of the real router and the lab's engine: ids, logprobs and versions arrive unasked."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from analysis.lab.checkpoint import create_checkpoint
from analysis.lab.polar_server.testing import Fault, FaultScript, serve_polar
from analysis.lab.processes import ChildProcess, free_port
from analysis.lab.router import Router
from tests.analysis.lab.polar_peers import callback_sink, get, submit
from tests.analysis.lab.test_polar_agents import _request, _seed

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The router's URL and the engine's, with an untrained policy behind them."""
    pytest.importorskip("sglang_router")
    folder: Path = tmp_path_factory.mktemp("stack")
    checkpoint = create_checkpoint(folder / "checkpoint", seed=0)
    port = free_port()
    engine = ChildProcess(
        [sys.executable, "-m", "analysis.lab.engine", "--checkpoint", str(checkpoint), "--port", str(port),
         "--weight-version", "3"],
        name="engine",
        log_path=folder / "engine.log",
        ready_url=f"http://127.0.0.1:{port}/health",
    )  # fmt: skip
    with engine:
        engine.wait_ready(90)
        with Router([f"http://127.0.0.1:{port}"], log_path=folder / "router.log") as router:
            yield router.url, f"http://127.0.0.1:{port}"


def test_sessions_through_the_real_router_are_complete(urls: tuple[str, str]):
    """Every sampled token has an id, a mask and a logprob, though the router drops the flags for them."""
    with callback_sink() as sink, serve_polar(agents=True, inference_url=urls[0]) as polar:
        submit(polar, "t-1", num_samples=8, callback_url=sink.url, **_request(_seed(named_item=True)))
        polar.wait_until(lambda: polar.callbacks, timeout=60)
        results = sink.received[0].json()["results"]
        inference = httpx.get(f"{polar.gateways['node-1'].url}/health", trust_env=False, verify=False).json()[
            "inference"
        ]
    assert inference["status"] == "ok"
    assert len(results) == 8
    for result in results:
        assert result["status"] == "COMPLETED"
        for trace in result["trajectory"]["traces"]:
            assert trace["prompt_ids"]
            assert (
                len(trace["response_ids"]) == len(trace["loss_mask"]) == len(trace["response_logprobs"]) > 0
            )
            assert all(
                p < 0 for p, bit in zip(trace["response_logprobs"], trace["loss_mask"], strict=True) if bit
            )
            versions = [turn["weight_version"] for turn in trace["metadata"]["completion_metadata"]]
            assert versions == ["3"] * len(versions)


def test_faults_apply_to_real_sessions_too(urls: tuple[str, str]):
    """Callback, session and task faults are played over real trajectories."""
    faults = [Fault("callback_lost", tasks=[0]), Fault("null_logprobs", sessions=[1])]
    with (
        callback_sink() as sink,
        serve_polar(FaultScript(faults=faults), agents=True, inference_url=urls[0]) as polar,
    ):
        submit(polar, "t-1", num_samples=2, callback_url=sink.url, **_request(_seed(named_item=False)))
        polar.wait_until(lambda: polar.tasks["t-1"].status == "completed", timeout=60)
        good, bad = get(polar, "/rollout/task/t-1").json()["results"]
        assert good["trajectory"]["traces"][0]["response_logprobs"] is not None
        assert bad["trajectory"]["traces"][0]["response_logprobs"] is None
        assert sink.received == []


def test_a_weight_push_between_pause_and_resume(urls: tuple[str, str]):
    """With the gate closed nothing is in flight while the version changes; later turns name the new one."""
    router, engine = urls
    with (
        serve_polar(agents=True, inference_url=router) as polar,
        httpx.Client(trust_env=False, verify=False, timeout=60) as client,
    ):
        gate = f"{polar.gateways['node-1'].url}/admin/inference"
        request = _request(_seed(named_item=True), builder={"strategy": "per_request"})
        submit(polar, "t-1", num_samples=16, **request)
        assert client.post(f"{gate}/pause").json()["inflight"] == 0
        body = {"new_version": "4", "abort_all_requests": False}
        assert client.post(f"{engine}/update_weight_version", json=body).status_code == 200
        assert client.post(f"{gate}/resume").json()["paused"] is False
        polar.wait_until(lambda: polar.tasks["t-1"].status == "completed", timeout=60)
        submit(polar, "t-2", num_samples=2, **request)
        polar.wait_until(lambda: polar.tasks["t-2"].status == "completed", timeout=60)
        body["new_version"] = "3"
        client.post(f"{engine}/update_weight_version", json=body)
        seen = [
            trace
            for name in ("t-1", "t-2")
            for result in get(polar, f"/rollout/task/{name}").json()["results"]
            for trace in result["trajectory"]["traces"]
        ]
    assert all(trace["finish_reason"] != "abort" for trace in seen)
    assert {trace["metadata"]["policy_version"] for trace in seen} <= {3, 4}
    assert seen[-1]["metadata"]["policy_version"] == 4
