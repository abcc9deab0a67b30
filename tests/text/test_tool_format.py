"""Which form a template teaches, what counts as a call, and tools as plain words."""

from __future__ import annotations

import json

import pytest

from twostroke.text.tool_format import (
    HERMES,
    LLAMA3,
    STATED,
    parsed_calls,
    stated_messages,
    tool_format,
)

NAMES = frozenset({"weather", "clock"})
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CALL = {"name": "weather", "arguments": {"city": "Rome"}}


@pytest.mark.parametrize(
    ("source", "control", "form"),
    [
        ('{% if tools %}<tool_call>\n{\\"name\\": ...}', (), HERMES),
        ("{{ tools }} <tool_call>", ("<tool_call>",), STATED),
        ("{{ tools }} <tool_call><function=name>", (), STATED),
        ("{{ tools }} <tool_call>name<arg_key>", (), STATED),
        ('{{ tools }} {"name": function name, "parameters": dictionary of', (), LLAMA3),
        ("[AVAILABLE_TOOLS]{{ tools }}", (), STATED),
        ("{{ messages }}", (), STATED),
    ],
)
def test_the_template_shows_the_form_that_its_model_learnt(
    source: str, control: tuple[str, ...], form: object
) -> None:
    assert tool_format(source, frozenset(control)) is form


def test_one_call_a_list_and_several_objects_are_calls() -> None:
    one = json.dumps(CALL)
    other = '{"type": "function", "name": "clock", "parameters": {}}'
    for text, names in (
        (one, ["weather"]),
        (f"\n {one} \n", ["weather"]),
        (f"[{one}, {other}]", ["weather", "clock"]),
        (f"{other}; {one}", ["clock", "weather"]),
        (f"{one}\n{other}", ["weather", "clock"]),
    ):
        calls = parsed_calls(text, NAMES)
        assert [c.name for c in calls] == names
        assert len({c.id for c in calls}) == len(calls)
    assert parsed_calls(one, NAMES)[0].arguments == {"city": "Rome"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no json",
        "{",
        "3",
        "null",
        "[[]]",
        "[" * 5000,
        '{"name": "other", "arguments": {}}',
        '{"name": "weather", "arguments": 3}',
        '{"name": "weather", "arguments": {"a": NaN}}',
        '{"name": ["weather"]}',
        '{"name": "weather"} and more',
        '{"name": "weather"}, {"name": "other"}',
        json.dumps([CALL] * 129),
    ],
)
def test_b4_anything_else_is_none(text: str) -> None:
    assert parsed_calls(text, NAMES) == ()


def test_tools_calls_and_results_become_words_and_roles_still_alternate() -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "1", "function": CALL}, {"function": {"name": "clock"}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "sunny"},
        {"role": "tool", "name": "clock", "content": "noon"},
        {"role": "user", "content": "And?"},
    ]
    told = stated_messages(messages, [TOOL])
    assert [m["role"] for m in told] == ["system", "user", "assistant", "user"]
    assert told[0]["content"].startswith("Be brief.\n\n")
    assert json.dumps(TOOL["function"]) in told[0]["content"]
    written = told[2]["content"].replace("<tool_call>\n", "").split("\n</tool_call>")
    assert json.loads(written[0]) == CALL and json.loads(written[1])["name"] == "clock"
    assert told[3]["content"] == (
        "<tool_response>\nsunny\n</tool_response>\n<tool_response>\nnoon\n</tool_response>\nAnd?"
    )
    assert all(set(m) == {"role", "content"} for m in told)
    assert messages[0]["content"] == "Be brief.", "what came in is not written to"


def test_without_a_system_message_tools_bring_one_and_without_tools_nothing_changes() -> None:
    messages = [{"role": "user", "content": "Weather?"}]
    assert [m["role"] for m in stated_messages(messages, [TOOL])] == ["system", "user"]
    assert stated_messages(messages, []) == messages
