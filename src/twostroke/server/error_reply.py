"""One error, three shapes: what OpenAI's, Anthropic's and Ollama's clients expect to read."""

from __future__ import annotations

import math
from typing import Any

from starlette.responses import JSONResponse

from twostroke.errors import QueueFull, TwoStrokeError
from twostroke.server.refusals import NotReady

MAX_MESSAGE_CHARS = 2000
NOT_READY_RETRY_S = 5
_OPENAI_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def internal_error() -> TwoStrokeError:
    """Return what a caller may know of a fault of ours."""
    return TwoStrokeError("the server failed", remedy="Its log says more.")


def _message(error: TwoStrokeError) -> str:
    text = str(error)
    return text if len(text) <= MAX_MESSAGE_CHARS else text[:MAX_MESSAGE_CHARS] + "..."


def openai_error(error: TwoStrokeError) -> dict[str, Any]:
    """Return OpenAI's error object."""
    status = error.http_status
    fallback = "invalid_request_error" if status < 500 else "server_error"
    return {
        "error": {
            "message": _message(error),
            "type": _OPENAI_TYPES.get(status, fallback),
            "param": error.param,
            "code": error.code,
        }
    }


def anthropic_error(error: TwoStrokeError) -> dict[str, Any]:
    """Return Anthropic's error object."""
    fallback = "invalid_request_error" if error.http_status < 500 else "api_error"
    kind = _ANTHROPIC_TYPES.get(error.http_status, fallback)
    return {"type": "error", "error": {"type": kind, "message": _message(error)}}


def ollama_error(error: TwoStrokeError) -> dict[str, Any]:
    """Return Ollama's error object."""
    return {"error": _message(error)}


def error_body(error: TwoStrokeError, path: str) -> dict[str, Any]:
    """Return the error in the shape of the API that the path belongs to."""
    if path.startswith("/v1/messages"):
        return anthropic_error(error)
    if path.startswith("/api/"):
        return ollama_error(error)
    return openai_error(error)


def retry_after(error: TwoStrokeError) -> dict[str, str]:
    """Return the Retry-After header of an error that says to come back."""
    if isinstance(error, QueueFull):
        return {"retry-after": str(max(math.ceil(error.retry_after_s), 1))}
    if isinstance(error, NotReady):
        return {"retry-after": str(NOT_READY_RETRY_S)}
    return {}


def error_response(error: TwoStrokeError, path: str) -> JSONResponse:
    """Return the whole reply."""
    return JSONResponse(
        error_body(error, path), status_code=error.http_status, headers=retry_after(error)
    )
