"""One client's connection: its JSON body read within limits, its reply streamed within limits.

A streamed reply sends a sign of life while it is silent, and ends at once when the client closes
the connection or takes nothing for too long.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from twostroke.server.errors import BadBody, SlowBody, TooLarge
from twostroke.server.settings import ServerLimits

MAX_LABEL_CHARS = 256
SSE_COMMENT = b": keep-alive\n\n"
T = TypeVar("T")


class ClientGone(Exception):
    """The client closed the connection before its reply."""


# The body


class Body(BaseModel):
    """Base of all bodies: unknown names and wrong types are refused, never guessed at."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("a number is wanted, not a boolean")
    return value


Label = Annotated[str, Field(max_length=MAX_LABEL_CHARS)]
Number = Annotated[float, BeforeValidator(_no_bool)]
B = TypeVar("B", bound=Body)


async def parse(request: Request, model: type[B], limits: ServerLimits) -> B:
    """Read and check the body of a request.

    Raises:
        BadBody: no JSON, or not the JSON that `model` takes.
        TooLarge, SlowBody: more bytes or more time than the limits give.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limits.max_body_bytes:
        raise _too_large(int(declared), limits)
    try:
        data = await asyncio.wait_for(_read(request, limits), limits.body_timeout_s)
        return model.model_validate_json(data)
    except asyncio.TimeoutError:
        raise SlowBody(
            "the request body took too long", limit=f"{limits.body_timeout_s:g} s"
        ) from None
    except ClientDisconnect:
        raise BadBody("the client went away before its body was complete") from None
    except ValidationError as error:
        raise _bad_body(error) from None


async def _read(request: Request, limits: ServerLimits) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > limits.max_body_bytes:
            raise _too_large(size, limits)
        parts.append(part)
    return b"".join(parts)


def _too_large(size: int, limits: ServerLimits) -> TooLarge:
    return TooLarge(
        "the request body is too large",
        value=f"{size} bytes",
        limit=f"max_body_bytes {limits.max_body_bytes}",
    )


def _bad_body(error: ValidationError) -> BadBody:
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


# The reply


def sse(data: bytes | str, event: str | None = None) -> bytes:
    """Return one server-sent event."""
    body = data.encode() if isinstance(data, str) else data
    name = b"event: %b\n" % event.encode() if event is not None else b""
    return b"%bdata: %b\n\n" % (name, body)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`; cancel it when the client closes the connection.

    Raises:
        ClientGone: the client did. Whatever `work` raises.
    """
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_disconnected(request.receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        watch.cancel()
        task.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


class EventStream(Response):
    """Sends the frames of a generator and closes the generator, however the reply ends.

    sign_of_life: makes the frame for a moment of silence. on_close: runs last.
    Units: seconds.
    """

    def __init__(
        self,
        frames: AsyncGenerator[bytes, None],
        *,
        media_type: str,
        sign_of_life: Callable[[], bytes],
        tick_s: float,
        slow_client_s: float,
        on_close: Callable[[], Awaitable[None]],
    ) -> None:
        self.status_code = 200
        self.media_type = media_type
        self.background = None
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})
        self._frames = frames
        self._sign_of_life = sign_of_life
        self._tick_s = tick_s
        self._slow_client_s = slow_client_s
        self._on_close = on_close
        self._sent_s = time.monotonic()
        self._sending_since_s: float | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything."""
        tasks: list[asyncio.Task[None]] = []
        try:
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(start)
            self._sent_s = time.monotonic()
            for work in (self._write(send), _disconnected(receive), self._tick(send)):
                tasks.append(asyncio.ensure_future(work))
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if tasks[0] in done:
                tasks[0].result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._frames.aclose()
            await self._on_close()

    async def _write(self, send: Send) -> None:
        async for frame in self._frames:
            self._sending_since_s = time.monotonic()
            await send({"type": "http.response.body", "body": frame, "more_body": True})
            self._sending_since_s = None
            self._sent_s = time.monotonic()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _tick(self, send: Send) -> None:
        """Send signs of life; return when the client has taken nothing for too long."""
        while True:
            await asyncio.sleep(self._tick_s)
            now_s = time.monotonic()
            if self._sending_since_s is not None:
                if now_s - self._sending_since_s > self._slow_client_s:
                    return
            elif now_s - self._sent_s >= self._tick_s:
                frame = self._sign_of_life()
                await send({"type": "http.response.body", "body": frame, "more_body": True})
                self._sent_s = time.monotonic()
