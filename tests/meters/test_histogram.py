"""A histogram counts each duration once, in cumulative buckets whose bounds are inclusive."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twostroke.meters.histogram import REQUEST_BOUNDS_S, TOKEN_BOUNDS_S, Histogram


def test_a_duration_at_a_bound_belongs_to_that_bound() -> None:
    histogram = Histogram((0.1, 1.0))
    for seconds in (0.05, 0.1, 0.2, 1.0, 7.0):
        histogram.add(seconds)
    assert histogram.buckets() == [("0.1", 2.0), ("1.0", 4.0), ("+Inf", 5.0)]
    assert histogram.sum_s == pytest.approx(8.35)


@given(st.lists(st.floats(0, 1000)), st.sampled_from((TOKEN_BOUNDS_S, REQUEST_BOUNDS_S)))
def test_each_bucket_counts_every_duration_up_to_its_bound(
    durations_s: list[float], bounds_s: tuple[float, ...]
) -> None:
    histogram = Histogram(bounds_s)
    for seconds in durations_s:
        histogram.add(seconds)
    for bound, count in histogram.buckets():
        assert count == sum(seconds <= float(bound) for seconds in durations_s)
