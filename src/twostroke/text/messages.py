"""Chat messages, tools and template variables from outside: checked, bounded, in plain types."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from twostroke.errors import RequestError

ROLES = ("system", "developer", "user", "assistant", "tool")
ALLOWED_KWARGS = (
    "enable_thinking",
    "thinking",
    "preserve_thinking",
    "reasoning_effort",
    "date_string",
)
MAX_MESSAGES = 10_000
MAX_TOOLS = 1_000
MAX_INPUT_CHARS = 1 << 24
MAX_DEPTH = 32
_MAX_KWARG_CHARS = 256

Message = dict[str, Any]


def checked_messages(messages: Sequence[Mapping[str, object]]) -> list[dict[str, Any]]:
    if not isinstance(messages, (list, tuple)) or not messages:
        raise RequestError("messages must be a list of at least one message", param="messages")
    if len(messages) > MAX_MESSAGES:
        raise RequestError(
            "too many messages", value=len(messages), limit=MAX_MESSAGES, param="messages"
        )
    budget = [MAX_INPUT_CHARS]
    checked = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if not isinstance(message, Mapping):
            raise RequestError(f"{where} is not an object", param=where)
        role = message.get("role")
        if role not in ROLES:
            raise RequestError(
                f"{where} has an unknown role",
                value=repr(role)[:64],
                limit=", ".join(ROLES),
                param=f"{where}.role",
            )
        checked.append(_checked_value(message, where, budget, MAX_DEPTH))
    return checked


def checked_tools(tools: Sequence[Mapping[str, object]] | None) -> object:
    if tools is None:
        return None
    if not isinstance(tools, (list, tuple)) or len(tools) > MAX_TOOLS:
        raise RequestError("tools must be a list", limit=f"{MAX_TOOLS} tools", param="tools")
    return _checked_value(tools, "tools", [MAX_INPUT_CHARS], MAX_DEPTH)


def checked_kwargs(allowed: Mapping[str, object]) -> dict[str, object]:
    for name, value in allowed.items():
        if name not in ALLOWED_KWARGS:
            raise RequestError(
                "unknown chat template variable",
                value=repr(name)[:64],
                limit=", ".join(ALLOWED_KWARGS),
                param="chat_template_kwargs",
            )
        is_long = isinstance(value, str) and len(value) > _MAX_KWARG_CHARS
        if is_long or not (value is None or isinstance(value, (str, bool, int, float))):
            raise RequestError(
                f"chat template variable {name} must be a short text, a number or a boolean",
                value=type(value).__name__,
                param="chat_template_kwargs",
            )
    return dict(allowed)


def _checked_value(value: object, where: str, budget: list[int], depth: int) -> Any:
    """Return a copy of JSON data in plain types, within the budget of characters and depth."""
    if depth == 0:
        raise RequestError(f"{where} is nested too deeply", limit=MAX_DEPTH, param=where)
    budget[0] -= len(value) if isinstance(value, str) else 1
    if budget[0] < 0:
        raise RequestError(
            "the messages are too long",
            limit=f"{MAX_INPUT_CHARS} characters and values",
            param=where.partition("[")[0],
        )
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping):
        copy = {}
        for key, found in value.items():
            if not isinstance(key, str):
                raise RequestError(f"{where} has a key that is not a string", param=where)
            budget[0] -= len(key)
            copy[key] = _checked_value(found, f"{where}.{key[:64]}", budget, depth - 1)
        return copy
    if isinstance(value, (list, tuple)):
        return [
            _checked_value(found, f"{where}[{place}]", budget, depth - 1)
            for place, found in enumerate(value)
        ]
    raise RequestError(f"{where} is not JSON data", value=type(value).__name__, param=where)


def texts(value: object) -> Iterator[str]:
    """Yield every string inside a value that was checked for depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, found in value.items():
            yield from texts(key)
            yield from texts(found)
    elif isinstance(value, (list, tuple)):
        for found in value:
            yield from texts(found)


def text_hash(message: Mapping[str, object]) -> str:
    digest = hashlib.sha256()
    for text in texts(message):
        data = text.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()
