"""model.ops.Ops that records: each call adds an op to a native recorder instead of running."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from twostroke.backend.packed import PackedMatrix
from twostroke.errors import UnsupportedModel
from twostroke.formats.quant import dequantize
from twostroke.model.config import ModelConfig, RopeConfig
from twostroke.model.weights import Weight

BufferId = int
Nothing: TypeAlias = None  # indices and the cache are arguments of a step, not of the recording
_ACTIVATIONS = {"silu": 0, "gelu_tanh": 1}
_LAYER = re.compile(r"^blk\.\d+\.")


def dense(weight: Weight) -> npt.NDArray[np.float32]:
    """Return a vector (norm or bias) as float32."""
    return np.ascontiguousarray(dequantize(weight.raw, weight.type, weight.shape), np.float32)


class NativeOps:
    """Records one forward pass. Sole writer of its recorder."""

    def __init__(
        self, recorder: Any, config: ModelConfig, matrices: Mapping[str, PackedMatrix]
    ) -> None:
        self._recorder, self._config, self._matrices = recorder, config, matrices
        self.ropes: dict[RopeConfig, int] = {}

    def embed(self, table: Weight, token_ids: Nothing, *, scale: float) -> BufferId:
        """Record a lookup in the embedding rows of the model file."""
        rows, width = table.shape
        return int(self._recorder.embed(table.raw, int(table.type), rows, width, scale))

    def rms_norm(self, x: BufferId, weight: Weight, *, eps: float) -> BufferId:
        """Record a norm of rows."""
        return int(self._recorder.rms_norm(x, dense(weight), eps))

    def head_norm(self, x: BufferId, weight: Weight, *, eps: float) -> BufferId:
        """Record a norm of each head."""
        return int(self._recorder.head_norm(x, dense(weight), eps))

    def project(
        self, x: BufferId, weights: tuple[Weight, ...], biases: tuple[Weight | None, ...]
    ) -> tuple[BufferId, ...]:
        """Record matrices that share their input."""
        name = "+".join(_LAYER.sub("", w.name).removesuffix(".weight") for w in weights)
        packed = [self._matrices[weight.name] for weight in weights]
        matrices = [(m.format, m.n, m.k, m.data) for m in packed]
        dense_biases = [None if bias is None else dense(bias) for bias in biases]
        return tuple(self._recorder.project(x, matrices, dense_biases, name))

    def rope(self, x: BufferId, positions: Nothing, *, rope: RopeConfig, head_dim: int) -> BufferId:
        """Record a rotation by the table of this embedding."""
        if rope not in self.ropes:
            self.ropes[rope] = self._recorder.add_rope(rope.pairs, rope.interleaved)
        return int(self._recorder.rope(x, self.ropes[rope], head_dim))

    def append_kv(
        self, kv: Nothing, layer: int, k: BufferId, v: BufferId, slot_mapping: Nothing
    ) -> None:
        """Record a store into the cache."""
        self._recorder.append_kv(layer, k, v)

    def attend(
        self,
        q: BufferId,
        kv: Nothing,
        layer: int,
        sequences: Nothing,
        *,
        scale: float,
        window: int,
        soft_cap: float,
    ) -> BufferId:
        """Record attention over the cache."""
        heads = self._config.num_heads
        return int(self._recorder.attend(q, layer, heads, scale, window, soft_cap))

    def add(self, x: BufferId, y: BufferId) -> BufferId:
        """Record a sum."""
        return int(self._recorder.add(x, y))

    def gated(self, gate: BufferId, up: BufferId, *, activation: str) -> BufferId:
        """Record a gated activation."""
        if activation not in _ACTIVATIONS:
            raise UnsupportedModel(
                "activation is not supported", value=activation, limit=", ".join(_ACTIVATIONS)
            )
        return int(self._recorder.gated(gate, up, _ACTIVATIONS[activation]))

    def take_rows(self, x: BufferId, rows: Nothing) -> BufferId:
        """Record the choice of the wanted rows."""
        return int(self._recorder.take_rows(x))

    def soft_cap(self, x: BufferId, *, cap: float) -> BufferId:
        """Record a soft cap."""
        return int(self._recorder.soft_cap(x, cap))


class GrowingRope:
    """Keeps a program's rotary tables as long as the positions of its steps need."""

    def __init__(self, program: Any, ropes: Mapping[RopeConfig, int], max_positions: int) -> None:
        self._program, self._ropes, self._max = program, ropes, max_positions
        self._positions = 0

    def cover(self, positions: int) -> None:
        """Make tables reach `positions`; they double, so that growth is rare."""
        if positions <= self._positions:
            return
        size = min(max(positions, 2 * self._positions, 1024), max(self._max, positions))
        for rope, index in self._ropes.items():
            self._program.set_rope(index, *rope.table(size))
        self._positions = size
