"""Learning a speed from the steps that run: notice when they leave the prediction, and refit.

The caller leaves cold and mixed steps out. A few of the newest steps of every size are kept, so
that a long answer does not displace the steps of prefill. Used on one thread.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import replace

from twostroke.predict.cost import StepWork
from twostroke.predict.figure import Source
from twostroke.predict.fit import MeasuredStep, fit_speed
from twostroke.predict.fitted_speed import FEW_ROWS, TERMS, Features, FittedSpeed
from twostroke.step import Phase

WINDOW = 32  # newest steps of a phase that are judged together
STRIDE = 16  # steps between two judgements, and the fewest that are judged
SPREAD = 0.25  # least half-width of an interval learnt in passing: few sizes were seen
_KEPT = 6  # newest steps of one size
_Size = tuple[int, int]  # octaves of rows and of KV bytes


class _PhaseSteps:
    """The newest steps of one phase: measured / predicted in order, and a few of each size."""

    def __init__(self) -> None:
        self.num_steps = 0
        self.ratios: deque[float] = deque(maxlen=WINDOW)
        self.kept: dict[_Size, deque[MeasuredStep]] = {}

    def add(self, size: _Size, step: MeasuredStep, ratio: float) -> None:
        self.num_steps += 1
        self.ratios.append(ratio)
        self.kept.setdefault(size, deque(maxlen=_KEPT)).append(step)

    def all_kept(self) -> list[MeasuredStep]:
        return [step for steps in self.kept.values() for step in steps]

    def pace(self, speed: FittedSpeed) -> float:
        """Return how many times as long as at a speed the kept steps took: their median."""
        return _median(s.seconds / speed.seconds(s.features) for s in self.all_kept())

    def keep_newest_near(self, speed: FittedSpeed, pace: float) -> None:
        """Keep the newest step of each size whose time is within a factor 2 of that pace."""
        newest = {size: steps[-1] for size, steps in self.kept.items()}
        self.kept = {
            size: deque([step], maxlen=_KEPT)
            for size, step in newest.items()
            if 0.5 < step.seconds / (speed.seconds(step.features) * pace) < 2.0
        }


class SpeedLearner:
    """Holds the speed in use. drifts: how often the steps of a phase left its interval."""

    def __init__(self, speed: FittedSpeed) -> None:
        self.speed = speed
        self.drifts = 0
        self._start = speed
        self._phases = {phase: _PhaseSteps() for phase in Phase}

    def observe(self, phase: Phase, work: StepWork, features: Features, seconds: float) -> None:
        """Take note of a warm step that held this phase alone. Units: seconds."""
        predicted_s = self.speed.seconds(features)
        if not (seconds > 0 and predicted_s > 0 and math.isfinite(seconds)):
            return
        size = (_octave(work.rows), _octave(work.attention.kv_bytes))
        steps = self._phases[phase]
        steps.add(size, MeasuredStep(features, seconds), seconds / predicted_s)
        if self._is_judged_now(steps.num_steps):
            self._judge(phase)

    def _is_judged_now(self, num_steps: int) -> bool:
        if self.speed.source is not Source.FITTED and num_steps < STRIDE:
            return _is_power_of_two(num_steps)
        return num_steps % STRIDE == 0

    def _judge(self, phase: Phase) -> None:
        """Refit where the newest steps are off, or where there was no fit to start from."""
        steps, speed = self._phases[phase], self.speed
        if speed.source is not Source.FITTED:
            self._refit()
            return
        median = _median(steps.ratios)
        is_inside = speed.low <= median <= speed.high
        if not is_inside or abs(median - 1.0) > SPREAD:
            if len(steps.ratios) >= STRIDE:
                steps.keep_newest_near(speed, median)
                if not is_inside:
                    self._report_drift(phase, median)
            self._refit()
        elif self._start.source is not Source.FITTED and _is_power_of_two(steps.num_steps):
            self._refit()  # more sizes were seen than at the last fit

    def _report_drift(self, phase: Phase, median: float) -> None:
        self.drifts += 1
        import logging  # only now: a first token waits for every import

        logging.getLogger(__name__).warning(
            "%s steps take %.2f times as long as predicted (expected %.2f to %.2f): "
            "predictions are fitted anew",
            phase.value,
            median,
            self.speed.low,
            self.speed.high,
        )

    def _refit(self) -> None:
        """Fit to the kept steps; terms that no step touches follow the pace of their phase."""
        speed, prior = self.speed, self._start
        profile = prior.profile
        assert profile is not None, "a fit is of a measured machine"
        for phase, steps in self._phases.items():
            prior = _slowed(prior, phase, steps.pace(self._start))
        kept = [step for steps in self._phases.values() for step in steps.all_kept()]
        fitted = fit_speed(profile, kept, prior=prior, least=1, spread=SPREAD)
        if fitted is None:
            return
        if speed.source is Source.FITTED or self._has_seen_enough():
            low, high, source = fitted.low, fitted.high, Source.FITTED
        else:
            low, high = min(fitted.low, speed.low), max(fitted.high, speed.high)
            source = speed.source
        measured = {phase for phase, steps in self._phases.items() if steps.num_steps}
        self.speed = replace(
            fitted,
            name=speed.name,
            source=source,
            low=low,
            high=high,
            unmeasured=speed.unmeasured - measured,
        )
        for steps in self._phases.values():
            steps.ratios.clear()

    def _has_seen_enough(self) -> bool:
        return all(steps.num_steps >= STRIDE for steps in self._phases.values())


def _median(values: Iterable[float]) -> float:
    """Return the median; 1 of nothing."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else 1.0


def _is_power_of_two(count: int) -> bool:
    return count & (count - 1) == 0


def _octave(value: float) -> int:
    return int(math.log2(value)) if value >= 1 else -1


def _slowed(speed: FittedSpeed, phase: Phase, factor: float) -> FittedSpeed:
    """Return the speed with the terms of one phase this many times as slow."""
    shares = tuple(
        share * factor if _phase_of_term(term) is phase else share
        for term, share in zip(TERMS, speed.shares, strict=True)
    )
    return replace(speed, shares=shares)


def _phase_of_term(term: str) -> Phase:
    """Return the phase whose steps a term mostly belongs to."""
    if term.startswith("rows_"):
        is_many = int(term.removeprefix("rows_")) > FEW_ROWS
        return Phase.PREFILL if is_many else Phase.DECODE
    return Phase.PREFILL if term == "attention" else Phase.DECODE
