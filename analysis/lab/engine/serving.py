"""Between HTTP and the engine's thread: waiting without polling, noticing clients that left, JSON.

Knows neither SGLang's nor OpenAI's formats; those are the two `*_api` modules'.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from fastapi import Request, Response
from fastapi.responses import StreamingResponse

from analysis.errors import EngineError, RequestError
from analysis.lab.engine.core import Engine
from analysis.lab.engine.request import GenerationRequest, Progress

__all__ = [
    "ClientGoneError",
    "Serving",
    "error_response",
    "event_stream",
    "json_response",
    "read_json_object",
    "run_requests",
    "stream_requests",
]


class ClientGoneError(Exception):
    """Raised inside a handler when its client has disconnected: there is nobody left to answer."""


@dataclass(frozen=True)
class Serving:
    """What the routes share: the engine, its public name, and when it was started (Unix seconds)."""

    engine: Engine
    model_name: str
    started: float = field(default_factory=time.time)


def json_response(value: Any, status: int = 200) -> Response:
    """Answer with JSON."""
    return Response(msgspec.json.encode(value), status_code=status, media_type="application/json")


def error_response(message: str, *, status: int, kind: str, param: str | None = None) -> Response:
    """Answer with an error in the form that OpenAI clients and gateways read."""
    error = {"message": message, "type": kind, "param": param, "code": status}
    return json_response({"error": error}, status)


async def read_json_object(request: Request, *, empty_ok: bool = False) -> dict[str, Any]:
    """Read a request's body as a JSON object; `RequestError` when it is anything else.

    With `empty_ok` an absent body counts as an empty object.
    """
    body = await request.body()
    if empty_ok and not body.strip():
        return {}
    try:
        value = msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise RequestError(f"the body is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise RequestError(f"the body must be a JSON object, not {type(value).__name__}")
    return value


async def run_requests(
    serving: Serving, http: Request, requests: Sequence[GenerationRequest]
) -> list[Progress]:
    """Submit requests, wait until all have ended, and give their ends in the order of the requests.

    Raises
    ------
    ClientGoneError
        When the client disconnects first; the requests are aborted then.
    EngineError
        When the engine failed while it served one of them.
    """
    ends = {}
    async for progress in stream_requests(serving, http, requests):
        if progress.finish is not None:
            ends[id(progress.request)] = progress
    return [ends[id(request)] for request in requests]


async def stream_requests(
    serving: Serving, http: Request, requests: Sequence[GenerationRequest]
) -> AsyncIterator[Progress]:
    """Submit requests and yield the progress of each one, until all have ended.

    Yields
    ------
    Progress
        At a request's end, and, when it streams, after each token.

    Raises
    ------
    ClientGoneError
        When the client disconnects; the requests are aborted then, as they are when the consumer stops early.
    EngineError
        When the engine failed while it served one of them.
    """
    loop = asyncio.get_running_loop()
    news: asyncio.Queue[Progress | None] = asyncio.Queue()

    def tell(request: GenerationRequest) -> None:
        # The server may have shut its loop down before the engine ended its last requests.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(news.put_nowait, request.progress())

    async def watch() -> None:
        while (await http.receive())["type"] != "http.disconnect":
            pass
        news.put_nowait(None)

    watcher = asyncio.create_task(watch())
    unfinished = {id(request) for request in requests}
    try:
        for request in requests:
            request.on_event = tell
            serving.engine.submit(request)
        while unfinished:
            progress = await news.get()
            if progress is None:
                raise ClientGoneError
            if progress.finish is not None:
                unfinished.discard(id(progress.request))
                if progress.finish.failed:
                    raise EngineError(progress.finish.message)
            yield progress
    finally:
        if unfinished:
            serving.engine.cancel(requests, "the client disconnected")
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)


def event_stream(chunks: AsyncIterator[bytes]) -> StreamingResponse:
    """Answer with server-sent events; errors after the first byte become an event of their own."""

    async def framed() -> AsyncIterator[bytes]:
        try:
            async for chunk in chunks:
                yield b"data: " + chunk + b"\n\n"
        except ClientGoneError:
            return
        except EngineError as error:
            problem = {"error": {"message": str(error), "type": type(error).__name__, "code": 500}}
            yield b"data: " + msgspec.json.encode(problem) + b"\n\n"
        yield b"data: [DONE]\n\n"

    return StreamingResponse(framed(), media_type="text/event-stream")
