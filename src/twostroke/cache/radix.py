"""Prefix tree over token ids, one root per salt, one node per block.

A node is keyed by the bytes of its 16 tokens, so a lookup compares 64 bytes at a time. A leaf may
hold fewer tokens: the unfinished last block of a request. Children of one node are prefix-free,
so the nearest child of any key is a neighbour in sorted order. Knows no text, no request and no
bytes of the cache itself.
Source: the idea of a radix tree over prompts is Zheng et al. 2023, arXiv:2312.07104, section 3.
"""

from __future__ import annotations

import heapq
import struct
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence

import numpy as np

from twostroke.cache.block_pool import BlockPool
from twostroke.step import BLOCK_SIZE

TOKEN_BYTES = 4
BLOCK_BYTES = BLOCK_SIZE * TOKEN_BYTES
COMPARED_BYTES = 4096  # at a time, so that an early difference is found early


def token_key(token_ids: Sequence[int]) -> bytes:
    """Return 4 big-endian bytes per id, so that byte order is id order.

    Raises:
        struct.error: an id is negative or does not fit 32 bits.
    """
    return struct.pack(f">{len(token_ids)}I", *token_ids)


def common_tokens(a: bytes, b: bytes) -> int:
    """Return how many tokens two keys share from the start."""
    end = min(len(a), len(b)) // TOKEN_BYTES * TOKEN_BYTES
    for at in range(0, end, COMPARED_BYTES):
        left, right = a[at : min(at + COMPARED_BYTES, end)], b[at : min(at + COMPARED_BYTES, end)]
        if left != right:
            differs = np.frombuffer(left, np.uint32) != np.frombuffer(right, np.uint32)
            return at // TOKEN_BYTES + int(differs.argmax())
    return end // TOKEN_BYTES


class Node:
    """One cached block: its tokens, its id and its place. A root has no block (-1)."""

    __slots__ = ("block", "children", "key", "order", "parent", "salt", "stamp")

    def __init__(self, key: bytes, block: int, parent: Node | None, salt: str, stamp: int) -> None:
        self.key = key
        self.block = block
        self.parent = parent  # None: a root, or no longer in the tree
        self.salt = salt
        self.stamp = stamp  # last use
        self.children: dict[bytes, Node] = {}
        self.order: list[bytes] = []  # keys of the children, sorted

    @property
    def is_full(self) -> bool:
        """Whether all slots of the block hold tokens."""
        return len(self.key) == BLOCK_BYTES


class RadixTree:
    """The tree and its eviction order. Sole writer of nodes and of the pool's cached marks."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._roots: dict[str, Node] = {}
        self._leaves: list[tuple[int, int, Node]] = []  # heap; stale entries are skipped
        self._serial = 0
        self._clock = 0
        self.num_nodes = 0

    def tick(self) -> int:
        """Return the next moment of use."""
        self._clock += 1
        return self._clock

    def match(self, salt: str, key: bytes) -> tuple[list[Node], Node | None, int]:
        """Return the whole blocks that a key starts with, then a block to copy and the count."""
        node = self._roots.get(salt)
        path: list[Node] = []
        if node is None:
            return path, None, 0
        at = 0
        while (child := node.children.get(key[at : at + BLOCK_BYTES])) is not None:
            if not child.is_full:
                break
            path.append(child)
            node = child
            at += BLOCK_BYTES
        partial, num_tokens = _nearest(node, key[at : at + BLOCK_BYTES])
        return path, partial, num_tokens

    def insert(self, parent: Node | None, salt: str, key: bytes, block: int) -> Node | None:
        """Remember a used block under its parent (None: the root of the salt).

        Returns:
            The node that now stands for the key: new with this block, or older with another;
            None when the key is unfinished and a longer sibling already covers it.
        """
        if parent is None:
            parent = self._roots.get(salt) or Node(b"", -1, None, salt, 0)
            self._roots[salt] = parent
        known = parent.children.get(key)
        if known is not None:
            return known
        if len(key) < BLOCK_BYTES:
            i = bisect_left(parent.order, key)
            if i < len(parent.order) and parent.order[i].startswith(key):
                return None
        self._drop_covered(parent, key)
        if parent.block < 0:
            self._roots[salt] = parent  # dropping its last child took it out
        self._pool.mark_cached(block)
        node = Node(key, block, parent, salt, self._clock)
        parent.children[key] = node
        insort(parent.order, key)
        self.num_nodes += 1
        return node

    def _drop_covered(self, parent: Node, key: bytes) -> None:
        if len(parent.children) == 0:
            return
        for end in range(TOKEN_BYTES, len(key), TOKEN_BYTES):
            covered = parent.children.get(key[:end])
            if covered is not None:
                self._remove(covered)

    def offer(self, node: Node) -> None:
        """Queue a leaf without users for eviction."""
        if node.children or node.parent is None or self._pool.num_users(node.block):
            return
        if len(self._leaves) > 2 * self.num_nodes + 64:
            self._leaves = [e for e in self._leaves if self._is_current(e)]
            heapq.heapify(self._leaves)
        self._serial += 1
        heapq.heappush(self._leaves, (node.stamp, self._serial, node))

    def evict(self) -> bool:
        """Forget the least recently used leaf that nobody uses; return whether there was one."""
        while self._leaves:
            entry = heapq.heappop(self._leaves)
            if self._is_current(entry):
                node = entry[2]
                parent = node.parent
                self._remove(node)
                if parent is not None and parent.block >= 0:
                    self.offer(parent)
                return True
        return False

    def _is_current(self, entry: tuple[int, int, Node]) -> bool:
        stamp, _, node = entry
        return (
            node.parent is not None
            and node.stamp == stamp
            and not node.children
            and not self._pool.num_users(node.block)
        )

    def _remove(self, node: Node) -> None:
        assert not node.children and node.parent is not None
        parent = node.parent
        del parent.children[node.key]
        del parent.order[bisect_left(parent.order, node.key)]
        node.parent = None
        self.num_nodes -= 1
        self._pool.unmark_cached(node.block)
        if parent.block < 0 and not parent.children:
            del self._roots[parent.salt]

    def nodes(self) -> Iterator[Node]:
        """Yield every node that holds a block."""
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            if node.block >= 0:
                yield node

    def check_integrity(self) -> None:
        """Assert order, prefix-freedom, users on whole paths, and evictable idle leaves."""
        current = {id(e[2]) for e in self._leaves if self._is_current(e)}
        seen: set[int] = set()
        for node in self.nodes():
            assert node.block not in seen, f"block {node.block} is twice in the tree"
            seen.add(node.block)
            assert self._pool.is_cached(node.block)
            assert node.order == sorted(node.children)
            assert all(
                not b.startswith(a) for a, b in zip(node.order, node.order[1:], strict=False)
            )
            assert node.is_full or not node.children
            users = self._pool.num_users(node.block)
            assert all(not self._pool.num_users(c.block) or users for c in node.children.values())
            if not node.children and not users:
                assert id(node) in current, "an idle leaf can never be evicted"
        assert len(seen) == self.num_nodes


def _nearest(node: Node, key: bytes) -> tuple[Node | None, int]:
    """Return the child that shares most tokens with the key, and how many."""
    best: tuple[Node | None, int] = (None, 0)
    i = bisect_left(node.order, key)
    for candidate in node.order[max(i - 1, 0) : i + 1]:
        shared = common_tokens(candidate, key)
        if shared > best[1]:
            best = (node.children[candidate], shared)
    return best
