"""Every decoded tensor type equals the `gguf` package bit for bit."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from twostroke.errors import ShapeError, UnsupportedModel
from twostroke.formats import quant
from twostroke.formats.ggml_types import BLOCK_SIZES, GGMLType, row_bytes
from twostroke.formats.quant import DEQUANTIZABLE, dequantize


def oracle(raw: np.ndarray, type_: GGMLType) -> np.ndarray:
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(raw, gguf.GGMLQuantizationType(int(type_)))


def random_rows(type_: GGMLType, rows: int, row_values: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (rows, row_bytes(type_, row_values)), dtype=np.uint8)


def assert_same_bits(got: np.ndarray, want: np.ndarray) -> None:
    """Equal bits, except that a nan may carry any payload (IEEE leaves it open)."""
    got, want = got.reshape(-1), want.reshape(-1)
    is_nan = np.isnan(want)
    assert np.array_equal(np.isnan(got), is_nan)
    assert np.array_equal(got.view(np.uint32)[~is_nan], want.view(np.uint32)[~is_nan])


@pytest.mark.parametrize("type_", DEQUANTIZABLE, ids=lambda t: t.name)
def test_random_blocks_decode_to_the_bits_of_the_oracle(type_: GGMLType) -> None:
    raw = random_rows(type_, rows=64, row_values=1024, seed=int(type_))
    assert_same_bits(dequantize(raw, type_, (64, 1024)), oracle(raw, type_))


HALF_FIELDS = {
    GGMLType.Q4_0: (0,),
    GGMLType.Q4_1: (0, 2),
    GGMLType.Q5_0: (0,),
    GGMLType.Q5_1: (0, 2),
    GGMLType.Q8_0: (0,),
    GGMLType.Q2_K: (80, 82),
    GGMLType.Q3_K: (108,),
    GGMLType.Q4_K: (0, 2),
    GGMLType.Q5_K: (0, 2),
    GGMLType.Q6_K: (208,),
    GGMLType.IQ4_NL: (0,),
    GGMLType.IQ4_XS: (0,),
}
WEIRD = (0x0000, 0x8000, 0x0001, 0x83FF, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0x7C01)


@pytest.mark.parametrize("type_", HALF_FIELDS, ids=lambda t: t.name)
@pytest.mark.parametrize("weird", WEIRD, ids=hex)
def test_zero_subnormal_huge_infinite_and_nan_scales_match(type_: GGMLType, weird: int) -> None:
    blocks = random_rows(type_, rows=8, row_values=256, seed=weird).reshape(
        -1, BLOCK_SIZES[type_].nbytes
    )
    for offset in HALF_FIELDS[type_]:
        blocks[:, offset : offset + 2] = np.frombuffer(weird.to_bytes(2, "little"), np.uint8)
    raw = blocks.reshape(8, -1)
    assert_same_bits(dequantize(raw, type_, (8, 256)), oracle(raw, type_))


@pytest.mark.parametrize("type_", DEQUANTIZABLE, ids=lambda t: t.name)
def test_pieces_do_not_change_the_result(type_: GGMLType, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = random_rows(type_, rows=5, row_values=768, seed=3)
    whole = dequantize(raw, type_, (5, 768))
    monkeypatch.setattr(quant, "_VALUES_PER_PIECE", 512)
    assert_same_bits(dequantize(raw, type_, (5, 768)), whole)


def test_a_hand_computed_q4_0_block() -> None:
    raw = np.zeros(18, np.uint8)
    raw[:2] = np.array([0.5], "<f2").view(np.uint8)
    raw[2] = 0xF0  # value 0: nibble 0 -> -8; value 16: nibble 15 -> 7
    values = dequantize(raw, GGMLType.Q4_0, (32,))
    assert values[0] == -4.0
    assert values[16] == 3.5
    assert values[1] == -4.0


def test_views_that_are_not_contiguous_decode() -> None:
    raw = random_rows(GGMLType.Q8_0, rows=6, row_values=64, seed=1)
    assert_same_bits(
        dequantize(raw[::2], GGMLType.Q8_0, (3, 64)),
        dequantize(raw[::2].copy(), GGMLType.Q8_0, (3, 64)),
    )


def test_block_sizes_are_those_of_the_oracle() -> None:
    theirs = {int(t): size for t, size in gguf.GGML_QUANT_SIZES.items()}
    ours = {int(t): tuple(size) for t, size in BLOCK_SIZES.items()}
    ours[int(GGMLType.Q8_1)] = (32, 40)  # the package still has the old layout with float scales
    assert ours == {t: theirs[t] for t in ours}
    assert set(GGMLType) == set(BLOCK_SIZES)


def test_row_bytes_counts_whole_blocks() -> None:
    assert row_bytes(GGMLType.Q4_K, 4096) == 16 * 144
    assert row_bytes(GGMLType.BF16, 7) == 14
    assert row_bytes(GGMLType.Q4_0, 0) == 0
    with pytest.raises(ShapeError, match="33 values"):
        row_bytes(GGMLType.Q4_0, 33)
    with pytest.raises(UnsupportedModel, match="id 4"):
        row_bytes(4, 32)


def test_types_without_a_decoder_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedModel, match="IQ2_XXS"):
        dequantize(np.zeros(66, np.uint8), GGMLType.IQ2_XXS, (256,))
    with pytest.raises(UnsupportedModel, match="id 99"):
        dequantize(np.zeros(66, np.uint8), 99, (256,))


def test_bytes_of_another_size_or_dtype_are_refused() -> None:
    with pytest.raises(ShapeError, match="36 bytes"):
        dequantize(np.zeros(35, np.uint8), GGMLType.Q4_0, (2, 32))
    with pytest.raises(ShapeError, match="float32"):
        dequantize(np.zeros(4, np.float32), GGMLType.F32, (1,))
