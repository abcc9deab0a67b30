"""How a model writes a tool call, and instructions for models whose template knows no tools.

Three forms. `hermes`: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` (Hermes, Qwen2.5,
Qwen3). `llama3`: the whole answer is `{"name": ..., "parameters": {...}}` (Llama 3.1 and later).
`stated`: the form of `hermes`, asked for in the system message, for every other template.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from twostroke.dataclass import dataclass

OPEN_TAG, CLOSE_TAG = "<tool_call>", "</tool_call>"
_OPEN_RESULT, _CLOSE_RESULT = "<tool_response>", "</tool_response>"
# Templates with one of these write something else than a JSON object between the tags.
_OTHER_INSIDE = ("<function=", "<arg_key>")
_MAX_CALLS = 128  # in one answer

_INTRODUCTION = """These functions are at your service, one JSON object a line:
{tools}
When one of them helps, call it by writing
<tool_call>
{{"name": NAME, "arguments": {{...}}}}
</tool_call>
and stop. What it returns will come between <tool_response> and </tool_response>."""

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """One form.

    arguments_name: the key of the arguments. is_tagged: calls stand between tags, with text around
    them; else the answer is a call from its first character on. is_native: the template writes
    tools, calls and results itself.
    """

    name: str
    arguments_name: str = "arguments"
    is_tagged: bool = True
    is_native: bool = True


HERMES = ToolFormat(name="hermes")
LLAMA3 = ToolFormat(name="llama3", arguments_name="parameters", is_tagged=False)
STATED = replace(HERMES, name="stated", is_native=False)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call that a model wrote. id: 16 hex digits of our own."""

    name: str
    arguments: dict[str, Any]
    id: str = field(default_factory=lambda: secrets.token_hex(8))


def tool_format(template_source: str, control_texts: frozenset[str]) -> ToolFormat:
    """Return the form that the model's own template teaches, `stated` where it teaches none."""
    if "tools" not in template_source:
        return STATED
    # A tag that is a control token never becomes text, so nobody could read it.
    is_readable = not {OPEN_TAG, CLOSE_TAG} & control_texts
    if OPEN_TAG in template_source and is_readable:
        is_other = any(text in template_source for text in _OTHER_INSIDE)
        return STATED if is_other else HERMES
    return LLAMA3 if '"parameters": dict' in template_source else STATED


def parsed_calls(text: str, names: frozenset[str]) -> tuple[ToolCall, ...]:
    """Return the calls that a text consists of, none if a part of it is no call.

    Taken: one object or a list of them, or several objects with blanks or semicolons between.
    """
    decoder = json.JSONDecoder(parse_constant=_refuse)
    found: list[Any] = []
    place, end = 0, len(text)
    try:
        while place < end:
            if text[place] in " \t\r\n;":
                place += 1
                continue
            value, place = decoder.raw_decode(text, place)
            found.extend(value if isinstance(value, list) else [value])
    except (ValueError, RecursionError):
        return ()
    calls = [_call(value, names) for value in found[: _MAX_CALLS + 1]]
    if None in calls or len(calls) > _MAX_CALLS:
        return ()
    return tuple(call for call in calls if call is not None)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _call(value: object, names: frozenset[str]) -> ToolCall | None:
    if not isinstance(value, dict):
        return None
    name = value.get("name")
    arguments = value.get("arguments", value.get("parameters", {}))
    if not isinstance(name, str) or name not in names or not isinstance(arguments, dict):
        return None
    return ToolCall(name, arguments)


def stated_messages(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return a conversation in which tools, calls and results are plain text.

    Tools stand at the end of the system message. Results become user messages, joined with the next
    one, so that templates which require alternating roles accept them.
    """
    plain: list[dict[str, Any]] = []
    is_result = False
    for message in messages:
        role, content = message["role"], message.get("content") or ""
        if message.get("tool_calls"):
            content = "\n".join([*([content] if content else []), *_written(message["tool_calls"])])
        if role == "tool":
            content = f"{_OPEN_RESULT}\n{content}\n{_CLOSE_RESULT}"
        if is_result and role in ("tool", "user"):
            plain[-1]["content"] += f"\n{content}"
        else:
            kept = {k: v for k, v in message.items() if k not in _TOOL_KEYS}
            plain.append({**kept, "role": "user" if role == "tool" else role, "content": content})
        is_result = role == "tool"
    return _with_tools(plain, tools) if tools else plain


_TOOL_KEYS = ("tool_calls", "tool_call_id", "tool_name", "name")


def _written(calls: Sequence[Mapping[str, Any]]) -> list[str]:
    texts = []
    for call in calls:
        function = call["function"]
        value = {"name": function["name"], "arguments": function.get("arguments", {})}
        texts.append(f"{OPEN_TAG}\n{_json(value)}\n{CLOSE_TAG}")
    return texts


def _with_tools(
    messages: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    text = _INTRODUCTION.format(tools="\n".join(_json(tool["function"]) for tool in tools))
    if messages[0]["role"] in ("system", "developer"):
        first = {**messages[0], "content": f"{messages[0]['content']}\n\n{text}".lstrip()}
        return [first, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
