"""Tools on Anthropic's route, by the real `anthropic` client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from tests.server.serving import Served
from tests.server.tooling import CITY, NOTHING

USER: list[Any] = [{"role": "user", "content": "How is the weather?"}]
TOOLS: list[Any] = [
    {"name": "weather", "description": "Tell the weather.", "input_schema": CITY},
    {"name": "clock", "input_schema": NOTHING, "type": "custom"},
]
SAID = (
    'Let me see.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
    '\n<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
)


@pytest.fixture
def client(tooled: Served) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=tooled.url, api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ({"type": "any"}, {"weather", "clock"}),
        ({"type": "tool", "name": "weather"}, {"weather"}),
    ],
)
def test_a_demanded_call_is_valid(
    client: anthropic.Anthropic, choice: Any, names: set[str]
) -> None:
    reply = client.messages.create(
        model="tiny", max_tokens=100, messages=USER, tools=TOOLS, tool_choice=choice
    )
    (call,) = reply.content
    assert reply.stop_reason == "tool_use" and call.type == "tool_use"
    assert call.name in names and call.id.startswith("toolu_")
    assert call.name == "clock" or call.input["city"] in ("Rome", "Oslo")


def test_a_free_answer_has_text_and_calls_streamed_or_not(
    tooled: Served, client: anthropic.Anthropic
) -> None:
    args: Any = {"model": "tiny", "max_tokens": 200, "messages": USER, "tools": TOOLS}
    tooled.will_say(SAID)
    whole = client.messages.create(**args)
    assert [b.type for b in whole.content] == ["text", "tool_use", "tool_use"]
    assert whole.content[0].text == "Let me see."
    assert whole.content[1].input == {"city": "Oslo"} and whole.content[2].input == {}
    tooled.will_say(SAID)
    with client.messages.stream(**args) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert "input_json" in kinds, "the client saw input_json_delta"
    assert final.stop_reason == whole.stop_reason == "tool_use"
    assert [b.type for b in final.content] == ["text", "tool_use", "tool_use"]
    assert [b.input for b in final.content[1:]] == [{"city": "Oslo"}, {}]


def test_calls_and_results_go_back_to_the_model(
    tooled: Served, client: anthropic.Anthropic
) -> None:
    tooled.will_say(SAID)
    args: Any = {"model": "tiny", "max_tokens": 200, "tools": TOOLS}
    first = client.messages.create(messages=USER, **args)
    results: list[Any] = [
        {"type": "tool_result", "tool_use_id": first.content[1].id, "content": "snow"},
        {
            "type": "tool_result",
            "tool_use_id": first.content[2].id,
            "content": [{"type": "text", "text": "broken"}],
            "is_error": True,
        },
        {"type": "text", "text": "So?"},
    ]
    answer: Any = {"role": "assistant", "content": first.content}
    messages: Any = [*USER, answer, {"role": "user", "content": results}]
    tooled.will_say("It snows.")
    last = client.messages.create(messages=messages, **args)
    assert last.content[0].text == "It snows." and last.stop_reason == "end_turn"
    count = client.messages.count_tokens(model="tiny", messages=messages, tools=TOOLS)
    assert count.input_tokens == last.usage.input_tokens + last.usage.cache_read_input_tokens
    roles = [
        {"role": "user", "content": USER[0]["content"]},
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [
                {"id": "1", "type": "function",
                 "function": {"name": "weather", "arguments": {"city": "Oslo"}}},
                {"id": "2", "type": "function", "function": {"name": "clock", "arguments": {}}},
            ],
        },
        {"role": "tool", "tool_call_id": "1", "content": "snow"},
        {"role": "tool", "tool_call_id": "2", "content": "Error: broken"},
        {"role": "user", "content": "So?"},
    ]  # fmt: skip
    same = tooled.post("/tokenize", {"messages": roles}).json()
    messages[1] = {"role": "assistant", "content": [b.model_dump() for b in first.content]}
    bare = client.messages.count_tokens(model="tiny", messages=messages)
    assert bare.input_tokens == same["count"], "the same conversation as on OpenAI's route"


def test_no_tools_are_shown_where_none_may_be_called(client: anthropic.Anthropic) -> None:
    args: Any = {"model": "tiny", "messages": USER}
    bare = client.messages.count_tokens(**args)
    none = client.messages.count_tokens(**args, tools=TOOLS, tool_choice={"type": "none"})
    assert bare == none


def test_a_thinking_block_may_come_back(client: anthropic.Anthropic) -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": ""}
    answer = {"role": "assistant", "content": [thought, {"type": "text", "text": "Hi."}]}
    messages: Any = [*USER, answer, *USER]
    assert client.messages.create(model="tiny", max_tokens=2, messages=messages).content


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"name": "a b", "input_schema": {}}]},
        {"tools": [{"name": "a"}]},
        {"tools": [{"name": "a", "input_schema": {"type": "string"}}]},
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        {"tools": [TOOLS[0], TOOLS[0]]},
        {"tools": TOOLS * 65},
        {"tool_choice": {"type": "any"}},
        {"tools": TOOLS, "tool_choice": {"type": "tool", "name": "other"}},
        {"tools": TOOLS, "tool_choice": {"type": "tool"}},
        {"tools": TOOLS, "tool_choice": {"type": "auto", "name": "weather"}},
        {"messages": [{"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "never", "content": "x"}]}]},
        {"messages": [{"role": "user", "content": [
            {"type": "tool_use", "id": "x", "name": "weather", "input": {}}]}]},
        {"messages": [*USER, {"role": "assistant", "content": [
            {"type": "tool_result", "tool_use_id": "x"}]}, *USER]},
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
    ],
)  # fmt: skip
def test_bad_tools_are_400(tooled: Served, fields: dict[str, Any]) -> None:
    reply = tooled.post("/v1/messages", {"messages": USER, "max_tokens": 2, **fields})
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["type"] == "invalid_request_error"
