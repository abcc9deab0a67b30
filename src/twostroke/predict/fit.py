"""The speed that explains measured steps best.

Least squares on relative errors, no coefficient negative; a coefficient that no step touches is
drawn to a prior. Knows no clock; the caller leaves cold and mixed steps out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twostroke.predict.figure import Source
from twostroke.predict.fitted_speed import KNOTS, TERMS, Features, FittedSpeed, assumed_speed
from twostroke.predict.hardware import MachineProfile

MIN_STEPS = 6
LEAST_SPREAD = 0.1  # an interval is never narrower than the repeats of a shared machine
_PRIOR_WEIGHT = 1e-3  # of one relative error: the prior decides only where no step does
_SMOOTH_WEIGHT = 3e-3
_ROBUST = 0.1  # beyond this relative error a step counts in proportion, not in its square
_ROUNDS = 4
_MOST_CHANGES, _TOLERANCE = 60, 1e-10


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """One step: its terms and how long it took. Units: seconds."""

    features: Features
    seconds: float


def fit_speed(
    profile: MachineProfile,
    steps: Sequence[MeasuredStep],
    *,
    prior: FittedSpeed | None = None,
    least: int = MIN_STEPS,
    spread: float = LEAST_SPREAD,
) -> FittedSpeed | None:
    """Return the speed that explains the steps best; None with fewer than `least`.

    prior: the speed of terms that no step touches (None: the assumed shares). spread: the interval
    is never narrower than this to either side.
    """
    usable = [s for s in steps if math.isfinite(s.seconds) and s.seconds > 0]
    if len(usable) < max(least, 1):
        return None
    start = (prior or assumed_speed(profile)).shares
    weights = [1.0] * len(usable)
    shares = start
    for _ in range(_ROUNDS):
        shares = _solve(usable, weights, start)
        weights = [_ROBUST / max(abs(_ratio(shares, s) - 1.0), _ROBUST) for s in usable]
    ratios = sorted(1.0 / _ratio(shares, s) for s in usable)
    cut = len(ratios) // 20
    return FittedSpeed(
        name=profile.cpu,
        source=Source.FITTED,
        profile=profile,
        shares=shares,
        low=min(ratios[cut], 1.0 - spread),
        high=max(ratios[-1 - cut], 1.0 + spread),
        num_steps=len(usable),
    )


def _ratio(shares: Sequence[float], step: MeasuredStep) -> float:
    """Return predicted / measured."""
    return max(sum(shares[j] * v for j, v in step.features) / step.seconds, 1e-9)


def _solve(
    steps: Sequence[MeasuredStep], weights: Sequence[float], start: Sequence[float]
) -> tuple[float, ...]:
    """Minimise weighted relative errors plus the pull to `start`; no coefficient is negative."""
    unit = np.maximum(np.array(start), 1e-9)  # unknowns are multiples of the prior
    rows = np.zeros((len(steps), len(TERMS)))
    for i, step in enumerate(steps):
        for j, value in step.features:
            rows[i, j] += value / step.seconds  # body and lm_head may share a knot
    rows *= unit
    weighted = rows.T * np.array(weights)
    gram = weighted @ rows + _PULL
    right = weighted.sum(axis=1) + _PRIOR_WEIGHT
    return tuple(float(v) for v in unit * _non_negative(gram, right))


def _pull() -> NDArray[np.float64]:
    """Return the matrix that draws each unknown to its prior and neighbouring knots together."""
    pull = _PRIOR_WEIGHT * np.eye(len(TERMS))
    for j in range(1, len(KNOTS)):
        pull[j : j + 2, j : j + 2] += _SMOOTH_WEIGHT * np.array([[1.0, -1.0], [-1.0, 1.0]])
    return pull


_PULL = _pull()


def _non_negative(gram: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the z >= 0 with the least z'Gz / 2 - r'z.

    Source: Bro and De Jong 1997, J. Chemometrics 11, 393 (after Lawson and Hanson).
    """
    z = np.zeros(len(right))
    active = np.zeros(len(right), bool)  # those above 0
    for _ in range(_MOST_CHANGES):
        gain = np.where(active, -np.inf, right - gram @ z)
        if gain.max() <= _TOLERANCE:
            break
        active[int(gain.argmax())] = True
        found = _solved(gram, right, active)
        while found[active].min() <= 0:
            falling = active & (found <= 0)
            share = (z[falling] / (z[falling] - found[falling])).min()
            z += share * (found - z)
            active &= z > _TOLERANCE
            found = _solved(gram, right, active)
            if not active.any():
                break
        z = found
    return z


def _solved(
    gram: NDArray[np.float64], right: NDArray[np.float64], active: NDArray[np.bool_]
) -> NDArray[np.float64]:
    found = np.zeros(len(right))
    index = np.flatnonzero(active)
    found[index] = np.linalg.solve(gram[np.ix_(index, index)], right[index])
    return found
