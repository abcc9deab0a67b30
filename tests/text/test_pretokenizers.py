"""Every pre-tokeniser cuts as its family was trained; unknown names are refused."""

from __future__ import annotations

import time

import pytest

from twostroke.errors import UnsupportedModel
from twostroke.text.pretokenizers import PRE_TOKENIZERS, find_pre_tokenizer

TEXT = "Hello WORLD's 1234\n\n  x=中文ab, Don'T"


def _words(name: str, text: str = TEXT) -> list[str]:
    """The words as text: byte-level characters put back."""
    from twostroke.text.vocabulary import BYTE_OF_CHARACTER

    words = PRE_TOKENIZERS[name].build().pre_tokenize_str(text)
    return [bytes(BYTE_OF_CHARACTER[c] for c in word).decode() for word, _ in words]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gpt-2", "Hello| WORLD|'s| 1234|\n\n | x|=|中文ab|,| Don|'|T"),
        ("smollm", "Hello| WORLD|'s| |1|2|3|4|\n\n | x|=|中文ab|,| Don|'|T"),
        ("qwen2", "Hello| WORLD|'s| |1|2|3|4|\n\n| | x|=中文ab|,| Don|'T"),
        ("llama-bpe", "Hello| WORLD|'s| |123|4|\n\n| | x|=中文ab|,| Don|'T"),
        ("deepseek-v3", "Hello| WORLD|'s| |123|4|\n\n| | x|=|中文|ab|,| Don|'T"),
        ("gpt-4o", "Hello| WORLD's| |123|4|\n\n| | x|=中文ab|,| Don'T"),
        ("tekken", "Hello| WORLD|'s| |1|2|3|4|\n\n| | x|=中文ab|,| Don|'T"),
        ("deepseek-coder", "Hello| WORLD|'|s| |1|2|3|4|\n|\n| | x|=|中文|ab|,| Don|'|T"),
    ],
)
def test_each_family_cuts_as_it_was_trained(name: str, words: str) -> None:
    assert "|".join(_words(name)) == words


def test_every_rule_keeps_every_byte() -> None:
    text = "a \t\n\r b\u0301 ώ 中 가 😀 1½ ' 's !\u00a0?  "
    for name, rule in PRE_TOKENIZERS.items():
        assert "".join(_words(name, text)) == text, name
        normalizer = rule.normalizer()
        assert normalizer is None or normalizer.normalize_str("e\u0301") == "é"


@pytest.mark.parametrize("text", [" " * 30_000 + "x", "\n" * 30_000, "A" * 30_000, "!" * 30_000])
def test_no_rule_takes_quadratic_time(text: str) -> None:
    for name in PRE_TOKENIZERS:
        start = time.thread_time()
        _words(name, text)
        assert time.thread_time() - start < 2, name


def test_an_unknown_name_is_refused_and_named() -> None:
    with pytest.raises(UnsupportedModel, match="my-new-pre") as caught:
        find_pre_tokenizer("my-new-pre")
    assert "smollm" in str(caught.value)


@pytest.mark.parametrize("name", [None, "default"])
def test_a_missing_name_gives_a_warning(name: str | None) -> None:
    rule, warnings = find_pre_tokenizer(name)
    assert rule is PRE_TOKENIZERS["gpt-2"]
    assert "WRONG" in warnings[0]
    assert find_pre_tokenizer("gpt-2")[1] == ()
