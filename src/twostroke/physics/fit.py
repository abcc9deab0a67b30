"""Shares of a machine's peaks that measured steps reached: by arithmetic unit and by reads.

    t = c + ((sum of x_u * ops_u / peak_u)^p + (m * weights / BW + k * KV / BW)^p)^(1/p)
with one x per arithmetic unit. p tells how well reading hides behind arithmetic: 1 not at all,
infinity wholly. All are found together by a pattern search on logarithms, so that a step of 1 ms
counts as much as one of 1 s. Knows no clock; cold and mixed steps are the caller's to leave out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from twostroke.physics.cost import Work
from twostroke.physics.figure import Source
from twostroke.physics.hardware import MachineProfile
from twostroke.physics.speed import Seconds, Speed

MIN_STEPS = 6
_NAMES = ("step_s", "int8", "bf16", "fp32", "weights", "kv", "overlap")
_START = (1e-4, 1.5, 1.5, 1.5, 1.2, 1.2, 3.0)
_LOW = (1e-7, 0.5, 0.5, 0.5, 0.3, 0.1, 1.0)
_HIGH = (1e-2, 50.0, 50.0, 50.0, 20.0, 50.0, 16.0)
_FIRST_FACTOR, _LAST_FACTOR = 2.0, 1.002
_LEAST_SPREAD = 0.05  # an interval is never narrower than what one machine repeats


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """One step: its work and how long it took. Units: seconds."""

    work: Work
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedSpeed(Speed):
    """This machine as its measured steps showed it. `shares` are the formula's coefficients.

    low, high: how far measured steps lay from the fit, as factors.
    """

    shares: tuple[float, ...]
    low: float
    high: float
    num_steps: int

    def _time(self, arithmetic_s: float, work: Work, working_set: float) -> Seconds | None:
        assert self.profile is not None, "a fit is of a measured machine"
        value = _seconds(self.shares, self.profile, work)
        return Seconds(value, value * self.low, value * self.high)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON: the coefficients by name instead of one share."""
        assert self.profile is not None
        return {
            "name": self.name,
            "source": self.source.value,
            "profile": self.profile.to_dict(),
            "shares": dict(zip(_NAMES, self.shares, strict=True)),
            "low": self.low,
            "high": self.high,
            "num_steps": self.num_steps,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> FittedSpeed:
        """Read what to_dict wrote.

        Raises:
            KeyError, TypeError, ValueError: the data is not a fit.
        """
        shares = tuple(float(data["shares"][name]) for name in _NAMES)
        low, high = float(data["low"]), float(data["high"])
        if not all(math.isfinite(v) and v > 0 for v in (*shares, low, high)) or low > high:
            raise ValueError("a coefficient of a fit is not positive")
        return cls(
            name=str(data["name"]),
            source=Source.FITTED,
            profile=MachineProfile.from_dict(data["profile"]),
            shares=shares,
            low=low,
            high=high,
            num_steps=int(data["num_steps"]),
        )


def _seconds(shares: Sequence[float], profile: MachineProfile, work: Work) -> float:
    constant, int8, bf16, fp32, weights, kv, overlap = shares
    arithmetic = (
        int8 * work.int8_ops / profile.int8_ops_per_s
        + bf16 * work.bf16_flops / profile.bf16_flops_per_s
        + fp32 * work.fp32_flops / profile.fp32_flops_per_s
    )
    bandwidth = profile.bandwidth_at(max(work.weight_bytes, 1.0))
    memory = (weights * work.weight_bytes + kv * work.kv_bytes) / bandwidth
    largest = max(arithmetic, memory)
    if largest <= 0:
        return constant
    ratio = min(arithmetic, memory) / largest
    return constant + largest * float((1.0 + ratio**overlap) ** (1.0 / overlap))


def fit_speed(profile: MachineProfile, steps: Sequence[MeasuredStep]) -> FittedSpeed | None:
    """Return the speed that explains the steps best; None with fewer than MIN_STEPS."""
    usable = [s for s in steps if math.isfinite(s.seconds) and s.seconds > 0]
    if len(usable) < MIN_STEPS:
        return None

    def loss(shares: Sequence[float]) -> float:
        return sum(math.log(_seconds(shares, profile, s.work) / s.seconds) ** 2 for s in usable)

    best = _search(loss)
    ratios = sorted(s.seconds / _seconds(best, profile, s.work) for s in usable)
    cut = len(ratios) // 20
    return FittedSpeed(
        name=profile.cpu,
        source=Source.FITTED,
        profile=profile,
        shares=tuple(best),
        low=min(ratios[cut], 1.0 - _LEAST_SPREAD),
        high=max(ratios[-1 - cut], 1.0 + _LEAST_SPREAD),
        num_steps=len(usable),
    )


def _search(loss: Any) -> list[float]:
    """Move one coefficient at a time by a factor that shrinks; ends where none helps."""
    best = list(_START)
    lowest = loss(best)
    factor = _FIRST_FACTOR
    while factor > _LAST_FACTOR:
        improved = False
        for i in range(len(best)):
            for step in (factor, 1.0 / factor):
                trial = list(best)
                trial[i] = min(max(trial[i] * step, _LOW[i]), _HIGH[i])
                found = loss(trial)
                if found < lowest * (1.0 - 1e-9):
                    best, lowest, improved = trial, found, True
        if not improved:
            factor = math.sqrt(factor)
    return best
