"""Row operations against NumPy in float64, and the same bits wherever a row stands."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from twostroke import _native
from twostroke import _native_testing as kernels

SETS = _native.kernel_sets()
EXP_ERROR = 1e-6  # relative error of the kernels' exponential for |x| < 16
FLOAT_ERROR = 2.0**-24


def normal(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(shape).standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize("kernel_set", SETS)
@pytest.mark.parametrize("n", [1, 15, 16, 33, 63, 64, 65, 576, 1000])
def test_rms_norm_divides_by_the_root_mean_square(kernel_set: str, n: int) -> None:
    x, weight = normal(3, n), normal(n)
    out = kernels.rms_norm(kernel_set, x, weight, 1e-5)
    mean = np.mean(x.astype(float) ** 2, axis=1, keepdims=True)
    expected = x / np.sqrt(mean + 1e-5) * weight
    # the sum has chains of n / 64 + 6 roundings; root, quotient and two products follow
    np.testing.assert_allclose(out, expected, rtol=(n / 64 + 10) * FLOAT_ERROR)
    assert out[1].tobytes() == kernels.rms_norm(kernel_set, x[1:2], weight, 1e-5)[0].tobytes()


@pytest.mark.parametrize("kernel_set", SETS)
@pytest.mark.parametrize("n", [1, 16, 100])
def test_add_rounds_once(kernel_set: str, n: int) -> None:
    x, y = normal(n), normal(n, 1)[:, 0].copy()
    assert kernels.add(kernel_set, x, y).tobytes() == (x + y).tobytes()


@pytest.mark.parametrize("kernel_set", SETS)
@pytest.mark.parametrize("kind", ["silu", "gelu_tanh"])
def test_gated_is_the_activation_times_up(kernel_set: str, kind: str) -> None:
    gate = np.linspace(-8, 8, 4001, dtype=np.float32)
    up = normal(4001)
    g = gate.astype(float)
    inner = g if kind == "silu" else 2 * np.sqrt(2 / np.pi) * (g + 0.044715 * g**3)
    expected = g / (1 + np.exp(-inner)) * up
    out = kernels.gated(kernel_set, gate, up, kind)
    # rounding the argument x of the exponential moves it by |x| * 2**-22 of itself
    bound = (EXP_ERROR + np.abs(inner) * 2.0**-22 + 4 * FLOAT_ERROR) * np.abs(expected)
    assert np.all(np.abs(out - expected) <= bound + 1e-30)


@pytest.mark.parametrize("kernel_set", SETS)
@pytest.mark.parametrize("kind", ["silu", "gelu_tanh"])
def test_activations_of_extreme_gates_are_their_limits(kernel_set: str, kind: str) -> None:
    gate = np.array([-1e30, -1e5, -200.0, 0.0, 200.0, 1e5], np.float32)
    out = kernels.gated(kernel_set, gate, np.ones(6, np.float32), kind)
    np.testing.assert_allclose(out[2:], [0, 0, 200, 1e5], atol=1e-30)
    assert abs(out[1]) < 1e-30


@pytest.mark.parametrize("kernel_set", SETS)
@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize(("head_dim", "pairs"), [(64, 32), (128, 64), (80, 16), (32, 5), (48, 24)])
def test_rope_turns_each_pair_by_its_angle(
    kernel_set: str, interleaved: bool, head_dim: int, pairs: int
) -> None:
    x = normal(3, head_dim)
    angles = np.outer(np.arange(20), 10000.0 ** (-np.arange(pairs) / pairs))
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    out = kernels.rope(kernel_set, x, 17, cos, sin, interleaved)
    first = np.arange(pairs) * 2 if interleaved else np.arange(pairs)
    second = first + (1 if interleaved else pairs)
    expected = x.astype(float)
    turned = (x[:, first] + 1j * x[:, second]) * (cos[17] + 1j * sin[17].astype(float))
    expected[:, first], expected[:, second] = turned.real, turned.imag
    np.testing.assert_allclose(out, expected, atol=4 * FLOAT_ERROR * np.abs(x).max() * 2)
    assert out[:, 2 * pairs :].tobytes() == x[:, 2 * pairs :].tobytes()


@pytest.mark.parametrize("kernel_set", SETS)
def test_soft_cap_is_cap_times_tanh(kernel_set: str) -> None:
    x = np.concatenate([np.linspace(-300, 300, 1001), [1e30, -1e30, 0.0]]).astype(np.float32)
    out = kernels.soft_cap(kernel_set, x, 30.0)
    assert np.abs(out - 30 * np.tanh(x.astype(float) / 30)).max() < 30 * 5e-7
    assert out[-1] == 0.0


@pytest.mark.parametrize("kernel_set", SETS)
def test_elementwise_rows_do_not_depend_on_where_they_start(kernel_set: str) -> None:
    x, y = normal(77), normal(7, 77)[0]
    whole = kernels.gated(kernel_set, x, y, "silu")
    parts = [
        kernels.gated(kernel_set, x[a : a + 11], y[a : a + 11], "silu") for a in range(0, 77, 11)
    ]
    assert whole.tobytes() == np.concatenate(parts).tobytes()
