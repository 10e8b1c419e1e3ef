"""The baseline: a bridge the way one is usually written first.

It decodes callbacks with the standard JSON parser and pydantic models, on the event loop that also answers
them; builds its records field by field; and moves results on in ticks of half a second. It prefetches
nothing: a call submits what it needs and waits for it. There is no fault handling in it that would cost time.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
import uuid
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI, Request
from pydantic import BaseModel, Field

from slime_bridge import _slime

TICK_SECONDS = 0.5


class PlainTrace(BaseModel):
    """One trace, as on the wire."""

    prompt_ids: list[int] = Field(default_factory=list)
    response_ids: list[int] = Field(default_factory=list)
    loss_mask: list[int] = Field(default_factory=list)
    prompt_messages: list[dict[str, Any]] = Field(default_factory=list)
    response_messages: list[dict[str, Any]] = Field(default_factory=list)
    tools: list[dict[str, Any]] | None = None
    finish_reason: str | None = None
    response_logprobs: list[float] | None = None
    reward: float | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)


class PlainTrajectory(BaseModel):
    """One trajectory, as on the wire."""

    status: str
    metadata: dict[str, Any] = Field(default_factory=dict)
    traces: list[PlainTrace] = Field(default_factory=list)
    error: str | None = None


class PlainSession(BaseModel):
    """One session, as on the wire."""

    session_id: str
    task_id: str
    status: str
    trajectory: PlainTrajectory
    timing: dict[str, Any] = Field(default_factory=dict)
    node_id: str | None = None
    error: str | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)


class PlainTask(BaseModel):
    """One task, as on the wire."""

    task_id: str
    status: str
    results: list[PlainSession]


def plain_decode(body: bytes) -> PlainTask:
    """Decode one task."""
    return PlainTask.model_validate(json.loads(body))


def plain_samples(task: PlainTask, group: list[Any]) -> list[Any]:
    """Build the samples of one task, checked token by token."""
    sample_class = _slime.sample_class()
    samples = []
    for prompt, session in zip(group, task.results, strict=True):
        for number, trace in enumerate(session.trajectory.traces):
            sample = sample_class(index=prompt.index, group_index=prompt.group_index)
            sample.tokens = [int(token) for token in trace.prompt_ids] + [int(t) for t in trace.response_ids]
            sample.response_length = len(trace.response_ids)
            sample.loss_mask = [1 if flag else 0 for flag in trace.loss_mask]
            sample.rollout_log_probs = [float(value) for value in trace.response_logprobs or []]
            if not len(sample.loss_mask) == len(sample.rollout_log_probs) == sample.response_length:
                raise ValueError("misaligned trace")
            sample.prompt = trace.prompt_messages
            sample.response = "\n".join(
                f"[{message['role']}] {message['content']}" for message in trace.response_messages
            )
            sample.reward = {"score": trace.reward or 0.0}
            sample.status = sample_class.Status.COMPLETED
            sample.session_id = session.session_id
            sample.metadata = {
                "polar": {
                    "session_id": session.session_id,
                    "task_id": session.task_id,
                    "trace_index": number,
                    "trace_metadata": trace.metadata,
                    "trajectory_metadata": session.trajectory.metadata,
                    "result_metadata": session.metadata,
                    "timing": session.timing,
                    "trace_debug": {"response_messages": trace.response_messages},
                }
            }
            samples.append(sample)
    return samples


class PlainBridge:
    """A worker thread with a loop, a callback server and a tick.

    Parameters
    ----------
    url
        The rollout server.
    template
        The task request without id, number of samples and callback URL.
    """

    def __init__(self, url: str, template: dict[str, Any]) -> None:
        self._url = url
        self._template = template
        self._waiting: dict[str, list[Any]] = {}
        self._arrived: dict[str, PlainTask] = {}
        self._wanted: list[list[Any]] = []
        self._done: list[list[Any]] = []
        self._lock = threading.Lock()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), daemon=True)
        self._thread.start()
        self._ready.wait()

    def call(self, groups: list[list[Any]]) -> list[list[Any]]:
        """Submit groups and wait for all of them."""
        with self._lock:
            self._wanted += groups
        while True:
            with self._lock:
                if len(self._done) >= len(groups):
                    done, self._done = self._done, []
                    return done
            if not self._thread.is_alive():
                raise RuntimeError("the baseline's worker has died")
            time.sleep(0.01)

    def stop(self) -> None:
        """End the worker."""
        self._server.should_exit = True
        self._thread.join(10)

    async def _main(self) -> None:
        app = FastAPI()

        @app.post("/callback")
        async def callback(request: Request) -> dict[str, str]:
            task = plain_decode(await request.body())
            self._arrived[task.task_id] = task
            return {"status": "accepted"}

        config = uvicorn.Config(
            app, host="127.0.0.1", port=0, log_config=None, access_log=False, lifespan="off"
        )
        self._server = uvicorn.Server(config)
        serving = asyncio.create_task(self._server.serve())
        while not self._server.started:  # noqa: ASYNC110 - uvicorn tells nobody
            await asyncio.sleep(0.01)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self._ready.set()
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(timeout=60.0, limits=limits, trust_env=False) as client:
            while not serving.done():
                await self._tick(client, f"http://127.0.0.1:{port}/callback")
                await asyncio.sleep(TICK_SECONDS)
        await serving

    async def _tick(self, client: httpx.AsyncClient, callback_url: str) -> None:
        with self._lock:
            wanted, self._wanted = self._wanted, []
        await asyncio.gather(*(self._submit(client, group, callback_url) for group in wanted))
        for task_id in list(self._arrived):
            samples = plain_samples(self._arrived.pop(task_id), self._waiting.pop(task_id))
            with self._lock:
                self._done.append(samples)

    async def _submit(self, client: httpx.AsyncClient, group: list[Any], callback_url: str) -> None:
        task_id = f"plain-{uuid.uuid4().hex}"
        self._waiting[task_id] = group
        task = {
            **self._template,
            "task_id": task_id,
            "instruction": group[0].prompt,
            "num_samples": len(group),
        }
        response = await client.post(
            f"{self._url}/rollout/task/submit", json={**task, "callback_url": callback_url}
        )
        response.raise_for_status()
