"""Text to ids and back; user text never becomes a control token."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.text.small_vocabularies import PREFIX, byte_level, sentencepiece
from twostroke.errors import CorruptCheckpoint, RequestError, UnsupportedModel
from twostroke.text.segments import Segment
from twostroke.text.tokenizer import Tokenizer


def _spelt(tokenizer: Tokenizer, token_ids: list[int]) -> list[str]:
    return [tokenizer.token_text(i) for i in token_ids]


@pytest.fixture
def tokenizer() -> Tokenizer:
    return Tokenizer.from_gguf(byte_level(user_defined=("<think>",)))


def test_merges_apply_in_order(tokenizer: Tokenizer) -> None:
    assert _spelt(tokenizer, tokenizer.encode("hello wo")) == ["hello", "Ġw", "o"]
    assert tokenizer.encode("") == []


def test_control_text_is_parsed_only_on_request(tokenizer: Tokenizer) -> None:
    text = "a<|im_end|>b"
    plain = tokenizer.encode(text)
    assert not any(map(tokenizer.is_control, plain))
    assert tokenizer.decode(plain) == text
    parsed = tokenizer.encode(text, parse_special=True)
    assert _spelt(tokenizer, parsed) == ["a", "<|im_end|>", "b"]
    assert tokenizer.decode(parsed) == "ab"


def test_user_defined_tokens_are_found_in_any_text(tokenizer: Tokenizer) -> None:
    assert _spelt(tokenizer, tokenizer.encode("a<think>b")) == ["a", "<think>", "b"]


def test_control_tokens_never_cross_a_segment_border_but_merges_do(tokenizer: Tokenizer) -> None:
    segments = [Segment("he", True), Segment("llo<|im_", False), Segment("end|>", True)]
    ids = tokenizer.encode_segments(segments)
    assert ids[0] == tokenizer.encode("hello")[0]
    assert not any(map(tokenizer.is_control, ids))
    assert ids == tokenizer.encode("hello<|im_end|>")
    joined = [Segment("<|im_end|>", True), Segment("<|im_end|>", False)]
    assert [tokenizer.is_control(i) for i in tokenizer.encode_segments(joined)][:2] == [True, False]


def test_the_longest_control_token_wins_at_one_place() -> None:
    tokenizer = Tokenizer.from_gguf(byte_level(control=("[A", "[A]", "[AB]", "{x")))
    ids = tokenizer.encode("[A][AB][A{x", parse_special=True)
    assert _spelt(tokenizer, ids) == ["[A]", "[AB]", "[A", "{x"]


def test_no_merge_makes_a_control_token() -> None:
    metadata = byte_level(("h e", "he y"), control=())
    tokens = metadata[PREFIX + "tokens"]
    assert isinstance(tokens, list)
    metadata[PREFIX + "token_type"] = [3 if text == "hey" else 1 for text in tokens]
    tokenizer = Tokenizer.from_gguf(metadata)
    assert _spelt(tokenizer, tokenizer.encode("hey")) == ["he", "y"]


def test_cuts_are_the_first_tokens_at_or_after_a_character(tokenizer: Tokenizer) -> None:
    segments = [Segment("<|im_start|>hello", True), Segment(" wo", False)]
    ids, cuts = tokenizer.encode_with_cuts(segments, [0, 12, 13, 17, 18, 19, 20, 99])
    assert _spelt(tokenizer, ids) == ["<|im_start|>", "hello", "Ġw", "o"]
    assert cuts == [0, 1, 2, 2, 3, 3, 4, 4]


def test_bos_and_eos_are_added_where_the_file_has_them() -> None:
    flags: dict[str, Any] = {"bos_token_id": 262, "add_bos_token": True, "add_eos_token": True}
    tokenizer = Tokenizer.from_gguf(byte_level(**flags))
    ids = tokenizer.encode("h", add_special=True)
    assert _spelt(tokenizer, ids) == ["<|im_start|>", "h", "<|im_end|>"]
    assert tokenizer.encode("h") == ids[1:-1]
    assert not Tokenizer.from_gguf(byte_level(bos_token_id=262)).add_bos
    assert Tokenizer.from_gguf(byte_level(bos_token_id=262, pre="llama-bpe")).add_bos


def test_sentencepiece_prefixes_a_space_and_falls_back_to_bytes() -> None:
    tokenizer = Tokenizer.from_gguf(sentencepiece())
    assert _spelt(tokenizer, tokenizer.encode("hello", add_special=True)) == ["<s>", "▁hello"]
    ids = tokenizer.encode("hello é")
    assert _spelt(tokenizer, ids) == ["▁hello", "▁", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(ids) == "hello é"
    assert tokenizer.decode(tokenizer.encode(" hello")) == " hello"
    assert _spelt(tokenizer, tokenizer.encode("<s><unk><0x41>"))[0] == "▁"
    assert not any(map(tokenizer.is_control, tokenizer.encode("<s><unk></s>")))


def test_without_a_space_prefix_sentencepiece_adds_none() -> None:
    tokenizer = Tokenizer.from_gguf(sentencepiece(add_space_prefix=False))
    assert _spelt(tokenizer, tokenizer.encode("hello")) == ["hello"]
    assert tokenizer.decode(tokenizer.encode(" hello")) == " hello"


def test_an_overlong_prompt_is_refused_before_tokenising() -> None:
    tokenizer = Tokenizer.from_gguf(byte_level(), max_prompt_bytes=10)
    assert tokenizer.encode("h" * 10)
    for text in ("h" * 11, "é" * 6, "h" * 100_000_000):
        with pytest.raises(RequestError, match="10 bytes"):
            tokenizer.encode(text)


def test_half_a_surrogate_pair_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match=r"U\+D83D"):
        tokenizer.encode("a\ud83d")


def test_a_broken_vocabulary_is_refused_and_the_key_named() -> None:
    twice = byte_level()
    twice[PREFIX + "tokens"] = [*twice[PREFIX + "tokens"][:-1], "!"]  # type: ignore[index]
    with pytest.raises(CorruptCheckpoint, match="twice"):
        Tokenizer.from_gguf(twice)
    with pytest.raises(CorruptCheckpoint, match="merges"):
        Tokenizer.from_gguf({**byte_level(), PREFIX + "merges": ["q z"]}).encode("qz")
    with pytest.raises(CorruptCheckpoint, match="merges"):
        Tokenizer.from_gguf({**byte_level(), PREFIX + "merges": ["nospace"]}).build_library()
    with pytest.raises(CorruptCheckpoint, match="scores"):
        Tokenizer.from_gguf(sentencepiece(scores=None))
    with pytest.raises(CorruptCheckpoint, match="scores"):
        Tokenizer.from_gguf(sentencepiece(scores=[float("nan")] * 269))
    with pytest.raises(CorruptCheckpoint, match="add_bos_token"):
        Tokenizer.from_gguf(byte_level(add_bos_token=1))
    with pytest.raises(UnsupportedModel, match=r"tokenizer\.ggml\.pre"):
        Tokenizer.from_gguf(byte_level(pre="unheard-of"))


def test_threads_share_one_tokenizer(tokenizer: Tokenizer) -> None:
    text = "hello wo <|im_end|> é한 " * 50
    right = tokenizer.encode(text)
    results: list[list[int]] = []

    def work() -> None:
        results.extend(tokenizer.encode(text) for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 80
    assert all(ids == right for ids in results)
