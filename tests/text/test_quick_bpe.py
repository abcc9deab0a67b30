"""Plain Python's BPE and the library's give the same ids and the same places."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.text.small_vocabularies import byte_level, sentencepiece
from twostroke.formats.gguf import open_gguf
from twostroke.text.bpe import QUICK_CHARS
from twostroke.text.quick_bpe import merged
from twostroke.text.segments import Segment
from twostroke.text.tokenizer import Tokenizer

MERGES = ("a b", "b a", "a a", "ab a", "aa aa", "a ba", "Ġ a", "Ġ Ġ", "Ã ©", "Ã© a")
PIECES = (
    ("a", -20.0), ("b", -21.0), ("▁", -22.0), ("ab", -3.0), ("ba", -2.0), ("aa", -2.0),
    ("aba", -1.0), ("▁a", -4.0), ("▁▁", -5.0), ("aaaa", -1.0), ("é", -9.0), ("éa", -7.0),
)  # fmt: skip


def _pairs() -> list[tuple[Tokenizer, Tokenizer]]:
    files = [
        byte_level(MERGES, user_defined=("<u>", "aab")),
        byte_level(MERGES, user_defined=("b b",), pre="qwen2"),
        byte_level(MERGES, pre="llama-bpe"),
        sentencepiece(PIECES),
        sentencepiece(PIECES, add_space_prefix=False),
    ]
    pairs = [(Tokenizer.from_gguf(file), Tokenizer.from_gguf(file)) for file in files]
    for _, library in pairs:
        library.build_library()
    return pairs


PAIRS = _pairs()


def _both(text: str, quick: Tokenizer, library: Tokenizer) -> None:
    quick._bpe._library = None  # text to normalise has it built
    segments, cuts = [Segment(text, True)], list(range(len(text) + 1))
    assert quick.encode_with_cuts(segments, cuts) == library.encode_with_cuts(segments, cuts)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.text("ab é<u>▁\n中😀e\u0301"))
def test_small_vocabularies_agree(text: str) -> None:
    for quick, library in PAIRS:
        _both(text, quick, library)
        assert quick._bpe._library is None or "\u0301" in text


@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(st.text())
def test_any_text_agrees(text: str) -> None:
    for quick, library in PAIRS:
        _both(text, quick, library)


def test_equal_ranks_merge_from_the_left() -> None:
    assert merged(list("aaaaa"), lambda left, right: 0 if left == right == "a" else None) == [
        "aa",
        "aa",
        "a",
    ]
    assert merged([], lambda *_: 0) == []


def test_a_long_word_takes_no_quadratic_time() -> None:
    start = time.thread_time()
    merged(["a"] * 50_000, lambda left, right: len(left) + len(right))
    assert time.thread_time() - start < 5


def test_a_long_text_goes_to_the_library() -> None:
    tokenizer = Tokenizer.from_gguf(byte_level())
    tokenizer.encode("a" * QUICK_CHARS)
    assert tokenizer._bpe._library is None
    tokenizer.encode("a" * (QUICK_CHARS + 1))
    assert tokenizer._bpe._library is not None


def _check_random_texts(path: Path, cache_dir: Path) -> None:
    with open_gguf(path) as file:
        quick = Tokenizer.from_gguf(file.metadata, cache_dir)
        library = Tokenizer.from_gguf(file.metadata, cache_dir)
    library.build_library()
    draw = random.Random(1)
    for _ in range(300):
        text = quick.decode(draw.randrange(quick.vocab_size) for _ in range(draw.randrange(40)))
        _both(text, quick, library)


@pytest.mark.weights
def test_smollm2_agrees_on_random_tokens(smollm2_path: Path, tmp_path: Path) -> None:
    _check_random_texts(smollm2_path, tmp_path)


@pytest.mark.models
def test_qwen2_agrees_on_random_tokens(qwen2_path: Path, tmp_path: Path) -> None:
    _check_random_texts(qwen2_path, tmp_path)


@pytest.mark.models
def test_gemma3_agrees_on_random_tokens(gemma3_path: Path, tmp_path: Path) -> None:
    _check_random_texts(gemma3_path, tmp_path)
