"""The rollout server's HTTP routes, with Polar's bodies, status codes and error texts."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, FastAPI, Header, HTTPException, Query
from starlette.responses import Response, StreamingResponse

from analysis.lab.polar_server.events import HEADERS, EventHub
from analysis.lab.polar_server.models import NewerSessionResult, NewerTaskRequest, SessionResult, TaskRequest
from analysis.lab.polar_server.node_models import NodeHeartbeatRequest, NodeRegistrationRequest
from analysis.lab.polar_server.nodes import NodeRegistry, UnknownNodeError
from analysis.lab.polar_server.sessions import TaskRunner
from analysis.lab.polar_server.settings import ServerSettings
from analysis.lab.polar_server.state import TaskRecord
from analysis.lab.polar_server.wire import encode

TOMBSTONE_SECONDS = 300.0
"""How long a cancelled id that was never submitted is refused (newer servers)."""

SessionSink = Callable[[dict[str, Any]], None]
"""Takes the result that a gateway posted; unknown sessions are dropped silently."""


@dataclass(frozen=True)
class Services:
    """What the routes work on."""

    settings: ServerSettings
    runner: TaskRunner
    nodes: NodeRegistry
    hub: EventHub
    session_sink: SessionSink


def create_app(services: Services) -> FastAPI:
    """Return the rollout server's ASGI application."""
    app = FastAPI(title="Polar Rollout", version="0.1.0")
    app.include_router(_task_routes(services))
    app.include_router(_node_routes(services))
    app.include_router(_service_routes(services))
    _share_description(app, newer=services.settings.newer)
    return app


