"""Tools on Ollama's route, by the real `ollama` client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ollama
import pytest

from tests.server.serving import Served
from tests.server.tooling import TOOLS

USER = [{"role": "user", "content": "How is the weather?"}]
SAID = 'Look: <tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


def weather(city: str) -> str:
    """Tell the weather.

    Args:
        city: where
    """
    return f"snow in {city}"


@pytest.fixture
def client(tooled: Served) -> Iterator[ollama.Client]:
    client = ollama.Client(host=tooled.url)
    yield client
    client._client.close()


@pytest.mark.parametrize("tools", [TOOLS, [weather]])
def test_an_answer_has_text_and_calls_streamed_or_not(
    tooled: Served, client: ollama.Client, tools: list[Any]
) -> None:
    tooled.will_say(SAID)
    whole = client.chat("tiny", USER, tools=tools)
    assert whole.message.content == "Look:" and whole.done_reason == "stop"
    (call,) = whole.message.tool_calls
    assert call.function.name == "weather" and call.function.arguments == {"city": "Oslo"}
    tooled.will_say(SAID)
    parts = list(client.chat("tiny", USER, tools=tools, stream=True))
    assert "".join(p.message.content for p in parts) == "Look:"
    calls = [c for p in parts for c in p.message.tool_calls or ()]
    assert calls == [call] and parts[-1].done and not parts[-1].message.tool_calls


def test_a_call_and_its_result_go_back_to_the_model(tooled: Served, client: ollama.Client) -> None:
    tooled.will_say(SAID)
    first = client.chat("tiny", USER, tools=[weather])
    (call,) = first.message.tool_calls
    told = weather(**call.function.arguments)
    messages = [*USER, first.message, {"role": "tool", "tool_name": "weather", "content": told}]
    tooled.will_say("It snows.")
    last = client.chat("tiny", messages, tools=[weather])
    assert last.message.content == "It snows." and last.message.tool_calls is None
    assert last.prompt_eval_count > first.prompt_eval_count


def test_json_and_tools_together_leave_json_or_a_call(
    tooled: Served, client: ollama.Client
) -> None:
    for said, has_call in ((SAID.partition(" ")[2], True), ('{"a": 1}', False)):
        tooled.will_say(said)
        reply = client.chat("tiny", USER, tools=TOOLS, format="json")
        assert bool(reply.message.tool_calls) is has_call


def test_the_model_says_that_it_takes_tools(client: ollama.Client) -> None:
    assert client.show("tiny").capabilities == ["completion", "tools"]


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "function"}]},
        {"tools": [TOOLS[0], TOOLS[0]]},
        {"tools": [{"type": "web", "function": {"name": "x"}}]},
        {"tools": TOOLS * 65},
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": 3}}]}, *USER]},
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {
            "name": "weather", "arguments": "{}"}}]}, *USER]},
    ],
)  # fmt: skip
def test_bad_tools_are_400(tooled: Served, fields: dict[str, Any]) -> None:
    body = {"model": "tiny", "messages": USER, **fields}
    assert tooled.post("/api/chat", body).status_code == 400
