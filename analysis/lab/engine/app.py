"""The engine's HTTP application: all routes, and one form for all errors."""

from __future__ import annotations

import logging

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from analysis.errors import EngineError, EngineStoppedError, RequestError
from analysis.lab.engine.admin_api import admin_routes
from analysis.lab.engine.core import Engine
from analysis.lab.engine.native_api import native_routes
from analysis.lab.engine.openai_api import openai_routes
from analysis.lab.engine.serving import ClientGoneError, Serving, error_response

__all__ = ["create_app"]

logger = logging.getLogger(__name__)

_CLIENT_CLOSED_REQUEST = 499


def create_app(engine: Engine, *, model_name: str | None = None) -> FastAPI:
    """Build the application of a running engine.

    Parameters
    ----------
    engine
        Started and stopped by the caller.
    model_name
        Name it is served under; the checkpoint's folder when None.

    Returns
    -------
    FastAPI
        Every error is answered as ``{"error": {"message", "type", "param", "code"}}``: 400 for what can never
        be served, 500 for an engine that failed on the way, 503 for one that has ended.
    """
    serving = Serving(engine, model_name or str(engine.folder))
    app = FastAPI(title="slime-bridge lab engine", docs_url=None, redoc_url=None, openapi_url=None)
    app.include_router(native_routes(serving))
    app.include_router(openai_routes(serving))
    app.include_router(admin_routes(serving))

    @app.exception_handler(RequestError)
    async def refused(request: Request, error: RequestError) -> Response:
        return error_response(str(error), status=400, kind="BadRequestError", param=error.param)

    @app.exception_handler(EngineStoppedError)
    async def ended(request: Request, error: EngineStoppedError) -> Response:
        return error_response(str(error), status=503, kind="ServiceUnavailableError")

    @app.exception_handler(EngineError)
    async def failed(request: Request, error: EngineError) -> Response:
        logger.error("request failed: %s", error)
        return error_response(str(error), status=500, kind="InternalServerError")

    @app.exception_handler(HTTPException)
    async def no_such_route(request: Request, error: HTTPException) -> Response:
        return error_response(str(error.detail), status=error.status_code, kind="InvalidRequestError")

    @app.exception_handler(ClientGoneError)
    async def gone(request: Request, error: ClientGoneError) -> Response:
        return Response(status_code=_CLIENT_CLOSED_REQUEST)

    return app
