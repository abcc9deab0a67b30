"""Frequencies of the rotary embedding, plain and scaled: the tables that every backend reads."""

from __future__ import annotations

import math

import numpy as np
import pytest

from twostroke.model.config import RopeConfig


def test_linear_scaling_divides_every_frequency() -> None:
    plain = RopeConfig(base=1e4, pairs=8, interleaved=False)
    scaled = RopeConfig(base=1e4, pairs=8, interleaved=False, scaling="linear", factor=4.0)
    np.testing.assert_allclose(scaled.inverse_frequencies() * 4, plain.inverse_frequencies())


def test_yarn_keeps_fast_pairs_divides_slow_ones_and_raises_the_amplitude() -> None:
    plain = RopeConfig(base=1e4, pairs=32, interleaved=False)
    yarn = RopeConfig(
        base=1e4, pairs=32, interleaved=False, scaling="yarn", factor=8.0, original_context=2048
    )
    ratio = plain.inverse_frequencies() / yarn.inverse_frequencies()
    assert ratio[0] == pytest.approx(1.0)
    assert ratio[-1] == pytest.approx(8.0)
    assert np.all(np.diff(ratio) >= -1e-9)
    assert yarn.amplitude() == pytest.approx(1 + 0.1 * math.log(8.0))
