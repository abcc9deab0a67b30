from __future__ import annotations

import gguf
import numpy as np
import pytest

from tests.kernels.random_blocks import FORMATS, random_rows, shortest_k
from twostroke import _native
from twostroke import _native_testing as kernels
from twostroke.formats.ggml_types import GGMLType
from twostroke.formats.quant import dequantize

BY_NAME = {"argvalues": FORMATS, "ids": [f.name for f in FORMATS]}
SETS = _native.kernel_sets()


def identity_product(set_: str, type_: GGMLType, packed: np.ndarray, n: int, k: int) -> np.ndarray:
    """The weights as the kernels see them: one row of the identity at a time gives one column."""
    return kernels.linear(set_, int(type_), packed, n, np.eye(k, dtype=np.float32)).T


@pytest.mark.parametrize("type_", **BY_NAME)
@pytest.mark.parametrize("set_", SETS)
def test_every_packed_weight_is_the_stored_one(set_: str, type_: GGMLType) -> None:
    n, k = 48, 2 * max(shortest_k(type_), 32)
    rows = random_rows(type_, n, k)
    packed = kernels.pack(int(type_), n, k, rows.reshape(-1))
    got = identity_product(set_, type_, packed, n, k)
    want = dequantize(rows, type_, (n, k))
    # An activation of 1 is 127 * (1 / 127): exact integers, scales rounded once or twice, and with
    # a minimum the value is a difference of two such products.
    tolerance = 4 * np.finfo(np.float32).eps * np.abs(want).max()
    assert np.abs(got - want).max() <= tolerance


@pytest.mark.parametrize("type_", **BY_NAME)
def test_packing_costs_at_most_five_percent(type_: GGMLType) -> None:
    n, k = 64, 1024
    stored = random_rows(type_, n, k).size
    assert stored <= _native.packed_bytes(int(type_), n, k) <= 1.05 * stored


@pytest.mark.parametrize("type_", **BY_NAME)
def test_distinct_rows_give_distinct_bytes(type_: GGMLType) -> None:
    """Lossless: turning over any one bit of the stored rows changes the packed ones."""
    n, k = 32, max(shortest_k(type_), 32)
    rows = random_rows(type_, n, k).reshape(-1)
    packed = kernels.pack(int(type_), n, k, rows)
    for bit in range(0, 8 * rows.size, 37):
        changed = rows.copy()
        changed[bit // 8] ^= 1 << bit % 8
        assert not np.array_equal(kernels.pack(int(type_), n, k, changed), packed)


@pytest.mark.parametrize("type_", **BY_NAME)
@pytest.mark.parametrize("set_", SETS)
def test_an_embedded_row_is_the_dequantised_one(set_: str, type_: GGMLType) -> None:
    k = 3 * max(shortest_k(type_), 32)
    row = random_rows(type_, 1, k)
    oracle = gguf.quants.dequantize(row, gguf.GGMLQuantizationType(int(type_))).reshape(-1)
    got = kernels.embed_row(set_, int(type_), k, row.reshape(-1), 1.0)
    assert np.array_equal(got, oracle)
    scaled = kernels.embed_row(set_, int(type_), k, row.reshape(-1), 24.0)
    assert np.array_equal(scaled, oracle * np.float32(24.0))


@pytest.mark.parametrize("set_", SETS)
def test_subnormal_and_infinite_halves_embed_as_they_are(set_: str) -> None:
    halves = np.arange(0, 1 << 16, dtype=np.uint16)
    halves = halves[~np.isnan(halves.view(np.float16))]
    got = kernels.embed_row(set_, int(GGMLType.F16), halves.size, halves.view(np.uint8), 1.0)
    assert np.array_equal(got, halves.view(np.float16).astype(np.float32))


def test_rows_past_the_last_are_zero() -> None:
    rows = random_rows(GGMLType.F32, 3, 32)
    packed = kernels.pack(int(GGMLType.F32), 3, 32, rows.reshape(-1)).view(np.float32)
    assert np.all(packed.reshape(32, 32)[:, 3:] == 0)


@pytest.mark.parametrize(
    ("format_", "n", "k", "size", "message"),
    [
        (1000, 32, 32, 0, "no native kernel"),
        (2, 32, 33, 32 * 18, "no multiple"),
        (12, 32, 128, 32 * 72, "no multiple"),
        (2, 0, 32, 0, "must be 1 to"),
        (2, 1 << 40, 32, 0, "must be 1 to"),
        (2, 32, 32, 32 * 18 - 1, "bytes, not 576"),
    ],
)
def test_what_cannot_be_packed_is_refused(
    format_: int, n: int, k: int, size: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        kernels.pack(format_, n, k, np.zeros(size, np.uint8))


def test_only_formats_with_kernels_can_be_packed() -> None:
    assert all(_native.packed_bytes(int(f), 32, 256) for f in FORMATS)
    assert _native.packed_bytes(9, 32, 256) is None  # Q8_1: activations only
    assert _native.packed_bytes(-1, 32, 256) is None
