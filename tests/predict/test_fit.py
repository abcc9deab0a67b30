"""The fit finds what made its steps, predicts others, and keeps its distance from noise."""

from __future__ import annotations

import random

import pytest

from twostroke.predict.cost import StepWork, Work
from twostroke.predict.figure import Source
from twostroke.predict.fit import MeasuredStep, fit_speed
from twostroke.predict.fitted_speed import KNOTS, TERMS, FittedSpeed, assumed_speed, step_features
from twostroke.predict.hardware import MachineProfile

PROFILE = MachineProfile(
    cpu="Some CPU",
    kernel_set="avx512",
    threads=2,
    int8_ops_per_s=9e11,
    bf16_flops_per_s=4.6e11,
    fp32_flops_per_s=2.3e11,
    bandwidth=((1 << 20, 1e11), (1 << 30, 3.4e10)),
)
WEIGHTS, HEAD = 7e7, 2.8e7


def step_work(streams: int, rows: int, depth: int) -> StepWork:
    pairs = streams * rows * (depth + rows / 2)
    attention = Work(bf16_flops=7e4 * pairs, kv_bytes=2.3e4 * streams * (depth + rows))
    total = streams * rows
    body = Work(int8_ops=2.1e8 * total, weight_bytes=WEIGHTS)
    head = Work(int8_ops=5.6e7 * streams, weight_bytes=HEAD)
    return StepWork(body, head, attention, total, streams)


def prefill(rows: int, depth: int) -> StepWork:
    return step_work(1, rows, depth)


def decode(streams: int, depth: int) -> StepWork:
    return step_work(streams, 1, depth)


def truth(work: StepWork) -> float:
    """A machine of its own kind: reading hides behind arithmetic, and a constant."""
    bandwidth = PROFILE.bandwidth_at(WEIGHTS + HEAD) * 0.92
    seconds = 2e-4
    for part in (work.body, work.lm_head):
        arithmetic = part.int8_ops / 9e11 / 0.65
        seconds += (arithmetic**2.5 + (part.weight_bytes / bandwidth) ** 2.5) ** (1 / 2.5)
    return seconds + work.attention.bf16_flops / 4.6e11 / 0.75 + work.attention.kv_bytes / 3e10


SIZES = (5, 11, 22, 45, 75, 100, 180, 280, 360, 500)
TRAINING = [prefill(n, d) for n in SIZES for d in (0, 600)] + [prefill(448, 3000)]
TRAINING += [decode(b, d) for b in (1, 2, 3, 5, 7, 13, 24) for d in (40, 700)]
OTHERS = [prefill(n, d) for n, d in ((64, 0), (256, 0), (512, 0), (512, 1024), (300, 7000))]
OTHERS += [decode(b, d) for b, d in ((1, 128), (1, 4000), (4, 1000), (8, 16), (16, 500))]


def steps(noise: float = 0.0) -> list[MeasuredStep]:
    draw = random.Random(7)
    return [
        MeasuredStep(step_features(PROFILE, w), truth(w) * (1 + noise * (2 * draw.random() - 1)))
        for w in TRAINING
    ]


def errors(speed: FittedSpeed) -> list[float]:
    found = [speed.step(work, has_prefill=True) for work in OTHERS]
    return sorted(
        abs(f.value / truth(w) - 1) for f, w in zip(found, OTHERS, strict=True) if f is not None
    )


@pytest.mark.parametrize(("noise", "bound"), [(0.0, 0.02), (0.05, 0.04)])
def test_lengths_that_were_not_measured_are_predicted(noise: float, bound: float) -> None:
    speed = fit_speed(PROFILE, steps(noise))
    assert speed is not None and speed.source is Source.FITTED
    found = errors(speed)
    assert len(found) == len(OTHERS)
    assert found[len(found) // 2] < bound and found[-1] < 0.1


def test_a_few_steps_that_stalled_do_not_spoil_it() -> None:
    some = steps()
    stalled = [
        MeasuredStep(s.features, s.seconds * (4 if i % 9 == 4 else 1)) for i, s in enumerate(some)
    ]
    speed = fit_speed(PROFILE, stalled)
    assert speed is not None and errors(speed)[len(OTHERS) // 2] < 0.1


def test_what_no_step_touched_stays_at_the_prior() -> None:
    only = [MeasuredStep(step_features(PROFILE, decode(1, d)), 0.004) for d in range(40, 60)]
    speed, assumed = fit_speed(PROFILE, only), assumed_speed(PROFILE)
    assert speed is not None
    many = TERMS.index(f"rows_{KNOTS[-1]}")
    assert speed.shares[many] == pytest.approx(assumed.shares[many], rel=0.5)
    assert speed.seconds(only[0].features) == pytest.approx(0.004, rel=0.02)


def test_no_coefficient_is_negative_whatever_was_measured() -> None:
    draw = random.Random(3)
    for _ in range(20):
        wild = [MeasuredStep(s.features, draw.random() ** 4 + 1e-6) for s in steps()]
        speed = fit_speed(PROFILE, wild)
        assert speed is not None and min(speed.shares) >= 0


def test_the_interval_is_as_wide_as_the_steps_lay_apart() -> None:
    quiet, loud = fit_speed(PROFILE, steps()), fit_speed(PROFILE, steps(0.6))
    assert quiet is not None and loud is not None
    assert loud.high / loud.low > 1.3 * quiet.high / quiet.low
    assert quiet.low <= 0.9 and quiet.high >= 1.1


def test_too_few_or_broken_steps_are_no_fit() -> None:
    assert fit_speed(PROFILE, steps()[:5]) is None
    features = step_features(PROFILE, decode(1, 10))
    broken = [MeasuredStep(features, t) for t in (0.0, -1.0, float("nan"), float("inf"))]
    assert fit_speed(PROFILE, steps()[:5] + broken) is None


def test_an_assumed_speed_says_so_and_is_wide() -> None:
    speed = assumed_speed(PROFILE)
    assert speed.source is Source.ASSUMED and speed.num_steps == 0
    assert speed.low < 0.9 and speed.high > 1.2


def test_a_fit_survives_json_and_a_broken_one_is_refused() -> None:
    speed = fit_speed(PROFILE, steps())
    assert speed is not None
    assert FittedSpeed.from_dict(speed.to_dict()) == speed
    for change in ({"low": -1.0}, {"low": 3.0}, {"high": float("nan")}, {"source": "magic"}):
        with pytest.raises(ValueError):
            FittedSpeed.from_dict({**speed.to_dict(), **change})
    with pytest.raises(ValueError, match="negative"):
        shares = {**speed.to_dict()["shares"], "kv": -1.0}
        FittedSpeed.from_dict({**speed.to_dict(), "shares": shares})
    with pytest.raises(KeyError):
        FittedSpeed.from_dict({**speed.to_dict(), "shares": {}})
