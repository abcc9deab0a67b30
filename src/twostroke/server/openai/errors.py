"""Errors in OpenAI's shape."""

from __future__ import annotations

from typing import Any

from twostroke.errors import TwoStrokeError
from twostroke.server.http.errors import error_message

_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}


def error_body(error: TwoStrokeError) -> dict[str, Any]:
    """Return OpenAI's error object."""
    status = error.http_status
    fallback = "invalid_request_error" if status < 500 else "server_error"
    return {
        "error": {
            "message": error_message(error),
            "type": _TYPES.get(status, fallback),
            "param": error.param,
            "code": error.code,
        }
    }
