"""The form of an OpenAI chat answer: text, JSON by a schema, or tool calls; what excludes what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twostroke.errors import RequestError
from twostroke.server.answers import Piece
from twostroke.server.asked import finish_name
from twostroke.server.openai_schemas import ChatRequest
from twostroke.server.tool_calls import openai_calls, tools_of
from twostroke.server.tools import JSON_OBJECT, Tools
from twostroke.text.tool_format import ToolCall


def checked_tools(body: ChatRequest) -> Tools:
    """Return the tools of a request.

    Raises:
        RequestError: tools that contradict themselves or the rest of the request.
    """
    tools = tools_of(
        body.tools, body.tool_choice, is_parallel=body.parallel_tool_calls is not False
    )
    if tools.demanded is not None and body.ignore_eos:
        raise RequestError("a demanded tool call excludes ignore_eos", param="tool_choice")
    return tools


def answer_schema(body: ChatRequest) -> dict[str, Any] | None:
    """Return the schema that the answer keeps to, None for text.

    Raises:
        RequestError: a response_format that contradicts itself or the rest of the request.
    """
    form = body.response_format
    if form is None or form.type == "text":
        return None
    if body.ignore_eos:
        raise RequestError(
            "ignore_eos and a response_format exclude each other", param="ignore_eos"
        )
    if (form.json_schema is not None) != (form.type == "json_schema"):
        raise RequestError(
            "json_schema goes with the type of that name", param="response_format.json_schema"
        )
    return form.json_schema.body if form.json_schema is not None else JSON_OBJECT


def message_of(text: str, thought: str, calls: Sequence[ToolCall]) -> dict[str, Any]:
    """Return a whole message of the assistant."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["content"] = text or None
        message["tool_calls"] = openai_calls(calls)
    if thought:
        message["reasoning_content"] = thought
    return message


def finish_of(piece: Piece | None) -> str | None:
    """Return OpenAI's finish_reason."""
    if piece is None:
        return None
    name = finish_name(piece.finish_reason)
    return "tool_calls" if name == "stop" and piece.num_calls else name
