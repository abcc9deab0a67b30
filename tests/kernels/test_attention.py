"""Paged attention is close to float64 softmax over the same stored keys and values."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.kernels.attention_runs import (
    SETS,
    SHAPES,
    TYPES,
    Floats,
    Request,
    Shape,
    attend,
    make_cache,
    normal,
    stored,
    tables,
)
from twostroke import _native_testing as kernels

# Largest error against float64 on the same stored K and V; q, K and V unit normal. bf16: q and the
# probabilities are rounded (2**-9 each) and the outputs of the first positions reach 4; f16: float
# sums; q8: q and the probabilities have 8 bits. Measured 6.5e-3, 6e-6 (with a soft cap), 2.2e-2.
BOUNDS = {"bf16": 1.3e-2, "f16": 2e-5, "q8": 4.5e-2}


def softmax_attention(
    shape: Shape, q: Floats, k: Floats, v: Floats, position: int
) -> NDArray[np.float64]:
    """One query in float64."""
    low = max(0, position + 1 - shape.window) if shape.window else 0
    keys, values = k[low : position + 1].astype(float), v[low : position + 1].astype(float)
    out = np.empty((shape.num_heads, shape.head_dim))
    for h in range(shape.num_heads):
        s = keys[:, h // shape.group] @ q[h].astype(float) * shape.head_dim**-0.5
        if shape.soft_cap:
            s = shape.soft_cap * np.tanh(s / shape.soft_cap)
        p = np.exp(s - s.max())
        out[h] = p @ values[:, h // shape.group] / p.sum()
    return out


@pytest.mark.parametrize("kernel_set", SETS)
@pytest.mark.parametrize("kv_type", TYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_prefill_is_close_to_float64_softmax(kernel_set: str, kv_type: str, shape: Shape) -> None:
    rng = np.random.default_rng(1)
    length = 611
    request = Request(rng, shape, length)
    (table,) = tables(rng, [length])
    cache = make_cache(kv_type, shape, len(table))
    request.append(cache, table, 0, length, kernel_set)
    k, v = stored(kernel_set, cache, table, length)
    (out,) = attend(kernel_set, cache, shape, [(request.q, table, length)], threads=2)
    worst = 0.0
    for t in (*range(0, length, 13), length - 1):
        worst = max(worst, np.abs(out[t] - softmax_attention(shape, request.q[t], k, v, t)).max())
    assert worst < BOUNDS[kv_type]


@pytest.mark.parametrize("kernel_set", SETS)
def test_a_sharp_softmax_stays_within_its_bound(kernel_set: str) -> None:
    rng = np.random.default_rng(2)
    shape = Shape(3, 3, 64)
    request = Request(rng, shape, 700, sharp=6.0)
    (table,) = tables(rng, [700])
    cache = make_cache("bf16", shape, len(table))
    request.append(cache, table, 0, 700, kernel_set)
    k, v = stored(kernel_set, cache, table, 700)
    (out,) = attend(kernel_set, cache, shape, [(request.q, table, 700)])
    errors = [
        np.abs(out[t] - softmax_attention(shape, request.q[t], k, v, t)).max()
        for t in range(0, 700, 17)
    ]
    assert max(errors) < 1.2e-1  # scores of size 36 move by 36 * 2**-9 with q's rounding


@pytest.mark.parametrize("kernel_set", SETS)
def test_more_heads_than_a_tile_has_rows(kernel_set: str) -> None:
    rng = np.random.default_rng(6)
    shape = Shape(1, 128, 32)
    request = Request(rng, shape, 70)
    (table,) = tables(rng, [70])
    cache = make_cache("f16", shape, len(table))
    request.append(cache, table, 0, 70, kernel_set)
    k, v = stored(kernel_set, cache, table, 70)
    (out,) = attend(kernel_set, cache, shape, [(request.q, table, 70)])
    (last,) = attend(kernel_set, cache, shape, [(request.q[-1:], table, 70)])
    assert np.abs(out[69] - softmax_attention(shape, request.q[69], k, v, 69)).max() < BOUNDS["f16"]
    assert last[0].tobytes() == out[69].tobytes()


@pytest.mark.parametrize("kernel_set", SETS)
def test_rows_of_q_may_lie_apart(kernel_set: str) -> None:
    rng = np.random.default_rng(7)
    shape = Shape(3, 3, 64)
    request = Request(rng, shape, 40)
    (table,) = tables(rng, [40])
    cache = make_cache("bf16", shape, len(table))
    request.append(cache, table, 0, 40, kernel_set)
    wide = normal(
        rng, 40, shape.num_heads + 6, shape.head_dim
    )  # q beside k and v, as one product gives
    wide[:, : shape.num_heads] = request.q
    (apart,) = attend(kernel_set, cache, shape, [(wide[:, : shape.num_heads], table, 40)])
    (together,) = attend(kernel_set, cache, shape, [(request.q, table, 40)])
    assert apart.tobytes() == together.tobytes()


def test_a_table_that_leaves_the_cache_is_refused() -> None:
    cache = kernels.KvCache("bf16", 1, 1, 16)
    q = np.zeros((1, 1, 16), np.float32)
    with pytest.raises(ValueError, match="outside the cache"):
        kernels.attention(SETS[0], cache, [(q, np.array([1], np.int32), 3)], 1.0)
    with pytest.raises(ValueError, match="shorter than the sequence"):
        kernels.attention(SETS[0], cache, [(q, np.array([0], np.int32), 17)], 1.0)
