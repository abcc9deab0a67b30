"""What all streaming routes share: signs of life, progress, the error frame, the end."""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing

from twostroke.engine.status import EngineStatus
from twostroke.errors import TwoStrokeError
from twostroke.server.answers import Answers
from twostroke.server.asked import Asked
from twostroke.server.error_reply import internal_error
from twostroke.server.event_stream import SSE_COMMENT, EventStream

PROGRESS_TICK_S = 0.25
ErrorFrame = Callable[[TwoStrokeError], bytes]


def event_stream(
    asked: Asked,
    answers: Answers,
    frames: AsyncGenerator[bytes, None],
    *,
    on_error: ErrorFrame,
    media_type: str = "text/event-stream",
    keep_alive: bytes = SSE_COMMENT,
    progress: Callable[[EngineStatus, str], bytes | None] | None = None,
    headers: Mapping[str, str] | None = None,
) -> EventStream:
    """Return the reply that sends these frames; an error in them becomes the last frame.

    progress: makes the frames that tell how far the prompt is, until the first token.
    """
    limits = asked.service.limits

    def sign_of_life() -> bytes | None:
        if progress is None or asked.num_output:
            return keep_alive
        return progress(asked.service.status, answers.choices[0].request.id) or keep_alive

    return EventStream(
        _guarded(asked, frames, on_error),
        media_type=media_type,
        headers=headers or {},
        sign_of_life=sign_of_life,
        tick_s=PROGRESS_TICK_S if progress is not None else limits.keep_alive_s,
        slow_client_s=limits.slow_client_s,
        on_close=_closer(answers),
    )


def _closer(answers: Answers) -> Callable[[], Awaitable[None]]:
    async def close() -> None:
        # Even a cancelled reply must tell the engine.
        await asyncio.shield(answers.close())

    return close


async def _guarded(
    asked: Asked, frames: AsyncGenerator[bytes, None], on_error: ErrorFrame
) -> AsyncGenerator[bytes, None]:
    async with aclosing(frames):
        try:
            async for frame in frames:
                yield frame
        except TwoStrokeError as error:
            asked.facts.error = error.code
            yield on_error(error)
        except Exception:
            asked.facts.error = "internal_error"
            traceback.print_exc(file=sys.stderr)
            yield on_error(internal_error())
