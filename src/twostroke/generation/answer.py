"""One answer while it is generated: outputs of the engine in, deltas out.

Finds the end tokens, stop strings, reasoning and tool calls, and finishes the record. Knows neither
the engine nor who reads the answer: an offline caller and the server drive the same class.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import NamedTuple

from twostroke.generation.delta import Delta
from twostroke.record import OutputTokens, RequestRecord
from twostroke.request import FinishReason, Request, RequestOutput
from twostroke.text.stream import AnswerText, TextPart, joined


class StopRequest(NamedTuple):
    """The arguments of `Engine.stop` after the request id: end the request, keep its first tokens.

    reason: the stop string that the text met.
    """

    reason: str
    num_tokens_kept: int


class Answer:
    """Turns the outputs of one request into deltas.

    When a stop string ends the text before the engine has ended the request, `push` holds the last
    delta back and returns None. The driver then takes the `StopRequest`, passes it to the engine,
    and pushes the engine's final output, which completes the held delta with its record.
    """

    __slots__ = (
        "_end_token_ids",
        "_first_text_s",
        "_held",
        "_num_calls",
        "_num_reasoning",
        "_num_tokens",
        "_num_tool",
        "_stop_request",
        "_text",
        "index",
        "request",
    )

    def __init__(self, request: Request, text: AnswerText, *, index: int = 0) -> None:
        self.request = request
        self.index = index
        self._text = text
        self._end_token_ids = request.end_token_ids | frozenset(request.params.stop_token_ids)
        self._num_tokens = 0
        self._num_reasoning = 0
        self._num_tool = 0
        self._num_calls = 0
        self._first_text_s: float | None = None
        self._held: Delta | None = None
        self._stop_request: StopRequest | None = None

    def push(self, output: RequestOutput) -> Delta | None:
        """Return the delta that an output gives.

        None: the text has met a stop string and the engine has not ended the request yet.
        """
        if self._held is not None:
            return self._completed(self._held, output)
        token_ids, finish_reason = output.token_ids, output.finish_reason
        part = self._text.push(self._without_end_token(output))
        if part.stop is not None:
            token_ids = token_ids[: part.num_tokens]
        elif finish_reason is not None:
            part = joined(part, self._text.finish())
        self._count(part, len(token_ids))
        stop = part.stop
        delta = Delta(
            index=self.index,
            text=part.text,
            token_ids=token_ids,
            logprobs=output.logprobs[: len(token_ids)],
            finish_reason=finish_reason if stop is None else FinishReason.STOP,
            stop_reason=output.stop_reason if stop is None else stop,
            record=self._finished(output.record, is_stop=stop is not None),
            reasoning=part.reasoning,
            calls=part.calls,
            num_calls=self._num_calls,
        )
        if stop is None or finish_reason is not None:
            return delta
        self._held = delta
        self._stop_request = StopRequest(stop, self._num_tokens)
        return None

    def take_stop_request(self) -> StopRequest | None:
        """Return, once, the request to the engine that `push` has asked for."""
        stop_request, self._stop_request = self._stop_request, None
        return stop_request

    def _without_end_token(self, output: RequestOutput) -> tuple[int, ...]:
        """Return the ids that have text: the end token that closed the answer has none."""
        ids = output.token_ids
        if output.finish_reason is FinishReason.STOP and ids and ids[-1] in self._end_token_ids:
            return ids[:-1]
        return ids

    def _count(self, part: TextPart, num_tokens: int) -> None:
        self._num_tokens += num_tokens
        self._num_reasoning += part.num_reasoning
        self._num_tool += part.num_tool
        self._num_calls += len(part.calls)
        if part.text and self._first_text_s is None:
            self._first_text_s = time.monotonic()

    def _completed(self, held: Delta, output: RequestOutput) -> Delta | None:
        """Return the held delta with the record of the final output.

        Tokens that were generated after the stop string, before the engine was told, are dropped.
        """
        if output.finish_reason is None:
            return None
        return replace(held, record=self._finished(output.record, is_stop=True))

    def _finished(self, record: RequestRecord | None, *, is_stop: bool) -> RequestRecord | None:
        """Add to the engine's record the facts that only the text can give.

        is_stop: a stop string ended the answer. The engine calls that length when the string's last
        token was also the last token allowed.
        """
        if record is None:
            return None
        first_text_s = None
        if self._first_text_s is not None and record.t_arrival_s is not None:
            first_text_s = self._first_text_s - record.t_arrival_s
        total = record.output.total
        output = OutputTokens(
            total=total,
            reasoning=self._num_reasoning,
            visible=None if total is None else total - self._num_reasoning - self._num_tool,
            tool=self._num_tool,
        )
        finish = FinishReason.STOP.value if is_stop else record.finish
        return replace(record, ttft_visible_s=first_text_s, output=output, finish=finish)
