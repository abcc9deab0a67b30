"""The KV cache manager: promises, copies, sharing, taking back."""

from __future__ import annotations

import pytest

from tests.simulation import tokens
from twostroke.cache.lease import Lease
from twostroke.cache.manager import KVCacheManager
from twostroke.cache.radix import token_key


class Prompt:
    """A prompt whose tokens are computed one way or another; holds its lease."""

    def __init__(self, ids: list[int]) -> None:
        self.ids = tuple(ids)
        self.num_computed_tokens = 0
        self.lease: Lease | None = None

    def token_ids(self, start: int, end: int) -> tuple[int, ...]:
        return self.ids[start:end]

    @property
    def block_table(self) -> tuple[int, ...]:
        return self.lease.block_table


def make(ids: list[int]) -> Prompt:
    return Prompt(ids)


def admit(cache: KVCacheManager, prompt: Prompt, num_tokens: int | None = None):
    match = cache.match("", token_key(prompt.ids))
    allocation = cache.allocate(match, num_tokens or len(prompt.ids))
    if allocation is not None:
        prompt.lease = allocation.lease
    return allocation


def compute(cache: KVCacheManager, prompt: Prompt, num_tokens: int | None = None) -> None:
    prompt.num_computed_tokens = num_tokens or len(prompt.ids)
    cache.extend(prompt.lease, prompt.num_computed_tokens)
    cache.commit(prompt.lease, prompt, with_tail=True)
    cache.copies_done()
    cache.check_integrity()


def free(cache: KVCacheManager, prompt: Prompt) -> None:
    cache.free(prompt.lease, prompt)


def test_reuse_is_exact_to_the_token_and_leaves_the_last_one() -> None:
    cache = KVCacheManager(20)
    first = make(tokens(40))
    admit(cache, first)
    compute(cache, first)
    free(cache, first)
    for n, expected in ((40, 39), (33, 32), (32, 31), (16, 15), (1, 0)):
        assert cache.match("", token_key(tokens(n))).num_tokens == expected
    assert cache.match("", token_key([*tokens(37), 5])).num_tokens == 37


def test_a_partly_shared_block_is_copied_into_a_new_one() -> None:
    cache = KVCacheManager(20)
    first, second = make(tokens(40)), make([*tokens(37), 5, 6, 7])
    admit(cache, first)
    compute(cache, first)
    allocation = admit(cache, second)
    assert allocation.num_cached_tokens == 37
    (copy,) = allocation.copies
    assert (copy.source, copy.num_tokens) == (first.block_table[2], 5)
    assert allocation.new_blocks == (copy.target,) == allocation.lease.block_table[2:]
    assert allocation.lease.block_table[:2] == first.block_table[:2]
    compute(cache, second)
    free(cache, first)
    free(cache, second)
    cache.check_integrity()


def test_the_source_of_a_copy_outlives_its_owner_until_the_step_has_run() -> None:
    cache = KVCacheManager(4)
    first = make(tokens(20))
    admit(cache, first)
    compute(cache, first)
    free(cache, first)
    second = make([*tokens(18), 5])
    allocation = admit(cache, second)
    source = allocation.copies[0].source
    assert cache._pool.num_users(source) == 1
    cache.check_integrity()
    cache.copies_done()
    assert cache._pool.num_users(source) == 0
    free(cache, second)
    cache.check_integrity()


def test_without_room_for_the_source_the_copy_is_given_up_not_the_request() -> None:
    cache = KVCacheManager(2)
    first = make(tokens(31))
    admit(cache, first)
    compute(cache, first)
    free(cache, first)
    second = make([*tokens(30), 5])
    allocation = admit(cache, second)
    assert allocation is not None and allocation.copies == ()
    assert allocation.num_cached_tokens == 16
    compute(cache, second)


