"""BPE in plain Python, for the first short texts of a process.

Building the `tokenizers` library's model takes 50 ms for 49k tokens and 800 ms for 262k; a prompt
of some words needs none of that. Gives the same ids as the library, which takes over for longer
texts; tests hold the two together.
Source: Sennrich et al. 2016, arXiv:1508.07909 (BPE).
"""

from __future__ import annotations

import heapq
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Protocol

from twostroke.text.finder import TokenFinder
from twostroke.text.pretokenizers import PreTokenizer
from twostroke.text.vocabulary import MAX_PIECE_CHARS, SPACE

Encoded = tuple[list[int], list[int]]  # ids, and the character at which each begins
_Rank = Callable[[str, str], object]


class QuickBpe(Protocol):
    """What both kinds can do."""

    def encode(self, text: str) -> Encoded | None:
        """Return ids and starts; None where only the library can tell."""
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
        token_ids: list[int] = []
        starts: list[int] = []
        for offset, piece, token in self._finder.split(text):
            if token is not None:
                token_ids.append(token)
                starts.append(offset)
                continue
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

    def __init__(
        self,
        ids: Mapping[str, int],
        pieces: Mapping[str, int],
        scores: Sequence[float],
        user_defined: Mapping[str, int],
        *,
        unk_id: int | None,
        space_prefix: bool,
    ) -> None:
        self._ids = ids
        self._pieces = pieces
        self._scores = scores
        self._unk_id = unk_id
        self._prefix = SPACE if space_prefix else ""
        self._finder = TokenFinder(user_defined)

    def encode(self, text: str) -> Encoded | None:
        """Return ids and starts."""
        token_ids: list[int] = []
        starts: list[int] = []
        for offset, piece, token in self._finder.split(text):
            if token is not None:
                token_ids.append(token)
                starts.append(offset)
                continue
            symbols = merged(list(self._prefix + piece.replace(" ", SPACE)), self._rank)
            place = offset - len(self._prefix)
            was_unknown = False
            for symbol in symbols:
                found = list(self._symbol_ids(symbol))
                is_unknown = found == [self._unk_id]
                if not (is_unknown and was_unknown):
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
        """Return what `sentencepiece.ranked_merges` sorts by."""
        whole = self._pieces.get(left + right)
        if whole is None or left not in self._pieces or right not in self._pieces:
            return None
        if len(left) + len(right) > MAX_PIECE_CHARS:
            return None
        return -self._scores[whole], -len(left), -len(right), whole


def merged(symbols: list[str], rank: _Rank) -> list[str]:
    """Merge neighbours, lowest rank first and leftmost of equals, until none has a rank.

    Cost: n log n in the number of symbols.
    """
    count = len(symbols)
    after = list(range(1, count + 1))  # the next living symbol
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
