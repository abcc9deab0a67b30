"""Liveness, readiness and metrics. Live: this process can still serve. Ready: send work here."""

from __future__ import annotations

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import JSONResponse, Response

from twostroke.server.service import Service

router = APIRouter(tags=["operations"])


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


@router.get("/health/live", responses={503: {"description": "The engine has died."}})
async def live(request: Request) -> JSONResponse:
    """Whether this process can still serve; needs no key."""
    is_alive = _service(request).is_alive
    return JSONResponse({"alive": is_alive}, status_code=200 if is_alive else 503)


@router.get("/health/ready", responses={503: {"description": "Not ready, and why."}})
@router.get("/health", responses={503: {"description": "Not ready, and why."}})
async def ready(request: Request) -> JSONResponse:
    """Whether requests should be sent here now."""
    service = _service(request)
    reason = service.why_not_ready()
    body = {"status": "ok" if reason is None else "not ready", "reason": reason}
    return JSONResponse(body, status_code=200 if reason is None else 503)


@router.get("/metrics", response_class=Response)
async def metrics(request: Request) -> Response:
    """Prometheus metrics."""
    text = generate_latest(_service(request).meters.registry)
    return Response(text, headers={"content-type": CONTENT_TYPE_LATEST})