def test_nothing_is_promised_twice_and_a_refusal_changes_nothing() -> None:
    cache = KVCacheManager(10)
    first, second = make(tokens(40)), make(tokens(40, seed=2))
    admit(cache, first, num_tokens=100)
    compute(cache, first)
    assert cache.num_available == 3
    before = (cache.num_available, cache._pool.num_free, cache._pool.num_idle)
    assert admit(cache, second, num_tokens=64) is None
    assert (cache.num_available, cache._pool.num_free, cache._pool.num_idle) == before
    cache.check_integrity()
    assert admit(cache, second, num_tokens=48) is not None
    assert not cache.reserve(first.lease, 113)
    assert cache.reserve(first.lease, 112)
    assert first.lease.num_reserved_tokens == 112
    with pytest.raises(AssertionError, match="never promised"):
        cache.extend(first.lease, 113)


def test_a_promise_is_kept_by_evicting() -> None:
    cache = KVCacheManager(4)
    first = make(tokens(64))
    admit(cache, first)
    compute(cache, first)
    free(cache, first)
    assert cache.num_used_blocks == cache.num_cached_blocks == 4
    second = make(tokens(64, seed=2))
    admit(cache, second)
    compute(cache, second)
    assert cache.match("", token_key(tokens(64))).num_tokens == 0


def test_what_was_used_again_is_evicted_last() -> None:
    cache = KVCacheManager(10)
    for seed in (1, 2, 3, 1):
        request = make(tokens(48, seed=seed))
        admit(cache, request)
        compute(cache, request)
        free(cache, request)
    newcomer = make(tokens(48, seed=4))
    admit(cache, newcomer)
    compute(cache, newcomer)
    left = [cache.match("", token_key(tokens(48, seed=s))).num_tokens for s in (1, 2, 3)]
    assert left == [47, 16, 47], "one block was free, two came from b"


def test_a_head_that_was_only_looked_up_is_recent_too() -> None:
    cache = KVCacheManager(5)
    for seed in (1, 2):
        request = make(tokens(32, seed=seed))
        admit(cache, request)
        compute(cache, request)
        free(cache, request)
    cancelled = make([*tokens(32, seed=1), 5])
    cancelled.num_computed_tokens = admit(cache, cancelled).num_cached_tokens
    assert cancelled.num_computed_tokens == 32
    free(cache, cancelled)
    newcomer = make(tokens(32, seed=4))
    admit(cache, newcomer)
    compute(cache, newcomer)
    left = [cache.match("", token_key([*tokens(32, seed=s), 5])).num_tokens for s in (1, 2)]
    assert left == [32, 16]


def test_equal_blocks_computed_side_by_side_become_one() -> None:
    cache = KVCacheManager(10)
    first, second = make(tokens(40)), make(tokens(40))
    admit(cache, first)
    admit(cache, second)
    compute(cache, first)
    compute(cache, second)
    assert second.block_table[:2] == first.block_table[:2]
    assert second.block_table[2] != first.block_table[2]
    assert cache.num_used_blocks == 4
    free(cache, first)
    free(cache, second)
    cache.check_integrity()
    assert cache.num_used_blocks == cache.num_cached_blocks == 3


def test_blocks_can_be_shared_while_their_owner_still_runs() -> None:
    cache = KVCacheManager(20)
    first = make(tokens(100))
    admit(cache, first)
    cache.extend(first.lease, 50)
    first.num_computed_tokens = 50
    cache.commit(first.lease, first)
    assert cache.match("", token_key(tokens(100))).num_tokens == 48
    free(cache, first)
    assert cache.match("", token_key(tokens(100))).num_tokens == 50
    cache.check_integrity()


def test_a_disabled_cache_remembers_nothing() -> None:
    cache = KVCacheManager(8, is_enabled=False)
    first = make(tokens(40))
    admit(cache, first)
    compute(cache, first)
    free(cache, first)
    assert cache.num_used_blocks == 0
    assert cache.match("", token_key(tokens(40))).num_tokens == 0


def test_a_block_table_is_a_snapshot_that_stays_until_a_block_changes() -> None:
    cache = KVCacheManager(8)
    first = make(tokens(40))
    admit(cache, first)
    cache.extend(first.lease, 20)
    before = first.block_table
    assert first.block_table is before and len(before) == 2
    cache.extend(first.lease, 32)
    assert first.block_table is before, "no block was added"
    cache.extend(first.lease, 33)
    assert len(before) == 2 and first.block_table[:2] == before and len(first.block_table) == 3
