"""BPE in plain Python, for the first short texts of a process.

Building the `tokenizers` library's model takes 50 ms for 49k tokens and 800 ms for 262k; a prompt
of some words needs none of that. The ids are those of the library, which takes over for longer
texts; tests hold the two equal.
Source: Sennrich et al. 2016, arXiv:1508.07909 (BPE).
"""

from __future__ import annotations

import heapq
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Protocol

from twostroke.dataclass import dataclass
from twostroke.text.finder import TokenFinder
from twostroke.text.pretokenizers import PreTokenizer
from twostroke.text.vocabulary import MAX_PIECE_CHARS, SPACE

Encoded = tuple[list[int], list[int]]  # ids, and the character at which each begins
_Rank = Callable[[str, str], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class SentencePieces:
    """A SentencePiece vocabulary, as the models of plain Python and of the library take it."""

    tokens: Sequence[str]
    scores: Sequence[float]  # of each token
    ids: Mapping[str, int]  # of the tokens that text may become
    mergeable: Mapping[str, int]  # of those that merging may make: all but byte tokens
    user_defined: Mapping[str, int]
    unk_id: int | None
    space_prefix: bool  # a space is put before the text


class QuickBpe(Protocol):
    """BPE that may leave a text to the library."""

    def encode(self, text: str) -> Encoded | None:
        """Return ids and the character at which each begins; None: only the library can tell."""
        ...


class QuickByteLevel:
    """Byte-level BPE over words: characters that stand for bytes, merges by rank."""

    def __init__(
        self,
        ids: Mapping[str, int],
        ranks: Mapping[str, int],
        rule: PreTokenizer,
        user_defined: Mapping[str, int],
    ) -> None:
        self._ids = ids
        self._ranks = ranks
        self._words = rule.build()
        self._rule = rule
        self._finder = TokenFinder(user_defined)

    def encode(self, text: str) -> Encoded | None:
        """Return ids and starts; None for text to normalise, and for broken merges."""
        if self._rule.nfc and not unicodedata.is_normalized("NFC", text):
            return None
        return _encode(text, self._finder, self._piece)

    def _piece(self, piece: str, offset: int) -> Encoded | None:
        token_ids: list[int] = []
        starts: list[int] = []
        for word, (begin, end) in self._words.pre_tokenize_str(piece):
            symbols = self._word(word)
            if symbols is None:
                return None
            token_ids += (self._ids[symbol] for symbol in symbols)
            place = offset + begin
            starts += (place + i for i in _character_starts(symbols, piece[begin:end]))
        return token_ids, starts

    def _word(self, word: str) -> list[str] | None:
        """Return a word's tokens; None for a merge of tokens that do not exist."""
        if self._rule.ignore_merges and word in self._ids:
            return [word]
        symbols = merged([c for c in word if c in self._ids], self._rank)
        return symbols if all(symbol in self._ids for symbol in symbols) else None

    def _rank(self, left: str, right: str) -> int | None:
        return self._ranks.get(f"{left} {right}")


class QuickSentencePiece:
    """SentencePiece BPE over whole texts: merges by score, unknown characters as bytes."""

    def __init__(self, pieces: SentencePieces) -> None:
        self._ids = pieces.ids
        self._mergeable = pieces.mergeable
        self._scores = pieces.scores
        self._unk_id = pieces.unk_id
        self._prefix = SPACE if pieces.space_prefix else ""
        self._finder = TokenFinder(pieces.user_defined)

    def encode(self, text: str) -> Encoded | None:
        """Return ids and starts."""
        return _encode(text, self._finder, self._piece)

    def _piece(self, piece: str, offset: int) -> Encoded:
        token_ids: list[int] = []
        starts: list[int] = []
        place = offset - len(self._prefix)
        was_unknown = False
        for symbol in merged(list(self._prefix + piece.replace(" ", SPACE)), self._rank):
            found = list(self._symbol_ids(symbol))
            is_unknown = found == [self._unk_id]
            if not (is_unknown and was_unknown):  # a run of unknown characters is one token
                token_ids += found
                starts += [max(place, offset)] * len(found)
            was_unknown = is_unknown
            place += len(symbol)
        return token_ids, starts

    def _symbol_ids(self, symbol: str) -> Iterator[int]:
        token = self._ids.get(symbol)
        if token is not None:
            yield token
            return
        tokens = [self._ids.get(f"<0x{byte:02X}>") for byte in symbol.encode()]
        if None not in tokens:
            yield from (token for token in tokens if token is not None)
        elif self._unk_id is not None:
            yield self._unk_id

    def _rank(self, left: str, right: str) -> object:
        """Return the sort key of `sentencepiece.ranked_merges`."""
        whole = self._mergeable.get(left + right)
        if whole is None or left not in self._mergeable or right not in self._mergeable:
            return None
        if len(left) + len(right) > MAX_PIECE_CHARS:
            return None
        return -self._scores[whole], -len(left), -len(right), whole


def _encode(
    text: str, finder: TokenFinder, encode_piece: Callable[[str, int], Encoded | None]
) -> Encoded | None:
    """Encode the text between user-defined tokens, which stand as they are."""
    token_ids: list[int] = []
    starts: list[int] = []
    for offset, piece, token in finder.split(text):
        encoded = ([token], [offset]) if token is not None else encode_piece(piece, offset)
        if encoded is None:
            return None
        token_ids += encoded[0]
        starts += encoded[1]
    return token_ids, starts


def merged(symbols: list[str], rank: _Rank) -> list[str]:
    """Merge neighbours, lowest rank first and leftmost of equals, until none has a rank.

    Cost: n log n in the number of symbols.
    """
    count = len(symbols)
    after = list(range(1, count + 1))  # the next symbol that is not merged away
    before = list(range(-1, count - 1))
    queue: list[tuple[object, int, str, str]] = []

    def consider(place: int) -> None:
        left, right = symbols[place], symbols[after[place]]
        found = rank(left, right)
        if found is not None:
            heapq.heappush(queue, (found, place, left, right))

    for place in range(count - 1):
        consider(place)
    while queue:
        _, place, left, right = heapq.heappop(queue)
        other = after[place]
        if symbols[place] != left or other >= count or symbols[other] != right:
            continue  # one of the two has been merged since
        symbols[place], symbols[other] = left + right, ""
        after[place] = after[other]
        if after[place] < count:
            before[after[place]] = place
            consider(place)
        if before[place] >= 0:
            consider(before[place])
    return [symbol for symbol in symbols if symbol]


def _character_starts(symbols: Sequence[str], text: str) -> list[int]:
    """Return the character of text in which each symbol's first byte lies."""
    byte_starts = list(accumulate(map(len, symbols), initial=0))[:-1]
    if text.isascii():
        return byte_starts
    character_starts = list(accumulate((len(c.encode()) for c in text), initial=0))
    return [bisect_right(character_starts, start) - 1 for start in byte_starts]
