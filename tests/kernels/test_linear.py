from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest

from tests.kernels.activations import quantised, steps_of
from tests.kernels.random_blocks import FLOAT_FORMATS, FORMATS, random_rows, shortest_k
from twostroke import _native
from twostroke import _native_testing as kernels
from twostroke.formats.ggml_types import GGMLType
from twostroke.formats.quant import dequantize

SETS = _native.kernel_sets()
every_set = pytest.mark.parametrize("set_", SETS)
every_format = pytest.mark.parametrize("type_", FORMATS, ids=[f.name for f in FORMATS])

# Float32 sums of k / 32 groups: each of the group's few roundings is below 2^-24 of the running
# sum, which never exceeds the sum of the terms' magnitudes. 16 covers K = 4352 (136 groups x 2)
# with the random walk of the errors; the worst case would be 300.
EPSILONS = 16


class Layer:
    """A random weight matrix with its packed form and its values in float64."""

    def __init__(self, type_: GGMLType, n: int, k: int) -> None:
        rows = random_rows(type_, n, k)
        self.type, self.n, self.k = type_, n, k
        self.packed = kernels.pack(int(type_), n, k, rows.reshape(-1))
        self.weights = dequantize(rows, type_, (n, k)).astype(np.float64)

    def __call__(self, set_: str, x: np.ndarray, **how: object) -> np.ndarray:
        return kernels.linear(set_, int(self.type), self.packed, self.n, x, **how)


@lru_cache(maxsize=8)  # the kernel sets take turns on one matrix
def layer_of(type_: GGMLType, n: int, k: int) -> Layer:
    """A layer that no test changes."""
    return Layer(type_, n, k)


def random_activations(rows: int, k: int, seed: int = 1) -> np.ndarray:
    """Normal values with the outliers that real activations have, and one all-zero group."""
    rng = np.random.default_rng((seed, rows, k))
    x = rng.standard_normal((rows, k), dtype=np.float32)
    x[rng.random((rows, k)) < 0.02] *= 12
    x[:, :32] *= rng.integers(0, 2, (rows, 1))
    return x


def to_bf16(x: np.ndarray) -> np.ndarray:
    bits = x.view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32).astype(np.float64)


def as_the_kernels_see(type_: GGMLType, x: np.ndarray) -> np.ndarray:
    if type_ == GGMLType.BF16:
        return to_bf16(x)
    return x.astype(np.float64) if type_ in FLOAT_FORMATS else quantised(x)


