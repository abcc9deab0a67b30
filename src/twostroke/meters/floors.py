"""The least time that a step can take on this machine; what mfu and mbu are shares of."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from twostroke.predict.hardware import MachineProfile
from twostroke.predict.learning import LearningPredictor
from twostroke.step import StepPlan


class Floors(NamedTuple):
    """The least time a step can take on this machine, by what bounds it. Units: seconds.

    arithmetic_s: sum over ops of operations / peak of the type used.
    traffic_s: stored bytes read (weights and KV) / bandwidth measured at that working set.
    """

    arithmetic_s: float
    traffic_s: float


class FloorModel(Protocol):
    """Knows the model's operations and bytes, and this machine's peaks."""

    def floors(self, plan: StepPlan) -> Floors | None:
        """Return the floors of a step, None while the machine's peaks are unknown."""
        ...


class MachineFloors:
    """Floors from the predictor's count of a step's work and this machine's measured peaks."""

    def __init__(self, predictor: LearningPredictor, profile: MachineProfile) -> None:
        self._predictor = predictor
        self._profile = profile

    def floors(self, plan: StepPlan) -> Floors:
        """Return the floors of a step."""
        work = self._predictor.work(plan).total
        weight_bytes = self._predictor.cost.weight_bytes
        return Floors(self._profile.arithmetic_s(work), self._profile.memory_s(work, weight_bytes))
