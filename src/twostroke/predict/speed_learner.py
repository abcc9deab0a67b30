"""Learning from the steps that run: notice when they leave the predicted interval, and refit.

Kept out: cold steps (the caller's to leave out), mixed steps (two phases in one time), and a step
far off, which counts in proportion only. Kept: a few of the newest steps of every size, so that a
long answer does not make it forget prefill. Sole writer of its speed; other threads may read it.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace

from twostroke.predict.cost import StepWork
from twostroke.predict.figure import Source
from twostroke.predict.fit import (
    FEW_ROWS,
    TERMS,
    Features,
    FittedSpeed,
    MeasuredStep,
    fit_speed,
)
from twostroke.predict.speed import phase_of

WINDOW = 32  # newest steps of a phase that are judged together
STRIDE = 16  # steps between two judgements, and the fewest that are judged
SPREAD = 0.25  # least half-width of an interval learnt in passing: few sizes were seen
_KEPT = 6  # newest steps of one size
_PHASES = ("decode", "prefill")


class _Phase:
    """What one phase's steps were like lately: measured / predicted of each."""

    def __init__(self) -> None:
        self.ratios: deque[float] = deque(maxlen=WINDOW)
        self.num_steps = 0

    def median(self) -> float:
        ordered = sorted(self.ratios)
        return ordered[len(ordered) // 2] if ordered else 1.0


class SpeedLearner:
    """Holds the speed in use. drifts: how often steps left the interval of a fit."""

    def __init__(self, speed: FittedSpeed) -> None:
        self.speed = speed
        self.drifts = 0
        self._is_new_here = speed.source is not Source.FITTED
        self._phases = (_Phase(), _Phase())
        self._kept: dict[tuple[int, ...], deque[MeasuredStep]] = {}

    def observe(
        self, work: StepWork, features: Features, seconds: float, *, has_prefill: bool
    ) -> None:
        """Take note of a warm step of one phase. Units: seconds."""
        predicted = self.speed.seconds(features)
        if not (seconds > 0 and predicted > 0 and math.isfinite(seconds)):
            return
        phase = self._phases[has_prefill]
        phase.ratios.append(seconds / predicted)
        phase.num_steps += 1
        size = (int(has_prefill), _octave(work.rows), _octave(work.attention.kv_bytes))
        kept = self._kept.setdefault(size, deque(maxlen=_KEPT))
        kept.append(MeasuredStep(features, seconds))
        if self._is_due(phase.num_steps):
            self._judge(has_prefill)

    def _is_due(self, num_steps: int) -> bool:
        is_early = self.speed.source is not Source.FITTED and num_steps < STRIDE
        return _is_power_of_two(num_steps) if is_early else num_steps % STRIDE == 0

    def _judge(self, has_prefill: bool) -> None:
        """Refit where the newest steps are off, or the sizes seen so far were few."""
        phase, speed = self._phases[has_prefill], self.speed
        middle = phase.median()
        is_fitted = speed.source is Source.FITTED
        is_inside = speed.low <= middle <= speed.high
        is_off = not is_inside or not 1.0 - SPREAD <= middle <= 1.0 + SPREAD
        is_growing = self._is_new_here and _is_power_of_two(phase.num_steps)
        if is_fitted and not is_off and not is_growing:
            return
        if is_fitted and is_off and len(phase.ratios) >= STRIDE:
            if not is_inside:
                self._say_drift(has_prefill, middle)
            self._forget_before_drift(has_prefill)
        self._refit(has_prefill, middle)

    def _say_drift(self, has_prefill: bool, middle: float) -> None:
        self.drifts += 1
        import logging  # only now: a first token waits for every import

        logging.getLogger(__name__).warning(
            "%s steps take %.2f times as long as predicted (expected %.2f to %.2f): "
            "predictions are fitted anew",
            _PHASES[has_prefill],
            middle,
            self.speed.low,
            self.speed.high,
        )

    def _forget_before_drift(self, has_prefill: bool) -> None:
        """Drop what this phase's steps were like before; the newest are of the new time."""
        middle = self._phases[has_prefill].median()
        for size in [s for s in self._kept if s[0] == has_prefill]:
            newest = self._kept[size][-1]
            now_s = self.speed.seconds(newest.features) * middle
            if 0.5 < newest.seconds / now_s < 2.0:
                self._kept[size] = deque([newest], maxlen=_KEPT)
            else:
                del self._kept[size]

    def _refit(self, has_prefill: bool, factor: float) -> None:
        """Fit to the kept steps; what none of them touches follows its phase by the factor."""
        speed = self.speed
        profile = speed.profile
        assert profile is not None
        prior = _scaled(speed, has_prefill, factor)
        steps = [step for kept in self._kept.values() for step in kept]
        fitted = fit_speed(profile, steps, prior=prior, least=1, spread=SPREAD)
        if fitted is None:
            return
        is_known = all(p.num_steps >= STRIDE for p in self._phases)
        was_fitted = speed.source is Source.FITTED
        self.speed = replace(
            fitted,
            name=speed.name,
            source=Source.FITTED if was_fitted or is_known else speed.source,
            low=fitted.low if was_fitted or is_known else min(fitted.low, speed.low),
            high=fitted.high if was_fitted or is_known else max(fitted.high, speed.high),
            unmeasured=speed.unmeasured - {phase_of(has_prefill)},
        )
        for phase in self._phases:
            phase.ratios.clear()


def _is_power_of_two(count: int) -> bool:
    return count & (count - 1) == 0


def _octave(value: float) -> int:
    return int(math.log2(value)) if value >= 1 else -1


def _scaled(speed: FittedSpeed, has_prefill: bool, factor: float) -> FittedSpeed:
    """Return the speed with the terms of one phase this many times as slow."""

    def is_of_phase(term: str) -> bool:
        if term.startswith("rows_"):
            return (int(term.removeprefix("rows_")) > FEW_ROWS) is has_prefill
        return term == "attention" if has_prefill else term in ("step", "kv")

    shares = tuple(
        share * factor if is_of_phase(term) else share
        for term, share in zip(TERMS, speed.shares, strict=True)
    )
    return replace(speed, shares=shares)
