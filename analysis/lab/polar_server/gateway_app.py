"""The gateway's HTTP routes: sessions, generation gate, events, and the proxy for chat completions."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Query, Request
from starlette.responses import Response, StreamingResponse

from analysis.lab.polar_server.events import HEADERS
from analysis.lab.polar_server.gateway import SESSION_ID_PATTERN, Gateway, SessionRefusedError
from analysis.lab.polar_server.gateway_sessions import GatewaySession
from analysis.lab.polar_server.http_client import HttpError
from analysis.lab.polar_server.node_models import SessionDispatchRequest
from analysis.lab.polar_server.proxy import Capture, UpstreamError
from analysis.lab.polar_server.wire import encode

TOKEN_HEADER = "x-polar-control-token"

JsonMap = dict[str, Any]


def create_gateway_app(
    gateway: Gateway, *, base_url: str = "", control_token: str | None = None, ping_seconds: float = 15.0
) -> FastAPI:
    """Return the ASGI application of one gateway.

    Parameters
    ----------
    gateway
        The node.
    base_url
        Shown as ``gateway_url``.
    control_token
        Needed to dispatch sessions, when set (newer gateways).
    ping_seconds
        Silence on ``/events`` before a ping.
    """
    app = FastAPI(title="Polar Gateway", version="0.1.0")
    app.state.base_url = base_url
    app.include_router(_service_routes(gateway, app, ping_seconds))
    app.include_router(_gate_routes(gateway))
    app.include_router(_session_routes(gateway, control_token))
    app.include_router(_proxy_routes(gateway))
    return app


def _json(value: Any, status: int = 200) -> Response:
    return Response(encode(value), status_code=status, media_type="application/json")


def _service_routes(gateway: Gateway, app: FastAPI, ping_seconds: float) -> APIRouter:
    router = APIRouter()

    @router.api_route("/", methods=["GET", "HEAD"])
    async def root() -> Response:
        return _json({"status": "ok", "service": "polar-gateway"})

    @router.get("/health")
    async def health() -> Response:
        return _json(await _health(gateway, str(app.state.base_url)))

    @router.get("/v1/models")
    async def models() -> Response:
        try:
            answer = await gateway.proxy.get("/v1/models")
        except HttpError as error:
            return _json({"error": str(error) or type(error).__name__}, 502)
        return Response(answer.content, answer.status, media_type="application/json")

    @router.get("/events")
    async def events() -> StreamingResponse:
        stream = gateway.hub.stream(ping_seconds=ping_seconds)
        return StreamingResponse(stream, media_type="text/event-stream", headers=HEADERS)

    return router


async def _health(gateway: Gateway, base_url: str) -> JsonMap:
    now = asyncio.get_running_loop().time()
    stages = gateway.stages
    active = [session for session in gateway.sessions.values() if session.result is None]
    return {
        "status": "ok",
        "node_id": gateway.node_id,
        "gateway_url": base_url,
        "inference": await _inference_health(gateway),
        "metrics": gateway.metrics().model_dump(),
        "active_status_counts": gateway.status_counts(),
        "active_sessions": [
            {
                "session_id": session.request.session_id,
                "task_id": session.request.task_id,
                "status": session.status,
                "age_seconds": now - session.registered,
                "idle_seconds": now - session.touched,
            }
            for session in active
        ],
        "available_init": stages.init.workers - stages.init.active,
        "available_run": stages.run.workers - stages.run.active,
        "available_postrun": stages.postrun.workers - stages.postrun.active,
    }


async def _inference_health(gateway: Gateway) -> Any:
    try:
        answer = await gateway.proxy.get("/health")
    except HttpError as error:
        return {"status": "error", "error": str(error) or type(error).__name__}
    if not answer.ok:
        return {"status": "error", "error": f"HTTP {answer.status}"}
    if not answer.content.strip():
        return {"status": "ok"}
    try:
        return answer.json()
    except ValueError:
        return {"status": "ok", "body": answer.text}


def _gate_routes(gateway: Gateway) -> APIRouter:
    router = APIRouter(prefix="/admin/inference")

    def state(status: int = 200) -> Response:
        gate = gateway.gate
        settings = gateway.settings
        shown = {"paused": gate.paused, "inflight": gate.inflight}
        return _json({**shown, "base_url": settings.inference_url, "engine": settings.engine}, status)

    @router.get("/status")
    async def status() -> Response:
        return state()

    @router.post("/pause")
    async def pause(timeout_seconds: float = 300.0) -> Response:
        return state() if await gateway.gate.pause(timeout_seconds) else state(504)

    @router.post("/resume")
    async def resume() -> Response:
        gateway.gate.resume()
        return state()

    return router


def _session_routes(gateway: Gateway, control_token: str | None) -> APIRouter:
    router = APIRouter(prefix="/sessions")

    @router.post("")
    async def create(request: Request) -> Response:
        try:
            body = await request.json()
        except ValueError:
            return _json({"error": "Invalid JSON body"}, 400)
        if isinstance(body, dict) and body.get("agent") is not None and body.get("session_id"):
            if control_token is not None and request.headers.get(TOKEN_HEADER) != control_token:
                return _json({"detail": "Invalid control-plane token"}, 401)
            return _dispatch(gateway, body)
        return _create_bare(gateway, body if isinstance(body, dict) else {})

    @router.get("")
    async def active(
        status: str | None = None,
        task_id: str | None = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 200,
    ) -> Response:
        now = asyncio.get_running_loop().time()
        shown = [
            _entry(gateway, session, now)
            for session in gateway.sessions.values()
            if session.result is None
            and (status is None or session.status == status)
            and (task_id is None or session.request.task_id == task_id)
        ]
        return _json({"sessions": shown[:limit], "node_id": gateway.node_id})

    @router.get("/{session_id}")
    async def one(session_id: str) -> Response:
        if SESSION_ID_PATTERN.match(session_id) is None:
            return _json({"detail": "Invalid session id"}, 400)
        session = gateway.sessions.get(session_id)
        capture = gateway.captures.get(session_id)
        if capture is None:
            return _json({"detail": "Session not found"}, 404)
        shown = _capture_entry(capture, session.status if session is not None else "REGISTERED")
        return _json({**shown, "result": session.result if session is not None else None})

    @router.delete("/{session_id}")
    async def delete(session_id: str) -> Response:
        if SESSION_ID_PATTERN.match(session_id) is None:
            return _json({"detail": "Invalid session id"}, 400)
        try:
            count = gateway.cancel(session_id)
        except KeyError:
            return _json({"detail": "Session not found"}, 404)
        return _json({"session_id": session_id, "deleted": True, "messages_deleted": count})

    @router.get("/{session_id}/completions")
    async def completions(session_id: str) -> Response:
        capture = gateway.captures.get(session_id)
        records = capture.records if capture is not None else []
        return _json({"session_id": session_id, "completions": records, "node_id": gateway.node_id})

    return router


def _dispatch(gateway: Gateway, body: JsonMap) -> Response:
    request = SessionDispatchRequest.model_validate(body)
    index = body.get("sample_index")
    try:
        session = gateway.dispatch(request, sample_index=index if isinstance(index, int) else 0)
    except SessionRefusedError as error:
        return _json({"detail": str(error)}, 409)
    return _json(
        {
            "session_id": request.session_id,
            "task_id": request.task_id,
            "status": session.status,
            "node_id": gateway.node_id,
        }
    )


def _create_bare(gateway: Gateway, body: JsonMap) -> Response:
    session_id, task_id = body.get("session_id"), body.get("task_id")
    if session_id is not None and SESSION_ID_PATTERN.match(str(session_id)) is None:
        return _json({"detail": "Invalid session id"}, 400)
    capture = gateway.open_capture(None if session_id is None else str(session_id), task_id)
    return _json(_capture_entry(capture, "REGISTERED"))


def _capture_entry(capture: Capture, status: str) -> JsonMap:
    return {
        "session_id": capture.session_id,
        "task_id": capture.task_id,
        "created_at": capture.created_at,
        "completion_count": len(capture.records),
        "status": status,
    }


def _entry(gateway: Gateway, session: GatewaySession, now: float) -> JsonMap:
    capture = session.capture
    return {
        "session_id": session.request.session_id,
        "task_id": session.request.task_id,
        "status": session.status,
        "age_seconds": now - session.registered,
        "idle_seconds": now - session.touched,
        "completion_count": len(capture.records),
        "model_requested": capture.model_requested,
        "model_used": capture.model_used,
        "api_type": capture.api_type,
        "created_at": capture.created_at,
        "node_id": gateway.node_id,
    }


def _proxy_routes(gateway: Gateway) -> APIRouter:
    router = APIRouter()

    @router.post("/{path:path}")
    async def proxy(path: str, request: Request) -> Response:
        if not path.endswith("v1/chat/completions"):
            return _json({"error": {"message": f"no such API here: /{path}", "type": "not_found_error"}}, 404)
        try:
            body = await request.json()
        except ValueError:
            return _json({"error": "Invalid JSON body"}, 400)
        if not isinstance(body, dict):
            return Response("Internal Server Error", 500, media_type="text/plain")
        session_id = _session_id(gateway, request, body)
        if session_id is not None and SESSION_ID_PATTERN.match(session_id) is None:
            return _json({"error": "Invalid session id"}, 400)
        capture = gateway.open_capture(session_id)
        session = gateway.sessions.get(capture.session_id)
        if session is not None:
            session.touched = asyncio.get_running_loop().time()
        try:
            answer = await gateway.proxy.chat(capture, body)
        except UpstreamError as error:
            return _json(error.body, error.status)
        if body.get("stream"):
            return StreamingResponse(_replay(answer), media_type="text/event-stream", headers=HEADERS)
        return _json(answer)

    return router


def _session_id(gateway: Gateway, request: Request, body: JsonMap) -> str | None:
    """Return the session that a call belongs to: named, or by an API key that is a known session."""
    names = ("x-session-id", "x_session_id", "proxy-x-session-id", "proxy_x_session_id")
    explicit = [request.headers.get(name) for name in names]
    explicit += [request.query_params.get("session_id") or request.query_params.get("key")]
    explicit += [body.get("_proxy_session_id")]
    named = next((str(value) for value in explicit if value), None)
    if named is not None:
        return named
    headers = request.headers
    bearer = headers.get("authorization", "")
    key = bearer[7:].strip() if bearer.lower().startswith("bearer ") else ""
    key = key or headers.get("x-api-key") or headers.get("x_api_key") or headers.get("x-goog-api-key") or ""
    return key if key in gateway.captures else None


async def _replay(answer: JsonMap) -> AsyncIterator[bytes]:
    """Yield a complete answer as one chunk of a stream, then the end mark."""
    choices = []
    for choice in answer.get("choices") or []:
        message = choice.get("message") or {}
        delta = {key: message[key] for key in ("role", "content", "reasoning_content") if key in message}
        calls = message.get("tool_calls")
        if calls:
            delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(calls)]
        choices.append(
            {"index": choice.get("index", 0), "delta": delta, "finish_reason": choice.get("finish_reason")}
        )
    names = {key: answer.get(key) for key in ("id", "created", "model", "usage")}
    chunk = {**names, "object": "chat.completion.chunk", "choices": choices}
    yield b"data: " + json.dumps(chunk).encode() + b"\n\n"
    yield b"data: [DONE]\n\n"
