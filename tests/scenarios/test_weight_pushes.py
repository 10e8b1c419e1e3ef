"""Weight pushes under load on the embedded stack, with and without the barrier: ten, and a hundred.

Engine, router, gateways and hook are the real ones; a push does what Slime's does: pause (which aborts),
flush, load, continue. Each whole turn has the same number of tokens, so a turn that was cut is known without
asking anybody what became of it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from analysis.lab.checkpoint import create_checkpoint
from analysis.lab.polar_server.testing import PolarHandle, serve_polar
from analysis.lab.processes import ChildProcess, free_port
from analysis.lab.router import Router
from slime_bridge.rollout import generate_rollout_polar_async, stop_global_worker
from tests.scenarios.push_agent import TURN_TOKENS
from tests.slime_bridge.rollouts import Source, make_args

pytestmark = [pytest.mark.lab, pytest.mark.timeout(240)]

PUSHES = pytest.mark.parametrize("pushes", [10, pytest.param(100, marks=pytest.mark.slow)])
AGENT = {"import_path": "tests.scenarios.push_agent:EvenTurns", "model_name": "policy"}


@dataclass
class Stack:
    """The engine, its two checkpoints, and the rollout server in front of it."""

    engine: str
    checkpoints: list[Path]
    polar: PolarHandle
    http: httpx.Client

    def running(self) -> int:
        """Requests that the engine is sampling."""
        states = self.http.get(f"{self.engine}/server_info").json()["internal_states"]
        return sum(state["num_running_reqs"] for state in states)

    def push(self, version: int) -> int:
        """Push weights as Slime's updater does; returns how many requests were running just before."""
        running = self.running()
        self.http.post(f"{self.engine}/pause_generation", json={}).raise_for_status()
        self.http.post(f"{self.engine}/flush_cache")
        body = {"model_path": str(self.checkpoints[version % 2]), "weight_version": str(version)}
        self.http.post(f"{self.engine}/update_weights_from_disk", json=body).raise_for_status()
        self.http.post(f"{self.engine}/continue_generation").raise_for_status()
        return running


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Start everything, once."""
    pytest.importorskip("sglang_router")
    folder: Path = tmp_path_factory.mktemp("pushes")
    checkpoints = [create_checkpoint(folder / f"checkpoint-{seed}", seed=seed) for seed in (0, 1)]
    port = free_port()
    engine = ChildProcess(
        [
            sys.executable,
            "-m",
            "analysis.lab.engine",
            "--checkpoint",
            str(checkpoints[0]),
            "--port",
            str(port),
        ],
        name="engine",
        log_path=folder / "engine.log",
        ready_url=f"http://127.0.0.1:{port}/health",
    )
    url = f"http://127.0.0.1:{port}"
    with engine:
        engine.wait_ready(90)
        with (
            Router([url], log_path=folder / "router.log") as router,
            serve_polar(agents=True, inference_url=router.url, newer=True, gateways=2) as polar,
            httpx.Client(trust_env=False, timeout=60) as http,
        ):
            yield Stack(url, checkpoints, polar, http)


def train(
    stack: Stack, push: Callable[[int], int], *, pushes: int, **settings: Any
) -> tuple[list[Any], list[tuple[int, int]]]:
    """Alternate rollouts and pushes, as a trainer does; sessions of later rollouts are in flight meanwhile.

    Returns
    -------
    samples : list
        Every delivered sample.
    running : list of (int, int)
        What the engine was sampling when the push was due, and when it happened.
    """
    args = make_args(
        stack.polar.url,
        polar_fully_async=True,
        rollout_batch_size=1,
        polar_max_async_level=8,
        polar_task_template={
            "agent": AGENT,
            "builder": {"strategy": "per_request"},
            "evaluator": {"strategy": "session_completed"},
            "timeout_seconds": 60.0,
        },
        **settings,
    )
    source, samples, running = Source(n=2), [], []
    try:
        for version in range(1, pushes + 1):
            output = generate_rollout_polar_async(args, version - 1, source)
            samples += [sample for group in output.samples for sample in group]
            due = stack.running()
            running.append((due, push(version)))
    finally:
        stop_global_worker()
    return samples, running


def trainable(sample: Any) -> int:
    return sum(sample.loss_mask)


def is_whole(sample: Any) -> bool:
    return sample.response_length == TURN_TOKENS


@PUSHES
def test_with_the_barrier_no_turn_is_ever_cut(stack: Stack, pushes: int) -> None:
    """Behind closed gates the engine is idle at each push, and every turn is whole."""

    def push(version: int) -> int:
        generate_rollout_polar_async.pause_for_weight_update(stack.polar.url)
        try:
            return stack.push(version)
        finally:
            generate_rollout_polar_async.resume_after_weight_update(stack.polar.url)

    samples, running = train(stack, push, pushes=pushes)
    assert not any(gateway.paused for gateway in stack.polar.gateways.values())
    assert [then for _, then in running] == [0] * pushes
    assert sum(due > 0 for due, _ in running) >= pushes / 2, "there was work to wait for"
    assert len(samples) >= pushes
    assert all(is_whole(sample) and trainable(sample) == TURN_TOKENS for sample in samples)


@PUSHES
def test_without_the_barrier_cut_turns_are_never_trained_on(stack: Stack, pushes: int) -> None:
    """Pushes cut many turns; each of them is masked, and whole ones are trained on in full."""
    samples, running = train(stack, stack.push, pushes=pushes)
    cut = [sample for sample in samples if not is_whole(sample)]
    whole = [sample for sample in samples if is_whole(sample)]
    assert sum(then > 0 for _, then in running) >= pushes / 2, "pushes came while the engine was at work"
    assert len(cut) > pushes / 10
    assert [trainable(sample) for sample in cut] == [0] * len(cut)
    assert {trainable(sample) for sample in whole} == {TURN_TOKENS}


@pytest.mark.slow
def test_without_the_barrier_and_with_keep_the_cut_turns_are_there(stack: Stack) -> None:
    """The premise of the test above: what is masked there would be trained on otherwise."""
    samples, _ = train(stack, stack.push, pushes=20, polar_aborted_turns="keep")
    assert any(trainable(sample) and not is_whole(sample) for sample in samples)
