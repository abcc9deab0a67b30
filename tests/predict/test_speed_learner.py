"""Steps that leave the interval are noticed, logged and fitted anew; mixed ones are kept out."""

from __future__ import annotations

import logging

import pytest

from tests.predict.test_fit import PROFILE, StepWork, decode, prefill, steps, truth
from twostroke.predict.figure import Source
from twostroke.predict.fit import fit_speed
from twostroke.predict.fitted_speed import FittedSpeed, assumed_speed, step_features
from twostroke.predict.speed_learner import STRIDE, SpeedLearner
from twostroke.step import Phase


def fitted() -> FittedSpeed:
    speed = fit_speed(PROFILE, steps())
    assert speed is not None
    return speed


def feed(learner: SpeedLearner, work: StepWork, factor: float, n: int, phase: Phase) -> None:
    for _ in range(n):
        features = step_features(PROFILE, work)
        learner.observe(phase, work, features, truth(work) * factor)


def error(learner: SpeedLearner, work: StepWork, factor: float = 1.0) -> float:
    return learner.speed.seconds(step_features(PROFILE, work)) / (truth(work) * factor) - 1


def test_steps_inside_the_interval_change_nothing(caplog: pytest.LogCaptureFixture) -> None:
    learner = SpeedLearner(fitted())
    before = learner.speed
    for _ in range(5):
        feed(learner, decode(1, 100), 1.03, STRIDE, Phase.DECODE)
        feed(learner, prefill(300, 0), 0.97, STRIDE, Phase.PREFILL)
    assert learner.speed is before and learner.drifts == 0 and not caplog.records


def test_a_machine_that_became_slower_is_noticed_and_fitted_anew(
    caplog: pytest.LogCaptureFixture,
) -> None:
    learner = SpeedLearner(fitted())
    with caplog.at_level(logging.WARNING):
        feed(learner, decode(1, 100), 2.0, 2 * STRIDE, Phase.DECODE)
    assert learner.drifts >= 1
    assert "decode steps take 1.99 times" in caplog.text and "fitted anew" in caplog.text
    assert abs(error(learner, decode(1, 100), 2.0)) < 0.05
    assert abs(error(learner, decode(3, 2000), 2.0)) < 0.35, "sizes not seen follow their phase"
    assert abs(error(learner, prefill(300, 0))) < 0.1, "prefill was not slower"


def test_a_first_observation_already_brings_the_phase_near() -> None:
    learner = SpeedLearner(assumed_speed(PROFILE))
    work = prefill(200, 0)
    feed(learner, work, 6.0, 1, Phase.PREFILL)
    assert abs(error(learner, work, 6.0)) < 0.1
    assert abs(error(learner, prefill(400, 0), 6.0)) < 0.35
    assert learner.speed.source is Source.ASSUMED, "one step is no fit"


def test_enough_steps_of_both_phases_are_a_fit_without_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    learner = SpeedLearner(assumed_speed(PROFILE))
    for n in (30, 90, 250, 400):
        feed(learner, prefill(n, 0), 1.0, STRIDE, Phase.PREFILL)
    for depth in (20, 200, 900):
        feed(learner, decode(1, depth), 1.0, STRIDE, Phase.DECODE)
    assert learner.speed.source is Source.FITTED and learner.drifts == 0
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert abs(error(learner, prefill(300, 0))) < 0.15
    assert abs(error(learner, decode(1, 500))) < 0.15


def test_one_stall_is_no_drift() -> None:
    learner = SpeedLearner(fitted())
    feed(learner, decode(1, 100), 1.0, STRIDE - 1, Phase.DECODE)
    feed(learner, decode(1, 100), 50.0, 1, Phase.DECODE)
    assert learner.drifts == 0 and abs(error(learner, decode(1, 100))) < 0.05
