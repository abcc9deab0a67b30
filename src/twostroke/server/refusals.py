"""Refusals that only a server makes; the tree of errors.py goes on here."""

from __future__ import annotations

from twostroke.errors import CapacityError, QueueFull, RequestError


class Unauthorized(RequestError):
    """No key, or not one of ours."""

    http_status = 401
    code = "invalid_api_key"


class RouteNotFound(RequestError):
    """No such path."""

    http_status = 404
    code = "not_found"


class MethodNotAllowed(RequestError):
    """The path exists, the method does not."""

    http_status = 405
    code = "method_not_allowed"


class UnknownModel(RequestError):
    """A model name that this server does not serve."""

    http_status = 404
    code = "model_not_found"


class BadBody(RequestError):
    """A body that is no JSON, or not the JSON that the route takes."""


class Unsupported(RequestError):
    """A parameter that this server knows and cannot honour."""

    code = "unsupported_parameter"


class GrammarTimeout(RequestError):
    """A grammar that took too long to compile."""

    code = "invalid_grammar"


class SlowBody(RequestError):
    """The request's body did not arrive in time."""

    http_status = 408
    code = "body_timeout"


class TooLarge(RequestError):
    """A body or a prompt of too many bytes."""

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
