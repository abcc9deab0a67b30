"""Finds a fixed set of tokens in text, leftmost first, of those the longest."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping


class TokenFinder:
    """The set, indexed by first character. Immutable."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        self._ids = {text: token for text, token in ids.items() if text}
        lengths: defaultdict[str, set[int]] = defaultdict(set)
        for text in self._ids:
            lengths[text[0]].add(len(text))
        self._lengths = {first: sorted(found, reverse=True) for first, found in lengths.items()}

    def split(self, text: str) -> Iterator[tuple[int, str, int | None]]:
        """Yield (start, piece, id) in order; id is None for the text between tokens."""
        done = 0
        for start, end, token in self._find(text):
            if start > done:
                yield done, text[done:start], None
            yield start, text[start:end], token
            done = end
        if done < len(text):
            yield done, text[done:], None

    def _find(self, text: str) -> Iterator[tuple[int, int, int]]:
        done = 0
        for start in self._candidates(text):
            if start < done:
                continue
            for length in self._lengths[text[start]]:
                token = self._ids.get(text[start : start + length])
                if token is not None:
                    done = start + length
                    yield start, done, token
                    break

    def _candidates(self, text: str) -> Iterator[int]:
        """Yield, ascending, each place where a token could start."""
        if len(self._lengths) == 1:  # nearly always: "<"
            (first,) = self._lengths
            place = text.find(first)
            while place >= 0:
                yield place
                place = text.find(first, place + 1)
        elif self._lengths:
            for place, character in enumerate(text):
                if character in self._lengths:
                    yield place
