"""Calls taken out of text as it streams, whatever the chunks; odd ones stay text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twostroke.text.tool_format import HERMES, LLAMA3, ToolCall, ToolFormat
from twostroke.text.tool_text import ToolText

NAMES = frozenset({"weather", "clock"})
CALL = '{"name": "weather", "arguments": {"city": "Rome"}}'
ODD = [
    "<tool_call>no json</tool_call>",
    '<tool_call>{"name": "other", "arguments": {}}</tool_call>',
    " <tool_call>[]</tool_call> ",
    "<tool_call>" + "[" * 5000 + "</tool_call>",
    "<tool_call>cut off",
    "\n<tool_call></tool_call>\n",
    "</tool_call>",
    "<tool_",
    "  ",
]


def split(text: str, step: int = 1, form: ToolFormat = HERMES) -> tuple[str, list[ToolCall]]:
    tool_text = ToolText(form, NAMES)
    shown, calls = "", []
    for i in range(0, len(text), step):
        part, some = tool_text.push(text[i : i + step])
        shown, calls = shown + part, [*calls, *some]
    part, some = tool_text.finish()
    assert not tool_text.is_holding
    return shown + part, [*calls, *some]


@given(st.integers(1, 40))
def test_calls_are_read_however_the_text_is_chunked(step: int) -> None:
    text = f"a<b \n<tool_call>\n{CALL}\n</tool_call>\nmid <tool_call>[{CALL},{CALL}]</tool_call>end"
    shown, calls = split(text, step)
    assert shown == "a<bmidend", "blanks beside a call go with it"
    assert [c.name for c in calls] == ["weather"] * 3
    assert calls[0].arguments == {"city": "Rome"} and len({c.id for c in calls}) == 3


@given(st.text(alphabet=" \n<a>tool_call/", max_size=60), st.integers(1, 7))
def test_text_without_a_call_comes_out_unchanged(text: str, step: int) -> None:
    assert split(text, step) == (text, [])


@pytest.mark.parametrize("text", ODD)
@pytest.mark.parametrize("step", [1, 3, 10_000])
def test_b4_an_odd_call_is_plain_text(text: str, step: int) -> None:
    assert split("x" + text, step) == ("x" + text, [])


def test_a_call_that_the_end_closed_counts() -> None:
    shown, (call,) = split(f"so: <tool_call>{CALL}")
    assert shown == "so:" and call.name == "weather"


def test_text_is_held_only_while_it_may_be_part_of_a_call() -> None:
    tool_text = ToolText(HERMES, NAMES)
    for text, out, is_holding in (
        ("word", "word", False),
        (" ", "", True),
        ("<b", " <b", False),
        ("<too", "", True),
        ("k", "<took", False),
        ("<tool_call>", "", True),
        ("x</tool_call>y", "<tool_call>x</tool_call>y", False),
    ):
        assert tool_text.push(text)[0] == out
        assert tool_text.is_holding is is_holding


@pytest.mark.parametrize("form", [HERMES, LLAMA3])
@pytest.mark.parametrize("step", [1, 4, 10_000])
def test_a_bare_call_counts_in_every_form(form: ToolFormat, step: int) -> None:
    spaced = CALL.replace("{", "{\n  ")
    for text in (CALL, f" {CALL}\n", f"[{CALL}]", f"```json\n{spaced}\n```", f"```\n{CALL}\n```"):
        shown, calls = split(text, step, form)
        assert shown == "" and calls[0].arguments == {"city": "Rome"}
    for text in ('{"name": "weather"', "```json\n{}\n```", '```json\n{"name": 1}\n```', CALL + "!"):
        assert split(text, step, form) == (text, [])


def test_json_that_is_no_call_streams() -> None:
    tool_text = ToolText(HERMES, NAMES)
    assert tool_text.push('{"na')[0] == ""
    assert tool_text.push('tion":')[0] == '{"nation":'
    assert ToolText(HERMES, NAMES).push("```python\n")[0] == "```python"


@given(st.integers(1, 40))
def test_an_answer_that_opens_as_json_is_calls_or_text_as_a_whole(step: int) -> None:
    call = CALL.replace("arguments", "parameters")
    shown, calls = split(f"\n{call}; {call}", step, LLAMA3)
    assert shown == "" and len(calls) == 2
    for text in ("Hi " + call, call + " so", "{cut", "[1, 2]", "", "  ", "plain"):
        assert split(text, step, LLAMA3) == (text, [])
