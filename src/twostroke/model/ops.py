"""The ops of the forward pass and the batch that it reads. A backend decides how an op is run.

The reference backend runs each op as it is called; the native backend records all of them once
into a program.

Legend: T tokens in the step, S requests in the step, R rows whose logits are wanted, H query
heads, K kv heads, D head_dim, E hidden, F intermediate, V vocabulary.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from twostroke.dataclass import dataclass
from twostroke.model.config import RopeConfig
from twostroke.model.weights import Weight

Tensor = TypeVar("Tensor")
Index = TypeVar("Index")
Seqs = TypeVar("Seqs")
InIndex = TypeVar("InIndex", contravariant=True)
InSeqs = TypeVar("InSeqs", contravariant=True)
Cache = TypeVar("Cache", contravariant=True)


@dataclass(frozen=True, slots=True)
class Batch(Generic[Index, Seqs]):
    """The tokens of one step. `sequences` is the backend's own view of the requests' lengths."""

    token_ids: Index  # [T] int32
    positions: Index  # [T] int32, position of each token in its request
    slot_mapping: Index  # [T] int64, block_id * block_size + offset
    sequences: Seqs  # S requests: query lengths, context lengths, block tables
    logit_rows: Index  # [R] int32, rows of x whose logits are wanted


class Ops(Protocol[Tensor, InIndex, InSeqs, Cache]):
    """The ops that `forward` calls."""

    def embed(self, table: Weight, token_ids: InIndex, *, scale: float) -> Tensor:
        """Look token ids up and scale: [T] -> [T, E]."""
        ...

    def rms_norm(self, x: Tensor, weight: Weight, *, eps: float) -> Tensor:
        """Normalise rows: [T, E] -> [T, E]. Source: Zhang & Sennrich 2019, arXiv:1910.07467."""
        ...

    def head_norm(self, x: Tensor, weight: Weight, *, eps: float) -> Tensor:
        """Normalise each head of a row: [T, H * D] with a weight [D]."""
        ...

    def project(
        self, x: Tensor, weights: tuple[Weight, ...], biases: tuple[Weight | None, ...]
    ) -> tuple[Tensor, ...]:
        """Multiply by several matrices that share the input: [T, E] -> ([T, N], ...)."""
        ...

    def rope(self, x: Tensor, positions: InIndex, *, rope: RopeConfig, head_dim: int) -> Tensor:
        """Rotate pairs of each head by position: [T, H * D] -> [T, H * D]."""
        ...

    def append_kv(self, kv: Cache, layer: int, k: Tensor, v: Tensor, slot_mapping: InIndex) -> None:
        """Store K and V of the step's tokens, rounded to the cache type: both [T, K * D]."""
        ...

    def attend(
        self,
        q: Tensor,
        kv: Cache,
        layer: int,
        sequences: InSeqs,
        *,
        scale: float,
        window: int,
        soft_cap: float,
    ) -> Tensor:
        """Attend to the cache, own tokens included, causally: [T, H * D] -> [T, H * D].

        Source: Vaswani et al. 2017, arXiv:1706.03762; Kwon et al. 2023, arXiv:2309.06180 (paged
        KV).
        """
        ...

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """Add elementwise."""
        ...

    def gated(self, gate: Tensor, up: Tensor, *, activation: str) -> Tensor:
        """Return activation(gate) * up. Source: Shazeer 2020, arXiv:2002.05202."""
        ...

    def take_rows(self, x: Tensor, rows: InIndex) -> Tensor:
        """Keep the rows whose logits are wanted: [T, E] -> [R, E]."""
        ...

    def soft_cap(self, x: Tensor, *, cap: float) -> Tensor:
        """Return cap * tanh(x / cap)."""
        ...
