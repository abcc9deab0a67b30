"""Public bug reports about characters cut in pieces (rows U*), on the real sample model."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from twostroke.formats.gguf import open_gguf
from twostroke.text.detokenizer import Detokenizer
from twostroke.text.tokenizer import Tokenizer

pytestmark = pytest.mark.weights

TEXT = "中文和日本語、한국어 🦖👩‍👩‍👧 naïve żółć Trời 𠮷"


@pytest.fixture(scope="module")
def tokenizer(smollm2_path: Path) -> Tokenizer:
    with open_gguf(smollm2_path) as file:
        return Tokenizer.from_gguf(file.metadata)


def test_u1_characters_leave_whole(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.push(token) for token in tokenizer.encode(TEXT)]
    assert detokenizer.flush() == ""
    assert "".join(pieces) == TEXT
    assert "�" not in "".join(pieces)
    assert "" in pieces  # some character took more than one token, or nothing was tested


def test_u2_sequences_side_by_side_do_not_mix(tokenizer: Tokenizer) -> None:
    texts = [TEXT[i:] for i in range(8)]
    ids = [tokenizer.encode(text) for text in texts]
    detokenizers = [Detokenizer(tokenizer) for _ in texts]
    shown = [""] * len(texts)
    for step in range(max(map(len, ids))):
        for row, detokenizer in enumerate(detokenizers):
            if step < len(ids[row]):
                shown[row] += detokenizer.push(ids[row][step])
    assert shown == texts


def test_u4_random_tokens_give_text_that_json_can_hold(tokenizer: Tokenizer) -> None:
    draw = random.Random(4)
    detokenizer = Detokenizer(tokenizer)
    token_ids = [draw.randrange(tokenizer.vocab_size) for _ in range(5000)]
    pieces = [*map(detokenizer.push, token_ids), detokenizer.flush()]
    for piece in pieces:
        assert json.loads(json.dumps(piece).encode()) == piece
        piece.encode()
    assert "".join(pieces) == tokenizer.decode(token_ids)
    assert "�" in "".join(pieces)


def test_u5_an_unknown_id_is_empty_and_the_rest_goes_on(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer)
    token_ids = tokenizer.encode(TEXT)
    for place in (0, 5, len(token_ids)):
        token_ids.insert(place, (2**63, -1, tokenizer.vocab_size)[place % 3])
    assert "".join(map(detokenizer.push, token_ids)) == TEXT


def test_u7_each_token_has_its_bytes(tokenizer: Tokenizer) -> None:
    token_ids = tokenizer.encode("ok 🦖")
    pieces = [tokenizer.token_bytes(token) for token in token_ids]
    assert b"".join(pieces) == "ok 🦖".encode()
    assert any(piece and not _is_text(piece) for piece in pieces)


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
