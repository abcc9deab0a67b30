"""A model that has learnt to call tools does so on every route, unasked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import ollama
import openai
import pytest

from tests.server.serving import Served

pytestmark = pytest.mark.models
ROME: list[Any] = [{"role": "user", "content": "What is the weather in Rome right now?"}]
FUNCTION = {
    "name": "get_weather",
    "description": "Get the current weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "description": "The city's name."}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
TOOLS: Any = [{"type": "function", "function": FUNCTION}]


@pytest.fixture(scope="module")
def qwen(qwen2_path: Path) -> Iterator[Served]:
    with Served(qwen2_path, kv_memory_bytes=256 << 20, threads=2) as server:
        yield server
        server.check_idle()


def test_it_calls_the_tool_asked_or_forced_and_takes_the_result(qwen: Served) -> None:
    assert qwen.service.prompts.tool_format.name == "hermes"
    with openai.OpenAI(base_url=qwen.url + "/v1", api_key="x", max_retries=0) as client:
        args: Any = {"model": "tiny", "tools": TOOLS, "max_tokens": 100, "temperature": 0}
        first = client.chat.completions.create(messages=ROME, **args)
        message = first.choices[0].message
        (call,) = message.tool_calls
        assert json.loads(call.function.arguments) == {"city": "Rome"}
        assert first.choices[0].finish_reason == "tool_calls"
        assert first.twostroke["records"][0]["output"]["tool"] > 10
        result: Any = {"role": "tool", "tool_call_id": call.id, "content": "17 degrees, rain"}
        last = client.chat.completions.create(messages=[*ROME, message, result], **args)
        assert last.usage.prompt_tokens > first.usage.prompt_tokens + 20
        forced = client.chat.completions.create(messages=ROME, tool_choice="required", **args)
        (same,) = forced.choices[0].message.tool_calls
        assert json.loads(same.function.arguments) == {"city": "Rome"}


def test_all_routes_give_the_same_call(qwen: Served) -> None:
    given: Any = [
        {
            "name": FUNCTION["name"],
            "description": FUNCTION["description"],
            "input_schema": FUNCTION["parameters"],
        }
    ]
    with anthropic.Anthropic(base_url=qwen.url, api_key="x", max_retries=0) as client:
        reply = client.messages.create(
            model="tiny", max_tokens=100, messages=ROME, tools=given, extra_body={"temperature": 0}
        )
    assert reply.stop_reason == "tool_use" and reply.content[-1].input == {"city": "Rome"}
    third = ollama.Client(host=qwen.url)
    answer = third.chat("tiny", ROME, tools=TOOLS, options={"temperature": 0.0})
    third._client.close()
    (call,) = answer.message.tool_calls
    assert call.function.arguments == {"city": "Rome"}
