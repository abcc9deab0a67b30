"""Attention of single requests on one layer's cache, token by token as a runner would fill it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twostroke import _native
from twostroke import _native_testing as kernels

Floats = NDArray[np.float32]
BLOCK = 16
SETS = _native.kernel_sets()
TYPES = ("bf16", "f16", "q8")


@dataclass(frozen=True)
class Shape:
    num_kv_heads: int
    group: int
    head_dim: int
    soft_cap: float = 0.0
    window: int = 0

    @property
    def num_heads(self) -> int:
        return self.num_kv_heads * self.group


SHAPES = (
    Shape(3, 3, 64),
    Shape(1, 7, 64, window=512),
    Shape(2, 4, 128, window=100),
    Shape(1, 4, 256, soft_cap=30.0),
    Shape(2, 1, 80),
    Shape(1, 3, 32, soft_cap=50.0, window=70),
    Shape(1, 2, 112, window=1),
)


class Request:
    """Random q, K and V of one request, put into a cache token by token as a runner would."""

    def __init__(
        self, rng: np.random.Generator, shape: Shape, length: int, sharp: float = 1.0
    ) -> None:
        self.shape = shape
        self.length = length
        self.q = sharp * normal(rng, length, shape.num_heads, shape.head_dim)
        self.k = normal(rng, length, shape.num_kv_heads, shape.head_dim)
        self.v = normal(rng, length, shape.num_kv_heads, shape.head_dim)

    def append(
        self,
        cache: kernels.KvCache,
        table: NDArray[np.int32],
        start: int,
        end: int,
        kernel_set: str,
    ) -> None:
        for t in range(start, end):
            if t % BLOCK == 0:
                cache.fill_block(int(table[t // BLOCK]), 0)
            cache.append(kernel_set, slot(table, t), self.k[t], self.v[t])


def normal(rng: np.random.Generator, *shape: int) -> Floats:
    return rng.standard_normal(shape, dtype=np.float32)


def slot(table: NDArray[np.int32], t: int) -> int:
    return int(table[t // BLOCK]) * BLOCK + t % BLOCK


def make_cache(kv_type: str, shape: Shape, num_blocks: int) -> kernels.KvCache:
    """A cache whose free blocks hold NaN, as a stale one may."""
    cache = kernels.KvCache(kv_type, num_blocks, shape.num_kv_heads, shape.head_dim)
    for block in range(num_blocks):
        cache.fill_block(block, 0xFF)
    return cache


def tables(rng: np.random.Generator, lengths: list[int]) -> list[NDArray[np.int32]]:
    counts = [(n + BLOCK - 1) // BLOCK for n in lengths]
    order = rng.permutation(sum(counts)).astype(np.int32)
    return np.split(order, np.cumsum(counts)[:-1])


def attend(
    kernel_set: str,
    cache: kernels.KvCache,
    shape: Shape,
    seqs: list,
    threads: int = 1,
    seed: int = 0,
) -> list:
    scale = shape.head_dim**-0.5
    return kernels.attention(
        kernel_set, cache, seqs, scale, shape.soft_cap, shape.window, threads, seed
    )


def stored(
    kernel_set: str, cache: kernels.KvCache, table: NDArray[np.int32], length: int
) -> tuple[Floats, Floats]:
    pairs = [cache.read(kernel_set, slot(table, t)) for t in range(length)]
    return np.stack([k for k, _ in pairs]), np.stack([v for _, v in pairs])
