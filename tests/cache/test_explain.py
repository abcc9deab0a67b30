"""Reasons for a miss, from sequences of ids and message spans alone."""

from __future__ import annotations

import dataclasses

import pytest

from tests.simulation import tokens
from twostroke.cache import explain
from twostroke.cache.explain import CacheExplainer, find_again, join_salt
from twostroke.cache.radix import token_key
from twostroke.request import MessageSpan, Request, SamplingParams


def make(ids: list[int], *, salt: str = "", spans: tuple = ()) -> Request:
    return Request(
        id="r",
        prompt_token_ids=tuple(ids),
        params=SamplingParams(),
        seed=0,
        end_token_ids=frozenset(),
        arrival_s=0.0,
        salt=salt,
        spans=spans,
    )


def remember(explainer: CacheExplainer, ids: list[int], *, num_prompt=None, **kwargs) -> None:
    request = make(ids[: num_prompt or len(ids)], **kwargs)
    explainer.remember(request, token_key(ids))


def why(explainer: CacheExplainer, ids: list[int], num_cached: int = 0, **kwargs):
    return explainer.explain(make(ids, **kwargs), token_key(ids), num_cached, tokens_lost)


def tokens_lost(start: int, num_tokens: int) -> float:
    """A price of one second a token, so that a price tells how many tokens were lost."""
    return float(num_tokens)


def span(index: int, role: str, start: int, end: int, text_hash: str) -> MessageSpan:
    return MessageSpan(index=index, role=role, start=start, end=end, text_hash=text_hash)


def test_first_request_of_a_salt() -> None:
    explainer = CacheExplainer()
    remember(explainer, tokens(100), salt="other")
    assert why(explainer, tokens(100)).reason == "first_request"


def test_a_full_hit_and_a_continued_chat_missed_nothing() -> None:
    explainer = CacheExplainer()
    remember(explainer, tokens(100))
    assert why(explainer, tokens(100), 99).reason is None
    assert why(explainer, tokens(100) + tokens(50, seed=2), 100).reason is None


def test_what_was_known_and_is_gone_was_evicted() -> None:
    explainer = CacheExplainer()
    remember(explainer, tokens(100))
    explanation = why(explainer, tokens(100), 32)
    assert (explanation.reason, explanation.price_s) == ("evicted", 67)


def test_forty_of_sixty_thousand_and_the_rest_matches_from_55() -> None:
    explainer = CacheExplainer()
    head, body = tokens(40), tokens(59_945, seed=2)
    remember(explainer, head + tokens(12, seed=3) + body)
    explanation = why(explainer, head + tokens(15, seed=4) + body, 40)
    assert explanation.reason == "prefix_diverged"
    assert (explanation.diverged_token, explanation.matches_again_at_token) == (40, 55)
    assert explanation.price_s == 59_945


def test_the_same_caller_under_another_salt_is_told_so_and_a_stranger_is_not() -> None:
    explainer = CacheExplainer()
    remember(explainer, tokens(100), salt=join_salt("alice", "v1"))
    assert (
        why(explainer, tokens(100), salt=join_salt("alice", "v2")).reason == "caller_changed_salt"
    )
    assert why(explainer, tokens(100), salt=join_salt("bob", "v1")).reason == "first_request"
    assert join_salt("a\x00b", "c") != join_salt("a", "b\x00c")


def test_equal_text_that_became_other_tokens_was_rewritten_by_the_template() -> None:
    explainer = CacheExplainer()
    old, new = tokens(60), tokens(30) + tokens(30, seed=2)
    remember(explainer, old, spans=(span(0, "user", 0, 20, "a"), span(1, "user", 20, 60, "b")))
    same = (span(0, "user", 0, 20, "a"), span(1, "user", 20, 60, "b"))
    edited = (span(0, "user", 0, 20, "a"), span(1, "user", 20, 60, "c"))
    assert why(explainer, new, 30, spans=same).reason == "template_rewrote_history"
    explanation = why(explainer, new, 30, spans=edited)
    assert (explanation.reason, explanation.diverged_message) == ("prefix_diverged", 1)


def test_an_answer_sent_back_with_other_tokens_in_one_word_was_retokenised() -> None:
    explainer = CacheExplainer()
    prompt, answer = tokens(50), tokens(60, seed=2)
    remember(explainer, prompt + answer, num_prompt=50)
    back = prompt + answer[:20] + [9, 9, 9] + answer[22:] + tokens(10, seed=3)
    spans = (span(0, "user", 0, 50, "q"), span(1, "assistant", 50, 111, "a"))
    explanation = why(explainer, back, 70, spans=spans)
    assert explanation.reason == "retokenised"
    assert (explanation.diverged_token, explanation.matches_again_at_token) == (70, 73)


def test_a_match_must_begin_on_a_token() -> None:
    # The bytes of 0x01000000 repeated also occur shifted by one byte; that is not a match.
    old = token_key([7] + [0x00000001] * 40)
    new = token_key([8] + [0x01000000] * 40)
    assert find_again(new, old, 0) is None


def test_memory_is_bounded_in_sequences_salts_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explain, "MAX_SALTS", 5)
    monkeypatch.setattr(explain, "MAX_REMEMBERED_BYTES", 4000)
    explainer = CacheExplainer()
    for i in range(40):
        remember(explainer, tokens(30 + i % 7, seed=i), salt=f"{i % 9}")
        held = [r for recent in explainer._recent.values() for r in recent]
        assert len(explainer._recent) <= 5
        assert sum(len(r.key) for r in held) == explainer._num_bytes <= 4000
    assert set(explainer._salts_of) == set(explainer._recent)
    for i in range(40):
        remember(explainer, tokens(5, seed=i), salt="one")
    assert len(explainer._recent["one"]) == explain.MAX_RECENT


def test_a_sequence_that_continues_another_takes_its_place() -> None:
    explainer = CacheExplainer()
    remember(explainer, tokens(10))
    remember(explainer, tokens(20))
    assert len(explainer._recent[""]) == 1


def test_explanations_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        why(CacheExplainer(), [1, 2]).reason = "x"  # type: ignore[misc]
