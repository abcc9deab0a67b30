"""Tools: shown to the model, demanded by grammar, read out of its words; odd calls are text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.server.serving import Served
from twostroke.server.tool_calls import ToolText

NAMES = frozenset({"weather", "clock"})
USER = [{"role": "user", "content": "How is the weather?"}]
TEMPLATE = (
    "{% if tools %}Tools as <tool_call>: {{ tools | tojson }}\n{% endif %}"
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}"
    "{% if m.tool_calls %}{{ m.tool_calls[0].function.arguments.city }}{% endif %}\n{% endfor %}"
)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Tell the weather.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"enum": ["Rome", "Oslo"]}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    },
    {"type": "function", "function": {"name": "clock", "parameters": {
        "type": "object", "properties": {}, "additionalProperties": False}}},
]  # fmt: skip


@pytest.fixture(scope="module")
def tooled(tiny_path: Path) -> Iterator[Served]:
    with Served(tiny_path, template=TEMPLATE) as server:
        yield server
        server.check_idle()


@pytest.fixture
def client(tooled: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=tooled.url + "/v1", api_key="x", max_retries=0) as client:
        yield client


def split(text: str, step: int = 1, *, is_forced: bool = False) -> tuple[str, list[dict]]:
    tool_text = ToolText(NAMES, is_forced=is_forced)
    shown, calls = "", []
    for i in range(0, len(text), step):
        part, some = tool_text.push(text[i : i + step])
        shown, calls = shown + part, calls + some
    part, some = tool_text.finish()
    return shown + part, calls + some


CALL = '{"name": "weather", "arguments": {"city": "Rome"}}'


@given(st.integers(1, 40))
def test_calls_are_read_whatever_the_chunks(step: int) -> None:
    text = f"a<b<tool_call>\n{CALL}\n</tool_call>mid<tool_call>{CALL}</tool_call>end"
    shown, calls = split(text, step)
    assert shown == "a<bmidend"
    assert [c["index"] for c in calls] == [0, 1]
    assert calls[0]["function"] == {"name": "weather", "arguments": '{"city": "Rome"}'}
    assert calls[0]["id"] != calls[1]["id"]


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>no json</tool_call>",
        '<tool_call>{"name": "other", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "weather", "arguments": 3}</tool_call>',
        '<tool_call>{"name": ["weather"]}</tool_call>',
        "<tool_call>[]</tool_call>",
        "<tool_call>" + "[" * 5000 + "</tool_call>",
        "<tool_call>cut off",
        "<tool_call></tool_call>",
        "</tool_call>",
        "<tool_",
    ],
)
def test_b4_an_odd_call_is_plain_text(text: str) -> None:
    assert split("x" + text) == ("x" + text, [])


def test_a_call_that_the_end_closed_counts() -> None:
    shown, (call,) = split(f"so: <tool_call>{CALL}")
    assert shown == "so: " and call["function"]["name"] == "weather"


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_demanded_call_is_valid(client: openai.OpenAI, is_stream: bool) -> None:
    for choice, names in (
        ("required", {"weather", "clock"}),
        ({"type": "function", "function": {"name": "weather"}}, {"weather"}),
    ):
        args = {"model": "tiny", "messages": USER, "tools": TOOLS, "tool_choice": choice}
        args |= {"max_tokens": 100, "temperature": 1.0, "seed": 5}
        if is_stream:
            chunks = list(client.chat.completions.create(**args, stream=True))
            calls = [t for c in chunks for t in c.choices[0].delta.tool_calls or ()]
            assert not any(c.choices[0].delta.content for c in chunks)
            assert chunks[0].choices[0].delta.role == "assistant"
            finish = chunks[-1].choices[0].finish_reason
        else:
            reply = client.chat.completions.create(**args)
            calls, finish = reply.choices[0].message.tool_calls, reply.choices[0].finish_reason
            assert reply.choices[0].message.content is None
        assert finish == "tool_calls"
        (call,) = calls
        assert call.function.name in names and call.id.startswith("call_")
        arguments = json.loads(call.function.arguments)
        assert call.function.name == "clock" or arguments["city"] in ("Rome", "Oslo")


def test_tools_change_the_prompt_unless_none_are_wanted(client: openai.OpenAI) -> None:
    def num_prompt(**fields: object) -> int:
        reply = client.chat.completions.create(model="tiny", messages=USER, max_tokens=1, **fields)
        return reply.usage.prompt_tokens

    bare = num_prompt()
    assert num_prompt(tools=TOOLS) > bare + 50
    assert num_prompt(tools=TOOLS, tool_choice="none") == bare


def test_a_conversation_with_calls_goes_back_to_the_model(tooled: Served) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather",
            "arguments": '{"city": "Rome"}'}}  # fmt: skip
    messages = [
        *USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
    ]
    body = {"messages": messages, "tools": TOOLS, "max_tokens": 2}
    assert tooled.post("/v1/chat/completions", body).status_code == 200
    call["function"]["arguments"] = "{broken"
    assert tooled.post("/v1/chat/completions", body).status_code == 400
    del call["function"]
    assert tooled.post("/v1/chat/completions", body).status_code == 400


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "function"}]},
        {"tools": [{"type": "function", "function": {"name": "a b"}}]},
        {"tools": TOOLS * 65},
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "none"}}},
        {"tools": TOOLS, "tool_choice": "sometimes"},
        {"tool_choice": "required"},
        {"tools": TOOLS, "tool_choice": "required", "response_format": {"type": "json_object"}},
        {
            "tools": [
                {
                    "type": "function",
                    "function": {
                        "name": "f",
                        "parameters": {"type": "string", "pattern": "^(?<=a)b$"},
                    },
                }
            ],
            "tool_choice": "required",
        },
    ],
)
def test_bad_tools_are_400(tooled: Served, fields: dict) -> None:
    body = {"messages": USER, "max_tokens": 2, **fields}
    assert tooled.post("/v1/chat/completions", body).status_code == 400
