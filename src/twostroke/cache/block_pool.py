"""The state of each block id: free, used or cached. Knows no bytes and no tokens."""

from __future__ import annotations


class BlockPool:
    """Ids below num_blocks, each free, used, idle (cached, nobody using it) or used and cached.

    Sole writer: the cache manager, and the radix tree for the cached mark.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.num_idle = 0  # cached blocks without a user
        self._free = list(range(num_blocks - 1, -1, -1))
        self._users = [0] * num_blocks
        self._cached = bytearray(num_blocks)

    @property
    def num_free(self) -> int:
        """Blocks that hold nothing."""
        return len(self._free)

    def num_users(self, block: int) -> int:
        """Return how many requests (and pending copies) use the block."""
        return self._users[block]

    def is_cached(self, block: int) -> bool:
        """Whether the prefix tree remembers the block."""
        return bool(self._cached[block])

    def allocate(self) -> int | None:
        """Return a free block with one user, None when there is none."""
        if not self._free:
            return None
        block = self._free.pop()
        self._users[block] = 1
        return block

    def hold(self, block: int) -> None:
        """Add a user to a used or idle block."""
        users = self._users[block]
        if not users:
            assert self._cached[block], f"block {block} is free and cannot be held"
            self.num_idle -= 1
        self._users[block] = users + 1

    def release(self, block: int) -> None:
        """Take one user away; without users the block turns idle if cached, free if not."""
        users = self._users[block] - 1
        assert users >= 0, f"block {block} has no user to release"
        self._users[block] = users
        if users:
            return
        if self._cached[block]:
            self.num_idle += 1
        else:
            self._free.append(block)

    def mark_cached(self, block: int) -> None:
        """Note that the tree remembers a used block."""
        assert self._users[block] and not self._cached[block]
        self._cached[block] = 1

    def unmark_cached(self, block: int) -> None:
        """Note that the tree forgot the block; an idle one becomes free."""
        assert self._cached[block]
        self._cached[block] = 0
        if not self._users[block]:
            self.num_idle -= 1
            self._free.append(block)

    def check_integrity(self) -> None:
        """Assert that every block is in exactly one state and the counts agree."""
        free = set(self._free)
        assert len(free) == len(self._free), "a block is twice in the free list"
        idle = 0
        for block in range(self.num_blocks):
            is_unused = not self._users[block] and not self._cached[block]
            assert (block in free) == is_unused, f"block {block} is lost or doubly owned"
            idle += bool(self._cached[block] and not self._users[block])
        assert idle == self.num_idle, f"{idle} idle blocks, {self.num_idle} counted"
