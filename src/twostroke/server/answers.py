"""The answers of one HTTP request: started together, merged as they come, cancelled together.

Further choices of a prompt start at the first choice's first token, so that its prefill serves
them all.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import field, replace

from twostroke.dataclass import dataclass
from twostroke.engine.async_engine import AsyncEngine
from twostroke.record import OutputTokens, RequestRecord
from twostroke.request import FinishReason, Request, RequestOutput, TokenLogprob
from twostroke.server.answer_text import AnswerText, joined
from twostroke.server.refusals import GenerationFailed
from twostroke.text.tool_format import ToolCall


@dataclass(frozen=True, slots=True)
class Piece:
    """What one answer gained. The last one of each carries finish_reason and the record.

    calls: tool calls that became complete; num_calls: those of the whole answer so far.
    """

    index: int
    text: str
    reasoning: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    record: RequestRecord | None = None
    calls: tuple[ToolCall, ...] = ()
    num_calls: int = 0


@dataclass(slots=True)
class Choice:
    """One answer while it is generated. `follows`: the choice whose prefill it waits for."""

    index: int
    request: Request
    text: AnswerText
    follows: Choice | None = None
    num_tokens: int = 0
    num_reasoning: int = 0
    num_tool: int = 0
    num_calls: int = 0
    visible_s: float | None = None
    has_begun: asyncio.Event = field(default_factory=asyncio.Event)
    final: Piece | None = None

    def visible_ids(self, output: RequestOutput) -> tuple[int, ...]:
        """Return the ids that are text: the end token that closed the answer is not."""
        ids = output.token_ids
        ends = self.request.end_token_ids | frozenset(self.request.params.stop_token_ids)
        if output.finish_reason is FinishReason.STOP and ids and ids[-1] in ends:
            return ids[:-1]
        return ids


class Answers:
    """Iterate to get the pieces of all choices; `close` cancels what still runs.

    on_end is called once, when nothing of it runs any more.
    """

    def __init__(
        self, engine: AsyncEngine, choices: Sequence[Choice], on_end: Callable[[], None]
    ) -> None:
        self.choices = tuple(choices)
        self._engine = engine
        self._on_end: Callable[[], None] | None = on_end
        self._pieces: asyncio.Queue[Piece | BaseException] = asyncio.Queue(len(choices))
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Hand the requests to the engine and return when it has taken the first ones.

        Raises:
            RequestError, CapacityError: refused at the door; nothing runs.
        """
        loop = asyncio.get_running_loop()
        leaders = []
        for choice in self.choices:
            added: asyncio.Future[None] = loop.create_future()
            if choice.follows is None:
                leaders.append(added)
            self._tasks.append(loop.create_task(self._run(choice, added)))
        try:
            await asyncio.gather(*leaders)
        except BaseException:
            await self.close()
            raise

    def __aiter__(self) -> AsyncIterator[Piece]:
        return self._merged()

    async def _merged(self) -> AsyncIterator[Piece]:
        num_open = len(self.choices)
        while num_open:
            piece = await self._pieces.get()
            if isinstance(piece, BaseException):
                raise piece
            num_open -= piece.finish_reason is not None
            yield piece

    async def close(self) -> None:
        """Cancel what has not ended and wait until the engine was told."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._on_end is not None:
            on_end, self._on_end = self._on_end, None
            on_end()

    async def _run(self, choice: Choice, added: asyncio.Future[None]) -> None:
        try:
            if choice.follows is not None:
                await choice.follows.has_begun.wait()
            request = choice.request
            outputs = self._engine.generate(request, on_added=lambda: _settle(added))
            async with aclosing(outputs):
                async for output in outputs:
                    piece = self._piece(choice, output)
                    choice.has_begun.set()
                    if piece is not None:
                        await self._pieces.put(piece)
        except Exception as error:
            if choice.follows is None and not added.done():
                added.set_exception(error)
                return
            await self._pieces.put(error)
        finally:
            choice.has_begun.set()

    def _piece(self, choice: Choice, output: RequestOutput) -> Piece | None:
        """Turn an output into text; None for tokens that a stop string had already cut off."""
        if output.error is not None:
            raise GenerationFailed("the answer could not be computed", value=output.error)
        if choice.final is not None:
            if output.finish_reason is None:
                return None
            return replace(choice.final, record=self._finished(choice, output.record))
        part = choice.text.push(choice.visible_ids(output))
        kept = output.token_ids
        if part.stop is not None:
            kept = kept[: part.num_tokens]
        elif output.finish_reason is not None:
            part = joined(part, choice.text.finish())
        text, stop = part.text, part.stop
        choice.num_tokens += len(kept)
        choice.num_reasoning += part.num_reasoning
        choice.num_tool += part.num_tool
        choice.num_calls += len(part.calls)
        if text and choice.visible_s is None:
            choice.visible_s = time.monotonic()
        piece = Piece(
            index=choice.index,
            text=text,
            reasoning=part.reasoning,
            token_ids=kept,
            logprobs=output.logprobs[: len(kept)],
            finish_reason=FinishReason.STOP if stop is not None else output.finish_reason,
            stop_reason=stop if stop is not None else output.stop_reason,
            record=self._finished(choice, output.record, is_stop=stop is not None),
            calls=part.calls,
            num_calls=choice.num_calls,
        )
        if stop is not None and output.finish_reason is None:
            # The engine ends it and sends the record; the piece leaves with that.
            choice.final = piece
            self._engine.stop(choice.request.id, stop, choice.num_tokens)
            return None
        return piece

    @staticmethod
    def _finished(
        choice: Choice, record: RequestRecord | None, *, is_stop: bool = False
    ) -> RequestRecord | None:
        """Add what only text can tell: the first visible text, the tokens by channel, and a stop
        string that the last allowed token completed (is_stop), which the engine ends as length.
        """
        if record is None:
            return None
        visible_s = None
        if choice.visible_s is not None and record.t_arrival_s is not None:
            visible_s = choice.visible_s - record.t_arrival_s
        total = record.output.total
        visible = None
        if total is not None:
            visible = total - choice.num_reasoning - choice.num_tool
        output = OutputTokens(
            total=total,
            reasoning=choice.num_reasoning,
            visible=visible,
            tool=choice.num_tool,
        )
        finish = FinishReason.STOP.value if is_stop else record.finish
        return replace(record, ttft_visible_s=visible_s, output=output, finish=finish)


def _settle(added: asyncio.Future[None]) -> None:
    if not added.done():
        added.set_result(None)
