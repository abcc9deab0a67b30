"""The only entry point to KV blocks: match, allocate, extend, commit, free.

Memory is promised before a block is handed out: `num_available` counts the blocks that are neither
used nor promised. The manager knows ids and tokens; the bytes are the backend's.
"""

from __future__ import annotations

from typing import Protocol

from twostroke.cache.block_pool import BlockPool
from twostroke.cache.lease import Allocation, Lease, Match
from twostroke.cache.radix import TOKEN_BYTES, Node, RadixTree, token_key
from twostroke.step import BLOCK_SIZE, BlockCopy


def blocks_for(num_tokens: int) -> int:
    """Return how many blocks hold this many tokens."""
    return -(-num_tokens // BLOCK_SIZE)


class ComputedTokens(Protocol):
    """The tokens of a request, of which the first num_computed_tokens have K and V."""

    @property
    def num_computed_tokens(self) -> int: ...

    def token_ids(self, start: int, end: int) -> tuple[int, ...]:
        """Return tokens [start, end)."""
        ...


class KVCacheManager:
    """Sole writer of the pool, the tree and the leases."""

    def __init__(self, num_blocks: int, *, is_enabled: bool = True) -> None:
        self.num_blocks = num_blocks
        self.is_enabled = is_enabled
        self._pool = BlockPool(num_blocks)
        self._tree = RadixTree(self._pool)
        self._leases: set[Lease] = set()
        self._num_promised = 0  # blocks reserved by leases and not yet handed out
        self._copy_sources: list[Node] = []

    @property
    def num_available(self) -> int:
        """Blocks that can still be promised: free or evictable, and not promised yet."""
        return self._pool.num_free + self._pool.num_idle - self._num_promised

    @property
    def num_cached_blocks(self) -> int:
        """Blocks that the prefix tree remembers."""
        return self._tree.num_nodes

    @property
    def num_used_blocks(self) -> int:
        """Blocks that are not free."""
        return self.num_blocks - self._pool.num_free

    def match(self, salt: str, key: bytes) -> Match:
        """Return the cached prefix of a prompt (a `token_key`), the last token always left out."""
        if not self.is_enabled:
            return Match(salt)
        path, partial, num_partial = self._tree.match(salt, key[:-TOKEN_BYTES])
        return Match(salt, tuple(path), partial, num_partial)

    def allocate(self, match: Match, num_tokens: int) -> Allocation | None:
        """Lease the matched blocks and promise room for num_tokens in all.

        None: there is no room now, and nothing changed.
        """
        wanted = blocks_for(num_tokens)
        lease = self._hold(match, wanted)
        if lease is None and match.partial is not None:
            # The source of a copy needs a block of its own for one step: do without the copy.
            match = Match(match.salt, match.nodes)
            lease = self._hold(match, wanted)
        if lease is None:
            return None
        self._leases.add(lease)
        if match.partial is None:
            return Allocation(lease, match.num_tokens)
        target = self._take(lease)
        self._copy_sources.append(match.partial)
        copy = BlockCopy(match.partial.block, target, match.num_partial_tokens)
        return Allocation(lease, match.num_tokens, (target,), (copy,))

    def _hold(self, match: Match, wanted: int) -> Lease | None:
        held = [*match.nodes, match.partial] if match.partial is not None else list(match.nodes)
        for node in held:
            self._pool.hold(node.block)
        fresh = wanted - len(match.nodes)
        if self.num_available < fresh:
            for node in held:
                self._pool.release(node.block)
            return None
        self._num_promised += fresh
        return Lease(match.salt, list(match.nodes), wanted)

    def _take(self, lease: Lease) -> int:
        block = self._pool.allocate()
        if block is None:
            assert self._tree.evict(), "a promise was given without memory behind it"
            block = self._pool.allocate()
        assert block is not None
        self._num_promised -= 1
        lease.append(block)
        return block

    def reserve(self, lease: Lease, num_tokens: int) -> bool:
        """Promise room for num_tokens in all; False: there is no room now, nothing changed."""
        more = blocks_for(num_tokens) - lease.num_reserved
        if more <= 0:
            return True
        if self.num_available < more:
            return False
        lease.num_reserved += more
        self._num_promised += more
        return True

    def extend(self, lease: Lease, num_tokens: int) -> tuple[int, ...]:
        """Add the blocks that num_tokens tokens need, within the promise; return the new ids."""
        wanted = blocks_for(num_tokens)
        assert wanted <= lease.num_reserved, "blocks were asked for that were never promised"
        return tuple(self._take(lease) for _ in range(wanted - len(lease.blocks)))

    def commit(self, lease: Lease, tokens: ComputedTokens, *, with_tail: bool = False) -> None:
        """Let others reuse the computed blocks, with_tail the unfinished last one too.

        Where the tree already holds a block of equal tokens, the lease takes that one and its own
        becomes free.
        """
        if not self.is_enabled:
            return
        num_full, num_tail = divmod(tokens.num_computed_tokens, BLOCK_SIZE)
        for index in range(len(lease.nodes), num_full):
            key = token_key(tokens.token_ids(index * BLOCK_SIZE, (index + 1) * BLOCK_SIZE))
            own = lease.blocks[index]
            node = self._tree.insert(lease.last_node, lease.salt, key, own)
            assert node is not None
            lease.nodes.append(node)
            if node.block != own:
                self._pool.hold(node.block)
                self._pool.release(own)
                lease.replace(index, node.block)
        if with_tail and num_tail:
            start = num_full * BLOCK_SIZE
            key = token_key(tokens.token_ids(start, start + num_tail))
            own = lease.blocks[num_full]
            tail = self._tree.insert(lease.last_node, lease.salt, key, own)
            if tail is not None and tail.block == own:
                lease.tail = tail

    def free(self, lease: Lease, tokens: ComputedTokens | None) -> None:
        """Take back all blocks; the computed tokens stay reusable until they are evicted.

        tokens None: the last step failed, so only blocks that were committed before stay.
        """
        if tokens is not None:
            self.commit(lease, tokens, with_tail=True)
        self._leases.remove(lease)
        self._num_promised -= lease.num_reserved - len(lease.blocks)
        stamp = self._tree.tick()
        for block in reversed(lease.blocks[len(lease.nodes) :]):
            self._pool.release(block)
        if lease.tail is not None:
            lease.tail.stamp = stamp
            self._tree.offer(lease.tail)
        for node in reversed(lease.nodes):
            node.stamp = stamp
            self._pool.release(node.block)
            self._tree.offer(node)

    def copies_done(self) -> None:
        """Release the sources of copies, after the step that made them."""
        for node in self._copy_sources:
            node.stamp = self._tree.tick()
            self._pool.release(node.block)
            self._tree.offer(node)
        self._copy_sources.clear()

    def check_integrity(self) -> None:
        """Assert that every block is accounted for, every user known, every promise covered."""
        self._pool.check_integrity()
        self._tree.check_integrity()
        users = [0] * self.num_blocks
        for lease in self._leases:
            for block in lease.blocks:
                users[block] += 1
            assert [n.block for n in lease.nodes] == lease.blocks[: len(lease.nodes)]
        for node in self._copy_sources:
            users[node.block] += 1
        for block, count in enumerate(users):
            assert self._pool.num_users(block) == count, f"block {block}: {count} users expected"
        promised = sum(x.num_reserved - len(x.blocks) for x in self._leases)
        assert promised == self._num_promised
        assert self.num_available >= 0, "more was promised than there is"
        if not self._leases and not self._copy_sources:
            assert self.num_used_blocks == self._tree.num_nodes, "idle, yet more used than cached"
