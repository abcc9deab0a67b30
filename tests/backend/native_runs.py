"""One request or several on the native backend, driven block by block without a scheduler."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.kernels.activations import quantised
from twostroke import _native_testing
from twostroke.backend.arrays import StepArrays
from twostroke.backend.inputs import step_arrays
from twostroke.backend.native import NativeModel
from twostroke.backend.native_library import native_module
from twostroke.backend.native_weights import pack_weights
from twostroke.backend.reference import Floats, ReferenceOps, round_bf16
from twostroke.config import KvType
from twostroke.formats.ggml_types import GGMLType
from twostroke.model.config import ModelConfig
from twostroke.model.weights import ModelWeights, Weight
from twostroke.step import BLOCK_SIZE, BlockTable, Phase, Slice, StepPlan

BLOCKS_EACH = 8


def arrays_of(
    slices: Sequence[Slice], *, rows: Sequence[int] | None = None, new_blocks: Sequence[int] = ()
) -> StepArrays:
    """Return a step's arrays that want the logits of `rows`, by default of all tokens."""
    built, _ = step_arrays(StepPlan(prefill=tuple(slices), new_blocks=tuple(new_blocks)))
    wanted = range(len(built.token_ids)) if rows is None else rows
    values = {name: getattr(built, name) for name in StepArrays.__dataclass_fields__}
    return StepArrays(**{**values, "logit_rows": np.array(wanted, np.int32)})


def piece(name: str, ids: Sequence[int], start: int, end: int, first_block: int) -> Slice:
    """Return tokens [start, end) of a request whose blocks follow each other backwards."""
    last = first_block + BLOCKS_EACH
    blocks = range(last - 1, first_block - 1, -1)
    table = BlockTable(blocks[: -(-end // BLOCK_SIZE)])
    return Slice(name, Phase.PREFILL, tuple(ids[start:end]), start, table)


def make_model(
    config: ModelConfig,
    weights: ModelWeights,
    *,
    kernel_set: str,
    threads: int = 1,
    max_tokens: int = 160,
    num_blocks: int = 4 * BLOCKS_EACH,
    kv_type: KvType = KvType.BF16,
) -> NativeModel:
    """Return a native model packed in memory."""
    pool = native_module().ThreadPool(threads)
    return NativeModel(
        config,
        weights,
        pack_weights(weights, pool),
        num_blocks=num_blocks,
        kv_type=kv_type,
        max_tokens=max_tokens,
        kernel_set=kernel_set,
        pool=pool,
    )


def read_kv(model: NativeModel, layer: int, slot: int) -> np.ndarray:
    """Return K and V of one slot as stored: [2, K, D]."""
    config = model.config
    k, v = (np.empty(config.num_kv_heads * config.head_dim, np.float32) for _ in range(2))
    _native_testing.read_kv(model._kv, layer, slot, k, v)
    return np.stack([k, v]).reshape(2, config.num_kv_heads, config.head_dim)


def in_chunks(model: NativeModel, ids: Sequence[int], size: int) -> np.ndarray:
    """Prefill in chunks and return the logits of every token: [n, V]."""
    parts = []
    for start in range(0, len(ids), size):
        end = min(start + size, len(ids))
        new = range(BLOCKS_EACH) if start == 0 else ()
        parts.append(model.logits(arrays_of([piece("r", ids, start, end, 0)], new_blocks=new)))
    return np.concatenate(parts)


class RoundedOps(ReferenceOps):
    """The reference with activations rounded as the kernels round them: 8 bits per 32 values, an
    outlier apart, before integer weights, bf16 before bf16 weights.
    """

    def project(
        self, x: Floats, weights: tuple[Weight, ...], biases: tuple[Weight | None, ...]
    ) -> tuple[Floats, ...]:
        """Round, then multiply."""
        outs: list[Floats] = []
        for weight, bias in zip(weights, biases, strict=True):
            outs += super().project(_rounded_for(weight, x), (weight,), (bias,))
        return tuple(outs)


def _rounded_for(weight: Weight, x: Floats) -> Floats:
    if weight.type in (GGMLType.F32, GGMLType.F16):
        return x
    if weight.type is GGMLType.BF16:
        return round_bf16(x)
    return quantised(np.ascontiguousarray(x)).astype(np.float32)
