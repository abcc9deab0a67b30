"""The formulas against worked examples and published tables."""

from __future__ import annotations

import pytest

from twostroke.advice import arithmetic


@pytest.mark.parametrize(
    ("gigabytes", "bandwidth", "tok_s"),
    [(16.07, 4800, 298.7), (16.07, 3350, 208.5), (4.92, 1008, 204.9), (4.92, 89.6, 18.2)],
)
def test_decode_ceilings(gigabytes, bandwidth, tok_s):
    floor = arithmetic.decode_floor_s(gigabytes * 1e9, 0.0, bandwidth * 1e9)
    assert 1 / floor == pytest.approx(tok_s, abs=0.06)


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