def _share_description(app: FastAPI, *, newer: bool) -> None:
    """Make the OpenAPI document once per process: it takes a third of a second, and tests start many."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if newer not in _descriptions:
            _descriptions[newer] = generate()
        return _descriptions[newer]

    app.openapi = openapi  # type: ignore[method-assign]


_descriptions: dict[bool, dict[str, Any]] = {}


def _json(value: Any, status: int = 200) -> Response:
    body = value if isinstance(value, bytes) else encode(value)
    return Response(body, status_code=status, media_type="application/json")


def _token_check(services: Services, *, needed: bool = True) -> Any:
    expected = services.settings.control_token

    def check(x_polar_control_token: Annotated[str | None, Header()] = None) -> None:
        if needed and expected is not None and x_polar_control_token != expected:
            raise HTTPException(401, "Invalid control-plane token")

    return Depends(check)


def _task_routes(services: Services) -> APIRouter:
    router = APIRouter()
    state, runner = services.runner.state, services.runner
    newer = services.settings.newer
    model: Any = NewerTaskRequest if newer else TaskRequest
    submit_token = _token_check(services, needed=services.settings.protect_submit)

    @router.post("/rollout/task/submit", dependencies=[submit_token])
    async def submit(request: Annotated[model, Body()]) -> Response:
        _refuse_conflicts(services, request)
        record = runner.submit(request)
        await runner.delivered_early(record)
        return _json({"task_id": request.task_id, "status": "running"})

    @router.get("/rollout/task/{task_id}")
    async def task_status(task_id: str) -> Response:
        return _json(_known_task(services, task_id).status_body())

    @router.get("/rollout/status")
    async def status() -> Response:
        nodes = [node.info() for node in services.nodes.all()]
        tasks = {task_id: record.status for task_id, record in state.tasks.items()}
        pipeline = {"pending_sessions": state.pending_sessions}
        return _json({"tasks": tasks, "pipeline": pipeline, "nodes": {"nodes": nodes}})

    @router.get("/tasks")
    async def tasks(
        status: str | None = None,
        harness: str | None = None,
        since: float | None = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 200,
    ) -> Response:
        kept = [
            record
            for record in state.tasks.values()
            if (status is None or record.status == status)
            and (harness is None or record.request.agent.harness == harness)
            and (since is None or record.updated_at >= since)
        ]
        kept.sort(key=lambda record: record.updated_at, reverse=True)
        return _json({"tasks": [record.summary() for record in kept[:limit]]})

    @router.get("/tasks/{task_id}/sessions")
    async def sessions(task_id: str) -> Response:
        record = _known_task(services, task_id)
        return _json({"task_id": task_id, "sessions": record.session_entries()})

    if newer:

        @router.delete("/rollout/task/{task_id}", dependencies=[submit_token])
        async def cancel(task_id: str, register_if_missing: bool = False) -> Response:
            return await _cancel(services, task_id, register_if_missing)

    return router


def _known_task(services: Services, task_id: str) -> TaskRecord:
    record = services.runner.state.tasks.get(task_id)
    if record is None:
        raise HTTPException(404, "Task not found")
    return record


def _refuse_conflicts(services: Services, request: TaskRequest) -> None:
    """Answer 409 for a task that runs, was cancelled ahead of its submit, or that a script wants refused."""
    state, engine = services.runner.state, services.runner.engine
    known = state.tasks.get(request.task_id)
    if known is not None and not known.over:
        raise HTTPException(409, f"task {request.task_id} is already running")
    if state.tombstones.get(request.task_id, 0.0) > time.monotonic():
        raise HTTPException(409, f"task {request.task_id} was cancelled")
    if engine.has(["task_conflict"]):
        subject = engine.task_subject(request.task_id, request.instruction)
        if engine.fire(["task_conflict"], subject):
            raise HTTPException(409, f"task {request.task_id} is already running")


async def _cancel(services: Services, task_id: str, register_if_missing: bool) -> Response:
    state = services.runner.state
    record = state.tasks.get(task_id)
    if record is None:
        if not register_if_missing:
            raise HTTPException(404, "Task not found")
        state.tombstones[task_id] = time.monotonic() + TOMBSTONE_SECONDS
        state.cancelled.append(task_id)
        empty = {"task_id": task_id, "status": "cancelled", "total_sessions": 0, "completed_sessions": 0}
        return _json({**empty, "results": [], "result_paths": []})
    await services.runner.cancel(record)
    return _json(record.status_body())


def _node_routes(services: Services) -> APIRouter:
    router = APIRouter()
    nodes = services.nodes
    token = _token_check(services)

    @router.post("/nodes/register", dependencies=[token])
    async def register(request: NodeRegistrationRequest) -> Response:
        return _json(nodes.register(request).info())

    @router.post("/nodes/{node_id}/heartbeat", dependencies=[token])
    async def heartbeat(node_id: str, request: NodeHeartbeatRequest) -> Response:
        try:
            return _json(nodes.heartbeat(node_id, request.metrics).info())
        except UnknownNodeError as error:
            raise HTTPException(404, str(error)) from error

    @router.get("/nodes")
    async def all_nodes() -> Response:
        return _json([node.info() for node in nodes.all()])

    @router.get("/nodes/{node_id}")
    async def one_node(node_id: str) -> Response:
        node = nodes.get(node_id)
        if node is None:
            raise HTTPException(404, "Node not found")
        return _json(node.info())

    @router.delete("/nodes/{node_id}")
    async def drain(node_id: str) -> Response:
        try:
            return _json(nodes.drain(node_id).info())
        except UnknownNodeError as error:
            raise HTTPException(404, str(error)) from error

    return router


def _service_routes(services: Services) -> APIRouter:
    router = APIRouter()
    model: Any = NewerSessionResult if services.settings.newer else SessionResult

    @router.post("/callbacks/session_result", dependencies=[_token_check(services)])
    async def session_result(result: Annotated[model, Body()]) -> Response:
        services.session_sink(result.model_dump(mode="json"))
        return _json({"status": "accepted"})

    @router.get("/events")
    async def events() -> StreamingResponse:
        stream = services.hub.stream(ping_seconds=services.settings.ping_seconds)
        return StreamingResponse(stream, media_type="text/event-stream", headers=HEADERS)

    @router.get("/health")
    async def health() -> Response:
        return _json({"status": "ok", "nodes": len(services.nodes)})

    return router
