"""Tools, and ways to make a model of random weights call them."""

from __future__ import annotations

from typing import Any

TEMPLATE = (
    "{% if tools %}Tools as <tool_call>: {{ tools | tojson }}\n{% endif %}"
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }} "
    "{{ c.function.arguments.city }}</tool_call>{% endfor %}\n{% endfor %}"
)
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {"name": "weather", "description": "Tell the weather.", "parameters": CITY},
    },
    {"type": "function", "function": {"name": "clock", "parameters": NOTHING}},
]
