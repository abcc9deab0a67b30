"""A request's body: read within limits, then JSON of exactly the shape that the route takes."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import ClientDisconnect, Request

from twostroke.server.refusals import BadBody, SlowBody, TooLarge
from twostroke.server.settings import Limits

MAX_LABEL_CHARS = 256


class Body(BaseModel):
    """Base of all requests: unknown names and wrong types are refused, never guessed at."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


B = TypeVar("B", bound=Body)


async def read_body(request: Request, limits: Limits) -> bytes:
    """Return the whole body.

    Raises:
        TooLarge, SlowBody: more bytes or more time than the limits give.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limits.max_body_bytes:
        raise _too_large(int(declared), limits)
    try:
        return await asyncio.wait_for(_collected(request, limits), limits.body_timeout_s)
    except asyncio.TimeoutError:
        raise SlowBody(
            "the request body took too long", limit=f"{limits.body_timeout_s:g} s"
        ) from None
    except ClientDisconnect:
        raise BadBody("the client went away before its body was complete") from None


async def _collected(request: Request, limits: Limits) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > limits.max_body_bytes:
            raise _too_large(size, limits)
        parts.append(part)
    return b"".join(parts)


def _too_large(size: int, limits: Limits) -> TooLarge:
    return TooLarge(
        "the request body is too large",
        value=f"{size} bytes",
        limit=f"max_body_bytes {limits.max_body_bytes}",
    )


async def parse(request: Request, model: type[B], limits: Limits) -> B:
    """Read and check the body of a request.

    Raises:
        BadBody: no JSON, or not what `model` takes. TooLarge, SlowBody: see `read_body`.
    """
    data = await read_body(request, limits)
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        raise bad_body(error) from None


def bad_body(error: ValidationError) -> BadBody:
    """Return the first complaint about a body as one of our errors."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"])[:MAX_LABEL_CHARS]
    if first["type"] == "json_invalid":
        return BadBody(f"the body is no JSON: {first['msg']}")
    if first["type"] == "extra_forbidden":
        return BadBody(
            f"unknown parameter {place}", remedy="This server ignores nothing.", param=place
        )
    return BadBody(f"{place}: {first['msg']}" if place else first["msg"], param=place or None)
