"""The formulas against worked examples and published tables."""

from __future__ import annotations

import pytest

from twostroke.advice import arithmetic


@pytest.mark.parametrize(
    ("prompt", "pp", "output", "tg", "prefill_s", "decode_s", "share"),
    [
        (1_000, 2_000, 300, 40, 0.5, 7.5, 0.0625),
        (12_000, 1_500, 500, 40, 8.0, 12.5, 0.39),
        (12_000, 1_500, 160, 40, 8.0, 4.0, 2 / 3),
        (4_000, 1_000, 250, 40, 4.0, 6.25, 0.39),
    ],
)
def test_worked_examples(prompt, pp, output, tg, prefill_s, decode_s, share):
    split = arithmetic.phase_split(prompt, pp, output, tg)
    assert (split.prefill_s, split.decode_s) == (prefill_s, decode_s)
    assert split.prefill_share == pytest.approx(share, abs=0.001)


@pytest.mark.parametrize(
    ("gigabytes", "bandwidth", "tok_s"),
    [(16.07, 4800, 298.7), (16.07, 3350, 208.5), (4.92, 1008, 204.9), (4.92, 89.6, 18.2)],
)
def test_decode_ceilings(gigabytes, bandwidth, tok_s):
    floor = arithmetic.decode_floor_s(gigabytes * 1e9, 0.0, bandwidth * 1e9)
    assert 1 / floor == pytest.approx(tok_s, abs=0.06)


@pytest.mark.parametrize(
    ("layers", "heads", "dim", "value_bytes", "expected"),
    [(32, 8, 128, 2, 131_072), (80, 8, 128, 2, 327_680), (32, 32, 128, 34 / 32, 278_528)],
)
def test_kv_bytes_per_token(layers, heads, dim, value_bytes, expected):
    assert arithmetic.kv_bytes_per_token(layers, heads, dim, value_bytes) == expected


@pytest.mark.parametrize(
    ("tokens", "share"), [(512, 0.008), (2048, 0.032), (8192, 0.118), (32768, 0.348)]
)
def test_attention_share_of_llama_8b(tokens, share):
    whole = arithmetic.prefill_flop(8.03e9, tokens, layers=32, width=4096)
    assert 1 - arithmetic.prefill_flop(8.03e9, tokens) / whole == pytest.approx(share, abs=0.001)


def test_a_cached_prefix_still_costs_attention():
    alone = arithmetic.prefill_flop(8e9, 100, layers=32, width=4096)
    behind = arithmetic.prefill_flop(8e9, 100, 10_000, layers=32, width=4096)
    assert behind - alone == 4 * 4096 * 32 * 100 * 10_000


def test_speculation():
    assert arithmetic.break_even_length(3, 0.1) == pytest.approx(1.3)
    assert arithmetic.expected_length(0.0, 3) == 1.0
    assert arithmetic.expected_length(1.0, 3) == 4.0
    assert arithmetic.expected_length(0.5, 1) == 1.5


def test_partial_offload_of_the_published_table():
    """7B Q4_0, 10 and 20 of 35 layers: 13.45 and 21.36 tok/s against 131.66 with all."""
    for on_gpu, tok_s in ((10, 13.45), (20, 21.36)):
        saved = arithmetic.offload_saving(1.0, on_gpu, 35, 13.0)
        assert saved == pytest.approx(1 - tok_s / 131.66, abs=0.03)
    assert arithmetic.offload_saving(1.0, 35, 35, 13.0) == 0.0


def test_fits():
    assert arithmetic.fit_line([1, 2, 3], [3, 5, 7]) == pytest.approx((1, 2))
    assert arithmetic.fit_line([1, 1], [3, 5]) is None
    assert arithmetic.fit_prefill([100, 200], [1.5, 4.0]) == pytest.approx((0.01, 5e-5))
    assert arithmetic.fit_prefill([100, 200], [1.0, 2.0]) == pytest.approx((0.01, 0.0))
    assert arithmetic.fit_prefill([100, 200], [2.0, 2.0]) == pytest.approx((0.015, 0.0))
    assert arithmetic.fit_prefill([100], [1.0]) is None
    assert arithmetic.fit_prefill([10, 20], [1.0, 8.0])[0] == 0.0


def test_littles_law():
    assert arithmetic.queue_share(18, 43) == pytest.approx(43 / 61)
    assert arithmetic.queue_share(0, 0) is None
