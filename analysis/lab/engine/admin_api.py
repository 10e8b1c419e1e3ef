"""Health, information and control: what routers probe, and what trainers call around a weight update.

Control endpoints are per engine; routers do not forward them.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool

from analysis.errors import EngineError, RequestError, WeightUpdateError
from analysis.lab.engine.core import EngineLoad
from analysis.lab.engine.request import GenerationRequest
from analysis.lab.engine.sampling import SamplingParams
from analysis.lab.engine.serving import Serving, json_response, read_json_object, run_requests

__all__ = ["admin_routes"]

_HEALTH_TIMEOUT = 20.0


def admin_routes(serving: Serving) -> APIRouter:
    """Build the router with everything but generation."""
    router = APIRouter()
    _add_information(router, serving)
    _add_control(router, serving)
    return router


def _add_information(router: APIRouter, serving: Serving) -> None:
    engine = serving.engine

    @router.get("/health")
    async def health() -> Response:
        return Response(status_code=200 if engine.alive else 503)

    @router.get("/health_generate")
    async def health_generate(http: Request) -> Response:
        # A paused engine is healthy, and would not answer before it is resumed.
        if not engine.alive or engine.paused:
            return Response(status_code=200 if engine.alive else 503)
        probe = GenerationRequest([0], SamplingParams(max_new_tokens=1, temperature=0.0), rid="health")
        try:
            async with asyncio.timeout(_HEALTH_TIMEOUT):
                await run_requests(serving, http, [probe])
        except (TimeoutError, EngineError):
            return Response(status_code=503)
        return Response(status_code=200)

    @router.get("/model_info")
    @router.get("/get_model_info")
    async def model_info() -> Response:
        return json_response(_model_info(serving))

    @router.get("/server_info")
    @router.get("/get_server_info")
    async def server_info() -> Response:
        load = await run_in_threadpool(engine.load)
        return json_response(_server_info(serving, load))

    @router.get("/v1/loads")
    async def loads() -> Response:
        return json_response(_loads(await run_in_threadpool(engine.load)))

    @router.get("/metrics")
    async def metrics() -> Response:
        text = _prometheus(serving.model_name, await run_in_threadpool(engine.load))
        return Response(text, media_type="text/plain; version=0.0.4")


def _add_control(router: APIRouter, serving: Serving) -> None:
    engine = serving.engine

    @router.post("/pause_generation")
    async def pause(http: Request) -> Response:
        mode = _text(await read_json_object(http, empty_ok=True), "mode", default="abort")
        await run_in_threadpool(engine.pause, mode)
        return json_response({"status": "ok", "message": f"Generation paused ({mode})."})

    @router.post("/continue_generation")
    async def resume() -> Response:
        await run_in_threadpool(engine.resume)
        return json_response({"status": "ok", "message": "Generation continued."})

    @router.post("/update_weights_from_disk")
    async def update_weights(http: Request) -> Response:
        body = await read_json_object(http)
        folder = Path(_text(body, "model_path"))
        version = _text(body, "weight_version", default="") or None
        abort_all = body.get("abort_all_requests") is True
        try:
            running = await run_in_threadpool(
                lambda: engine.update_weights(folder, version=version, abort_all=abort_all)
            )
        except WeightUpdateError as error:
            return json_response({"success": False, "message": str(error), "num_paused_requests": 0}, 400)
        paused = running if engine.paused else 0
        message = f"Weights updated from {folder}; version {engine.weight_version!r}."
        return json_response({"success": True, "message": message, "num_paused_requests": paused})

    @router.post("/update_weight_version")
    async def update_version(http: Request) -> Response:
        body = await read_json_object(http)
        version, abort_all = _text(body, "new_version"), body.get("abort_all_requests", True) is True
        await run_in_threadpool(lambda: engine.set_weight_version(version, abort_all=abort_all))
        message = f"Weight version updated to {version}"
        return json_response({"success": True, "message": message, "new_version": version})

    @router.get("/flush_cache")
    @router.post("/flush_cache")
    async def flush() -> Response:
        if await run_in_threadpool(engine.flush_cache):
            return Response("Cache flushed.\n", media_type="text/plain")
        return Response("Cache not flushed: requests are running or waiting.\n", 400, media_type="text/plain")

    @router.post("/abort_request")
    async def abort(http: Request) -> Response:
        body = await read_json_object(http, empty_ok=True)
        if body.get("abort_all") is True or http.query_params.get("abort_all", "").lower() == "true":
            await run_in_threadpool(engine.abort_all)
        else:
            await run_in_threadpool(engine.abort, _text(body, "rid"))
        return Response(status_code=200)


def _text(body: dict[str, Any], name: str, *, default: str | None = None) -> str:
    value = body.get(name)
    if value is None and default is not None:
        return default
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or (not value and default is None):
        raise RequestError(f"{name} must be a non-empty string", param=name)
    return value


def _model_info(serving: Serving) -> dict[str, Any]:
    engine = serving.engine
    return {
        "model_path": str(engine.folder),
        "served_model_name": serving.model_name,
        "tokenizer_path": str(engine.folder),
        "is_generation": True,
        "preferred_sampling_params": None,
        "weight_version": engine.weight_version,
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "has_image_understanding": False,
        "has_audio_understanding": False,
        "max_total_tokens": engine.context_length,
        "vocab_size": engine.config.vocab_size,
    }


def _server_info(serving: Serving, load: EngineLoad) -> dict[str, Any]:
    engine = serving.engine
    return {
        **_model_info(serving),
        "context_length": engine.context_length,
        "max_running_requests": engine.limits.max_running,
        "tp_size": 1,
        "dp_size": 1,
        "version": "slime-bridge-lab",
        "status": "paused" if load.paused else "ready",
        "internal_states": [
            {"num_running_reqs": load.running, "num_waiting_reqs": load.waiting, **load.counters}
        ],
    }


def _loads(load: EngineLoad) -> dict[str, Any]:
    entry = {
        "dp_rank": 0,
        "num_running_reqs": load.running,
        "num_waiting_reqs": load.waiting,
        "num_total_reqs": load.running + load.waiting,
        "num_used_tokens": load.tokens_held,
        "max_total_num_tokens": load.token_room,
        "token_usage": load.tokens_held / load.token_room,
    }
    return {"dp_rank_count": 1, "loads": [entry]}


def _prometheus(model_name: str, load: EngineLoad) -> str:
    label = model_name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    counters = load.counters
    rows = (
        ("num_running_reqs", "gauge", "Requests that are sampling.", load.running),
        ("num_queue_reqs", "gauge", "Requests that wait for a place.", load.waiting),
        ("num_used_tokens", "gauge", "Tokens of running requests.", load.tokens_held),
        ("token_usage", "gauge", "Share of the room for tokens in use.", load.tokens_held / load.token_room),
        ("prompt_tokens_total", "counter", "Prompt tokens admitted.", counters["prompt_tokens"]),
        ("cached_tokens_total", "counter", "Prompt tokens whose work was reused.", counters["cached_tokens"]),
        ("generation_tokens_total", "counter", "Tokens sampled.", counters["generated_tokens"]),
        ("num_requests_total", "counter", "Requests received.", counters["requests"]),
        ("num_aborted_requests_total", "counter", "Requests aborted.", counters["aborted"]),
        ("num_retracted_requests_total", "counter", "Requests requeued by a pause.", counters["retracted"]),
    )
    lines = []
    for name, kind, text, value in rows:
        lines.append(f"# HELP sglang:{name} {text}\n# TYPE sglang:{name} {kind}")
        lines.append(f'sglang:{name}{{model_name="{label}"}} {value}')
    return "\n".join(lines) + "\n"
