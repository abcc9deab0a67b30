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


class _Budget:
    """Characters and values that an input may still have."""

    def __init__(self) -> None:
        self._left = MAX_INPUT_CHARS

    def spend(self, num: int, where: str) -> None:
        self._left -= num
        if self._left < 0:
            raise RequestError(
                "the messages are too long",
                limit=f"{MAX_INPUT_CHARS} characters and values",
                param=where.partition("[")[0],
            )


def checked_messages(messages: Sequence[Mapping[str, object]]) -> list[Message]:
    """Return copies of the messages in plain types.

    Raises:
        RequestError: no list of messages, an unknown role, values that are not JSON, or too much.
    """
    if not isinstance(messages, (list, tuple)) or not messages:
        raise RequestError("messages must be a list of at least one message", param="messages")
    if len(messages) > MAX_MESSAGES:
        raise RequestError(
            "too many messages", value=len(messages), limit=MAX_MESSAGES, param="messages"
        )
    budget = _Budget()
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
    """Return a copy of the tools in plain types, None for none.

    Raises:
        RequestError: no list, values that are not JSON, or too much.
    """
    if tools is None:
        return None
    if not isinstance(tools, (list, tuple)) or len(tools) > MAX_TOOLS:
        raise RequestError("tools must be a list", limit=f"{MAX_TOOLS} tools", param="tools")
    return _checked_value(tools, "tools", _Budget(), MAX_DEPTH)


def checked_kwargs(variables: Mapping[str, object]) -> dict[str, object]:
    """Return the variables for a template.

    Raises:
        RequestError: a name outside ALLOWED_KWARGS, or a value that is long or nested.
    """
    for name, value in variables.items():
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
    return dict(variables)


def _checked_value(value: object, where: str, budget: _Budget, depth: int) -> Any:
    """Return a copy of JSON data in plain types, within the budget of characters and depth."""
    if depth == 0:
        raise RequestError(f"{where} is nested too deeply", limit=MAX_DEPTH, param=where)
    budget.spend(len(value) if isinstance(value, str) else 1, where)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping):
        copy = {}
        for key, found in value.items():
            if not isinstance(key, str):
                raise RequestError(f"{where} has a key that is not a string", param=where)
            budget.spend(len(key), where)
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
    """Return a hash of all texts of a message, keys included: SHA-256, hex."""
    digest = hashlib.sha256()
    for text in texts(message):
        data = text.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()
