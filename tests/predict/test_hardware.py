"""A profile interpolates between its points and follows a probe."""

from __future__ import annotations

import pytest

from tests.predict.test_fit import PROFILE
from twostroke.predict.hardware import MachineProfile


def test_a_probe_moves_arithmetic_and_reading_each_by_its_own_factor() -> None:
    size = 1 << 27
    slow = PROFILE.at_speed(PROFILE.int8_ops_per_s / 2, PROFILE.bandwidth_at(size) / 4, size)
    assert slow.fp32_flops_per_s == PROFILE.fp32_flops_per_s / 2
    assert slow.bf16_flops_per_s == PROFILE.bf16_flops_per_s / 2
    for num_bytes in (1 << 18, 1 << 20, 1 << 25, 1 << 33):
        assert slow.bandwidth_at(num_bytes) == pytest.approx(PROFILE.bandwidth_at(num_bytes) / 4)


def test_a_profile_survives_json_and_a_broken_one_is_refused() -> None:
    assert MachineProfile.from_dict(PROFILE.to_dict()) == PROFILE
    for change in ({"int8_ops_per_s": 0.0}, {"bandwidth": []}, {"bandwidth": [[1, -1.0]]}):
        with pytest.raises((ValueError, IndexError)):
            MachineProfile.from_dict({**PROFILE.to_dict(), **change})
