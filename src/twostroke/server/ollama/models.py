"""GET /api/tags, /api/ps, /api/version and POST /api/show, as Ollama's clients speak them."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from twostroke import __version__
from twostroke.server.generate import accept
from twostroke.server.http.connection import parse
from twostroke.server.http.route_docs import takes
from twostroke.server.ollama.schemas import ShowRequest
from twostroke.server.service import Service

router = APIRouter(tags=["ollama"])
_LOADED_SINCE = (
    "1970-01-01T00:00:00Z"  # Ollama's clients want a time; the file's is not ours to tell
)


def _details(service: Service) -> dict[str, Any]:
    config = service.loaded.model.config
    return {
        "parent_model": "",
        "format": "gguf",
        "family": config.family,
        "families": [config.family],
        "parameter_size": "",
        "quantization_level": "",
    }


def _card(service: Service, name: str) -> dict[str, Any]:
    size = sum(w.nbytes for w in service.loaded.model.weights.all())
    return {
        "name": name,
        "model": name,
        "modified_at": _LOADED_SINCE,
        "size": size,
        "digest": "",
        "details": _details(service),
    }


@router.get("/api/tags")
@router.get("/api/ps")
async def tags(request: Request) -> dict[str, Any]:
    """The served model under each of its names."""
    service: Service = request.app.state.service
    service.check_ready()
    return {"models": [_card(service, name) for name in service.settings.names]}


@router.get("/api/version")
async def version() -> dict[str, str]:
    """The version of this server."""
    return {"version": __version__}


@router.post("/api/show", **takes(ShowRequest))
async def show(request: Request) -> Response:
    """What is known of the model."""
    service: Service = request.app.state.service
    body = await parse(request, ShowRequest, service.limits)
    accept(request, model=body.model or body.name, user=None, is_stream=False)
    model = service.loaded.model
    config = model.config
    info = {
        "general.architecture": config.family,
        f"{config.family}.context_length": config.context_length,
        f"{config.family}.block_count": config.num_layers,
        f"{config.family}.embedding_length": config.hidden_size,
        f"{config.family}.attention.head_count": config.num_heads,
        f"{config.family}.attention.head_count_kv": config.num_kv_heads,
        "twostroke.max_model_len": service.max_model_len,
    }
    return JSONResponse(
        {
            "modelfile": "",
            "parameters": "",
            "template": model.template.source if model.has_template else "",
            "details": _details(service),
            "model_info": info,
            "capabilities": ["completion", *(["tools"] if model.has_template else [])],
        }
    )
