"""One answer while it is generated: outputs of the engine in, deltas out.

Finds the end tokens, stop strings, reasoning and tool calls, and finishes the record. Knows neither
the engine nor who reads the answer: an offline caller and the server drive the same class.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from twostroke.dataclass import dataclass
from twostroke.record import OutputTokens, RequestRecord
from twostroke.request import FinishReason, Request, RequestOutput, TokenLogprob
from twostroke.text.stream import AnswerText, TextPart, joined

if TYPE_CHECKING:
    from twostroke.text.tool_format import ToolCall  # a first token does not wait for it


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """New text and tokens of one answer. The last delta has the finish reason and the record.

    reasoning: new text of the reasoning part, which is no part of `text`.
    calls: tool calls that became complete. num_calls: those of the whole answer so far.
    """

    index: int
    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    record: RequestRecord | None = None
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    num_calls: int = 0

    @property
    def has_content(self) -> bool:
        """Whether a reader sees anything new: text, reasoning, tool calls or log-probabilities."""
        return bool(self.text or self.reasoning or self.calls or self.logprobs)


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
        text_ids = token_ids
        if finish_reason is FinishReason.STOP and self._end_token_ids.issuperset(token_ids[-1:]):
            text_ids = token_ids[:-1]  # the end token that closed the answer has no text
        part = self._text.push(text_ids)
        stop = part.stop
        if stop is not None:
            token_ids = token_ids[: part.num_tokens]
        elif finish_reason is not None:
            part = joined(part, self._text.finish())
            stop = part.stop
        self._count(part, len(token_ids))
        record = output.record
        if record is not None:
            record = self._finished(record, is_stop=stop is not None)
        delta = Delta(
            index=self.index,
            text=part.text,
            token_ids=token_ids,
            logprobs=output.logprobs[: len(token_ids)],
            finish_reason=finish_reason if stop is None else FinishReason.STOP,
            stop_reason=output.stop_reason if stop is None else stop,
            record=record,
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
        if output.record is None:
            return held
        return replace(held, record=self._finished(output.record, is_stop=True))

    def _finished(self, record: RequestRecord, *, is_stop: bool) -> RequestRecord:
        """Add to the engine's record the facts that only the text can give.

        is_stop: a stop string ended the answer. The engine calls that length when the string's last
        token was also the last token allowed.
        """
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


def merged(deltas: Sequence[Delta]) -> Delta:
    """Return all deltas of one answer, in order, as one; the last one gives the end."""
    last = deltas[-1]
    return Delta(
        index=last.index,
        text="".join(delta.text for delta in deltas),
        token_ids=tuple(i for delta in deltas for i in delta.token_ids),
        logprobs=tuple(entry for delta in deltas for entry in delta.logprobs),
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
        record=last.record,
        reasoning="".join(delta.reasoning for delta in deltas),
        calls=tuple(call for delta in deltas for call in delta.calls),
        num_calls=last.num_calls,
    )
