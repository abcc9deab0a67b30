"""Tokens found in text, leftmost first, of those the longest."""

from __future__ import annotations

import time

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from twostroke.text.finder import TokenFinder


def _pieces(ids: dict[str, int], text: str) -> list[tuple[str, int | None]]:
    return [(piece, token) for _, piece, token in TokenFinder(ids).split(text)]


def test_the_leftmost_and_there_the_longest_token_is_found() -> None:
    ids = {"<a": 1, "<a>": 2, "a>b": 3}
    assert _pieces(ids, "x<a>b<a<a>") == [
        ("x", None),
        ("<a>", 2),
        ("b", None),
        ("<a", 1),
        ("<a>", 2),
    ]


def test_tokens_with_several_first_characters_are_found() -> None:
    assert _pieces({"<a>": 1, "[b]": 2}, "[b]<a>]") == [("[b]", 2), ("<a>", 1), ("]", None)]


def test_without_tokens_or_text_there_is_nothing_to_find() -> None:
    assert _pieces({}, "text") == [("text", None)]
    assert _pieces({"": 0}, "text") == [("text", None)]
    assert _pieces({"<a>": 1}, "") == []


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sets(st.text("<a>", min_size=1, max_size=4), max_size=4), st.text("<a>b", max_size=30))
def test_the_pieces_are_the_text(tokens: set[str], text: str) -> None:
    ids = {token: i for i, token in enumerate(sorted(tokens))}
    place = 0
    for start, piece, token in TokenFinder(ids).split(text):
        assert start == place
        assert text.startswith(piece, start)
        assert token is None or ids[piece] == token
        assert token is not None or not any(known in piece for known in ids)
        place += len(piece)
    assert place == len(text)


def test_many_starts_without_an_end_take_linear_time() -> None:
    ids = {f"<|token number {i}|>": i for i in range(1000)}
    start = time.thread_time()
    assert len(list(TokenFinder(ids).split("<|token " * 50_000))) == 1
    assert time.thread_time() - start < 3
