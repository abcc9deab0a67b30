"""The only door to KV blocks: match, allocate, extend, commit, free.

Memory is promised before it is used: `num_available` is what is neither used nor promised. Knows
ids and tokens; the bytes are the backend's.
"""

from __future__ import annotations

from twostroke.cache.block_pool import BlockPool
from twostroke.cache.radix import TOKEN_BYTES, Node, RadixTree, token_key
from twostroke.dataclass import dataclass
from twostroke.request import Request
from twostroke.step import BLOCK_SIZE, BlockCopy


def blocks_for(num_tokens: int) -> int:
    """Return how many blocks hold this many tokens."""
    return -(-num_tokens // BLOCK_SIZE)


@dataclass(frozen=True, slots=True)
class Match:
    """What of a prompt is cached: whole blocks, then the first tokens of one more, to be copied.

    Valid until the next call that changes the manager.
    """

    salt: str
    nodes: tuple[Node, ...] = ()
    partial: Node | None = None
    num_partial_tokens: int = 0

    @property
    def num_tokens(self) -> int:
        """Tokens that need not be computed again."""
        return len(self.nodes) * BLOCK_SIZE + self.num_partial_tokens


@dataclass(frozen=True, slots=True)
class Allocation:
    """What a request got when it was admitted."""

    block_ids: tuple[int, ...]
    num_cached_tokens: int
    new_blocks: tuple[int, ...] = ()
    copies: tuple[BlockCopy, ...] = ()


class _Lease:
    """Blocks of one admitted request: [0, len(nodes)) are the tree's, the rest are private."""

    __slots__ = ("blocks", "nodes", "num_reserved", "salt", "tail")

    def __init__(self, salt: str, nodes: list[Node], blocks: list[int], num_reserved: int) -> None:
        self.salt = salt
        self.nodes = nodes
        self.blocks = blocks
        self.num_reserved = num_reserved
        self.tail: Node | None = None  # what of the unfinished last block others may copy


class KVCacheManager:
    """Sole writer of the pool, the tree and the leases."""

    def __init__(self, num_blocks: int, *, is_enabled: bool = True) -> None:
        self.num_blocks = num_blocks
        self.is_enabled = is_enabled
        self._pool = BlockPool(num_blocks)
        self._tree = RadixTree(self._pool)
        self._leases: dict[str, _Lease] = {}
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
        """Return what of a prompt (a `token_key`) is cached; its last token is left to compute."""
        if not self.is_enabled:
            return Match(salt)
        path, partial, num_partial = self._tree.match(salt, key[:-TOKEN_BYTES])
        return Match(salt, tuple(path), partial, num_partial)

    def allocate(self, request_id: str, match: Match, num_tokens: int) -> Allocation | None:
        """Hold what matched, promise room for num_tokens in all; None: not now, nothing changed."""
        assert request_id not in self._leases
        wanted = blocks_for(num_tokens)
        lease = self._hold(match, wanted)
        if lease is None and match.partial is not None:
            match = Match(
                match.salt, match.nodes
            )  # the source of a copy needs a block for one step
            lease = self._hold(match, wanted)
        if lease is None:
            return None
        self._leases[request_id] = lease
        if match.partial is None:
            return Allocation(tuple(lease.blocks), match.num_tokens)
        target = self._take(lease)
        self._copy_sources.append(match.partial)
        copy = BlockCopy(match.partial.block, target, match.num_partial_tokens)
        return Allocation(tuple(lease.blocks), match.num_tokens, (target,), (copy,))

    def _hold(self, match: Match, wanted: int) -> _Lease | None:
        held = [*match.nodes, match.partial] if match.partial is not None else list(match.nodes)
        for node in held:
            self._pool.hold(node.block)
        fresh = wanted - len(match.nodes)
        if self.num_available < fresh:
            for node in held:
                self._pool.release(node.block)
            return None
        self._num_promised += fresh
        return _Lease(match.salt, list(match.nodes), [n.block for n in match.nodes], wanted)

    def _take(self, lease: _Lease) -> int:
        block = self._pool.allocate()
        if block is None:
            assert self._tree.evict(), "a promise was given without memory behind it"
            block = self._pool.allocate()
        assert block is not None
        self._num_promised -= 1
        lease.blocks.append(block)
        return block

    def reserve(self, request_id: str, num_tokens: int) -> bool:
        """Promise room for num_tokens in all; False: not now, nothing changed."""
        lease = self._leases[request_id]
        more = blocks_for(num_tokens) - lease.num_reserved
        if more <= 0:
            return True
        if self.num_available < more:
            return False
        lease.num_reserved += more
        self._num_promised += more
        return True

    def num_reserved_tokens(self, request_id: str) -> int:
        """Return how many tokens the request has been promised room for."""
        return self._leases[request_id].num_reserved * BLOCK_SIZE

    def extend(self, request_id: str, num_tokens: int) -> tuple[int, ...]:
        """Hand out the blocks that num_tokens tokens need, within what was promised."""
        lease = self._leases[request_id]
        wanted = blocks_for(num_tokens)
        assert wanted <= lease.num_reserved, "blocks were asked for that were never promised"
        return tuple(self._take(lease) for _ in range(wanted - len(lease.blocks)))

    def commit(self, request: Request, *, with_tail: bool = False) -> tuple[tuple[int, int], ...]:
        """Let others reuse a request's computed blocks, with_tail the unfinished last one too.

        Returns:
            (index, block id) where equal tokens were cached first and the own copy is now free.
        """
        if not self.is_enabled:
            return ()
        lease = self._leases[request.id]
        replaced = []
        num_full, num_tail = divmod(request.num_computed_tokens, BLOCK_SIZE)
        for index in range(len(lease.nodes), num_full):
            key = token_key(request.token_ids(index * BLOCK_SIZE, (index + 1) * BLOCK_SIZE))
            own = lease.blocks[index]
            node = self._tree.insert(self._parent(lease), lease.salt, key, own)
            assert node is not None
            lease.nodes.append(node)
            if node.block != own:
                self._pool.hold(node.block)
                self._pool.release(own)
                lease.blocks[index] = node.block
                replaced.append((index, node.block))
        if with_tail and num_tail:
            start = num_full * BLOCK_SIZE
            key = token_key(request.token_ids(start, start + num_tail))
            own = lease.blocks[num_full]
            tail = self._tree.insert(self._parent(lease), lease.salt, key, own)
            if tail is not None and tail.block == own:
                lease.tail = tail
        return tuple(replaced)

    @staticmethod
    def _parent(lease: _Lease) -> Node | None:
        return lease.nodes[-1] if lease.nodes else None

    def free(self, request: Request, *, is_trusted: bool = True) -> None:
        """Take back all blocks of a request; what it computed stays reusable until evicted.

        Not is_trusted: its last step failed, so only what was committed before is kept.
        """
        if is_trusted:
            self.commit(request, with_tail=True)
        lease = self._leases.pop(request.id)
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
        """Let go of the sources of copies, after the step that made them."""
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
        for lease in self._leases.values():
            for block in lease.blocks:
                users[block] += 1
            assert [n.block for n in lease.nodes] == lease.blocks[: len(lease.nodes)]
        for node in self._copy_sources:
            users[node.block] += 1
        for block, count in enumerate(users):
            assert self._pool.num_users(block) == count, f"block {block}: {count} users expected"
        promised = sum(x.num_reserved - len(x.blocks) for x in self._leases.values())
        assert promised == self._num_promised
        assert self.num_available >= 0, "more was promised than there is"
        if not self._leases and not self._copy_sources:
            assert self.num_used_blocks == self._tree.num_nodes, "idle, yet more used than cached"
