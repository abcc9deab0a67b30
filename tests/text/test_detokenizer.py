"""Ids to text, one at a time: the same text however the ids are chunked."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.text.small_vocabularies import byte_level, sentencepiece
from twostroke.text.detokenizer import Detokenizer
from twostroke.text.tokenizer import Tokenizer

BYTES = Tokenizer.from_gguf(byte_level())
PIECES = Tokenizer.from_gguf(sentencepiece())


def _stream(tokenizer: Tokenizer, token_ids: list[int]) -> list[str]:
    detokenizer = Detokenizer(tokenizer)
    return [*map(detokenizer.push, token_ids), detokenizer.flush()]


def test_a_character_leaves_when_its_last_byte_comes() -> None:
    ids = BYTES.encode("é한😀")
    assert _stream(BYTES, ids) == ["", "é", "", "", "한", "", "", "", "😀", ""]


def test_an_unfinished_character_is_replaced_at_the_end() -> None:
    ids = BYTES.encode("a한")[:-1]
    assert _stream(BYTES, ids) == ["a", "", "", "�"]


def test_an_invalid_byte_is_replaced_where_it_stands() -> None:
    ids = [*BYTES.encode("한")[:2], *BYTES.encode("b"), *BYTES.encode("é")[1:]]
    assert "".join(_stream(BYTES, ids)) == "�b�"


def test_an_id_out_of_range_is_empty_and_counted() -> None:
    detokenizer = Detokenizer(BYTES)
    first, *rest = BYTES.encode("é")
    texts = [detokenizer.push(i) for i in (first, -1, 10**9, 2**63, *rest)]
    assert texts == ["", "", "", "", "é"]


def test_the_first_space_of_sentencepiece_goes_once() -> None:
    ids = PIECES.encode("hello hello", add_special=True)
    assert _stream(PIECES, ids) == ["", "hello", " hello", ""]
    assert PIECES.decode(ids) == "hello hello"


def test_flush_starts_anew() -> None:
    detokenizer = Detokenizer(PIECES)
    (token,) = PIECES.encode("hello")
    assert [detokenizer.push(token), detokenizer.flush(), detokenizer.push(token)] == [
        "hello",
        "",
        "hello",
    ]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.integers(-2, 275)))
def test_streamed_text_is_that_of_decode(token_ids: list[int]) -> None:
    for tokenizer in (BYTES, PIECES):
        texts = _stream(tokenizer, token_ids)
        assert "".join(texts) == tokenizer.decode(token_ids)
        for text in texts:
            text.encode()  # no half of a surrogate pair ever leaves


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.text())
def test_encoded_text_comes_back(text: str) -> None:
    assert BYTES.decode(BYTES.encode(text)) == text
    if "▁" not in text:
        assert PIECES.decode(PIECES.encode(text)) == text
