"""The bodies of OpenAI's routes. A field that can only have one harmless value says so by its
type: everything else about it is refused.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from twostroke.request import MAX_SEED, SamplingParams
from twostroke.server.body import MAX_LABEL_CHARS, Body
from twostroke.server.tool_calls import Tool, ToolChoice
from twostroke.server.tools import MAX_TOOLS

Role = Literal["system", "developer", "user", "assistant", "tool"]
Stops = str | list[str] | None
Label = Annotated[str, Field(max_length=MAX_LABEL_CHARS)]


class TextPart(Body):
    """One part of a message; only text is taken."""

    type: Literal["text"]
    text: str


class ChatMessage(Body):
    """One message."""

    role: Role
    content: str | list[TextPart] | None = None
    name: Label | None = None
    reasoning_content: str | None = None
    refusal: None = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    audio: None = None
    function_call: None = None
    tool_call_id: Label | None = None
    tool_calls: list[dict[str, Any]] | None = None


class StreamOptions(Body):
    """What a stream carries besides text."""

    include_usage: bool = False
    include_obfuscation: Literal[False] | None = None


class JsonSchema(Body):
    """A named schema; the answer always keeps to it, so `strict` changes nothing."""

    name: Label
    description: str | None = None
    body: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    """The form of the answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("a number is wanted, not a boolean")
    return value


Number = Annotated[float, BeforeValidator(_no_bool)]


class Sampling(Body):
    """How to choose tokens; names beyond OpenAI's are vLLM's."""

    temperature: Number | None = Field(default=None, ge=0, le=100)
    top_p: Number | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1, le=2**31 - 1)
    min_p: Number | None = Field(default=None, ge=0, le=1)
    presence_penalty: Number | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: Number | None = Field(default=None, ge=-2, le=2)
    repetition_penalty: Number | None = Field(default=None, gt=0, le=10)
    logit_bias: dict[str, Number] | None = None
    seed: int | None = Field(default=None, ge=0, le=MAX_SEED)
    stop: Stops = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None

    def params(self, *, max_tokens: int | None, logprobs: int | None) -> SamplingParams:
        """Return the engine's parameters; what is not given has OpenAI's default.

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
    from twostroke.errors import InvalidSampling

    result = []
    for key, value in entries.items():
        if not (key.isascii() and key.isdigit() and len(key) <= 10):
            raise InvalidSampling(
                "a key of logit_bias is no token id", value=repr(key[:64]), param="logit_bias"
            )
        result.append((int(key), value))
    return tuple(result)


class ChatRequest(Sampling):
    """POST /v1/chat/completions."""

    model: str | None = None
    messages: list[ChatMessage] = Field(min_length=1)
    max_tokens: int | None = Field(default=None, ge=0, le=2**31 - 1)
    max_completion_tokens: int | None = Field(default=None, ge=0, le=2**31 - 1)
    n: int | None = Field(default=None, ge=1, le=1024)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    response_format: ResponseFormat | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: Label | None = None
    user: Label | None = None
    metadata: Annotated[dict[str, str], Field(max_length=0)] | None = None
    modalities: list[Literal["text"]] | None = None
    service_tier: Literal["auto", "default"] | None = None
    store: Literal[False] | None = None
    cache_salt: Label | None = None
    return_progress: bool | None = None
    history: Literal["refuse", "drop_oldest", "summarize"] | None = None


class CompletionRequest(Sampling):
    """POST /v1/completions."""

    model: str | None = None
    prompt: str | list[str] | list[int] | list[list[int]]
    max_tokens: int | None = Field(default=None, ge=0, le=2**31 - 1)
    n: int | None = Field(default=None, ge=1, le=1024)
    best_of: int | None = Field(default=None, ge=1, le=1024)
    echo: Literal[False] | None = None
    suffix: None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: int | None = Field(default=None, ge=0, le=20)
    user: Label | None = None
    cache_salt: Label | None = None
    return_progress: bool | None = None


class TokenizeRequest(Body):
    """POST /tokenize: a text, or a conversation through the chat template."""

    model: str | None = None
    content: str | None = None
    messages: list[ChatMessage] | None = None
    add_special: bool = False
    parse_special: bool = False
    with_pieces: bool = False


class DetokenizeRequest(Body):
    """POST /detokenize."""

    model: str | None = None
    tokens: list[int]
