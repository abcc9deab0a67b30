"""The FastAPI application: all routes, errors in each API's shape, a schema that is true."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp

from twostroke import __version__
from twostroke.errors import TwoStrokeError
from twostroke.server import (
    anthropic,
    health,
    ollama,
    ollama_models,
    openai_chat,
    openai_completions,
    openai_models,
    predict,
)
from twostroke.server.auth import KeyRing
from twostroke.server.door import Door
from twostroke.server.error_reply import error_response
from twostroke.server.event_stream import ClientGone
from twostroke.server.loop_lag import watch_loop
from twostroke.server.refusals import MethodNotAllowed, RouteNotFound
from twostroke.server.request_log import RequestLog
from twostroke.server.route_docs import components
from twostroke.server.service import Service

STATUS_GONE = 499  # nginx's number for a client that closed its connection


def create_app(
    service: Service,
    *,
    keys: Sequence[str] = (),
    log: RequestLog | None = None,
    on_start: Callable[[], None] | None = None,
) -> Door:
    """Return the application over a service; on_start is called in the running loop."""
    settings = service.settings
    app = FastAPI(
        title="twostroke",
        version=__version__,
        docs_url=None,  # their pages load scripts from elsewhere
        redoc_url=None,
        lifespan=_lifespan(service, on_start),
    )
    app.state.service = service
    for routes in (
        health,
        openai_chat,
        openai_completions,
        openai_models,
        anthropic,
        ollama,
        ollama_models,
        predict,
    ):
        app.include_router(routes.router)
    app.add_exception_handler(TwoStrokeError, _on_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(ClientGone, _on_gone)
    app.openapi = lambda: _schema(app)  # type: ignore[method-assign]
    inner: ASGIApp = app
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type", "x-api-key"],
            expose_headers=["x-request-id", "server-timing"],
        )
    return Door(
        inner,
        keys=KeyRing(keys, cache_scope=settings.cache_scope),
        limits=settings.limits,
        log=log or RequestLog(settings.log_format),
        meters=service.meters,
        has_cors=bool(settings.cors_origins),
    )


def _lifespan(service: Service, on_start: Callable[[], None] | None) -> Any:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if on_start is not None:
            on_start()
        async with watch_loop(service.meters):
            yield
        service.close()

    return lifespan


async def _on_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, TwoStrokeError)
    request.state.facts.error = error.code
    return error_response(error, request.url.path)


async def _on_http_error(request: Request, error: Exception) -> Response:
    """Say 404, 405 and what else the framework refuses in the API's own shape."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        refusal: TwoStrokeError = MethodNotAllowed(
            "that path does not take this method", value=request.method
        )
    else:
        refusal = RouteNotFound("no such path", remedy="/openapi.json lists all.")
    request.state.facts.error = refusal.code
    response = error_response(refusal, request.url.path)
    for name, value in (error.headers or {}).items():
        response.headers[name] = value
    return response


async def _on_gone(request: Request, error: Exception) -> Response:
    request.state.facts.error = "client_gone"
    return Response(status_code=STATUS_GONE)


def _schema(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
        found = schema.setdefault("components", {}).setdefault("schemas", {})
        found.update(components())
        app.openapi_schema = schema
    return app.openapi_schema
