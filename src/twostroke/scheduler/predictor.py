"""What a step will cost, fitted to the steps seen so far; used until the full performance model
knows the machine.

    t = c + a * P + b * Q + d * S + e * K
with P prefill tokens, Q (query, key) pairs of prefill attention, S decoding requests, K their
context tokens. So one prompt alone is c + a*n + b*n^2/2. Coefficients are never negative; recent
steps count more.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from twostroke.step import StepPlan

PREFILL_MEMORY = 0.98  # weight of a step with prefill after the next such step
DECODE_MEMORY = 0.995
OUTLIER = 3.0  # a step this many times slower than predicted counts as this many times
MIN_STEPS_FOR_OUTLIERS = 8
MIN_DECODE_STEPS = 32  # after that one decode step in DECODE_STRIDE is taken note of
DECODE_STRIDE = 4
REFIT_STRIDE = 64
SMALLEST_S = 1e-7
# Ridge on scaled features: the constant is trusted least, so one size scales in proportion.
RIDGE = np.array([3e-4, 1e-6, 3e-4, 1e-5, 3e-5])

Features = tuple[float, float, float, float, float]


def features(plan: StepPlan) -> Features:
    """Return (1, P, Q, S, K) of a plan."""
    tokens = pairs = 0.0
    for s in plan.prefill:
        n = len(s.token_ids)
        tokens += n
        pairs += n * (s.start + 0.5 * n)
    context = 0
    for s in plan.decode:
        context += s.start
    return 1.0, tokens, pairs, float(len(plan.decode)), float(context)


class FittedPredictor:
    """Weighted least squares on relative errors; steps with prefill and without age apart."""

    def __init__(self) -> None:
        self._sums = [[0.0] * 20, [0.0] * 20]  # upper triangle of x x^T (15), then x * y (5)
        self._num_steps = [0, 0]
        self._has_decode = False
        self._fit: tuple[float, ...] | None = None
        self._last: tuple[StepPlan | None, Features] = (None, (0.0,) * 5)

    def step_s(self, plan: StepPlan) -> float | None:
        """Return the predicted seconds, None while a phase of the plan has never been measured."""
        if plan.prefill and not self._num_steps[0]:
            return None
        if plan.decode and not self._has_decode:
            return None
        return self._predict(self._features(plan))

    def _features(self, plan: StepPlan) -> Features:
        """Return features(plan), once for the prediction and the observation of one plan."""
        if self._last[0] is not plan:
            self._last = (plan, features(plan))
        return self._last[1]

    def _predict(self, x: Features) -> float:
        if self._fit is None:
            self._fit = self._solve()
        c, a, b, d, e = self._fit
        return c + a * x[1] + b * x[2] + d * x[3] + e * x[4]

    def observe(self, plan: StepPlan, seconds: float) -> None:
        """Take note of a measured step; one far slower than predicted counts only in part."""
        kind = 0 if plan.prefill else 1
        count = self._num_steps[kind]
        if kind == 1 and count >= MIN_DECODE_STEPS and count % DECODE_STRIDE:
            self._num_steps[1] = count + 1
            return
        x = self._features(plan)
        seconds = max(seconds, SMALLEST_S)
        if count >= MIN_STEPS_FOR_OUTLIERS and (self._fit is not None or count % 8 == 0):
            seconds = min(seconds, OUTLIER * max(self._predict(x), SMALLEST_S))
        self._num_steps[kind] = count + 1
        self._has_decode = self._has_decode or bool(plan.decode)
        self._add(self._sums[kind], x, seconds, PREFILL_MEMORY if kind == 0 else DECODE_MEMORY)
        if kind == 0 or count < MIN_DECODE_STEPS or count % REFIT_STRIDE == 0:
            self._fit = None  # solved again when next asked

    @staticmethod
    def _add(sums: list[float], x: Features, y: float, memory: float) -> None:
        w = 1.0 / (y * y)
        i = 0
        for j in range(5):
            wx = w * x[j]
            for k in range(j, 5):
                sums[i] = sums[i] * memory + wx * x[k]
                i += 1
            sums[15 + j] = sums[15 + j] * memory + wx * y

    def _solve(self) -> tuple[float, ...]:
        total = np.array(self._sums[0]) + np.array(self._sums[1])
        gram = np.zeros((5, 5))
        gram[np.triu_indices(5)] = total[:15]
        gram = gram + np.triu(gram, 1).T
        return tuple(float(v) for v in _non_negative(gram, total[15:]))


def _non_negative(gram: NDArray[np.float64], xy: NDArray[np.float64]) -> NDArray[np.float64]:
    """Solve the normal equations, dropping the most negative coefficient until none is left."""
    scale = np.sqrt(np.diag(gram))
    active = scale > 0
    solution = np.zeros(5)
    while active.any():
        index = np.flatnonzero(active)
        s = scale[index]
        matrix = gram[np.ix_(index, index)] / np.outer(s, s) + np.diag(RIDGE[index])
        fit = np.linalg.solve(matrix, xy[index] / s) / s
        if (fit >= 0).all():
            solution[index] = fit
            break
        active[index[int((fit * s).argmin())]] = False
    return solution
