"""The OpenAPI schema of routes whose body the server reads itself."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

_REF = "#/components/schemas/{model}"
_BODIES: dict[str, type[BaseModel]] = {}
_ERRORS = {
    400: "A parameter that cannot be honoured.",
    401: "No valid key.",
    404: "Unknown model.",
    408: "The body came too slowly.",
    413: "The body or the prompt is too large.",
    429: "Too much waits: see Retry-After.",
    500: "The server failed.",
    503: "Not ready: see Retry-After.",
}


def takes(model: type[BaseModel], *, stream: str | None = None) -> dict[str, Any]:
    """Return the arguments of a route decorator: the body's schema and the replies."""
    _BODIES[model.__name__] = model
    content: dict[str, Any] = {"application/json": {}}
    if stream is not None:
        content[stream] = {}
    schema = {"$ref": _REF.format(model=model.__name__)}
    responses: dict[int | str, Any] = {
        status: {"description": text, "content": {"application/json": {}}}
        for status, text in _ERRORS.items()
    }
    responses[200] = {"description": "The answer.", "content": content}
    return {
        "responses": responses,
        "openapi_extra": {
            "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}
        },
    }


def components() -> dict[str, Any]:
    """Return the schemas of all bodies."""
    models: Any = [(model, "validation") for model in _BODIES.values()]
    _, document = models_json_schema(models, ref_template=_REF)
    found: dict[str, Any] = document.get("$defs", {})
    return found