def sizes(type_: GGMLType) -> list[tuple[int, int]]:
    """Rows of weights and k: one pair and less, padding, k of one block and k in several blocks."""
    k = max(shortest_k(type_), 32)
    return [(1, k), (48, 3 * k), (96, 768), (33, 4352 // k * k)]


@lru_cache(maxsize=16)
def in_float64(
    type_: GGMLType, n: int, k: int, rows: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Activations, what a layer makes of them, and the sums of the terms' magnitudes."""
    x = random_activations(rows, k)
    seen, weights = as_the_kernels_see(type_, x), layer_of(type_, n, k).weights
    return x, seen @ weights.T, np.abs(seen) @ np.abs(weights).T


@every_set
@every_format
def test_matches_float64_on_the_same_activations(set_: str, type_: GGMLType) -> None:
    for n, k in sizes(type_):
        layer = layer_of(type_, n, k)
        for rows in (1, 5, 8, 40):
            x, want, terms = in_float64(type_, n, k, rows)
            if type_.name.endswith(("_1", "Q2_K", "Q4_K", "Q5_K")):
                # The minimum is summed apart from the integers: the terms are those of both.
                terms = 4 * terms
            error = np.abs(layer(set_, x) - want)
            assert np.all(error <= EPSILONS * 2**-24 * terms), (n, k, rows)


@every_set
@every_format
def test_stays_within_the_rounding_of_the_activations(set_: str, type_: GGMLType) -> None:
    n, k = 64, 768
    layer, x = layer_of(type_, n, k), random_activations(9, k)
    if type_ in FLOAT_FORMATS:
        moved = np.abs(x) * (2.0**-8 if type_ == GGMLType.BF16 else 2.0**-20)
    else:
        scale, _ = steps_of(x.reshape(9, -1, 32))
        moved = np.repeat(scale[:, :, 0] * (0.5 * 1.01), 32, axis=1)
    bound = moved @ np.abs(layer.weights).T + 1e-5
    assert np.all(np.abs(layer(set_, x) - x.astype(np.float64) @ layer.weights.T) <= bound)


@every_set
@every_format
def test_a_row_has_the_same_bits_in_any_company(set_: str, type_: GGMLType) -> None:
    for n, k in ((40, 512), (32, 2304)):
        layer, x = layer_of(type_, n, k), random_activations(512, k)
        alone = np.concatenate([layer(set_, x[i : i + 1]) for i in range(512)])
        for rows in (*range(1, 41), 257, 512):
            assert layer(set_, x[:rows]).tobytes() == alone[:rows].tobytes(), (n, k, rows)


@every_set
@every_format
def test_order_of_items_threads_and_parts_change_no_bit(set_: str, type_: GGMLType) -> None:
    layer = layer_of(type_, 200, 2304)
    for rows in (1, 20, 130):
        x = random_activations(rows, 2304)
        plain = layer(set_, x)
        for seed in range(3):
            how = {"threads": 1 + seed % 2, "shuffle": seed, "group_split": 8 * (1 + seed)}
            assert layer(set_, x, **how).tobytes() == plain.tobytes()


@every_set
@pytest.mark.parametrize("k", [1, 31, 33, 100])
def test_float_weights_take_any_k(set_: str, k: int) -> None:
    for type_ in FLOAT_FORMATS:
        layer, x = layer_of(type_, 5, k), random_activations(20, k)
        want = as_the_kernels_see(type_, x) @ layer.weights.T
        assert np.allclose(layer(set_, x), want, rtol=1e-5, atol=1e-5)


@every_set
def test_a_bias_is_added_last(set_: str) -> None:
    layer, x = Layer(GGMLType.Q4_K, 50, 256), random_activations(70, 256)
    bias = np.linspace(-3, 3, 50, dtype=np.float32)
    for rows in (1, 70):
        assert np.array_equal(layer(set_, x[:rows], bias=bias), layer(set_, x[:rows]) + bias)


@every_set
def test_tiny_and_zero_activations_give_no_nan(set_: str) -> None:
    layer = Layer(GGMLType.Q4_1, 32, 64)
    for size in (0.0, 1e-45, 1e-38, 1e-31):
        y = layer(set_, np.full((3, 64), size, np.float32))
        assert np.all(np.abs(y) <= 1e-28)


@every_set
def test_extreme_integers_do_not_saturate(set_: str) -> None:
    """All weights and activations at their ends: the largest sums that the integers can reach."""
    for type_ in FORMATS[3:]:
        k = shortest_k(type_)
        rows = random_rows(type_, 32, k)
        for fill in (0x00, 0xFF, 0x80, 0x7F):
            stored = rows.copy()
            scales = {o for o in range(rows.shape[1]) if np.ptp(rows[:, o].astype(int)) == 0}
            assert not scales  # the fixture would otherwise hide a scale that never changes
            layer = Layer(type_, 32, k)
            stored[:] = np.where(_is_integer_byte(type_, rows.shape[1]), fill, stored)
            layer.packed = kernels.pack(int(type_), 32, k, stored.reshape(-1))
            weights = dequantize(stored, type_, (32, k)).astype(np.float64)
            for sign in (1, -1):
                x = np.full((2, k), sign * 3.0, np.float32)
                want = x.astype(np.float64) @ weights.T
                terms = np.abs(x).astype(np.float64) @ np.abs(weights).T
                assert np.all(np.abs(layer(set_, x) - want) <= 4e-6 * terms + 1e-6), type_


def _is_integer_byte(type_: GGMLType, size: int) -> np.ndarray:
    """Which bytes of one block hold integers and not scales."""
    first, last = {
        GGMLType.Q4_0: (2, 18),
        GGMLType.Q4_1: (4, 20),
        GGMLType.Q5_0: (2, 22),
        GGMLType.Q5_1: (4, 24),
        GGMLType.Q8_0: (2, 34),
        GGMLType.Q2_K: (16, 80),
        GGMLType.Q3_K: (0, 96),
        GGMLType.Q4_K: (16, 144),
        GGMLType.Q5_K: (16, 176),
        GGMLType.Q6_K: (0, 192),
        GGMLType.IQ4_NL: (2, 18),
        GGMLType.IQ4_XS: (8, 136),
    }[type_]
    at = np.arange(size)
    return (at >= first) & (at < last)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kernel_set": "avx1024"}, "no kernel set"),
        ({"format": 9}, "no native kernel"),
        ({"n": 33}, "bytes, not"),
        ({"threads": 0}, "threads = 0"),
        ({"x": np.zeros((0, 64), np.float32)}, "no rows"),
        ({"bias": np.zeros(3, np.float32)}, "3 values, not 32"),
    ],
)
def test_wrong_arguments_are_refused(change: dict[str, object], message: str) -> None:
    call: dict[str, object] = {
        "kernel_set": SETS[-1],
        "format": int(GGMLType.Q4_0),
        "packed": Layer(GGMLType.Q4_0, 32, 64).packed,
        "n": 32,
        "x": np.zeros((2, 64), np.float32),
    }
    with pytest.raises(ValueError, match=message):
        kernels.linear(**(call | change))


def test_a_wrong_type_of_array_is_refused() -> None:
    layer = Layer(GGMLType.Q4_0, 32, 64)
    for x in (np.zeros((2, 64)), np.zeros(64, np.float32), np.zeros((64, 2), np.float32).T):
        with pytest.raises(TypeError):
            layer(SETS[-1], x)
