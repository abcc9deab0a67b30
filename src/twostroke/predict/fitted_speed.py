"""A machine's speed as its measured steps showed it: a sum of terms, one coefficient each.

    t = c + u(rows) * body + u(logit rows) * lm_head + a * attention + k * (KV bytes / bandwidth)
body and lm_head are seconds at the peaks (operations / peak + weights / bandwidth), so u is how
many times as long our kernels take with so many rows: read between KNOTS, linear in the logarithm.
With few rows u is about reading (decode), with many about arithmetic (prefill).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import Any

from twostroke.predict.cost import StepWork
from twostroke.predict.devices import EFFICIENCY
from twostroke.predict.figure import Source
from twostroke.predict.hardware import MachineProfile
from twostroke.predict.speed import Seconds, Speed, phase_of
from twostroke.step import Phase

KNOTS = (1, 2, 4, 8, 9, 16, 32, 64, 128, 256, 512)  # our kernels take rows in tiles of 8
TERMS = ("step", *(f"rows_{k}" for k in KNOTS), "attention", "kv")
FEW_ROWS = 16  # up to here a step is about reading on any machine that runs our kernels
_ATTENTION, _KV = len(KNOTS) + 1, len(KNOTS) + 2
Features = tuple[tuple[int, float], ...]  # (term, seconds at the peak), the zeros left out


def step_features(profile: MachineProfile, work: StepWork) -> Features:
    """Return the terms of a step on a machine. Units: seconds at its peaks."""
    body, lm_head, attention = work.body, work.lm_head, work.attention
    bandwidth = profile.bandwidth_at(max(body.weight_bytes + lm_head.weight_bytes, 1.0))
    terms = [(0, 1.0)]
    for part, rows in ((body, work.rows), (lm_head, work.logit_rows)):
        if rows > 0:
            at_peak = profile.arithmetic_s(part) + part.weight_bytes / bandwidth
            terms.extend(_between(rows, at_peak))
    if attention.num_ops:
        terms.append((_ATTENTION, profile.arithmetic_s(attention)))
    if attention.kv_bytes:
        terms.append((_KV, attention.kv_bytes / bandwidth))
    return tuple(terms)


def _between(rows: float, seconds: float) -> tuple[tuple[int, float], ...]:
    """Share a time between the two knots around a number of rows."""
    i = bisect_right(KNOTS, rows)
    if i == 0 or i == len(KNOTS):
        return ((max(i, 1), seconds),)
    t = math.log(rows / KNOTS[i - 1]) / math.log(KNOTS[i] / KNOTS[i - 1])
    return ((i, seconds * (1.0 - t)), (i + 1, seconds * t)) if t else ((i, seconds),)


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedSpeed(Speed):
    """This machine by terms. `shares` are the coefficients, in the order of TERMS.

    low, high: how far measured steps lay from it, as factors; of an assumed one, how far machines
    differ.
    """

    shares: tuple[float, ...]
    low: float
    high: float
    num_steps: int

    def seconds(self, features: Features) -> float:
        """Return the seconds of a step's terms."""
        shares = self.shares
        total = 0.0
        for term, value in features:
            total += shares[term] * value
        return total

    def step(self, work: StepWork, *, has_prefill: bool) -> Seconds | None:
        """Return the time of a step, None while its phase was never measured."""
        if phase_of(has_prefill) in self.unmeasured:
            return None
        assert self.profile is not None, "a fit is of a measured machine"
        value = self.seconds(step_features(self.profile, work))
        return Seconds(value, value * self.low, value * self.high)

    def widened(self, factor: float, name: str) -> FittedSpeed:
        """Return the same with a wider interval, where it stands in for something similar."""
        return replace(self, name=name, low=self.low / factor, high=self.high * factor)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON: the coefficients by name instead of one share."""
        assert self.profile is not None
        return {
            "name": self.name,
            "source": self.source.value,
            "profile": self.profile.to_dict(),
            "shares": dict(zip(TERMS, self.shares, strict=True)),
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
        shares = tuple(float(data["shares"][name]) for name in TERMS)
        low, high = float(data["low"]), float(data["high"])
        if not all(math.isfinite(v) and v >= 0 for v in shares):
            raise ValueError("a coefficient of a fit is negative")
        if not 0 < low <= high < math.inf:
            raise ValueError("the interval of a fit is not positive")
        return cls(
            name=str(data["name"]),
            source=Source(data["source"]),
            profile=MachineProfile.from_dict(data["profile"]),
            shares=shares,
            low=low,
            high=high,
            num_steps=int(data["num_steps"]),
        )


def assumed_speed(profile: MachineProfile) -> FittedSpeed:
    """Return a measured machine with the shares of its peaks that other machines reached."""
    e = EFFICIENCY["twostroke"]
    compute, memory = 1.0 / e.compute.value, 1.0 / e.memory.value
    rows = tuple(memory if k <= FEW_ROWS else compute for k in KNOTS)
    both = (e.compute, e.memory)
    return FittedSpeed(
        name=profile.cpu,
        source=Source.ASSUMED,
        profile=profile,
        shares=(e.step_s.value, *rows, compute, memory),
        low=min(f.value / f.high for f in both),
        high=max(f.value / f.low for f in both),
        num_steps=0,
    )


# Any rates serve: the first step of a phase sets the scale, later ones the shape.
_NOMINAL = MachineProfile(
    cpu="this backend",
    kernel_set="unknown",
    threads=1,
    int8_ops_per_s=1e11,
    bf16_flops_per_s=1e11,
    fp32_flops_per_s=1e11,
    bandwidth=((1 << 30, 1e10),),
    source="nominal",
)


def unmeasured_speed() -> FittedSpeed:
    """Return the speed of a backend with unknown peaks: no phase has a time before it is fitted."""
    return replace(assumed_speed(_NOMINAL), unmeasured=frozenset(Phase))
