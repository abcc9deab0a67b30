"""Operations and bytes of a step, from a model's shape and the types that it is stored in.

Prefill is bound by operations, decode by bytes; both are counted for both. Knows no machine and no
clock.
Source: formulas of Kaplan et al. 2020, arXiv:2001.08361 (2 N per token) with the causal attention
term.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from twostroke.dataclass import dataclass
from twostroke.errors import ConfigError
from twostroke.predict.kv import KvFormat, kv_bytes_per_token, layer_token_bytes
from twostroke.predict.shape import ModelShape, WeightSizes
from twostroke.step import Slice, StepPlan


@dataclass(frozen=True, slots=True)
class Work:
    """Operations and reads. Units: operations (a multiply-add is two) by the unit that does them;
    bytes.
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
    """The work of one step: the layers' matrices (body), the output matrix, and attention.

    rows, logit_rows: how many rows the body and the output matrix are multiplied with; kernels are
    quicker a row with many of them.
    """

    body: Work
    lm_head: Work
    attention: Work
    rows: float
    logit_rows: float

    @property
    def total(self) -> Work:
        """All of it."""
        return self.body + self.lm_head + self.attention


def visible_keys(start: int, end: int, window: int) -> int:
    """Return the keys that tokens [start, end) see together, each itself included.

    Causal: a token at position p sees p + 1 keys, or `window` of them where that is less.
    """
    if not window:
        return (end * (end + 1) - start * (start + 1)) // 2
    full = max(start, min(end, window - 1))
    return visible_keys(start, full, 0) + (end - full) * window


class CostModel:
    """Counts the work of a model's steps. Never changes, so any thread may ask it.

    Raises:
        ConfigError: the shape does not say its layers or weights.
    """

    def __init__(self, shape: ModelShape, kv: KvFormat) -> None:
        if shape.layers is None or shape.weights is None:
            raise ConfigError("the shape is not known", value=", ".join(shape.missing) or None)
        self.shape = shape
        self.kv = kv
        self.kv_bytes_per_token = int(kv_bytes_per_token(shape.layers, kv))
        self._weights: WeightSizes = shape.weights
        self._layers = tuple(
            (layer, count, layer_token_bytes(layer, kv))
            for layer, count in shape.grouped_layers()
            if layer.has_attention
        )
        self._state_bytes = shape.state_bytes or 0
        self._row_ops = _ops_of_a_row(shape)
        lm_head = self._weights.lm_head.values
        self._logit_row_ops = tuple(2.0 * lm_head.get(unit, 0.0) for unit in _UNITS)

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that a step of one token reads, the output matrix included."""
        return int(self._body_bytes(1) + self._weights.lm_head.num_bytes)

    @property
    def is_arithmetic_known(self) -> bool:
        """Whether the operations of the matrices are known, not their bytes alone."""
        w = self._weights
        return all(g.values or not g.num_bytes for g in (w.body, w.lm_head, w.experts))

    def step_work(self, plan: StepPlan) -> StepWork:
        """Return the work of a plan."""
        return self.spans_work(_span(s) for s in plan.slices)

    def spans_work(self, spans: Iterable[Span]) -> StepWork:
        """Return the work of a step of these spans; its weights are read once."""
        spans = tuple(spans)
        rows = logit_rows = 0
        for span in spans:
            rows += span.times * (span.end - span.start)
            logit_rows += span.times * span.logit_rows
        a, b, c = self._row_ops
        weight_bytes = self._body_bytes(rows) if rows else 0.0
        body = Work(a * rows, b * rows, c * rows, weight_bytes)
        a, b, c = self._logit_row_ops
        weight_bytes = self._weights.lm_head.num_bytes if logit_rows else 0.0
        lm_head = Work(a * logit_rows, b * logit_rows, c * logit_rows, weight_bytes)
        return StepWork(body, lm_head, self._attention(spans), rows, logit_rows)

    def _body_bytes(self, num_tokens: float) -> float:
        w = self._weights
        return w.body.num_bytes + w.touched_bytes(num_tokens, self.shape.expert_share)

    def _attention(self, spans: tuple[Span, ...]) -> Work:
        """Return operations and cache reads of attention, state of recurrent layers included."""
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
        unit = self.kv.unit
        return Work(
            operations if unit == "int8" else 0.0,
            operations if unit == "bf16" else 0.0,
            operations if unit == "fp32" else 0.0,
            0.0,
            kv_bytes,
        )


_UNITS = ("int8", "bf16", "fp32")  # in the order of Work's fields


def _ops_of_a_row(shape: ModelShape) -> tuple[float, ...]:
    """Return the operations of one row of the body by unit; of experts only a token's share."""
    w, share = shape.weights, shape.expert_share
    assert w is not None, "a cost model has weights"
    body, experts = w.body.values, w.experts.values
    return tuple(
        2.0 * body.get(unit, 0.0) + 2.0 * share * experts.get(unit, 0.0) for unit in _UNITS
    )


def _span(s: Slice) -> Span:
    n = len(s.token_ids)
    return Span(s.start, s.start + n, n - 1 if s.score else int(s.sample is not None))
