"""Stop strings in streamed text: the rule, whatever the chunks, in linear time."""

from __future__ import annotations

import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from twostroke.text.stop import StopMatcher


def _run(stops: tuple[str, ...], chunks: list[str]) -> tuple[str, str | None]:
    matcher = StopMatcher(stops)
    shown = ""
    for chunk in chunks:
        text, hit = matcher.push(chunk)
        shown += text
        if hit is not None:
            return shown, hit
    return shown + matcher.flush(), None


def _whole_text(stops: tuple[str, ...], text: str) -> tuple[str, str | None]:
    """The rule, said plainly: first complete place, longest stop there."""
    for end in range(1, len(text) + 1):
        here = [stop for stop in stops if text[:end].endswith(stop)]
        if here:
            longest = max(here, key=len)
            return text[: end - len(longest)], longest
    return text, None


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.text("abc", min_size=1, max_size=5), max_size=5),
    st.lists(st.text("abc", max_size=6), max_size=12),
)
def test_any_chunking_gives_what_the_whole_text_gives(stops: list[str], chunks: list[str]) -> None:
    whole = _whole_text(tuple(stops), "".join(chunks))
    assert _run(tuple(stops), chunks) == whole
    assert _run(tuple(stops), list("".join(chunks))) == whole


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4),
    st.lists(st.text("ab", max_size=6), max_size=12),
)
def test_only_a_true_prefix_of_a_stop_is_held_back(stops: list[str], chunks: list[str]) -> None:
    matcher = StopMatcher(tuple(stops))
    given_text = shown = ""
    for chunk in chunks:
        text, hit = matcher.push(chunk)
        if hit is not None:
            return
        given_text += chunk
        shown += text
        held = given_text[len(shown) :]
        tails = [given_text[i:] for i in range(len(given_text))]
        prefixes = [tail for tail in tails if any(stop.startswith(tail) for stop in stops)]
        assert held == (prefixes[0] if prefixes else "")


def test_the_first_complete_stop_wins_over_one_that_began_earlier() -> None:
    assert _run(("abcd", "bc"), ["xabcd"]) == ("xa", "bc")


def test_of_stops_complete_at_one_place_the_longest_counts() -> None:
    assert _run(("c", "abc", "bc"), list("xxabcx")) == ("xx", "abc")


def test_text_after_a_hit_is_never_shown() -> None:
    matcher = StopMatcher(("END",))
    assert matcher.push("a END b") == ("a ", "END")
    assert matcher.push("more") == ("", "END")
    assert matcher.flush() == ""


def test_without_stops_text_passes() -> None:
    assert StopMatcher(()).push("anything") == ("anything", None)


@pytest.mark.parametrize("text", ["a" * 200_000, ("a" * 1023 + "c") * 200])
def test_the_worst_stops_take_linear_time(text: str) -> None:
    stops = tuple("a" * (1023 - i) + "b" for i in range(64))
    matcher = StopMatcher(stops)
    start = time.thread_time()
    for place in range(0, len(text), 4):
        matcher.push(text[place : place + 4])
    assert time.thread_time() - start < 5
    assert matcher.push("b")[1] is not None or text.endswith("c")
