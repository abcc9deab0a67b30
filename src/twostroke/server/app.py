"""The FastAPI application: the routes of all APIs, errors in each API's shape, the schema.

An API is a folder of routes, a codec and an error shape; its routes and shape are named here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from twostroke import __version__
from twostroke.errors import TwoStrokeError
from twostroke.server.anthropic import errors as anthropic_errors
from twostroke.server.anthropic import messages
from twostroke.server.errors import MethodNotAllowed, RouteNotFound
from twostroke.server.http.connection import ClientGone
from twostroke.server.http.errors import ErrorReplies
from twostroke.server.http.loop_lag import watch_loop
from twostroke.server.http.middleware import KeyRing, Middleware, RequestLog
from twostroke.server.http.route_docs import components
from twostroke.server.ollama import chat as ollama_chat
from twostroke.server.ollama import errors as ollama_errors
from twostroke.server.ollama import models as ollama_models
from twostroke.server.openai import chat as openai_chat
from twostroke.server.openai import completions
from twostroke.server.openai import errors as openai_errors
from twostroke.server.openai import models as openai_models
from twostroke.server.operations import health, predict, tokenize
from twostroke.server.service import Service

_ROUTES = (
    health,
    openai_chat,
    completions,
    openai_models,
    messages,
    ollama_chat,
    ollama_models,
    tokenize,
    predict,
)
_error_response = ErrorReplies(
    {
        "": openai_errors.error_body,
        "/v1/messages": anthropic_errors.error_body,
        "/api/": ollama_errors.error_body,
    }
)
STATUS_GONE = 499  # nginx's number for a client that closed its connection


def create_app(
    service: Service,
    *,
    keys: Sequence[str] = (),
    log: RequestLog | None = None,
    on_start: Callable[[], None] | None = None,
) -> Middleware:
    """Return the application over a service. on_start: called in the running loop, at the start."""
    settings = service.settings
    app = FastAPI(
        title="twostroke",
        version=__version__,
        docs_url=None,  # their pages load scripts from elsewhere
        redoc_url=None,
        lifespan=_lifespan(service, on_start),
    )
    app.state.service = service
    for routes in _ROUTES:
        app.include_router(routes.router)
    app.add_exception_handler(TwoStrokeError, _on_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(ClientGone, _on_gone)
    app.openapi = lambda: _schema(app)  # type: ignore[method-assign]
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type", "x-api-key"],
            expose_headers=["x-request-id", "server-timing"],
        )
    return Middleware(
        app,
        keys=KeyRing(keys, cache_scope=settings.cache_scope),
        max_concurrency=settings.limits.max_concurrency,
        log=log or RequestLog(settings.log_format),
        replies=service.meters.replies,
        error_response=_error_response,
        has_cors=bool(settings.cors_origins),
    )


def _lifespan(service: Service, on_start: Callable[[], None] | None) -> Any:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if on_start is not None:
            on_start()
        async with watch_loop(service.meters.set_loop_lag):
            yield
        service.close()

    return lifespan


async def _on_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, TwoStrokeError)
    request.state.facts.error = error.code
    return _error_response(error, request.url.path)


async def _on_http_error(request: Request, error: Exception) -> Response:
    """Reply to the framework's own refusals, such as 404 and 405, in the API's shape."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        refusal: TwoStrokeError = MethodNotAllowed(
            "that path does not take this method", value=request.method
        )
    else:
        refusal = RouteNotFound("no such path", remedy="/openapi.json lists all.")
    request.state.facts.error = refusal.code
    response = _error_response(refusal, request.url.path)
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
