"""The blocks that a request matched, leases and was given. Written by the cache manager alone."""

from __future__ import annotations

from twostroke.cache.radix import Node
from twostroke.dataclass import dataclass
from twostroke.step import BLOCK_SIZE, BlockCopy, BlockTable


@dataclass(frozen=True, slots=True)
class Match:
    """The cached prefix of a prompt: whole blocks, then the first tokens of one to be copied.

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


class Lease:
    """The blocks of one admitted request and the room it was promised. Sole writer: the manager.

    Blocks [0, len(nodes)) belong to the prefix tree, the rest to this request alone.
    """

    __slots__ = ("_table", "blocks", "nodes", "num_reserved", "salt", "tail")

    def __init__(self, salt: str, nodes: list[Node], num_reserved: int) -> None:
        self.salt = salt
        self.nodes = nodes
        self.blocks = [node.block for node in nodes]
        self.num_reserved = num_reserved  # blocks
        self.tail: Node | None = None  # the unfinished last block, where others may copy it
        self._table: BlockTable | None = None

    @property
    def block_table(self) -> BlockTable:
        """A snapshot of the block ids; the same object until a block changes."""
        if self._table is None:
            self._table = BlockTable(self.blocks)
        return self._table

    @property
    def num_reserved_tokens(self) -> int:
        """Tokens that the promised blocks hold."""
        return self.num_reserved * BLOCK_SIZE

    @property
    def last_node(self) -> Node | None:
        """The tree's node that the request's next block comes under; None: a root."""
        return self.nodes[-1] if self.nodes else None

    def append(self, block: int) -> None:
        """Add a block behind the last one."""
        self.blocks.append(block)
        self._table = None

    def replace(self, index: int, block: int) -> None:
        """Use another block of equal tokens."""
        self.blocks[index] = block
        self._table = None


@dataclass(frozen=True, slots=True)
class Allocation:
    """A lease as it was given: how much of it is cached, and the copy that completes the prefix."""

    lease: Lease
    num_cached_tokens: int
    new_blocks: tuple[int, ...] = ()
    copies: tuple[BlockCopy, ...] = ()
