"""Errors in Anthropic's shape."""

from __future__ import annotations

from typing import Any

from twostroke.errors import TwoStrokeError
from twostroke.server.http.errors import error_message

_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def error_body(error: TwoStrokeError) -> dict[str, Any]:
    """Return Anthropic's error object."""
    fallback = "invalid_request_error" if error.http_status < 500 else "api_error"
    kind = _TYPES.get(error.http_status, fallback)
    return {"type": "error", "error": {"type": kind, "message": error_message(error)}}
