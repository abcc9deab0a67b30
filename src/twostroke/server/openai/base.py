"""The parts that OpenAI's two completion routes share: messages and sampling in, chunks out.

A field that can only have one harmless value says so by its type; every other value is refused.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from twostroke.errors import InvalidSampling, RequestError, TwoStrokeError
from twostroke.generation.answer import Delta
from twostroke.request import MAX_SEED, FinishReason, SamplingParams
from twostroke.scheduler.progress import PrefillProgress
from twostroke.server.generate import Codec, ReplyState
from twostroke.server.http.connection import Body, Label, Number, sse
from twostroke.server.openai.errors import error_body

# Bodies


class ContentPart(Body):
    """One part of a message; only text is taken."""

    type: Literal["text"]
    text: str


class ChatMessage(Body):
    """One message."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    name: Label | None = None
    reasoning_content: str | None = None
    refusal: None = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    audio: None = None
    function_call: None = None
    tool_call_id: Label | None = None
    tool_calls: list[dict[str, Any]] | None = None


class StreamOptions(Body):
    """Which chunks a stream carries besides text."""

    include_usage: bool = False
    include_obfuscation: Literal[False] | None = None


class CompletionBody(Body):
    """The fields of both routes: sampling and streaming; names beyond OpenAI's are vLLM's."""

    model: str | None = None
    n: int | None = Field(default=None, ge=1, le=1024)
    max_tokens: int | None = Field(default=None, ge=0, le=2**31 - 1)
    temperature: Number | None = Field(default=None, ge=0, le=100)
    top_p: Number | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1, le=2**31 - 1)
    min_p: Number | None = Field(default=None, ge=0, le=1)
    presence_penalty: Number | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: Number | None = Field(default=None, ge=-2, le=2)
    repetition_penalty: Number | None = Field(default=None, gt=0, le=10)
    logit_bias: dict[str, Number] | None = None
    seed: int | None = Field(default=None, ge=0, le=MAX_SEED)
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_progress: bool | None = None
    cache_salt: Label | None = None
    user: Label | None = None

    def check_stream(self) -> None:
        """Refuse options of a stream without one.

        Raises:
            RequestError: names the option.
        """
        for name in ("stream_options", "return_progress"):
            if getattr(self, name) and not self.stream:
                raise RequestError(f"{name} needs stream", param=name)

    def params(self, *, max_tokens: int | None, logprobs: int | None) -> SamplingParams:
        """Return the engine's parameters; a parameter that is not given has OpenAI's default.

        Raises:
            InvalidSampling: a value out of its range.
        """
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        given = {name: value for name in _PLAIN if (value := getattr(self, name)) is not None}
        if given.get("top_k") == -1:
            given["top_k"] = 0
        return SamplingParams(
            **given,
            logit_bias=_logit_bias(self.logit_bias or {}),
            stop=tuple(stop),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            max_tokens=max_tokens,
            logprobs=logprobs,
        )


_PLAIN = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "ignore_eos",
)


def _logit_bias(entries: dict[str, float]) -> tuple[tuple[int, float], ...]:
    result = []
    for key, value in entries.items():
        if not (key.isascii() and key.isdigit() and len(key) <= 10):
            raise InvalidSampling(
                "a key of logit_bias is no token id", value=repr(key[:64]), param="logit_bias"
            )
        result.append((int(key), value))
    return tuple(result)


# Replies


def finish_name(reason: FinishReason | None) -> str | None:
    """Return OpenAI's name of a finish reason."""
    return reason.value if reason is not None else None


class CompletionCodec(Codec):
    """Writes completions, streamed or whole. Subclasses write the choices and name the objects."""

    id_prefix: str
    whole_object: str
    chunk_object: str
    empty_choice: ClassVar[dict[str, Any]]  # of a chunk that tells progress and no text

    def __init__(self, reply: ReplyState, body: CompletionBody) -> None:
        super().__init__(reply)
        self._has_usage = body.stream_options is not None and body.stream_options.include_usage
        self._chunk = self._head(self.chunk_object)

    def choice(self, delta: Delta) -> dict[str, Any]:
        """Return the new part of one choice."""
        raise NotImplementedError

    def whole_choice(self, answer: Delta) -> dict[str, Any]:
        """Return a whole choice."""
        raise NotImplementedError

    def delta(self, delta: Delta) -> bytes:
        """Return one chunk, none while all text is held back as half a character or half a stop."""
        is_last = delta.finish_reason is not None
        if not is_last and not delta.has_content:
            return b""
        choice = self.choice(delta)
        chunk: dict[str, Any] = {**self._chunk, "choices": [choice]}
        if is_last:
            choice["stop_reason"] = delta.stop_reason
            chunk.update(self.reply.report())
        if self._has_usage:
            chunk["usage"] = None
        return sse(json.dumps(chunk))

    def end(self) -> bytes:
        """Return the usage, if it was asked for, and the mark of the end."""
        return self._usage_chunk() + sse("[DONE]")

    def error(self, error: TwoStrokeError) -> bytes:
        """Return the usage, if it was asked for, and the error."""
        return self._usage_chunk() + sse(json.dumps(error_body(error)))

    def progress(self, progress: PrefillProgress, eta_s: float | None) -> bytes:
        """Return a chunk with llama.cpp's progress of the prompt."""
        told = {
            "total": progress.num_total,
            "cache": progress.num_cached,
            "processed": progress.num_done,
            "eta_ms": None if eta_s is None else round(eta_s * 1e3, 1),
        }
        chunk = {**self._chunk, "choices": [self.empty_choice], "prompt_progress": told}
        return sse(json.dumps(chunk))

    def whole(self, answers: Sequence[Delta]) -> dict[str, Any]:
        """Return a whole completion."""
        return {
            **self._head(self.whole_object),
            "choices": [self.whole_choice(answer) for answer in answers],
            "usage": self._usage(),
            **self.reply.report(),
        }

    def _head(self, name: str) -> dict[str, Any]:
        facts = self.reply.facts
        return {
            "id": f"{self.id_prefix}-{facts.id}",
            "object": name,
            "created": self.reply.created,
            "model": facts.model,
        }

    def _usage_chunk(self) -> bytes:
        if not self._has_usage:
            return b""
        return sse(json.dumps({**self._chunk, "choices": [], "usage": self._usage()}))

    def _usage(self) -> dict[str, Any]:
        """Return OpenAI's usage: the prompt once, all answers together; cached_tokens always."""
        reply = self.reply
        cached = reply.record.prompt.cached if reply.record is not None else None
        reasoning = sum(record.output.reasoning or 0 for record in reply.records)
        return {
            "prompt_tokens": reply.num_prompt,
            "completion_tokens": reply.num_output,
            "total_tokens": reply.num_prompt + reply.num_output,
            "prompt_tokens_details": {"cached_tokens": cached or 0},
            "completion_tokens_details": {"reasoning_tokens": reasoning},
        }
