"""A machine's peaks: operations and bytes per second, measured or from a datasheet."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any

from twostroke.dataclass import dataclass
from twostroke.predict.cost import Work


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineProfile:
    """Peaks of one machine, kernel set and thread count.

    Units: operations per second; bandwidth as (working set in bytes, bytes per second), ascending.
    source: measured or datasheet.
    """

    cpu: str
    kernel_set: str
    threads: int
    int8_ops_per_s: float
    bf16_flops_per_s: float
    fp32_flops_per_s: float
    bandwidth: tuple[tuple[int, float], ...]
    source: str = "measured"

    def bandwidth_at(self, num_bytes: float) -> float:
        """Return bytes per second when reading a working set of that size, log-linear between
        points.
        """
        points = self.bandwidth
        if num_bytes <= points[0][0]:
            return points[0][1]
        for (low, a), (high, b) in pairwise(points):
            if num_bytes <= high:
                t = math.log(num_bytes / low) / math.log(high / low)
                return a + (b - a) * t
        return points[-1][1]

    def arithmetic_s(self, work: Work) -> float:
        """Return the seconds that the operations take at the peaks."""
        return (
            work.int8_ops / self.int8_ops_per_s
            + work.bf16_flops / self.bf16_flops_per_s
            + work.fp32_flops / self.fp32_flops_per_s
        )

    def memory_s(self, work: Work, working_set: float | None = None) -> float:
        """Return the seconds that the reading takes at the bandwidth of that working set."""
        return work.num_bytes / self.bandwidth_at(working_set or work.num_bytes)

    def at_speed(self, ops_per_s: float, read_bytes_per_s: float, num_bytes: int) -> MachineProfile:
        """Return the machine as a probe found it: int8 rate, and reads of a set of num_bytes.

        All arithmetic follows the one probe, all reading the other.
        """
        arithmetic = ops_per_s / self.int8_ops_per_s
        reading = read_bytes_per_s / self.bandwidth_at(num_bytes)
        return replace(
            self,
            int8_ops_per_s=ops_per_s,
            bf16_flops_per_s=self.bf16_flops_per_s * arithmetic,
            fp32_flops_per_s=self.fp32_flops_per_s * arithmetic,
            bandwidth=tuple((size, rate * reading) for size, rate in self.bandwidth),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> MachineProfile:
        """Read what to_dict wrote.

        Raises:
            KeyError, TypeError, ValueError: the data is not a profile.
        """
        points = tuple((int(size), float(rate)) for size, rate in data["bandwidth"])
        profile = cls(**{**data, "bandwidth": points})
        rates = (profile.int8_ops_per_s, profile.bf16_flops_per_s, profile.fp32_flops_per_s)
        if not points or min(*rates, *(rate for _, rate in points)) <= 0:
            raise ValueError("a rate of a machine profile is not positive")
        return profile
