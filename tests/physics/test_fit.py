"""The fit finds what made its steps, predicts others, and keeps its distance from noise."""

from __future__ import annotations

import random

import pytest

from twostroke.physics.cost import Work
from twostroke.physics.figure import Source
from twostroke.physics.fit import FittedSpeed, MeasuredStep, fit_speed
from twostroke.physics.hardware import MachineProfile

PROFILE = MachineProfile(
    cpu="Some CPU",
    kernel_set="avx512",
    threads=2,
    int8_ops_per_s=9e11,
    bf16_flops_per_s=4.6e11,
    fp32_flops_per_s=2.3e11,
    bandwidth=((1 << 20, 1e11), (1 << 30, 3.4e10)),
)
WEIGHTS = 9.6e7


def prefill(n: int, depth: int) -> Work:
    pairs = n * depth + n * n / 2
    return Work(2.1e8 * n, 7e4 * pairs, 0.0, WEIGHTS, 2.3e4 * (n + depth))


def decode(streams: int, depth: int) -> Work:
    return Work(2.7e8 * streams, 7e4 * depth * streams, 0.0, WEIGHTS, 2.3e4 * depth * streams)


def truth(work: Work) -> float:
    """A machine of its own kind: 65 % of int8, 75 % of bf16, 92 % of reading, a constant."""
    arithmetic = work.int8_ops / 9e11 / 0.65 + work.bf16_flops / 4.6e11 / 0.75
    bandwidth = PROFILE.bandwidth_at(work.weight_bytes)
    memory = (work.weight_bytes / 0.92 + work.kv_bytes / 0.8) / bandwidth
    return 2e-4 + (arithmetic**2.5 + memory**2.5) ** (1 / 2.5)


TRAINING = [prefill(n, d) for n, d in ((48, 0), (160, 0), (448, 0), (160, 600), (448, 3000))]
TRAINING += [decode(b, d) for b, d in ((1, 40), (1, 900), (1, 2500), (3, 40), (6, 300), (12, 700))]
OTHERS = [prefill(n, d) for n, d in ((64, 0), (512, 0), (512, 1024), (300, 7000))]
OTHERS += [decode(b, d) for b, d in ((1, 128), (1, 4000), (4, 1000), (16, 500))]


def steps(noise: float = 0.0) -> list[MeasuredStep]:
    draw = random.Random(7)
    return [MeasuredStep(w, truth(w) * (1 + noise * (2 * draw.random() - 1))) for w in TRAINING]


@pytest.mark.parametrize(("noise", "bound"), [(0.0, 0.05), (0.05, 0.10)])
def test_lengths_that_were_not_measured_are_predicted(noise: float, bound: float) -> None:
    speed = fit_speed(PROFILE, steps(noise))
    assert speed is not None and speed.source is Source.FITTED
    errors = []
    for work in OTHERS:
        found = speed.decode_step(work, WEIGHTS)
        assert found is not None
        errors.append(abs(found.value / truth(work) - 1))
    assert sorted(errors)[len(errors) // 2] < bound
    assert max(errors) < 0.25


def test_the_interval_is_as_wide_as_the_steps_lay_apart() -> None:
    quiet, loud = fit_speed(PROFILE, steps()), fit_speed(PROFILE, steps(0.4))
    assert quiet is not None and loud is not None
    assert loud.high / loud.low > 1.5 * quiet.high / quiet.low
    assert quiet.low <= 0.95 and quiet.high >= 1.05


def test_too_few_or_broken_steps_are_no_fit() -> None:
    assert fit_speed(PROFILE, steps()[:5]) is None
    broken = [MeasuredStep(decode(1, 10), t) for t in (0.0, -1.0, float("nan"), float("inf"))]
    assert fit_speed(PROFILE, steps()[:5] + broken) is None


def test_a_fit_survives_json_and_a_broken_one_is_refused() -> None:
    speed = fit_speed(PROFILE, steps())
    assert speed is not None
    assert FittedSpeed.from_dict(speed.to_dict()) == speed
    for change in ({"low": -1.0}, {"low": 3.0}, {"high": float("nan")}):
        with pytest.raises(ValueError, match="not positive"):
            FittedSpeed.from_dict({**speed.to_dict(), **change})
    with pytest.raises(KeyError):
        FittedSpeed.from_dict({**speed.to_dict(), "shares": {}})
