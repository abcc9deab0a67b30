"""Liveness, readiness and metrics. Live: this process can still serve. Ready: send work here."""

from __future__ import annotations

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import JSONResponse, Response

from twostroke.server.service import Service, State

router = APIRouter(tags=["operations"])


@router.get("/health/live", responses={503: {"description": "The engine has died."}})
async def live(request: Request) -> JSONResponse:
    """Say whether this process can still serve; needs no key."""
    is_alive = _is_alive(request.app.state.service)
    return JSONResponse({"alive": is_alive}, status_code=200 if is_alive else 503)


@router.get("/health/ready", responses={503: {"description": "Not ready, and why."}})
@router.get("/health", responses={503: {"description": "Not ready, and why."}})
async def ready(request: Request) -> JSONResponse:
    """Say whether requests should be sent here now."""
    reason = _why_not_ready(request.app.state.service)
    body = {"status": "ok" if reason is None else "not ready", "reason": reason}
    return JSONResponse(body, status_code=200 if reason is None else 503)


@router.get("/metrics", response_class=Response)
async def metrics(request: Request) -> Response:
    """Return Prometheus metrics."""
    service: Service = request.app.state.service
    text = generate_latest(service.meters.registry)
    return Response(text, headers={"content-type": CONTENT_TYPE_LATEST})


def _is_alive(service: Service) -> bool:
    """Whether the process can still serve: false once the engine's thread has died."""
    if service.state is State.ENDED:
        return False
    return not service.is_loaded or service.engine.is_alive


def _why_not_ready(service: Service) -> str | None:
    """Return why no request should be sent here now, None if one may."""
    if service.state is not State.READY:
        return str(service.state.value)
    if not service.engine.is_alive:
        return "the engine has ended"
    stuck_s = service.engine.seconds_without_progress()
    if stuck_s > service.limits.stuck_s:
        return f"work waits and nothing has moved for {stuck_s:.0f} s"
    return None
