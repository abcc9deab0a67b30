"""The engine's predictor: predicts the time of a step and learns from the measured time.

Belongs to the thread that steps the engine. Other threads take `current`, which never changes.
"""

from __future__ import annotations

from typing import NamedTuple

from twostroke.predict.cost import CostModel, StepWork
from twostroke.predict.fitted_speed import Features, FittedSpeed, step_features, unmeasured_speed
from twostroke.predict.predictor import Predictor
from twostroke.predict.speed import phase_of
from twostroke.predict.speed_learner import SpeedLearner
from twostroke.step import StepPlan

MIN_DECODE_STEPS = 64  # after that one decode step in DECODE_STRIDE teaches
DECODE_STRIDE = 4


class _Priced(NamedTuple):
    """A plan with its work and the terms of its time."""

    plan: StepPlan
    work: StepWork
    features: Features


class LearningPredictor:
    """A `step.StepPredictor`. Sole writer of `current`, whose speed follows the warm steps."""

    def __init__(self, cost: CostModel, speed: FittedSpeed) -> None:
        assert speed.profile is not None, "a fit is of a measured machine"
        self.cost = cost
        self._profile = speed.profile
        self._learner = SpeedLearner(speed)
        self._current = Predictor(cost, speed)
        self._num_decode = 0
        self._last: _Priced | None = None

    @classmethod
    def untaught(cls, cost: CostModel) -> LearningPredictor:
        """Return a predictor for a backend with unknown peaks.

        It predicts nothing for a phase before it has observed a step of that phase.
        """
        return cls(cost, unmeasured_speed())

    @property
    def current(self) -> Predictor:
        """The frozen predictor in use now; safe on any thread."""
        return self._current

    @property
    def drifts(self) -> int:
        """How often the steps of a phase left the predicted interval."""
        return self._learner.drifts

    def step_s(self, plan: StepPlan) -> float | None:
        """Return the predicted seconds of a plan, None while one of its phases was never seen."""
        speed = self._learner.speed
        if speed.unmeasured and not speed.is_known(plan):
            return None
        return speed.seconds(self._priced(plan).features)

    def observe(self, plan: StepPlan, seconds: float) -> None:
        """Learn from a warm step of one phase; a mixed one is not split by guess."""
        if plan.is_mixed:
            return
        if not plan.prefill:
            self._num_decode += 1
            if self._num_decode > MIN_DECODE_STEPS and self._num_decode % DECODE_STRIDE:
                return
        priced, learner = self._priced(plan), self._learner
        phase = phase_of(bool(plan.prefill))
        learner.observe(phase, priced.work, priced.features, seconds)
        if learner.speed is not self._current.speed:
            self._current = Predictor(self.cost, learner.speed)

    def work(self, plan: StepPlan) -> StepWork:
        """Return the work of a plan, counted once for the plan asked about last."""
        return self._priced(plan).work

    def _priced(self, plan: StepPlan) -> _Priced:
        last = self._last
        if last is None or not _is_same_work(last.plan, plan):
            work = self.cost.step_work(plan)
            last = self._last = _Priced(plan, work, step_features(self._profile, work))
        return last


def _is_same_work(a: StepPlan, b: StepPlan) -> bool:
    """Whether two plans hold the very same slices: a plan before and after it was predicted."""
    return a.prefill is b.prefill and a.decode is b.decode
