"""Ids equal an independent oracle's, text for text (see tests/golden/tokens/make_tokens.py)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from twostroke.formats.gguf import open_gguf
from twostroke.text.tokenizer import Tokenizer

GOLDEN = Path(__file__).parent.parent / "golden" / "tokens"
CORPUS = json.loads((GOLDEN / "corpus.json").read_text())

# Text that spells U+2581 itself: the GGUF file keeps Gemma's runs of spaces as spaces, so
# llama.cpp's ids are ours too.
FOLLOWS_LLAMA_CPP = {("gemma3", "fake_byte_token")}


def _load(path: Path, cache_dir: Path) -> Tokenizer:
    with open_gguf(path) as file:
        return Tokenizer.from_gguf(file.metadata, cache_dir)


def _check(tokenizer: Tokenizer, name: str) -> None:
    golden = json.loads((GOLDEN / f"{name}.json").read_text())
    wrong = []
    for group, special in (("plain", False), ("special", True)):
        for entry in CORPUS[group]:
            text = entry["text"].replace("{end}", golden["end"])
            ids = tokenizer.encode(text, parse_special=special)
            right = golden[group][entry["name"]]
            if (name, entry["name"]) in FOLLOWS_LLAMA_CPP:
                right = golden["llama_cpp_differs"][entry["name"]]
            if ids != right:
                wrong.append((entry["name"], ids, right))
    assert not wrong


def _check_both(tokenizer: Tokenizer, name: str) -> None:
    """Check plain Python's ids, then the library's."""
    _check(tokenizer, name)
    tokenizer.build_library()
    _check(tokenizer, name)


def _check_round_trip(tokenizer: Tokenizer) -> None:
    for entry in CORPUS["plain"]:
        ids = tokenizer.encode(entry["text"])
        assert not any(tokenizer.is_control(i) for i in ids), entry["name"]
        assert tokenizer.decode(ids) == entry["text"], entry["name"]


def test_the_corpus_covers_many_languages_and_hard_cases() -> None:
    names = {entry["name"] for entry in CORPUS["plain"]}
    assert len(names) == len(CORPUS["plain"]) >= 60
    assert {"russian", "polish", "vietnamese", "korean", "chinese", "digits_long", "empty"} <= names


@pytest.mark.weights
def test_smollm2_ids_equal_the_oracle(smollm2_path: Path, tmp_path: Path) -> None:
    tokenizer = _load(smollm2_path, tmp_path)
    _check_both(tokenizer, "smollm2")
    _check_round_trip(tokenizer)


@pytest.mark.models
def test_qwen2_ids_equal_the_oracle(qwen2_path: Path, tmp_path: Path) -> None:
    _check_both(_load(qwen2_path, tmp_path), "qwen2")


@pytest.mark.models
def test_gemma3_ids_equal_the_oracle_derived_and_from_the_cache(
    gemma3_path: Path, tmp_path: Path
) -> None:
    for _ in range(2):
        _check_both(_load(gemma3_path, tmp_path), "gemma3")
        assert len(list(tmp_path.iterdir())) == 1
