"""States of a block: free, used, idle, used and cached."""

from __future__ import annotations

import pytest

from twostroke.cache.block_pool import BlockPool


def test_a_block_without_user_is_free_unless_cached() -> None:
    pool = BlockPool(2)
    a, b = pool.allocate(), pool.allocate()
    assert pool.allocate() is None
    pool.mark_cached(a)
    pool.release(a)
    pool.release(b)
    assert (pool.num_free, pool.num_idle) == (1, 1)
    pool.check_integrity()
    pool.hold(a)
    assert (pool.num_users(a), pool.num_idle) == (1, 0)
    pool.unmark_cached(a)
    assert pool.num_free == 1  # still used
    pool.release(a)
    assert pool.num_free == 2
    pool.check_integrity()


def test_our_own_mistakes_are_caught() -> None:
    pool = BlockPool(1)
    with pytest.raises(AssertionError, match="cannot be held"):
        pool.hold(0)
    with pytest.raises(AssertionError, match="no user"):
        pool.release(0)
    pool._users[0] = 1
    with pytest.raises(AssertionError, match="lost or doubly owned"):
        pool.check_integrity()
