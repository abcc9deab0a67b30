"""The door to the KV blocks: promises, copies, sharing, taking back."""

from __future__ import annotations

import pytest

from tests.simulation import tokens
from twostroke.cache.manager import KVCacheManager
from twostroke.cache.radix import token_key
from twostroke.request import Request, SamplingParams


def make(name: str, ids: list[int]) -> Request:
    return Request(
        id=name,
        prompt_token_ids=tuple(ids),
        params=SamplingParams(),
        seed=0,
        end_token_ids=frozenset(),
        arrival_s=0.0,
    )


def admit(cache: KVCacheManager, request: Request, num_tokens: int | None = None):
    match = cache.match("", token_key(request.prompt_token_ids))
    return cache.allocate(request.id, match, num_tokens or request.num_tokens)


def compute(cache: KVCacheManager, request: Request, allocation) -> None:
    request.block_table = list(allocation.block_ids)
    request.block_table += cache.extend(request.id, request.num_tokens)
    request.num_computed_tokens = request.num_tokens
    for index, block in cache.commit(request, with_tail=True):
        request.block_table[index] = block
    cache.copies_done()
    cache.check_integrity()


def test_reuse_is_exact_to_the_token_and_leaves_the_last_one() -> None:
    cache = KVCacheManager(20)
    first = make("a", tokens(40))
    compute(cache, first, admit(cache, first))
    cache.free(first)
    for n, expected in ((40, 39), (33, 32), (32, 31), (16, 15), (1, 0)):
        assert cache.match("", token_key(tokens(n))).num_tokens == expected
    assert cache.match("", token_key([*tokens(37), 5])).num_tokens == 37


def test_a_partly_shared_block_is_copied_into_a_new_one() -> None:
    cache = KVCacheManager(20)
    first, second = make("a", tokens(40)), make("b", [*tokens(37), 5, 6, 7])
    compute(cache, first, admit(cache, first))
    allocation = admit(cache, second)
    assert allocation.num_cached_tokens == 37
    (copy,) = allocation.copies
    assert (copy.source, copy.num_tokens) == (first.block_table[2], 5)
    assert allocation.new_blocks == (copy.target,) == allocation.block_ids[2:]
    assert allocation.block_ids[:2] == tuple(first.block_table[:2])
    compute(cache, second, allocation)
    cache.free(first)
    cache.free(second)
    cache.check_integrity()


def test_the_source_of_a_copy_outlives_its_owner_until_the_step_has_run() -> None:
    cache = KVCacheManager(4)
    first = make("a", tokens(20))
    compute(cache, first, admit(cache, first))
    cache.free(first)
    second = make("b", [*tokens(18), 5])
    allocation = admit(cache, second)
    source = allocation.copies[0].source
    assert cache._pool.num_users(source) == 1
    cache.check_integrity()
    cache.copies_done()
    assert cache._pool.num_users(source) == 0
    cache.free(second)
    cache.check_integrity()


def test_without_room_for_the_source_the_copy_is_given_up_not_the_request() -> None:
    cache = KVCacheManager(2)
    first = make("a", tokens(31))
    compute(cache, first, admit(cache, first))
    cache.free(first)
    second = make("b", [*tokens(30), 5])
    allocation = admit(cache, second)
    assert allocation is not None and allocation.copies == ()
    assert allocation.num_cached_tokens == 16
    compute(cache, second, allocation)


def test_nothing_is_promised_twice_and_a_refusal_changes_nothing() -> None:
    cache = KVCacheManager(10)
    first, second = make("a", tokens(40)), make("b", tokens(40, seed=2))
    compute(cache, first, admit(cache, first, num_tokens=100))
    assert cache.num_available == 3
    before = (cache.num_available, cache._pool.num_free, cache._pool.num_idle)
    assert admit(cache, second, num_tokens=64) is None
    assert (cache.num_available, cache._pool.num_free, cache._pool.num_idle) == before
    cache.check_integrity()
    assert admit(cache, second, num_tokens=48) is not None
    assert not cache.reserve("a", 113)
    assert cache.reserve("a", 112)
    assert cache.num_reserved_tokens("a") == 112
    with pytest.raises(AssertionError, match="never promised"):
        cache.extend("a", 113)


def test_a_promise_is_kept_by_evicting() -> None:
    cache = KVCacheManager(4)
    first = make("a", tokens(64))
    compute(cache, first, admit(cache, first))
    cache.free(first)
    assert cache.num_used_blocks == cache.num_cached_blocks == 4
    second = make("b", tokens(64, seed=2))
    compute(cache, second, admit(cache, second))
    assert cache.match("", token_key(tokens(64))).num_tokens == 0


def test_what_was_used_again_is_evicted_last() -> None:
    cache = KVCacheManager(10)
    for name, seed in (("a", 1), ("b", 2), ("c", 3), ("a again", 1)):
        request = make(name, tokens(48, seed=seed))
        compute(cache, request, admit(cache, request))
        cache.free(request)
    newcomer = make("d", tokens(48, seed=4))
    compute(cache, newcomer, admit(cache, newcomer))
    left = [cache.match("", token_key(tokens(48, seed=s))).num_tokens for s in (1, 2, 3)]
    assert left == [47, 16, 47], "one block was free, two came from b"


def test_a_head_that_was_only_looked_up_is_recent_too() -> None:
    cache = KVCacheManager(5)
    for name, seed in (("a", 1), ("b", 2)):
        request = make(name, tokens(32, seed=seed))
        compute(cache, request, admit(cache, request))
        cache.free(request)
    cancelled = make("c", [*tokens(32, seed=1), 5])
    cancelled.num_computed_tokens = admit(cache, cancelled).num_cached_tokens
    assert cancelled.num_computed_tokens == 32
    cache.free(cancelled)
    newcomer = make("d", tokens(32, seed=4))
    compute(cache, newcomer, admit(cache, newcomer))
    left = [cache.match("", token_key([*tokens(32, seed=s), 5])).num_tokens for s in (1, 2)]
    assert left == [32, 16]


def test_equal_blocks_computed_side_by_side_become_one() -> None:
    cache = KVCacheManager(10)
    first, second = make("a", tokens(40)), make("b", tokens(40))
    one, two = admit(cache, first), admit(cache, second)
    compute(cache, first, one)
    compute(cache, second, two)
    assert second.block_table[:2] == first.block_table[:2]
    assert second.block_table[2] != first.block_table[2]
    assert cache.num_used_blocks == 4
    cache.free(first)
    cache.free(second)
    cache.check_integrity()
    assert cache.num_used_blocks == cache.num_cached_blocks == 3


def test_blocks_can_be_shared_while_their_owner_still_runs() -> None:
    cache = KVCacheManager(20)
    first = make("a", tokens(100))
    allocation = admit(cache, first)
    first.block_table = list(allocation.block_ids) + list(cache.extend("a", 50))
    first.num_computed_tokens = 50
    cache.commit(first)
    assert cache.match("", token_key(tokens(100))).num_tokens == 48
    cache.free(first)
    assert cache.match("", token_key(tokens(100))).num_tokens == 50
    cache.check_integrity()


def test_a_disabled_cache_remembers_nothing() -> None:
    cache = KVCacheManager(8, is_enabled=False)
    first = make("a", tokens(40))
    compute(cache, first, admit(cache, first))
    cache.free(first)
    assert cache.num_used_blocks == 0
    assert cache.match("", token_key(tokens(40))).num_tokens == 0
