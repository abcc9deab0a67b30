"""The paged KV cache stores the same bytes on every kernel set, within half a unit of a value."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.attention_runs import BLOCK, SETS, TYPES, Shape, normal
from twostroke import _native_testing as kernels


@pytest.mark.parametrize("kv_type", TYPES)
def test_every_kernel_set_stores_the_same_bytes(kv_type: str) -> None:
    rng = np.random.default_rng(8)
    shape = Shape(2, 1, 80)
    values = [normal(rng, 2, 2, 80) * np.float32(10.0 ** rng.integers(-9, 5)) for _ in range(BLOCK)]
    values[3][:] = 0.0
    blocks = set()
    for kernel_set in SETS:
        cache = kernels.KvCache(kv_type, 1, shape.num_kv_heads, shape.head_dim)
        for t, (k, v) in enumerate(values):
            cache.append(kernel_set, t, k, v)
        blocks.add(cache.block(0))
    assert len(blocks) == 1


@pytest.mark.parametrize("kernel_set", SETS)
@pytest.mark.parametrize(
    ("kv_type", "relative"), [("bf16", 2**-8), ("f16", 2**-11), ("q8", 1 / 254)]
)
def test_what_is_read_is_what_was_appended_within_half_a_unit(
    kernel_set: str, kv_type: str, relative: float
) -> None:
    rng = np.random.default_rng(9)
    cache = kernels.KvCache(kv_type, 3, 2, 48)
    for t in range(48):
        k, v = normal(rng, 2, 48), normal(rng, 2, 48)
        cache.append(kernel_set, t, k, v)
        for given, got in zip((k, v), cache.read(kernel_set, t), strict=True):
            unit = np.abs(given).max(axis=1, keepdims=True) if kv_type == "q8" else np.abs(given)
            assert np.all(np.abs(given - got) <= 1.01 * relative * unit + 2**-25)


@pytest.mark.parametrize("kernel_set", SETS)
def test_f16_keeps_subnormals_and_saturates_to_infinity(kernel_set: str) -> None:
    x = np.array(
        [2.0**-24, -(2.0**-15), 1.5 * 2.0**-24, 65504.0, 65520.0, 1e30, 0.0, -0.0] * 2, np.float32
    )
    cache = kernels.KvCache("f16", 1, 1, 16)
    cache.append(kernel_set, 0, x[None], x[None])
    k, v = cache.read(kernel_set, 0)
    with np.errstate(over="ignore"):
        expected = x.astype(np.float16).astype(np.float32)
    assert k[0].tobytes() == expected.tobytes() == v[0].tobytes()
