"""The sums that a request's record is made of, while the request runs."""

from __future__ import annotations

from array import array
from dataclasses import field

from twostroke.dataclass import dataclass
from twostroke.events import Admitted, Arrived
from twostroke.meters.floors import Floors


@dataclass(slots=True)
class PhaseSum:
    """The time, tokens and floors of one phase of one request; a floor is None once unknown."""

    seconds: float = 0.0
    num_tokens: int = 0
    num_steps: int = 0
    arithmetic_s: float | None = 0.0
    traffic_s: float | None = 0.0
    floor_s: float = 0.0
    predicted_s: float | None = 0.0

    def add(
        self, turn_s: float, num_tokens: int, floors: Floors | None, predicted_s: float | None
    ) -> None:
        """Account for one turn."""
        self.seconds += turn_s
        self.num_tokens += num_tokens
        self.num_steps += 1
        if floors is None or self.arithmetic_s is None or self.traffic_s is None:
            self.arithmetic_s = self.traffic_s = None
        else:
            self.arithmetic_s += floors.arithmetic_s
            self.traffic_s += floors.traffic_s
            self.floor_s += max(floors)
        if predicted_s is None or self.predicted_s is None:
            self.predicted_s = None
        else:
            self.predicted_s += predicted_s

    def share(self, floor_s: float | None) -> float | None:
        """Return which share of the measured time a floor is."""
        return floor_s / self.seconds if floor_s is not None and self.seconds > 0 else None

    @property
    def error(self) -> float | None:
        """Predicted / measured - 1."""
        if not self.num_steps or self.predicted_s is None or self.seconds <= 0:
            return None
        return self.predicted_s / self.seconds - 1.0

    @property
    def ceiling_tok_s(self) -> float | None:
        """The most tokens per second that the floors allow."""
        known = self.arithmetic_s is not None and self.floor_s > 0
        return self.num_tokens / self.floor_s if known else None


@dataclass(slots=True)
class Account:
    """The sums of one request that has not ended. Units: seconds.

    mark_s: the request's time is accounted for up to here.
    """

    arrived: Arrived
    mark_s: float
    queue_s: float = 0.0
    cache_s: float = 0.0
    stall_s: float = 0.0
    mixed_s: float = 0.0
    prefill: PhaseSum = field(default_factory=PhaseSum)
    decode: PhaseSum = field(default_factory=PhaseSum)
    admitted: Admitted | None = None
    num_preemptions: int = 0
    batch_sum: int = 0
    last_step_s: float | None = None
    token_times_s: array[float] = field(default_factory=lambda: array("d"))
    is_cold: bool = False
