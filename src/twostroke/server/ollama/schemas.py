"""The bodies of Ollama's routes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from twostroke.errors import RequestError
from twostroke.request import MAX_SEED, SamplingParams
from twostroke.server.http.connection import Body, Label, Number
from twostroke.server.images import NoImages
from twostroke.server.openai.tools import ToolFunction
from twostroke.server.tools import JSON_OBJECT, MAX_TOOLS, ToolName, Tools

# The defaults of Ollama's own documentation, for clients that count on them.
DEFAULT_TEMPERATURE, DEFAULT_TOP_K, DEFAULT_TOP_P = 0.8, 40, 0.9

KeepAlive = str | int | float | None
Nothing = Annotated[list[Any], Field(max_length=0)] | None


class Options(Body):
    """Sampling, under Ollama's names."""

    temperature: Number | None = Field(default=None, ge=0, le=100)
    top_k: int | None = Field(default=None, ge=0, le=2**31 - 1)
    top_p: Number | None = Field(default=None, gt=0, le=1)
    min_p: Number | None = Field(default=None, ge=0, le=1)
    seed: int | None = Field(default=None, ge=0, le=MAX_SEED)
    num_predict: int | None = Field(default=None, ge=-2, le=2**31 - 1)
    num_ctx: int | None = Field(default=None, ge=1, le=2**31 - 1)
    repeat_penalty: Number | None = Field(default=None, gt=0, le=10)
    presence_penalty: Number | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: Number | None = Field(default=None, ge=-2, le=2)
    stop: str | list[str] | None = None

    def params(self) -> SamplingParams:
        """Return the engine's parameters, with Ollama's defaults.

        Raises:
            InvalidSampling: a value out of its range.
        """
        given: dict[str, Any] = {
            "temperature": DEFAULT_TEMPERATURE,
            "top_k": DEFAULT_TOP_K,
            "top_p": DEFAULT_TOP_P,
        }
        for own, name in (
            ("temperature", "temperature"),
            ("top_k", "top_k"),
            ("top_p", "top_p"),
            ("min_p", "min_p"),
            ("seed", "seed"),
            ("repeat_penalty", "repetition_penalty"),
            ("presence_penalty", "presence_penalty"),
            ("frequency_penalty", "frequency_penalty"),
        ):
            if (value := getattr(self, own)) is not None:
                given[name] = value
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        num = self.num_predict
        return SamplingParams(
            **given, stop=tuple(stops), max_tokens=num if num is not None and num >= 0 else None
        )


class GenerationBody(Body):
    """The fields of both routes that generate."""

    model: str
    stream: bool | None = None
    options: Options | None = None
    keep_alive: KeepAlive = None
    format: Literal["", "json"] | dict[str, Any] | None = None
    think: Literal[False] | None = None

    @property
    def is_stream(self) -> bool:
        """Whether the reply streams: Ollama's default."""
        return self.stream is not False

    @property
    def answer_schema(self) -> dict[str, Any] | None:
        """The JSON schema that the answer keeps to; an empty format asks for none."""
        if not self.format:
            return None
        return self.format if isinstance(self.format, dict) else JSON_OBJECT

    def check(self, max_model_len: int) -> SamplingParams:
        """Return the engine's parameters.

        Raises:
            RequestError: an option that this server cannot honour.
        """
        if _seconds(self.keep_alive) == 0:
            raise RequestError(
                "keep_alive 0 asks to unload the model, which this server never does",
                param="keep_alive",
            )
        options = self.options or Options()
        if options.num_ctx is not None and options.num_ctx > max_model_len:
            raise RequestError(
                "num_ctx is beyond this server's context",
                value=options.num_ctx,
                limit=max_model_len,
                remedy="Start the server with a larger --max-model-len.",
                param="options.num_ctx",
            )
        return options.params()


def _seconds(keep_alive: KeepAlive) -> float | None:
    if isinstance(keep_alive, str):
        digits = keep_alive.rstrip("smhun")
        try:
            return float(digits)
        except ValueError:
            raise RequestError(
                "keep_alive is no duration", value=repr(keep_alive[:32]), param="keep_alive"
            ) from None
    return keep_alive


class OllamaFunction(Body):
    """The function of a call, and its arguments."""

    name: ToolName
    arguments: dict[str, Any] = Field(default_factory=dict)
    index: int | None = None
    description: str | None = None


class OllamaCall(Body):
    """A call that the model made."""

    id: Label | None = None
    type: Literal["function"] | None = None
    function: OllamaFunction


class OllamaTool(Body):
    """One tool; Ollama's clients may leave out its type."""

    type: Literal["function"] = "function"
    function: ToolFunction


class OllamaMessage(Body):
    """One message."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    images: Nothing = None
    thinking: str | None = None
    tool_calls: list[OllamaCall] | None = None
    tool_name: Label | None = None
    tool_call_id: Label | None = None

    def as_chat_message(self) -> dict[str, Any]:
        """Return the message as the chat template takes it."""
        message: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.thinking is not None:
            message["reasoning_content"] = self.thinking
        if self.tool_name is not None:
            message["name"] = self.tool_name
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        if self.tool_calls:
            message["tool_calls"] = [_call(call) for call in self.tool_calls]
        return message


def _call(call: OllamaCall) -> dict[str, Any]:
    function = {"name": call.function.name, "arguments": call.function.arguments}
    named = {"id": call.id} if call.id is not None else {}
    return {**named, "type": "function", "function": function}


class OllamaChatRequest(GenerationBody):
    """POST /api/chat."""

    messages: Annotated[list[OllamaMessage], NoImages] = Field(default_factory=list)
    tools: Annotated[list[OllamaTool], Field(max_length=MAX_TOOLS)] | None = None

    def checked_tools(self) -> Tools:
        """Return the tools.

        Raises:
            RequestError: two of one name, or parameters that describe no object.
        """
        return Tools.checked(
            [
                {"type": "function", "function": t.function.model_dump(exclude_none=True)}
                for t in self.tools or ()
            ]
        )


class OllamaGenerateRequest(GenerationBody):
    """POST /api/generate."""

    prompt: str = ""
    system: str | None = None
    raw: bool | None = None
    images: Nothing = None
    context: Nothing = None
    suffix: Literal[""] | None = None
    template: Literal[""] | None = None


class ShowRequest(Body):
    """POST /api/show."""

    model: str | None = None
    name: str | None = None
    verbose: Literal[False] | None = None
