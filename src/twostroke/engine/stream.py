"""The way of outputs from the engine's thread to a reader in an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from twostroke.request import Request, RequestOutput, TokenLogprob

T = TypeVar("T")


class OutputStream:
    """The outputs of one request that its reader has not taken; guarded by the engine's lock.

    A reader that lags finds its outputs merged into one, so memory is bounded by the request.
    """

    def __init__(self, request: Request) -> None:
        self.request = request
        self.loop = asyncio.get_running_loop()
        self.event = asyncio.Event()
        self.added: asyncio.Future[None] = self.loop.create_future()
        self.has_begun = False  # an output was put
        self.is_closed = False  # nobody reads it any more
        self.is_orphan = False  # nobody writes it any more
        self._last: RequestOutput | None = None
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprob] = []

    def put(self, output: RequestOutput) -> bool:
        """Merge an output into those not read yet; return whether there was none."""
        was_empty = self._last is None
        self._last = output
        self._token_ids.extend(output.token_ids)
        self._logprobs.extend(output.logprobs)
        return was_empty

    def take(self) -> RequestOutput | None:
        """Return everything not read yet as one output, None where there is nothing."""
        output, self._last = self._last, None
        if output is not None and len(self._token_ids) != len(output.token_ids):
            output = replace(
                output, token_ids=tuple(self._token_ids), logprobs=tuple(self._logprobs)
            )
        self._token_ids.clear()
        self._logprobs.clear()
        return output

    def settle(self, error: Exception | None) -> None:
        """Tell the caller, in its own loop, whether the request was taken."""
        if self.added.done():
            return
        if error is None:
            self.added.set_result(None)
        else:
            self.added.set_exception(error)


def waker(streams: list[OutputStream]) -> Callable[[], None]:
    """Return a callback that wakes the readers of these streams."""

    def wake() -> None:
        for stream in streams:
            stream.event.set()

    return wake


def refuser(stream: OutputStream, error: Exception) -> Callable[[], None]:
    """Return a callback that tells a caller that its request was not taken."""
    return lambda: stream.settle(error)


def settler(answer: asyncio.Future[T], question: Callable[[], T]) -> Callable[[], None]:
    """Answer a question now; return the callback that hands the answer to the asker's loop."""
    try:
        value = question()
    except Exception as fault:
        error = fault
        return lambda: None if answer.done() else answer.set_exception(error)
    return lambda: None if answer.done() else answer.set_result(value)
