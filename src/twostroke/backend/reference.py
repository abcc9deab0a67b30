"""The definition of correct: every op runs in NumPy float32 as it is called. Slow and plain.

Weights are dequantised exactly, activations stay float32; only K and V are rounded, to the KV type.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from twostroke.config import KvType
from twostroke.dataclass import dataclass
from twostroke.formats.quant import dequantize
from twostroke.model.config import ModelConfig, RopeConfig
from twostroke.model.weights import Weight
from twostroke.step import BLOCK_SIZE

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Sequences:
    """The S requests of a step."""

    cu_seqlens_q: Ints  # [S + 1], rows of request s are [cu[s], cu[s + 1])
    context_lens: Ints  # [S], the step's own tokens included
    block_tables: Ints  # [S, max blocks], -1 past the end


def round_bf16(x: Floats) -> Floats:
    """Round to the nearest bfloat16, ties to even.

    Shapes: any, returned as float32
    """
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(x), x, rounded.view(np.float32)).astype(np.float32)


def round_f16(x: Floats) -> Floats:
    """Round to the nearest float16, ties to even."""
    return x.astype(np.float16).astype(np.float32)


def round_q8(x: Floats) -> Floats:
    """Round to 8 bits with one scale per token and head.

    Shapes: [..., D]
    """
    scale = np.max(np.abs(x), axis=-1, keepdims=True) / np.float32(127)
    safe = np.where(scale > 0, scale, np.float32(1))
    return (np.rint(x / safe) * scale).astype(np.float32)


_ROUNDING: dict[KvType | None, Callable[[Floats], Floats]] = {
    None: lambda x: x,
    KvType.BF16: round_bf16,
    KvType.F16: round_f16,
    KvType.Q8: round_q8,
}


class ReferenceCache:
    """K and V of every slot as float32, rounded to the KV type when stored.

    Shapes: keys, values [L, blocks * P, K, D]
    """

    def __init__(self, config: ModelConfig, num_blocks: int, kv_type: KvType | None) -> None:
        shape = (
            config.num_layers,
            num_blocks * BLOCK_SIZE,
            config.num_kv_heads,
            config.head_dim,
        )
        self.keys = np.zeros(shape, dtype=np.float32)
        self.values = np.zeros(shape, dtype=np.float32)
        self.round = _ROUNDING[kv_type]

    def zero(self, block: int) -> None:
        """Clear a block that was just allocated."""
        slots = slice(block * BLOCK_SIZE, (block + 1) * BLOCK_SIZE)
        self.keys[:, slots] = 0
        self.values[:, slots] = 0

    def copy(self, source: int, target: int, num_tokens: int) -> None:
        """Copy the first slots of a block into another."""
        a, b = source * BLOCK_SIZE, target * BLOCK_SIZE
        self.keys[:, b : b + num_tokens] = self.keys[:, a : a + num_tokens]
        self.values[:, b : b + num_tokens] = self.values[:, a : a + num_tokens]


class ReferenceOps:
    """model.ops.Ops over NumPy arrays."""

    def __init__(self, config: ModelConfig) -> None:
        self._config = config
        self._dense: dict[str, Floats] = {}
        self._tables: dict[RopeConfig, tuple[Floats, Floats]] = {}

    def _weight(self, weight: Weight) -> Floats:
        if weight.name not in self._dense:
            self._dense[weight.name] = dequantize(weight.raw, weight.type, weight.shape)
        return self._dense[weight.name]

    def embed(self, table: Weight, token_ids: Ints, *, scale: float) -> Floats:
        """Look up and scale."""
        return self._weight(table)[token_ids] * np.float32(scale)

    def rms_norm(self, x: Floats, weight: Weight, *, eps: float) -> Floats:
        """Divide by the root of the mean square and multiply by the weight."""
        mean_square = np.mean(np.square(x), axis=-1, keepdims=True, dtype=np.float32)
        return x / np.sqrt(mean_square + np.float32(eps)) * self._weight(weight)

    def head_norm(self, x: Floats, weight: Weight, *, eps: float) -> Floats:
        """rms_norm of each head."""
        heads = x.reshape(len(x), -1, weight.shape[0])
        return self.rms_norm(heads, weight, eps=eps).reshape(x.shape)

    def project(
        self, x: Floats, weights: tuple[Weight, ...], biases: tuple[Weight | None, ...]
    ) -> tuple[Floats, ...]:
        """x W^T + b for each W."""
        outs = []
        for weight, bias in zip(weights, biases, strict=True):
            y = x @ self._weight(weight).T
            outs.append(y + self._weight(bias) if bias is not None else y)
        return tuple(outs)

    def rope(self, x: Floats, positions: Ints, *, rope: RopeConfig, head_dim: int) -> Floats:
        """Rotate each pair by its angle."""
        cos, sin = self._table(rope, int(positions.max(initial=0)) + 1)
        c, s = cos[positions][:, None, :], sin[positions][:, None, :]  # [T, 1, pairs]
        heads = x.reshape(len(x), -1, head_dim).copy()
        n = rope.pairs
        first = np.s_[..., 0 : 2 * n : 2] if rope.interleaved else np.s_[..., :n]
        second = np.s_[..., 1 : 2 * n : 2] if rope.interleaved else np.s_[..., n : 2 * n]
        a, b = heads[first].copy(), heads[second].copy()
        heads[first] = a * c - b * s
        heads[second] = a * s + b * c
        return heads.reshape(x.shape)

    def _table(self, rope: RopeConfig, positions: int) -> tuple[Floats, Floats]:
        table = self._tables.get(rope)
        if table is None or len(table[0]) < positions:
            table = self._tables[rope] = rope.table(max(positions, 256))
        return table

    def append_kv(
        self, kv: ReferenceCache, layer: int, k: Floats, v: Floats, slot_mapping: Ints
    ) -> None:
        """Round and store."""
        shape = (len(k), self._config.num_kv_heads, self._config.head_dim)
        kv.keys[layer, slot_mapping] = kv.round(k.reshape(shape))
        kv.values[layer, slot_mapping] = kv.round(v.reshape(shape))

    def attend(
        self,
        q: Floats,
        kv: ReferenceCache,
        layer: int,
        sequences: Sequences,
        *,
        scale: float,
        window: int,
        soft_cap: float,
    ) -> Floats:
        """Softmax attention of each request over its own blocks."""
        out = np.empty_like(q)
        for i, length in enumerate(sequences.context_lens.tolist()):
            rows = slice(int(sequences.cu_seqlens_q[i]), int(sequences.cu_seqlens_q[i + 1]))
            blocks = sequences.block_tables[i, : -(-length // BLOCK_SIZE)]
            slots = (blocks[:, None] * BLOCK_SIZE + np.arange(BLOCK_SIZE)).reshape(-1)[:length]
            out[rows] = _attend_one(
                q[rows],
                kv.keys[layer, slots],
                kv.values[layer, slots],
                scale=scale,
                window=window,
                soft_cap=soft_cap,
            )
        return out

    def add(self, x: Floats, y: Floats) -> Floats:
        """x + y."""
        return x + y

    def gated(self, gate: Floats, up: Floats, *, activation: str) -> Floats:
        """activation(gate) * up."""
        if activation == "silu":
            return gate / (np.float32(1) + np.exp(-gate)) * up
        cube = np.float32(0.044715) * gate * gate * gate
        inner = np.float32(np.sqrt(2 / np.pi)) * (gate + cube)
        return np.float32(0.5) * gate * (np.float32(1) + np.tanh(inner)) * up

    def take_rows(self, x: Floats, rows: Ints) -> Floats:
        """Keep some rows."""
        return x[rows]

    def soft_cap(self, x: Floats, *, cap: float) -> Floats:
        """cap * tanh(x / cap)."""
        return np.float32(cap) * np.tanh(x / np.float32(cap))


def _attend_one(
    q: Floats, keys: Floats, values: Floats, *, scale: float, window: int, soft_cap: float
) -> Floats:
    """Attend the last rows of one request.

    Shapes:
        q             [n, H * D]
        keys, values  [context, K, D]
        returns       [n, H * D]
    """
    context, kv_heads, head_dim = keys.shape
    n = len(q)
    heads = q.reshape(n, kv_heads, -1, head_dim)
    scores = np.einsum("nkgd,ckd->kgnc", heads, keys, optimize=True) * np.float32(scale)
    if soft_cap:
        scores = np.float32(soft_cap) * np.tanh(scores / np.float32(soft_cap))
    position = np.arange(context - n, context)[:, None]
    key = np.arange(context)[None, :]
    hidden = key > position
    if window:
        hidden |= key <= position - window
    scores = np.where(hidden, np.float32(-np.inf), scores)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    mixed = np.einsum("kgnc,ckd->nkgd", weights, values, optimize=True)
    return np.ascontiguousarray(mixed.reshape(n, -1), dtype=np.float32)
