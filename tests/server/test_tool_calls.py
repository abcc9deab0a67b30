"""Tools on the OpenAI route: shown to the model, demanded or free, by the real client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.server.serving import Served
from tests.server.tooling import TEMPLATE, TOOLS

USER = [{"role": "user", "content": "How is the weather?"}]


@pytest.fixture
def client(tooled: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=tooled.url + "/v1", api_key="x", max_retries=0) as client:
        yield client


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


CALL = '{"name": "weather", "arguments": {"city": "Rome"}}'
SAID = f"Let me see.\n<tool_call>\n{CALL}\n</tool_call>\n<tool_call>\n{CALL}\n</tool_call>"


@pytest.mark.parametrize("is_stream", [False, True])
def test_free_answers_may_hold_text_and_calls(
    tooled: Served, client: openai.OpenAI, is_stream: bool
) -> None:
    args = {"model": "tiny", "messages": USER, "tools": TOOLS, "max_tokens": 200}
    tooled.will_say(SAID)
    if is_stream:
        chunks = list(client.chat.completions.create(**args, stream=True))
        deltas = [c.choices[0].delta for c in chunks]
        text = "".join(d.content or "" for d in deltas)
        calls = [t for d in deltas for t in d.tool_calls or ()]
        assert [c.index for c in calls] == [0, 1]
        record = chunks[-1].twostroke["records"][0]
        finish = chunks[-1].choices[0].finish_reason
    else:
        reply = client.chat.completions.create(**args)
        text, calls = reply.choices[0].message.content, reply.choices[0].message.tool_calls
        record, finish = reply.twostroke["records"][0], reply.choices[0].finish_reason
    assert text == "Let me see." and finish == "tool_calls"
    assert [json.loads(c.function.arguments) for c in calls] == [{"city": "Rome"}] * 2
    output = record["output"]
    plain = len(tooled.service.tokenizer.encode("Let me see.")) + 1  # and the end token
    assert output["tool"] == output["total"] - plain and output["visible"] == plain
    assert output["reasoning"] == 0


def test_one_call_at_most_where_calls_are_not_parallel(tooled: Served) -> None:
    body = {"messages": USER, "tools": TOOLS, "parallel_tool_calls": False, "max_tokens": 200}
    tooled.will_say(SAID.rpartition("\n<tool_call>")[0])
    reply = tooled.post("/v1/chat/completions", body).json()
    assert len(reply["choices"][0]["message"]["tool_calls"]) == 1
    tooled.will_say(SAID)
    reply = tooled.post("/v1/chat/completions", body)
    tooled.throttle.script.clear()
    assert reply.status_code == 500, "the mask leaves no second call: the script breaks it"


def test_a_call_with_arguments_beyond_its_schema_cannot_be_said(tooled: Served) -> None:
    tooled.will_say(SAID.replace("Rome", "Bonn"))
    reply = tooled.post("/v1/chat/completions", {"messages": USER, "tools": TOOLS})
    tooled.throttle.script.clear()
    assert reply.status_code == 500


def test_an_answer_by_a_schema_may_be_a_call_instead(tooled: Served) -> None:
    form = {"type": "json_object"}
    body = {"messages": USER, "tools": TOOLS, "response_format": form, "max_tokens": 200}
    for said, finish in ((SAID.partition("\n")[2], "tool_calls"), ('{"a": 1}', "stop")):
        tooled.will_say(said)
        choice = tooled.post("/v1/chat/completions", body).json()["choices"][0]
        assert choice["finish_reason"] == finish
        assert (choice["message"]["content"] is None) == (finish == "tool_calls")


def test_a_schema_beyond_the_grammar_leaves_the_model_to_itself_unless_strict(
    tooled: Served,
) -> None:
    odd = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(?<=a)b$"}}}
    function = {"name": "weather", "parameters": odd}
    body = {"messages": USER, "max_tokens": 200}
    tooled.will_say(SAID)
    reply = tooled.post(
        "/v1/chat/completions", {**body, "tools": [{"type": "function", "function": function}]}
    ).json()
    assert len(reply["choices"][0]["message"]["tool_calls"]) == 2
    strict = {"type": "function", "function": {**function, "strict": True}}
    reply = tooled.post("/v1/chat/completions", {**body, "tools": [strict]})
    assert reply.status_code == 400 and reply.json()["error"]["param"] == "tools"


def test_a_reference_inside_a_tools_schema_is_followed(tooled: Served) -> None:
    parameters = {
        "type": "object",
        "properties": {"city": {"$ref": "#/$defs/City"}},
        "required": ["city"],
        "additionalProperties": False,
        "$defs": {"City": {"enum": ["Rome", "Oslo"]}},
    }
    tool = {"type": "function", "function": {"name": "weather", "parameters": parameters}}
    body = {"messages": USER, "tools": [tool], "tool_choice": "required", "max_tokens": 100}
    reply = tooled.post("/v1/chat/completions", body).json()
    (call,) = reply["choices"][0]["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"])["city"] in ("Rome", "Oslo")


def test_a_template_without_tools_has_them_said_in_the_system_message(served: Served) -> None:
    assert not served.service.prompts.template_reads("tools")
    call = {"id": "c1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
    messages = [
        *USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "noon"},
    ]
    body = {"messages": messages, "tools": TOOLS, "tool_choice": "required", "max_tokens": 100}
    reply = served.post("/v1/chat/completions", body).json()
    assert reply["choices"][0]["finish_reason"] == "tool_calls"
    ids = served.post("/tokenize", {"messages": messages}).json()["tokens"]
    text = served.service.tokenizer.decode(ids)
    assert "<tool_response>\nnoon" in text and '{"name": "clock", "arguments": {}}' in text
    assert reply["usage"]["prompt_tokens"] > len(ids) + 100


def test_llama3_answers_are_calls_as_a_whole(tiny_path: Path) -> None:
    source = TEMPLATE.replace("<tool_call>", '{"name": x, "parameters": dictionary}')
    with Served(tiny_path, template=source) as served:
        assert served.service.prompts.tool_format.name == "llama3"
        body = {"messages": USER, "tools": TOOLS, "max_tokens": 100}
        forced = served.post("/v1/chat/completions", {**body, "tool_choice": "required"}).json()
        assert len(forced["choices"][0]["message"]["tool_calls"]) == 1
        served.will_say(CALL.replace("arguments", "parameters"))
        free = served.post("/v1/chat/completions", body).json()
        assert free["choices"][0]["finish_reason"] == "tool_calls"
        served.will_say("It is {warm}.")
        text = served.post("/v1/chat/completions", body).json()["choices"][0]
        assert text["message"]["content"] == "It is {warm}." and text["finish_reason"] == "stop"
        served.check_idle()


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
        {"tools": TOOLS[:1] * 2},
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
