"""GET /v1/models, and the clear refusal of /v1/embeddings."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from twostroke.server.errors import Unsupported
from twostroke.server.service import Service

router = APIRouter(tags=["openai"])


def _card(service: Service, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "twostroke",
        "max_model_len": service.max_model_len,
        "root": service.settings.names[0],
    }


@router.get("/v1/models")
async def models(request: Request) -> dict[str, Any]:
    """List the served model under each of its names; max_model_len is the limit of one request."""
    service: Service = request.app.state.service
    service.check_ready()
    return {"object": "list", "data": [_card(service, n) for n in service.settings.names]}


@router.get("/v1/models/{name:path}", responses={404: {"description": "Not served."}})
async def model(request: Request, name: str) -> dict[str, Any]:
    """Return one model."""
    service: Service = request.app.state.service
    service.check_ready()
    return _card(service, service.check_model(name))


@router.post(
    "/v1/embeddings",
    responses={400: {"description": "Not supported.", "content": {"application/json": {}}}},
)
async def embeddings(request: Request) -> None:
    """Refuse: this server generates text only."""
    raise Unsupported("embeddings are not supported by this version", remedy="Use /v1/completions.")
