"""Errors that only a server raises; they continue the tree of twostroke.errors."""

from __future__ import annotations

from twostroke.errors import CapacityError, QueueFull, RequestError, TwoStrokeError


class Unauthorized(RequestError):
    """The request has no key, or an unknown one."""

    http_status = 401
    code = "invalid_api_key"


class RouteNotFound(RequestError):
    """No route has this path."""

    http_status = 404
    code = "not_found"


class MethodNotAllowed(RequestError):
    """The path has a route, but none for this method."""

    http_status = 405
    code = "method_not_allowed"


class UnknownModel(RequestError):
    """The request names a model that this server does not serve."""

    http_status = 404
    code = "model_not_found"


class BadBody(RequestError):
    """The body is no JSON, or not the JSON that the route takes."""


class Unsupported(RequestError):
    """The request has a parameter that this server knows and cannot honour."""

    code = "unsupported_parameter"


class GrammarTimeout(RequestError):
    """A grammar took too long to compile."""

    code = "invalid_grammar"


class SlowBody(RequestError):
    """The request's body did not arrive in time."""

    http_status = 408
    code = "body_timeout"


class TooLarge(RequestError):
    """A body or a prompt has too many bytes."""

    http_status = 413
    code = "request_too_large"


class NotReady(CapacityError):
    """The model is loading, or the server is about to end."""

    code = "not_ready"


class TooManyRequests(QueueFull):
    """As many requests as the server takes are in flight."""

    code = "too_many_requests"


class GenerationFailed(CapacityError):
    """The engine could not finish this answer."""

    http_status = 500
    code = "generation_failed"


def internal_error() -> TwoStrokeError:
    """Return the error that a caller is told when the fault is the server's own."""
    return TwoStrokeError("the server failed", remedy="Its log says more.")
