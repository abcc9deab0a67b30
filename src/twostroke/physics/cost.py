"""Operations and bytes of a slice, from the model's real shape and stored types.

Prefill is bound by operations, decode by bytes; both are counted for both. Knows no machine and no
clock.
Source: formulas of Kaplan et al. 2020, arXiv:2001.08361 (2 N per token) with the causal attention
term.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from twostroke.config import KvType
from twostroke.formats.ggml_types import GGMLType
from twostroke.model.config import ModelConfig
from twostroke.model.weights import ModelWeights, Weight
from twostroke.step import BLOCK_SIZE, StepPlan

_FP32_WEIGHTS = (GGMLType.F32, GGMLType.F16)
_KV_UNIT = {KvType.BF16: "bf16", KvType.F16: "fp32", KvType.Q8: "int8"}


@dataclass(frozen=True, slots=True)
class Work:
    """What must be done. Units: operations (a multiply-add is two) by the unit that does them;
    bytes read.
    """

    int8_ops: float = 0.0
    bf16_flops: float = 0.0
    fp32_flops: float = 0.0
    weight_bytes: float = 0.0
    kv_bytes: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.int8_ops + other.int8_ops,
            self.bf16_flops + other.bf16_flops,
            self.fp32_flops + other.fp32_flops,
            self.weight_bytes + other.weight_bytes,
            self.kv_bytes + other.kv_bytes,
        )

    @property
    def num_bytes(self) -> float:
        """Bytes read: weights and KV."""
        return self.weight_bytes + self.kv_bytes

    @property
    def num_ops(self) -> float:
        """Operations of any unit."""
        return self.int8_ops + self.bf16_flops + self.fp32_flops


def visible_keys(start: int, end: int, window: int) -> int:
    """Return the keys that tokens [start, end) see together, each itself included.

    Causal: a token at position p sees p + 1 keys, or `window` of them where that is less.
    """
    if not window:
        return (end * (end + 1) - start * (start + 1)) // 2
    full = max(start, min(end, window - 1))
    return visible_keys(start, full, 0) + (end - full) * window


class CostModel:
    """Counts the work of one model's slices.

    packed_bytes: bytes of each matrix as the backend stores it, by tensor name; None: as in the
    file.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: ModelWeights,
        kv_type: KvType,
        packed_bytes: Mapping[str, int] | None = None,
    ) -> None:
        self._config = config
        self._kv_unit = _KV_UNIT[kv_type]
        self._kv_token_bytes = config.num_kv_heads * kv_type.head_bytes(config.head_dim)
        stored = packed_bytes or {}
        self._head_ops = _matrix_ops((weights.output,))
        self._head_bytes = stored.get(weights.output.name, weights.output.nbytes)
        body = tuple(
            w
            for layer in weights.layers
            for w in (layer.q, layer.k, layer.v, layer.o, layer.gate, layer.up, layer.down)
        )
        self._body_ops = _matrix_ops(body)
        self._body_bytes = sum(stored.get(w.name, w.nbytes) for w in body)
        self._windows = tuple(config.window(i) for i in range(config.num_layers))

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that one step reads, the head included."""
        return self._body_bytes + self._head_bytes

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of K and V that one token takes over all layers."""
        return int(self._config.num_layers * self._kv_token_bytes)

    def weights_once(self, *, with_head: bool) -> Work:
        """Return the reading of all weights by one step, whatever its batch."""
        return Work(weight_bytes=self._body_bytes + (self._head_bytes if with_head else 0))

    def slice_work(self, start: int, end: int, *, logit_rows: int) -> Work:
        """Return the work of computing tokens [start, end) of one request, without reading
        weights.
        """
        n, c = end - start, self._config
        pairs = sum(visible_keys(start, end, w) for w in self._windows)
        kv_tokens = sum(min(end, w + n) if w else end for w in self._windows)
        work = _ops_work(self._body_ops, n) + _ops_work(self._head_ops, logit_rows)
        attention = {self._kv_unit: 4.0 * c.num_heads * c.head_dim}
        return work + _ops_work(attention, pairs) + Work(kv_bytes=kv_tokens * self._kv_token_bytes)

    def step_work(self, plan: StepPlan) -> Work:
        """Return the work of a whole step: weights once, and every slice."""
        rows = [len(s.token_ids) - 1 if s.score else int(s.sample is not None) for s in plan.slices]
        work = self.weights_once(with_head=any(rows))
        for s, n in zip(plan.slices, rows, strict=True):
            work += self.slice_work(s.start, s.end, logit_rows=n)
        return work

    def kv_bytes(self, num_tokens: int) -> int:
        """Return bytes of the blocks that hold so many tokens."""
        return -(-num_tokens // BLOCK_SIZE) * BLOCK_SIZE * self.kv_bytes_per_token


def _matrix_ops(matrices: tuple[Weight, ...]) -> dict[str, float]:
    """Operations per row of activations, by unit."""
    ops: dict[str, float] = {}
    for weight in matrices:
        unit = (
            "fp32"
            if weight.type in _FP32_WEIGHTS
            else "bf16"
            if weight.type is GGMLType.BF16
            else "int8"
        )
        ops[unit] = ops.get(unit, 0.0) + 2.0 * weight.shape[0] * weight.shape[1]
    return ops


def _ops_work(ops: Mapping[str, float], times: int) -> Work:
    return Work(
        int8_ops=ops.get("int8", 0.0) * times,
        bf16_flops=ops.get("bf16", 0.0) * times,
        fp32_flops=ops.get("fp32", 0.0) * times,
    )
