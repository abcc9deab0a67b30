"""Tools and tool calls in OpenAI's shape, which Ollama and chat templates read too."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from twostroke.errors import RequestError
from twostroke.server.http.connection import Body
from twostroke.server.tools import ToolName, Tools
from twostroke.text.tool_format import ToolCall


class ToolFunction(Body):
    """A function that the model may call."""

    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Body):
    """One tool."""

    type: Literal["function"]
    function: ToolFunction


class ChosenFunction(Body):
    """The name of one tool."""

    name: str


class ToolChoice(Body):
    """A demand for one tool."""

    type: Literal["function"]
    function: ChosenFunction


def tools_of(
    tools: Sequence[Tool] | None,
    choice: str | ToolChoice | None = None,
    *,
    is_parallel: bool = True,
) -> Tools:
    """Return the tools of a request, in the form that no API owns.

    Raises:
        RequestError: a choice without its tool, or tools that cannot be told apart.
    """
    given = tools or ()
    name = choice.function.name if isinstance(choice, ToolChoice) else None
    return Tools.checked(
        [t.model_dump(exclude_none=True, exclude={"function": {"strict"}}) for t in given],
        is_off=choice == "none",
        is_demanded=choice not in (None, "none", "auto"),
        demanded=name,
        is_parallel=is_parallel,
        is_strict=any(t.function.strict for t in given),
    )


def parsed_arguments(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message whose calls have objects as arguments, as templates read them.

    Raises:
        RequestError: a call without a function, or arguments that are no JSON object.
    """
    return {**message, "tool_calls": [_parsed(call) for call in message["tool_calls"]]}


def _parsed(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RequestError("a tool call of a message has no function", param="messages")
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            arguments = None
    if not isinstance(arguments, Mapping):
        raise RequestError("the arguments of a tool call are no JSON object", param="messages")
    return {**call, "function": {**function, "arguments": arguments}}


def calls_json(calls: Sequence[ToolCall], first: int | None = None) -> list[dict[str, Any]]:
    """Return calls in OpenAI's shape; first: the index of the first one, for a stream."""
    shown = []
    for place, call in enumerate(calls):
        function = {"name": call.name, "arguments": json.dumps(call.arguments)}
        one = {"id": f"call_{call.id}", "type": "function", "function": function}
        shown.append(one if first is None else {"index": first + place, **one})
    return shown
