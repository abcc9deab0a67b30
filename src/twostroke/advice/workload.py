"""One request as it is predicted, and the same request with one thing changed."""

from __future__ import annotations

from typing import NamedTuple

from twostroke.dataclass import dataclass
from twostroke.predict.cost import CostModel
from twostroke.predict.predictor import Predictor


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A request, the streams beside it and the engine's settings. Units: tokens; seconds.

    lost: tokens after the cached ones that an unchanged prefix would have kept. dropped: new tokens
    that the caller can do without; None: half of them. The scales are measured / predicted of each
    phase, so that savings are of the wait that was measured. threads, cores: None where unknown.
    """

    prompt: int
    output: int
    cached: int = 0
    queue_s: float = 0.0
    lost: int = 0
    dropped: int | None = None
    batch: int = 1
    chunk: int = 512
    has_history: bool = False
    threads: int | None = None
    cores: int | None = None
    prefill_scale: float = 1.0
    decode_scale: float = 1.0

    @property
    def num_new(self) -> int:
        """Prompt tokens that are not cached."""
        return self.prompt - self.cached


class PhaseSeconds(NamedTuple):
    """Predicted seconds of both phases."""

    prefill: float
    decode: float

    @property
    def total(self) -> float:
        """Both phases."""
        return self.prefill + self.decode


class Comparison:
    """The predicted seconds of a workload now, and of the same workload changed."""

    def __init__(self, predictor: Predictor, workload: Workload, now: PhaseSeconds) -> None:
        self.cost = predictor.cost
        self.predictor = predictor
        self.workload = workload
        self.now = now

    @classmethod
    def of(cls, predictor: Predictor, workload: Workload) -> Comparison | None:
        """Return the comparison, None where a phase has no predicted time."""
        now = _phase_seconds(predictor, workload)
        return None if now is None else cls(predictor, workload, now)

    def changed(
        self,
        *,
        prompt: int | None = None,
        cached: int | None = None,
        output: int | None = None,
        chunk: int | None = None,
        cost: CostModel | None = None,
    ) -> PhaseSeconds:
        """Return the seconds with these numbers, or another model's cost, in place of today's."""
        predictor = self.predictor if cost is None else Predictor(cost, self.predictor.speed)
        found = _phase_seconds(
            predictor, self.workload, prompt=prompt, cached=cached, output=output, chunk=chunk
        )
        assert found is not None, "the same speed knew a time before"
        return found


def _phase_seconds(
    predictor: Predictor,
    workload: Workload,
    *,
    prompt: int | None = None,
    cached: int | None = None,
    output: int | None = None,
    chunk: int | None = None,
) -> PhaseSeconds | None:
    prompt = workload.prompt if prompt is None else max(prompt, 1)
    found = predictor.request(
        prompt,
        workload.output if output is None else output,
        cached=min(workload.cached if cached is None else cached, prompt - 1),
        batch=workload.batch,
        chunk=chunk or workload.chunk,
    )
    if found.ttft is None or found.decode is None:
        return None
    return PhaseSeconds(
        found.ttft.value * workload.prefill_scale, found.decode.value * workload.decode_scale
    )
