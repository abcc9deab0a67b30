"""Tokens and their roles as read from a GGUF file; broken vocabularies are refused."""

from __future__ import annotations

import pytest

from tests.text.small_vocabularies import PREFIX, byte_level, sentencepiece
from twostroke.errors import CorruptCheckpoint, UnsupportedModel
from twostroke.text.vocabulary import BYTE_OF_CHARACTER, TokenType, Vocabulary


def test_byte_characters_are_the_256_bytes_once_each() -> None:
    assert sorted(BYTE_OF_CHARACTER.values()) == list(range(256))
    assert BYTE_OF_CHARACTER["Ġ"] == 0x20
    assert BYTE_OF_CHARACTER["Ċ"] == 0x0A


def test_end_ids_are_the_union_of_metadata_and_well_known_tokens() -> None:
    metadata = byte_level(
        control=("<s>", "</s>", "<|eot_id|>", "<|im_end|>", "<|eom_id|>"), eos_token_id=263
    )
    metadata[PREFIX + "eom_token_id"] = 266
    vocabulary = Vocabulary.from_gguf(metadata)
    spelt = {vocabulary.tokens[i] for i in vocabulary.end_ids}
    assert spelt == {"</s>", "<|eot_id|>", "<|im_end|>", "<|eom_id|>"}


def test_harmony_end_of_a_part_is_no_end_of_the_answer() -> None:
    control = ("<|end|>", "<|return|>", "<|call|>", "<|start|>")
    vocabulary = Vocabulary.from_gguf(byte_level(control=control))
    assert {vocabulary.tokens[i] for i in vocabulary.end_ids} == {"<|return|>", "<|call|>"}
    alone = Vocabulary.from_gguf(byte_level(control=("<|end|>", "<|user|>")))
    assert {alone.tokens[i] for i in alone.end_ids} == {"<|end|>"}


def test_an_end_token_typed_as_text_is_adopted_with_a_warning() -> None:
    metadata = byte_level(control=("<|endoftext|>",), user_defined=("<|im_end|>",))
    vocabulary = Vocabulary.from_gguf(metadata)
    assert "<|im_end|>" in vocabulary.control_ids
    assert len(vocabulary.warnings) == 1
    assert "<|im_end|>" in vocabulary.warnings[0]


def test_bytes_of_each_kind_of_token() -> None:
    vocabulary = Vocabulary.from_gguf(byte_level(user_defined=("  Ġ",)))
    find = list(vocabulary.tokens).index
    assert vocabulary.bytes_of(find("Ġw")) == b" w"
    assert vocabulary.bytes_of(find("Ã")) == b"\xc3"
    assert vocabulary.bytes_of(find("  Ġ")) == "  Ġ".encode()
    assert vocabulary.bytes_of(find("<|im_end|>")) == b""
    assert vocabulary.bytes_of(find("<|im_end|>"), with_control=True) == b"<|im_end|>"
    assert vocabulary.bytes_of(-1) == vocabulary.bytes_of(10**12) == b""
    pieces = Vocabulary.from_gguf(sentencepiece())
    assert pieces.bytes_of(3 + 0xE2) == b"\xe2"
    assert pieces.bytes_of(list(pieces.tokens).index("▁hello")) == b" hello"
    assert pieces.bytes_of(0) == pieces.bytes_of(1) == b""


def test_a_token_that_is_not_utf8_keeps_its_bytes() -> None:
    raw = b"\xff\xfe".decode("utf-8", "surrogateescape")
    vocabulary = Vocabulary.from_gguf(sentencepiece(((raw, -1.0),)))
    assert vocabulary.bytes_of(len(vocabulary.tokens) - 1) == b"\xff\xfe"


def test_no_eos_stored_as_minus_one_is_none() -> None:
    assert Vocabulary.from_gguf(byte_level(eos_token_id=0xFFFFFFFF)).eos_id is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tokens", None),
        ("tokens", []),
        ("tokens", "abc"),
        ("tokens", ["a", 3]),
        ("token_type", [1, 2]),
        ("token_type", "x"),
        ("token_type", [None] * 265),
        ("eos_token_id", 10**6),
        ("bos_token_id", -2),
        ("bos_token_id", True),
        ("bos_token_id", "1"),
    ],
)
def test_a_broken_key_is_named(key: str, value: object) -> None:
    metadata = byte_level()
    assert len(metadata[PREFIX + "tokens"]) == 265  # type: ignore[arg-type]
    metadata[PREFIX + key] = value
    if value is None:
        del metadata[PREFIX + key]
    with pytest.raises(CorruptCheckpoint, match=PREFIX + key):
        Vocabulary.from_gguf(metadata)


@pytest.mark.parametrize("model", [None, "bert", "t5", "rwkv", 3])
def test_another_tokenizer_model_is_refused_by_name(model: object) -> None:
    with pytest.raises(UnsupportedModel, match=r"tokenizer\.ggml\.model"):
        Vocabulary.from_gguf(byte_level(model=model))


def test_without_types_every_token_is_normal() -> None:
    metadata = byte_level(control=())
    del metadata[PREFIX + "token_type"]
    vocabulary = Vocabulary.from_gguf(metadata)
    assert vocabulary.type_of(0) == TokenType.NORMAL
    assert not vocabulary.control_ids
