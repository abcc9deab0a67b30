"""Attention gives the same bits however the work is cut, and by either way of multiplying bf16."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.attention_runs import (
    SETS,
    SHAPES,
    TYPES,
    Floats,
    Request,
    Shape,
    attend,
    make_cache,
    tables,
)


@pytest.mark.parametrize("kernel_set", SETS)
@pytest.mark.parametrize("kv_type", TYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("chunk", [1, 7, 64, 512, None], ids=str)
def test_bits_are_the_same_for_every_cut(
    kernel_set: str, kv_type: str, shape: Shape, chunk: int | None
) -> None:
    """The whole prompt at once, against chunks of several requests that join and sit out steps."""
    rng = np.random.default_rng([3, SHAPES.index(shape), chunk or 0])
    lengths = (
        [150, 17, 90]
        if chunk == 1
        else [int(rng.integers(300, 700)), 65, int(rng.integers(1, 400))]
    )
    requests = [Request(rng, shape, n, sharp=float(rng.choice([1, 6]))) for n in lengths]
    whole = prefill_at_once(rng, kernel_set, kv_type, shape, requests)
    for expected, given in zip(
        whole, prefill_in_steps(rng, kernel_set, kv_type, shape, requests, chunk), strict=True
    ):
        assert expected.tobytes() == given.tobytes()


def prefill_at_once(
    rng: np.random.Generator, kernel_set: str, kv_type: str, shape: Shape, requests: list[Request]
) -> list[Floats]:
    blocks = tables(rng, [r.length for r in requests])
    cache = make_cache(kv_type, shape, sum(len(b) for b in blocks))
    for request, table in zip(requests, blocks, strict=True):
        request.append(cache, table, 0, request.length, kernel_set)
    return [
        attend(kernel_set, cache, shape, [(r.q, b, r.length)], threads=2)[0]
        for r, b in zip(requests, blocks, strict=True)
    ]


def prefill_in_steps(
    rng: np.random.Generator,
    kernel_set: str,
    kv_type: str,
    shape: Shape,
    requests: list[Request],
    chunk: int | None,
) -> list[Floats]:
    blocks = tables(rng, [r.length for r in requests])
    cache = make_cache(kv_type, shape, sum(len(b) for b in blocks))
    outs = [np.full_like(r.q, np.nan) for r in requests]
    done = [0] * len(requests)
    while any(d < r.length for d, r in zip(done, requests, strict=True)):
        step = []
        for i, (r, table) in enumerate(zip(requests, blocks, strict=True)):
            n = min(r.length - done[i], chunk or int(rng.integers(1, 90)))
            if n == 0 or rng.random() < 0.25:
                continue
            r.append(cache, table, done[i], done[i] + n, kernel_set)
            step.append((i, done[i], done[i] + n))
            done[i] += n
        if not step:
            continue
        seqs = [(requests[i].q[a:b], blocks[i], b) for i, a, b in step]
        threads, seed = int(rng.integers(1, 3)), int(rng.integers(1, 2**31))
        for (i, a, b), out in zip(
            step, attend(kernel_set, cache, shape, seqs, threads, seed), strict=True
        ):
            outs[i][a:b] = out
    return outs


@pytest.mark.parametrize("kernel_set", SETS)
def test_bits_are_the_same_with_values_near_zero(kernel_set: str) -> None:
    """Denormal values and zeros: a skipped product of zero would turn -0 into +0."""
    rng = np.random.default_rng(4)
    shape = Shape(1, 3, 64)
    request = Request(rng, shape, 333)
    request.v *= np.float32(1e-37)
    request.v[::3] = np.float32(-1e-38)
    request.v[1::3] = 0.0
    whole = prefill_at_once(rng, kernel_set, "bf16", shape, [request])
    for chunk in (1, 7, None):
        steps = prefill_in_steps(rng, kernel_set, "bf16", shape, [request], chunk)
        assert whole[0].tobytes() == steps[0].tobytes()


@pytest.mark.parametrize("kernel_set", SETS)
@pytest.mark.parametrize("kv_type", TYPES)
def test_a_long_context_decodes_to_the_bits_of_its_prefill(kernel_set: str, kv_type: str) -> None:
    rng = np.random.default_rng(5)
    shape = Shape(1, 3, 64)
    length = 1500
    request = Request(rng, shape, length)
    (table,) = tables(rng, [length])
    cache = make_cache(kv_type, shape, len(table))
    request.append(cache, table, 0, length, kernel_set)
    (whole,) = attend(kernel_set, cache, shape, [(request.q, table, length)])
    for nq in (1, 5, 20, 31):  # splits of few rows, splits of many rows, a tile
        (out,) = attend(kernel_set, cache, shape, [(request.q[-nq:], table, length)], 2, seed=7)
        assert out.tobytes() == whole[-nq:].tobytes()


@pytest.mark.skipif("avx512" not in SETS, reason="vdpbf16ps is an instruction of AVX-512")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("size", [1.0, 1e-19, 1e19])
def test_the_bf16_dot_product_and_two_multiply_adds_give_the_same_bits(
    shape: Shape, size: float
) -> None:
    """vdpbf16ps adds the odd product first and then the even one, denormals as zero; at the ends of
    the range its products underflow and its sums overflow."""
    rng = np.random.default_rng([10, SHAPES.index(shape)])
    length = 600
    request = Request(rng, shape, length, sharp=size)
    request.k *= np.float32(size)
    request.v *= np.float32(size)
    (table,) = tables(rng, [length])
    cache = make_cache("bf16", shape, len(table))
    request.append(cache, table, 0, length, "avx512")
    for nq in (length, 40, 1):  # tiles, splits of some rows, splits of one
        seqs = [(request.q[-nq:], table, length)]
        (by_dot,) = attend("avx512-bf16-dot", cache, shape, seqs, threads=2)
        (by_fma,) = attend("avx512-bf16-fma", cache, shape, seqs, threads=2)
        assert by_dot.tobytes() == by_fma.tobytes()
