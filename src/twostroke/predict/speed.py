"""Seconds of a piece of work on a device: the slower of arithmetic and memory, and a constant.

A device is a measured profile of this machine, a datasheet row, or numbers given by the user. Each
rate is an interval; so is every time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from twostroke.predict.cost import StepWork, Work
from twostroke.predict.devices import EFFICIENCY, Device, Efficiency
from twostroke.predict.figure import Source, exactly
from twostroke.predict.hardware import MachineProfile
from twostroke.step import Phase, StepPlan

EXACT = Efficiency(
    *(exactly(value, Source.GIVEN, "a given rate is taken as reached") for value in (1.0, 1.0, 0.0))
)


@dataclass(frozen=True, slots=True)
class Seconds:
    """A predicted time. Units: seconds."""

    value: float
    low: float
    high: float

    def __add__(self, other: Seconds) -> Seconds:
        return Seconds(self.value + other.value, self.low + other.low, self.high + other.high)

    def scaled(self, factor: float) -> Seconds:
        """Return so many times this."""
        return Seconds(self.value * factor, self.low * factor, self.high * factor)

    def to_dict(self) -> dict[str, float]:
        """Return plain data, ready for JSON."""
        return {"value": self.value, "low": self.low, "high": self.high}


NO_TIME = Seconds(0.0, 0.0, 0.0)


def phase_of(has_prefill: bool) -> Phase:
    """Return the phase that bounds a step: prefill wherever the step holds any."""
    return Phase.PREFILL if has_prefill else Phase.DECODE


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """A device's peaks and the share of them that a step reaches. None: unknown.

    Units: bytes per second; operations per second of any unit. A profile knows both by itself.
    unmeasured: phases without a time, because the peaks are unknown and no step of them was seen.
    """

    name: str
    source: Source
    bandwidth: float | None = None
    flops: float | None = None
    profile: MachineProfile | None = None
    efficiency: Efficiency = EXACT
    unmeasured: frozenset[Phase] = frozenset()

    @property
    def missing(self) -> tuple[str, ...]:
        """Facts without which no time, or no time of one phase, can be told."""
        if len(self.unmeasured) == len(Phase):
            return ("this backend's peaks",)
        if self.unmeasured:
            return tuple(f"a measured {phase.value} step" for phase in self.unmeasured)
        if self.profile is not None:
            return ()
        bandwidth = () if self.bandwidth else ("bandwidth of the device",)
        return bandwidth + (() if self.flops else ("arithmetic rate (flops) of the device",))

    def is_known(self, plan: StepPlan) -> bool:
        """Whether every phase of the plan has a time."""
        return not (
            (plan.prefill and Phase.PREFILL in self.unmeasured)
            or (plan.decode and Phase.DECODE in self.unmeasured)
        )

    def bandwidth_at(self, num_bytes: float) -> float | None:
        """Return peak bytes per second when a working set of that size is read."""
        if self.profile is not None:
            return self.profile.bandwidth_at(num_bytes)
        return self.bandwidth

    def arithmetic_s(self, work: Work) -> float | None:
        """Return seconds of the operations at the peak."""
        if self.profile is not None:
            return self.profile.arithmetic_s(work)
        return work.num_ops / self.flops if self.flops else None

    def step(self, work: StepWork, *, has_prefill: bool) -> Seconds | None:
        """Return the time of a step, None where a rate that the step needs is unknown."""
        if phase_of(has_prefill) in self.unmeasured:
            return None
        total = work.total
        time = self.prefill_step if has_prefill else self.decode_step
        return time(total, max(total.weight_bytes, 1.0))

    def prefill_step(self, work: Work, working_set: float) -> Seconds | None:
        """Return the time of a step with prefill; needs both rates."""
        arithmetic = self.arithmetic_s(work)
        return None if arithmetic is None else self._time(arithmetic, work, working_set)

    def decode_step(self, work: Work, working_set: float) -> Seconds | None:
        """Return the time of a step without prefill; an unknown arithmetic rate counts as enough.

        Few streams are bound by memory on every device of the table.
        """
        return self._time(self.arithmetic_s(work) or 0.0, work, working_set)

    def _time(self, arithmetic_s: float, work: Work, working_set: float) -> Seconds | None:
        bandwidth, e = self.bandwidth_at(working_set), self.efficiency
        if bandwidth is None:
            return None
        memory_s = work.num_bytes / bandwidth

        def at(compute: float, memory: float, constant: float) -> float:
            return constant + max(arithmetic_s / compute, memory_s / memory)

        return Seconds(
            at(e.compute.value, e.memory.value, e.step_s.value),
            at(e.compute.high, e.memory.high, e.step_s.low),
            at(e.compute.low, e.memory.low, e.step_s.high),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON: each rate with its source."""
        e = self.efficiency
        return {
            "name": self.name,
            "source": self.source.value,
            "bandwidth_bytes_per_s": self.bandwidth,
            "flops_per_s": self.flops,
            "profile": self.profile.to_dict() if self.profile is not None else None,
            "efficiency": {
                "compute": e.compute.to_dict(),
                "memory": e.memory.to_dict(),
                "step_s": e.step_s.to_dict(),
            },
        }


def speed_of_device(device: Device) -> Speed:
    """Return the speed of a datasheet row with the efficiency assumed for its kind."""
    return Speed(
        name=device.name,
        source=Source.DATASHEET,
        bandwidth=device.bandwidth,
        flops=device.flops,
        efficiency=EFFICIENCY[device.kind],
    )


def given_speed(bandwidth: float | None, flops: float | None) -> Speed:
    """Return a speed of numbers that the user says are reached. Units: bytes/s; operations/s."""
    return Speed(name="given", source=Source.GIVEN, bandwidth=bandwidth, flops=flops)
