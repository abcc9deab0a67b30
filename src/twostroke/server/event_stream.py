"""A reply that streams: frames as they come, signs of life while silent, cancelled at once when
the reader goes away or takes nothing for too long.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

T = TypeVar("T")
SSE_COMMENT = b": keep-alive\n\n"


class ClientGone(Exception):
    """The client closed the connection before its reply."""


def sse(data: bytes | str, event: str | None = None) -> bytes:
    """Return one server-sent event."""
    body = data.encode() if isinstance(data, str) else data
    head = b"event: %b\n" % event.encode() if event is not None else b""
    return b"%bdata: %b\n\n" % (head, body)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return what `work` gives; cancel it when the client closes the connection.

    Raises:
        ClientGone: it did. Whatever `work` raises.
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
    """Sends the frames of a generator and closes it, however it ends.

    sign_of_life: makes the frame that is sent while nothing else is. on_close runs last.
    Units: seconds.
    """

    def __init__(
        self,
        frames: AsyncGenerator[bytes, None],
        *,
        media_type: str,
        headers: Mapping[str, str],
        sign_of_life: Callable[[], bytes | None],
        tick_s: float,
        slow_client_s: float,
        on_close: Callable[[], Awaitable[None]],
    ) -> None:
        self.status_code = 200
        self.media_type = media_type
        self.background = None
        self.init_headers({**headers, "cache-control": "no-cache", "x-accel-buffering": "no"})
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
            await self._send(send, frame)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send, frame: bytes) -> None:
        self._sending_since_s = time.monotonic()
        await send({"type": "http.response.body", "body": frame, "more_body": True})
        self._sending_since_s = None
        self._sent_s = time.monotonic()

    async def _tick(self, send: Send) -> None:
        """Send signs of life; return when the reader has taken nothing for too long."""
        while True:
            await asyncio.sleep(self._tick_s)
            now_s = time.monotonic()
            if self._sending_since_s is not None:
                if now_s - self._sending_since_s > self._slow_client_s:
                    return
            elif now_s - self._sent_s >= self._tick_s and (frame := self._sign_of_life()):
                await send({"type": "http.response.body", "body": frame, "more_body": True})
                self._sent_s = time.monotonic()
