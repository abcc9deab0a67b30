"""Errors as replies: the status, Retry-After, and a body in the shape of the API that was asked."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from starlette.responses import JSONResponse

from twostroke.errors import QueueFull, TwoStrokeError
from twostroke.server.errors import NotReady

NOT_READY_RETRY_S = 5
_MAX_MESSAGE_CHARS = 2000
ErrorBody = Callable[[TwoStrokeError], dict[str, Any]]


def error_message(error: TwoStrokeError) -> str:
    """Return the message of an error, cut to a length that any client shows."""
    text = str(error)
    return text if len(text) <= _MAX_MESSAGE_CHARS else text[:_MAX_MESSAGE_CHARS] + "..."


class ErrorReplies:
    """Makes the replies of errors. bodies: by path prefix; the longest prefix of a path counts."""

    def __init__(self, bodies: Mapping[str, ErrorBody]) -> None:
        self._bodies = sorted(bodies.items(), key=lambda entry: -len(entry[0]))

    def __call__(self, error: TwoStrokeError, path: str) -> JSONResponse:
        """Return the whole reply of an error that a request to this path met."""
        body = next(body for prefix, body in self._bodies if path.startswith(prefix))
        return JSONResponse(body(error), status_code=error.http_status, headers=_retry_after(error))


def _retry_after(error: TwoStrokeError) -> dict[str, str]:
    """Return the Retry-After header of an error that will pass. Units: whole seconds."""
    if isinstance(error, QueueFull):
        return {"retry-after": str(max(math.ceil(error.retry_after_s), 1))}
    if isinstance(error, NotReady):
        return {"retry-after": str(NOT_READY_RETRY_S)}
    return {}
