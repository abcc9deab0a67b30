"""Operations and bytes of a slice, from the model's real shape and stored types.

Prefill is bound by operations, decode by bytes; both are counted for both. Knows no machine and no
clock.
Source: formulas of Kaplan et al. 2020, arXiv:2001.08361 (2 N per token) with the causal attention
term.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from twostroke.config import KvType
from twostroke.dataclass import dataclass
from twostroke.errors import ConfigError
from twostroke.model.config import ModelConfig
from twostroke.model.weights import ModelWeights
from twostroke.predict.kv import KvFormat, kv_bytes_per_token, layer_token_bytes
from twostroke.predict.shape import ModelShape, WeightSizes, shape_of_model
from twostroke.step import Slice, StepPlan


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


class Span(NamedTuple):
    """`times` requests that each compute tokens [start, end) and `logit_rows` rows of logits."""

    start: int
    end: int
    logit_rows: int = 0
    times: int = 1


@dataclass(frozen=True, slots=True)
class StepWork:
    """The work of one step by what does it: the layers' matrices, the head, attention.

    rows, head_rows: how many rows each matrix is multiplied with; kernels are quicker a row with
    many of them.
    """

    body: Work
    head: Work
    attention: Work
    rows: float
    head_rows: float

    @property
    def total(self) -> Work:
        """All of it."""
        return self.body + self.head + self.attention


def visible_keys(start: int, end: int, window: int) -> int:
    """Return the keys that tokens [start, end) see together, each itself included.

    Causal: a token at position p sees p + 1 keys, or `window` of them where that is less.
    """
    if not window:
        return (end * (end + 1) - start * (start + 1)) // 2
    full = max(start, min(end, window - 1))
    return visible_keys(start, full, 0) + (end - full) * window


class CostModel:
    """Counts the work of one model's slices. Never changes, so any thread may ask it.

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
        self._take(shape_of_model(config, weights, packed_bytes), KvFormat(kv_type.value))

    @classmethod
    def from_shape(cls, shape: ModelShape, kv: KvFormat) -> CostModel:
        """Return the cost model of a shape without files.

        Raises:
            ConfigError: the shape does not say its layers or weights.
        """
        cost = cls.__new__(cls)
        cost._take(shape, kv)
        return cost

    def _take(self, shape: ModelShape, kv: KvFormat) -> None:
        if shape.layers is None or shape.weights is None:
            raise ConfigError("the shape is not known", value=", ".join(shape.missing) or None)
        self.shape = shape
        self.kv = kv
        self._weights: WeightSizes = shape.weights
        self._expert_share = shape.expert_share
        self._kv_unit = kv.unit
        self._layers = tuple(
            (layer, count, layer_token_bytes(layer, kv))
            for layer, count in shape.grouped_layers()
            if layer.has_attention
        )
        self._state_bytes = shape.state_bytes or 0
        body, head = self._body_ops(1), _matrix_work(shape.weights.head.values, 1)
        self._row_ops = (body.int8_ops, body.bf16_flops, body.fp32_flops)
        self._head_row_ops = (head.int8_ops, head.bf16_flops, head.fp32_flops)

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that one step of one token reads, the head included."""
        return int(self._body_bytes(1) + self._weights.head.num_bytes)

    @property
    def is_arithmetic_known(self) -> bool:
        """Whether the operations of the matrices are known, not their bytes alone."""
        w = self._weights
        return all(g.values or not g.num_bytes for g in (w.body, w.head, w.experts))

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of K and V that one token takes over all layers."""
        return int(kv_bytes_per_token(self.shape.layers or (), self.kv))

    def _body_bytes(self, num_tokens: float) -> float:
        w = self._weights
        return w.body.num_bytes + w.touched_bytes(num_tokens, self._expert_share)

    def weights_once(self, *, with_head: bool, num_tokens: float = 1) -> Work:
        """Return the reading of the weights by one step; num_tokens decides how many experts."""
        head = self._weights.head.num_bytes if with_head else 0
        return Work(weight_bytes=self._body_bytes(num_tokens) + head)

    def slice_work(self, start: int, end: int, *, logit_rows: int) -> Work:
        """Return the work of computing tokens [start, end) of one request, without reading
        weights.
        """
        w, n = self._weights, end - start
        work = self._body_ops(n) + _matrix_work(w.head.values, logit_rows)
        return work + self._attention((Span(start, end),))

    def _body_ops(self, rows: float) -> Work:
        w = self._weights
        work = _matrix_work(w.body.values, rows)
        if w.experts.values:
            work += _matrix_work(w.experts.values, rows * self._expert_share)
        return work

    def _attention(self, spans: Iterable[Span]) -> Work:
        """Return operations and cache reads of attention, state of recurrent layers included."""
        spans = tuple(spans)
        operations = kv_bytes = 0.0
        for layer, count, token_bytes in self._layers:
            window = layer.window
            pairs = keys = 0.0
            for start, end, _, times in spans:
                n = end - start
                if n == 1:
                    seen = min(end, window) if window else end
                    pairs += times * seen
                else:
                    pairs += times * visible_keys(start, end, window)
                keys += times * (min(end, window + n) if window else end)
            operations += 2.0 * count * layer.heads * (layer.key_dim + layer.value_dim) * pairs
            kv_bytes += count * token_bytes * keys
        kv_bytes += self._state_bytes * sum(span.times for span in spans)
        unit = self._kv_unit
        return Work(
            operations if unit == "int8" else 0.0,
            operations if unit == "bf16" else 0.0,
            operations if unit == "fp32" else 0.0,
            0.0,
            kv_bytes,
        )

    def spans_work(self, spans: Iterable[Span]) -> StepWork:
        """Return the work of a step of these spans, weights read once."""
        spans = tuple(spans)
        rows = head_rows = 0
        for start, end, logit_rows, times in spans:
            rows += times * (end - start)
            head_rows += times * logit_rows
        a, b, c = self._row_ops
        weight_bytes = self._body_bytes(rows) if rows else 0.0
        body = Work(a * rows, b * rows, c * rows, weight_bytes)
        a, b, c = self._head_row_ops
        weight_bytes = self._weights.head.num_bytes if head_rows else 0.0
        head = Work(a * head_rows, b * head_rows, c * head_rows, weight_bytes)
        return StepWork(body, head, self._attention(spans), rows, head_rows)

    def step_parts(self, plan: StepPlan) -> StepWork:
        """Return the work of a step's plan by what does it."""
        return self.spans_work(_span(s) for s in plan.slices)

    def step_work(self, plan: StepPlan) -> Work:
        """Return the work of a whole step: weights once, and every slice."""
        return self.step_parts(plan).total


def _span(s: Slice) -> Span:
    n = len(s.token_ids)
    return Span(s.start, s.start + n, n - 1 if s.score else int(s.sample is not None))


def _matrix_work(values: Mapping[str, float], rows: float) -> Work:
    return _ops_work({unit: 2.0 * rows * number for unit, number in values.items()})


def _ops_work(ops: Mapping[str, float]) -> Work:
    return Work(
        int8_ops=ops.get("int8", 0.0),
        bf16_flops=ops.get("bf16", 0.0),
        fp32_flops=ops.get("fp32", 0.0),
    )
