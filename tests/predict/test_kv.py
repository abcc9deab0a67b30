"""The one count of KV bytes agrees with the formula and with the pool that the kernels lay out."""

from __future__ import annotations

import pytest

from twostroke.backend.native_library import native_module
from twostroke.config import KvType
from twostroke.predict.kv import KvFormat, kv_block_bytes, kv_bytes_per_token
from twostroke.predict.shape import LayerShape
from twostroke.step import BLOCK_SIZE


def layers(count: int, kv_heads: int, head_dim: int, window: int = 0) -> tuple[LayerShape, ...]:
    layer = LayerShape(
        heads=4 * kv_heads, kv_heads=kv_heads, key_dim=head_dim, value_dim=head_dim, window=window
    )
    return (layer,) * count


def test_kv_bytes_follow_the_formula() -> None:
    found = kv_bytes_per_token(layers(32, 8, 128), KvFormat("bf16"))
    assert found == 131_072  # the 8B class at 16 bits: 128 KiB


@pytest.mark.parametrize("kv_type", list(KvType))
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_a_block_is_as_large_as_the_kernels_lay_it_out(kv_type: KvType, head_dim: int) -> None:
    of_kernels = {KvType.BF16: 0, KvType.F16: 1, KvType.Q8: 2}  # kernels.h
    head = native_module().kv_head_bytes(of_kernels[kv_type], head_dim)
    found = kv_block_bytes(layers(30, 3, head_dim), KvFormat(kv_type.value))
    assert found == head * 3 * 30


def test_a_sliding_layer_keeps_every_token_in_our_pool() -> None:
    full, sliding = layers(6, 2, 64), layers(6, 2, 64, window=512)
    kv = KvFormat("q8")
    assert kv_block_bytes(sliding, kv) == kv_block_bytes(full, kv)
    assert kv_block_bytes(full, kv) == BLOCK_SIZE * kv_bytes_per_token(full, kv)


def test_a_layer_that_shares_kv_adds_nothing() -> None:
    own = LayerShape(heads=8, kv_heads=2, key_dim=64, value_dim=64)
    shared = LayerShape(heads=8, kv_heads=2, key_dim=64, value_dim=64, shares_kv=True)
    kv = KvFormat("f16")
    assert kv_bytes_per_token((own, shared, shared), kv) == kv_bytes_per_token((own,), kv)
