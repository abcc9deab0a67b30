"""Errors in Ollama's shape."""

from __future__ import annotations

from typing import Any

from twostroke.errors import TwoStrokeError
from twostroke.server.http.errors import error_message


def error_body(error: TwoStrokeError) -> dict[str, Any]:
    """Return Ollama's error object."""
    return {"error": error_message(error)}
