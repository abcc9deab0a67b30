"""Limits, promises, order and chunk size as pure functions."""

from __future__ import annotations

import pytest

from twostroke.errors import ContextTooLong, OutOfBlocks
from twostroke.request import SamplingParams
from twostroke.scheduler.policy import (
    largest_chunk,
    max_total_tokens,
    order_key,
    promised_tokens,
    step_budget_s,
)


def limit(num_prompt: int, max_tokens: int | None, *, context: int = 100, blocks: int = 100) -> int:
    params = SamplingParams(max_tokens=max_tokens)
    return max_total_tokens(params, num_prompt, max_model_len=context, num_blocks=blocks)


def test_limit_is_prompt_and_max_tokens_or_the_room_left() -> None:
    assert limit(40, 10) == 50
    assert limit(40, 0) == 40
    assert limit(40, None) == 100
    assert limit(40, None, blocks=4) == 64
    assert limit(100, 0) == 100


@pytest.mark.parametrize("asked", [(101, 0), (100, None), (100, 1), (60, 41), (1, 2**31 - 1)])
def test_beyond_the_context_is_refused(asked: tuple[int, int | None]) -> None:
    with pytest.raises(ContextTooLong, match="exceed the context by"):
        limit(*asked)


def test_the_last_token_needs_no_slot() -> None:
    assert limit(40, 9, blocks=3) == 49
    with pytest.raises(OutOfBlocks, match="needs 4 KV blocks, the pool has 3"):
        limit(40, 10, blocks=3)


def promise(num_tokens: int, most: int, *, is_declared: bool = False, preempted: int = 0) -> int:
    return promised_tokens(
        num_tokens=num_tokens,
        max_num_tokens=most,
        is_declared=is_declared,
        num_preemptions=preempted,
        growth=256,
    )


def test_declared_is_promised_whole_and_undeclared_grows() -> None:
    assert promise(100, 5000, is_declared=True) == 4999
    assert promise(100, 100, is_declared=True) == 100
    assert promise(100, 5000) == 356
    assert promise(100, 200) == 199
    assert promise(100, 5000, preempted=2) == 1124


def test_earlier_goes_first_and_priority_is_worth_a_bounded_wait() -> None:
    assert order_key(0, 1.0) < order_key(0, 2.0)
    assert order_key(-1, 30.0) < order_key(0, 1.0) < order_key(-1, 100.0)


def test_the_largest_chunk_within_the_budget_is_found() -> None:
    for budget in (0.0, 0.01, 0.3, 1.0, 5.12, 100.0):
        n = largest_chunk(lambda n: n * 0.01, low=16, high=512, budget_s=budget)
        expected = 512 if budget >= 5.12 else max(16, int(round(budget * 100, 6)) // 16 * 16)
        assert n == expected
    assert largest_chunk(lambda n: n * 0.01, low=0, high=500, budget_s=0.1) == 0
    assert largest_chunk(lambda n: n * 0.01, low=7, high=7, budget_s=0.0) == 7
    assert largest_chunk(lambda n: n * 0.01, low=16, high=500, budget_s=4.99) == 496


def test_slow_streams_still_leave_time_to_newcomers() -> None:
    assert step_budget_s(0.1, 0.01) == 0.1
    assert step_budget_s(0.1, 0.2) == pytest.approx(0.25)
