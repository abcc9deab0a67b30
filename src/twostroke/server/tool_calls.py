"""Tool calls in and out of a model's own words, in the format of the Hermes and Qwen families:
`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.

Where the caller forces a call, a grammar leaves only the JSON of one. What does not parse is plain
text: never an error.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from twostroke.errors import RequestError
from twostroke.server.body import Body
from twostroke.text.stop import StopMatcher

OPEN_TAG, CLOSE_TAG = "<tool_call>", "</tool_call>"
MAX_TOOLS = 128


class ToolFunction(Body):
    """A function that the model may call."""

    name: str = Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")
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


def forced_schema(tools: Sequence[Tool], choice: str | ToolChoice | None) -> dict[str, Any] | None:
    """Return the schema of the calls that the caller demands, None where the model may choose.

    Raises:
        RequestError: a tool that is not among the tools.
    """
    if choice in (None, "auto", "none"):
        return None
    wanted = list(tools)
    if isinstance(choice, ToolChoice):
        wanted = [t for t in tools if t.function.name == choice.function.name]
        if not wanted:
            raise RequestError(
                "tool_choice names no tool of this request",
                value=repr(choice.function.name[:64]),
                param="tool_choice",
            )
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": t.function.name},
                "arguments": t.function.parameters or {"type": "object"},
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for t in wanted
    ]
    return calls[0] if len(calls) == 1 else {"anyOf": calls}


def for_template(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message whose calls have their arguments as templates want them: as objects."""
    calls = message.get("tool_calls")
    if not calls:
        return dict(message)
    return {**message, "tool_calls": [_opened(call) for call in calls]}


def _opened(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RequestError("a tool call of a message has no function", param="messages")
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            raise RequestError(
                "the arguments of a tool call are no JSON", param="messages"
            ) from None
    return {**call, "function": {**function, "arguments": arguments}}


def parsed_call(text: str, names: frozenset[str]) -> dict[str, Any] | None:
    """Return OpenAI's object for a call that the model wrote, None if it is none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    name = found.get("name") if isinstance(found, dict) else None
    if not isinstance(name, str) or name not in names:
        return None
    arguments = found.get("arguments", {})
    if not isinstance(arguments, dict):
        return None
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": f"call_{secrets.token_hex(8)}", "type": "function", "function": function}


class ToolText:
    """One answer's text, its calls taken out. is_forced: all of it is one call."""

    def __init__(self, names: frozenset[str], *, is_forced: bool) -> None:
        self.num_calls = 0
        self._names = names
        self._is_forced = is_forced
        self._is_inside = is_forced
        self._tag = StopMatcher((OPEN_TAG,))
        self._held: list[str] = []

    def push(self, text: str) -> tuple[str, list[dict[str, Any]]]:
        """Take the next text; return what is plain and the calls that are complete."""
        if self._is_forced:
            self._held.append(text)
            return "", []
        shown: list[str] = []
        calls: list[dict[str, Any]] = []
        for character in text:  # a tag may end anywhere, and plain text may follow it
            part, hit = self._tag.push(character)
            (self._held if self._is_inside else shown).append(part)
            if hit is not None:
                self._turn(shown, calls)
        return "".join(shown), calls

    def finish(self) -> tuple[str, list[dict[str, Any]]]:
        """Return what was held back: a call if it is a whole one, else plain text."""
        rest = "".join(self._held) + self._tag.flush()
        self._held = []
        if not self._is_inside:
            return rest, []
        call = parsed_call(rest, self._names)
        if call is None:
            return (rest if self._is_forced else OPEN_TAG + rest), []
        return "", [self._numbered(call)]

    def _turn(self, shown: list[str], calls: list[dict[str, Any]]) -> None:
        """Go into a call, or out of it."""
        if self._is_inside:
            inner = "".join(self._held)
            call = parsed_call(inner, self._names)
            if call is None:
                shown.append(OPEN_TAG + inner + CLOSE_TAG)
            else:
                calls.append(self._numbered(call))
            self._held = []
        self._is_inside = not self._is_inside
        self._tag = StopMatcher((CLOSE_TAG if self._is_inside else OPEN_TAG,))

    def _numbered(self, call: dict[str, Any]) -> dict[str, Any]:
        self.num_calls += 1
        return {"index": self.num_calls - 1, **call}
