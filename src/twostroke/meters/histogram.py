"""A histogram of durations, in the cumulative buckets that Prometheus reads."""

from __future__ import annotations

from bisect import bisect_left

# Upper bounds in seconds. Those of single tokens start lower than those of whole requests.
TOKEN_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56)
REQUEST_BOUNDS_S = (0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class Histogram:
    """Counts durations by upper bound. Not thread-safe. Units: seconds."""

    def __init__(self, bounds_s: tuple[float, ...]) -> None:
        self.sum_s = 0.0
        self._bounds_s = bounds_s
        self._counts = [0] * (len(bounds_s) + 1)

    def add(self, seconds: float) -> None:
        """Count one duration; a duration equal to a bound belongs to that bound."""
        self._counts[bisect_left(self._bounds_s, seconds)] += 1
        self.sum_s += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Return each upper bound with the number of durations up to it, `+Inf` last."""
        total, result = 0, []
        for bound, count in zip((*map(str, self._bounds_s), "+Inf"), self._counts, strict=True):
            total += count
            result.append((bound, float(total)))
        return result
