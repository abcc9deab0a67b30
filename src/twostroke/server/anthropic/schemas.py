"""The bodies of Anthropic's routes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from twostroke.errors import RequestError
from twostroke.request import SamplingParams
from twostroke.server.http.connection import Body, Label, Number
from twostroke.server.images import NoImages
from twostroke.server.tools import MAX_TOOLS, ToolName, Tools


class CacheControl(Body):
    """A mark without effect: this server looks every prompt's prefix up in its cache."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class TextBlock(Body):
    """One block of text."""

    type: Literal["text"]
    text: str
    cache_control: CacheControl | None = None
    citations: None = None


class ThinkingBlock(Body):
    """Reasoning of the model before an answer; no signature is checked."""

    type: Literal["thinking"]
    thinking: str
    signature: str = ""


class ToolUseBlock(Body):
    """A call that the model made."""

    type: Literal["tool_use"]
    id: Label
    name: ToolName
    input: dict[str, Any]
    cache_control: CacheControl | None = None
    caller: None = None
    toolset_name: None = None


class ToolResultBlock(Body):
    """The result of a call."""

    type: Literal["tool_result"]
    tool_use_id: Label
    content: str | list[TextBlock] | None = None
    is_error: bool | None = None
    cache_control: CacheControl | None = None


Block = Annotated[
    TextBlock | ThinkingBlock | ToolUseBlock | ToolResultBlock, Field(discriminator="type")
]


class AnthropicMessage(Body):
    """One message."""

    role: Literal["user", "assistant"]
    content: str | list[Block]


class CustomTool(Body):
    """A tool that the caller runs."""

    type: Literal["custom"] | None = None
    name: ToolName
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None
    cache_control: CacheControl | None = None


class AnthropicToolChoice(Body):
    """Whether the answer must call a tool, and which."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Metadata(Body):
    """The end user, for the log."""

    user_id: Label | None = None


class Thinking(Body):
    """Extended thinking."""

    type: Literal["disabled"]


class CountRequest(Body):
    """POST /v1/messages/count_tokens."""

    model: str
    messages: Annotated[list[AnthropicMessage], NoImages] = Field(min_length=1)
    system: str | list[TextBlock] | None = None

    tools: Annotated[list[CustomTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: AnthropicToolChoice | None = None
    thinking: Thinking | None = None

    def conversation(self) -> list[dict[str, Any]]:
        """Return the messages as the chat template takes them.

        Raises:
            RequestError: a result without its call, blocks of the wrong side, or an answer last.
        """
        messages = chat_messages(self.messages)
        if self.system is not None:
            messages.insert(0, {"role": "system", "content": text_of(self.system)})
        if messages[-1]["role"] == "assistant":
            raise RequestError(
                "the last message must be the user's: this server does not continue answers",
                param="messages",
            )
        return messages

    def checked_tools(self) -> Tools:
        """Return the tools.

        Raises:
            RequestError: tools that contradict themselves or the choice.
        """
        choice = self.tool_choice
        kind = choice.type if choice is not None else "auto"
        if choice is not None and (choice.name is not None) != (kind == "tool"):
            raise RequestError("a name goes with the type tool", param="tool_choice")
        return Tools.checked(
            [_offered(tool) for tool in self.tools or ()],
            is_off=kind == "none",
            is_demanded=kind in ("any", "tool"),
            demanded=choice.name if choice is not None else None,
            is_parallel=choice is None or not choice.disable_parallel_tool_use,
            is_strict=any(tool.strict for tool in self.tools or ()),
        )


class MessagesRequest(CountRequest):
    """POST /v1/messages."""

    max_tokens: int = Field(ge=1, le=2**31 - 1)
    temperature: Number | None = Field(default=None, ge=0, le=1)
    top_p: Number | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=0, le=2**31 - 1)
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None

    def params(self) -> SamplingParams:
        """Return the engine's parameters.

        Raises:
            InvalidSampling: a value out of its range.
        """
        names = ("temperature", "top_p", "top_k")
        given = {n: v for n in names if (v := getattr(self, n)) is not None}
        stops = tuple(self.stop_sequences or ())
        return SamplingParams(**given, stop=stops, max_tokens=self.max_tokens)


def text_of(content: str | Sequence[Block]) -> str:
    """Return the text of content, its blocks one below the other."""
    if isinstance(content, str):
        return content
    return "\n".join(block.text for block in content if isinstance(block, TextBlock))


def _offered(tool: CustomTool) -> dict[str, Any]:
    """Return a tool in OpenAI's shape, which is the one that templates read."""
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    return {"type": "function", "function": {**function, "parameters": tool.input_schema}}


def chat_messages(messages: Sequence[AnthropicMessage]) -> list[dict[str, Any]]:
    """Return messages with calls and results in OpenAI's places, which chat templates read."""
    shown: list[dict[str, Any]] = []
    called: dict[str, str] = {}
    for message in messages:
        if isinstance(message.content, str):
            shown.append({"role": message.role, "content": message.content})
        elif message.role == "assistant":
            shown.append(_assistant_message(message.content, called))
        else:
            shown.extend(_user_messages(message.content, called))
    return shown


def _assistant_message(blocks: Sequence[Block], called: dict[str, str]) -> dict[str, Any]:
    calls = []
    thoughts = [block.thinking for block in blocks if isinstance(block, ThinkingBlock)]
    for block in blocks:
        if isinstance(block, ToolResultBlock):
            raise RequestError("a tool_result is the user's to give", param="messages")
        if isinstance(block, ToolUseBlock):
            called[block.id] = block.name
            function = {"name": block.name, "arguments": block.input}
            calls.append({"id": block.id, "type": "function", "function": function})
    message: dict[str, Any] = {"role": "assistant", "content": text_of(blocks)}
    if calls:
        message["tool_calls"] = calls
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    return message


def _user_messages(blocks: Sequence[Block], called: dict[str, str]) -> list[dict[str, Any]]:
    shown: list[dict[str, Any]] = []
    for block in blocks:
        if isinstance(block, (ToolUseBlock, ThinkingBlock)):
            raise RequestError(f"a {block.type} block is the model's to write", param="messages")
        if not isinstance(block, ToolResultBlock):
            continue
        if block.tool_use_id not in called:
            raise RequestError(
                "a tool_result answers no tool_use of an earlier message",
                value=repr(block.tool_use_id[:64]),
                param="messages",
            )
        text = text_of(block.content or "")
        shown.append(
            {
                "role": "tool",
                "tool_call_id": block.tool_use_id,
                "name": called[block.tool_use_id],
                "content": f"Error: {text}" if block.is_error else text,
            }
        )
    if not shown or any(isinstance(block, TextBlock) for block in blocks):
        shown.append({"role": "user", "content": text_of(blocks)})
    return shown
