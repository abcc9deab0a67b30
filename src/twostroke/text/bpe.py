"""One vocabulary's BPE, built from a GGUF file's metadata: plain Python first, then the library.

Control tokens are in neither model, so that no text can become one here.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from twostroke.errors import CorruptCheckpoint
from twostroke.text.pretokenizers import PreTokenizer
from twostroke.text.quick_bpe import (
    Encoded,
    QuickBpe,
    QuickByteLevel,
    QuickSentencePiece,
    SentencePieces,
)
from twostroke.text.tokenizer_metadata import PREFIX, number_array, string_array
from twostroke.text.vocabulary import TokenType, Vocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer as LibraryBpe

MAX_MERGES = 1 << 23
# Up to here plain Python takes under 20 ms; building the library's model takes 30 to 700 ms.
QUICK_CHARS = 2048


class Bpe:
    """Plain Python for short texts; the library's model for all, from the first long one on."""

    def __init__(self, quick: QuickBpe, build: Callable[[], LibraryBpe]) -> None:
        self._quick = quick
        self._build = build
        self._library: LibraryBpe | None = None
        self._lock = threading.Lock()

    def encode(self, text: str) -> Encoded:
        """Return ids, and the character at which each begins."""
        if self._library is None and len(text) <= QUICK_CHARS:
            encoded = self._quick.encode(text)
            if encoded is not None:
                return encoded
        found = self.library().encode(text, add_special_tokens=False)
        return found.ids, [start for start, _ in found.offsets]

    def library(self) -> LibraryBpe:
        """Return the library's model, built on the first call; every later text goes to it.

        Raises:
            CorruptCheckpoint: the merges do not fit the tokens.
        """
        with self._lock:
            if self._library is None:
                self._library = self._build()
            return self._library


def byte_level_bpe(
    metadata: Mapping[str, object], vocabulary: Vocabulary, rule: PreTokenizer
) -> Bpe:
    """Return byte-level BPE, its merges read from the metadata.

    Raises:
        CorruptCheckpoint: the merges are missing or not strings.
    """
    written = string_array(metadata, "merges", MAX_MERGES)
    ranks = dict(zip(written, range(len(written)), strict=True))
    for text in vocabulary.control_ids:  # no merge may make one
        for cut in range(1, len(text)):
            ranks.pop(f"{text[:cut]} {text[cut:]}", None)
    ids, added = vocabulary.text_ids, vocabulary.user_defined

    def build() -> LibraryBpe:
        from twostroke.text.library_bpe import build_byte_level

        return build_byte_level(ids, ranks, rule, added)

    return Bpe(QuickByteLevel(ids, ranks, rule, added), build)


def sentencepiece_bpe(
    metadata: Mapping[str, object],
    vocabulary: Vocabulary,
    cache_dir: Path | None,
    *,
    space_prefix: bool,
) -> Bpe:
    """Return SentencePiece BPE, whose merges follow from the scores in the metadata.

    cache_dir: where derived merges are kept; None: nowhere.

    Raises:
        CorruptCheckpoint: the scores are missing or not numbers.
    """
    tokens, ids = vocabulary.tokens, vocabulary.text_ids
    scores = number_array(metadata, "scores", len(tokens))
    if not scores or math.isnan(sum(scores)):
        raise CorruptCheckpoint(f"{PREFIX}scores is missing or not numbers")
    byte_kind = TokenType.BYTE
    mergeable = dict(ids)
    for i, kind in enumerate(vocabulary.types):
        if kind == byte_kind:
            mergeable.pop(tokens[i], None)
    pieces = SentencePieces(
        tokens=tokens,
        scores=scores,
        ids=ids,
        mergeable=mergeable,
        user_defined=vocabulary.user_defined,
        unk_id=vocabulary.unk_id,
        space_prefix=space_prefix,
    )

    def build() -> LibraryBpe:
        from twostroke.text.library_bpe import build_sentencepiece

        return build_sentencepiece(pieces, cache_dir)

    return Bpe(QuickSentencePiece(pieces), build)
