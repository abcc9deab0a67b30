"""The body of Anthropic's Messages route."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from twostroke.errors import RequestError
from twostroke.request import SamplingParams
from twostroke.server.body import Body
from twostroke.server.openai_schemas import Label, Number


class CacheControl(Body):
    """A mark that this server needs not: every prompt's head is looked up in its cache."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class TextBlock(Body):
    """One block of content; only text is taken."""

    type: Literal["text"]
    text: str
    cache_control: CacheControl | None = None


class Message(Body):
    """One message."""

    role: Literal["user", "assistant"]
    content: str | list[TextBlock]


class Metadata(Body):
    """Who the end user is, for the log."""

    user_id: Label | None = None


class Thinking(Body):
    """Extended thinking."""

    type: Literal["disabled"]


class CountRequest(Body):
    """POST /v1/messages/count_tokens."""

    model: str
    messages: list[Message] = Field(min_length=1)
    system: str | list[TextBlock] | None = None

    def conversation(self) -> list[dict[str, Any]]:
        """Return the messages as the chat template takes them."""
        messages = [{"role": m.role, "content": _text(m.content)} for m in self.messages]
        if self.system is not None:
            messages.insert(0, {"role": "system", "content": _text(self.system)})
        if messages[-1]["role"] == "assistant":
            raise RequestError(
                "the last message must be the user's: this server does not continue answers",
                param="messages",
            )
        return messages


class MessagesRequest(CountRequest):
    """POST /v1/messages."""

    max_tokens: int = Field(ge=1, le=2**31 - 1)
    temperature: Number | None = Field(default=None, ge=0, le=1)
    top_p: Number | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=0, le=2**31 - 1)
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    metadata: Metadata | None = None
    thinking: Thinking | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None

    def params(self) -> SamplingParams:
        """Return the engine's parameters.

        Raises:
            InvalidSampling: a value out of its range.
        """
        names = ("temperature", "top_p", "top_k")
        given = {n: v for n in names if (v := getattr(self, n)) is not None}
        stops = tuple(self.stop_sequences or ())
        return SamplingParams(**given, stop=stops, max_tokens=self.max_tokens)


def _text(content: str | list[TextBlock]) -> str:
    return content if isinstance(content, str) else "\n".join(b.text for b in content)
