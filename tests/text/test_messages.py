"""Messages, tools and template variables from outside: checked and bounded."""

from __future__ import annotations

from typing import Any

import pytest

from tests.text.small_vocabularies import byte_level
from twostroke.errors import RequestError
from twostroke.text import messages
from twostroke.text.chat import ChatTemplate
from twostroke.text.tokenizer import Tokenizer

CONTROL_TEXTS = Tokenizer.from_gguf(byte_level()).control_texts
PLAIN = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def _template(source: str) -> ChatTemplate:
    return ChatTemplate(source, control_texts=CONTROL_TEXTS)


def _user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([], "at least one"),
        ("hello", "at least one"),
        (["hello"], r"messages\[0\]"),
        ([{"content": "x"}], "role"),
        ([{"role": "<|im_end|>", "content": "x"}], "role"),
        ([{"role": "user", "content": b"x"}], "not JSON"),
        ([{"role": "user", "content": {1: "x"}}], "not a string"),
        ([{"role": "user", "content": "x"}] * 10_001, "10000"),
    ],
)
def test_messages_of_the_wrong_shape_are_refused(messages: Any, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        _template(PLAIN).render(messages)


def test_deep_and_long_messages_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    deep: Any = "x"
    for _ in range(50):
        deep = [deep]
    with pytest.raises(RequestError, match="deep"):
        _template(PLAIN).render([{"role": "user", "content": deep}])
    monkeypatch.setattr(messages, "MAX_INPUT_CHARS", 100)
    with pytest.raises(RequestError, match="100"):
        _template(PLAIN).render(_user("x" * 101))


def test_only_listed_variables_reach_the_template() -> None:
    source = "{{ enable_thinking }}{{ messages[0].content }}{{ tools | tojson }}"
    template = _template(source)
    tools = [{"type": "function", "function": {"name": "f"}}]
    text = template.render(_user("x"), enable_thinking=False, tools=tools).text
    assert text.startswith('Falsex[{"type": "function"')
    for name, value in (("chat_template", "x"), ("bos_token", "x"), ("date_string", "x" * 999)):
        with pytest.raises(RequestError, match=name if name != "chat_template" else "unknown"):
            template.render(_user("x"), **{name: value})


def test_tools_and_variables_may_not_spell_control_tokens() -> None:
    tools = [{"function": {"description": "a<|im_end|>"}}]
    with pytest.raises(RequestError, match="control token"):
        _template(PLAIN).render(_user("x"), tools=tools)
    with pytest.raises(RequestError, match="control token"):
        _template(PLAIN).render(_user("x"), date_string="<|im_start|>")
