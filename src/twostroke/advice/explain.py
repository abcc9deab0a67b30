"""Which phase holds the wait, and the cures in order of the seconds they save, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twostroke.advice.brief import MIN_NEW_TOKENS, saving_text, seconds_text
from twostroke.advice.cure import Cure, in_order
from twostroke.advice.cures import for_record
from twostroke.advice.predicted_cures import cures_for
from twostroke.advice.workload import Workload
from twostroke.dataclass import dataclass
from twostroke.predict.predictor import Predictor
from twostroke.predict.speed import Seconds
from twostroke.record import PHASES, RequestRecord

MIN_REQUESTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Units: seconds. share: of the wait, 0 to 1. notes: why to trust it less."""

    phase: str
    phase_s: float
    total_s: float
    cures: tuple[Cure, ...]
    notes: tuple[str, ...] = ()

    @property
    def share(self) -> float:
        """Share of the wait that the phase holds."""
        return self.phase_s / self.total_s if self.total_s else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON."""
        return {
            "phase": self.phase,
            "phase_s": self.phase_s,
            "share": self.share,
            "total_s": self.total_s,
            "cures": [cure.to_dict() for cure in self.cures],
            "notes": list(self.notes),
        }

    def lines(self) -> list[str]:
        """Return it for people: the phase, then each cure with its arithmetic and side effect."""
        held, total = seconds_text(self.phase_s), seconds_text(self.total_s)
        lines = [f"{self.phase} holds the wait: {held} of {total}, {100 * self.share:.0f} %"]
        for number, cure in enumerate(self.cures, 1):
            lines.append(f"  {number}. {cure.what} Saves {saving_text(cure)}.")
            if cure.basis:
                lines.append(f"     {cure.basis}")
            if cure.side_effect:
                lines.append(f"     Side effect: {cure.side_effect}.")
        return lines + [f"  Note: {note}." for note in self.notes]


def explain_request(
    phases: dict[str, float], cures: Sequence[Cure], notes: Sequence[str] = ()
) -> Explanation | None:
    """Return the explanation of a wait by its phases; None where nothing took any time."""
    known = {name: seconds for name, seconds in phases.items() if seconds > 0}
    if not known:
        return None
    phase = max(known, key=known.__getitem__)
    return Explanation(
        phase=phase,
        phase_s=known[phase],
        total_s=sum(known.values()),
        cures=tuple(cures),
        notes=tuple(notes),
    )


def explain_record(
    record: RequestRecord,
    predictor: Predictor | None,
    *,
    chunk: int = 512,
    threads: int | None = None,
    cores: int | None = None,
    num_requests: int = 1,
) -> Explanation | None:
    """Return the phase that held a measured request's wait, and the cures that shorten it.

    Savings are predicted on this machine's rates and brought to the measured wait; without a
    predictor they follow from the record alone. num_requests: seen so far, this one included.
    """
    phases = {n: getattr(record.phases, f"{n}_s") or 0.0 for n in PHASES}
    cures = _cures(record, predictor, chunk, threads, cores)
    return explain_request(phases, cures, notes_of(record, num_requests))


def notes_of(record: RequestRecord, num_requests: int) -> list[str]:
    """Return the reasons to trust advice from so few requests or tokens less."""
    notes = []
    if num_requests < MIN_REQUESTS:
        one = "one request" if num_requests == 1 else f"{num_requests} requests"
        notes.append(f"from {one} only; the next may differ")
    new = record.prompt.new
    if new is not None and new < MIN_NEW_TOKENS:
        notes.append(f"{new} new prompt tokens are too few to judge prefill by")
    if (record.output.total or 0) < MIN_NEW_TOKENS:
        notes.append(f"{record.output.total} output tokens are too few to judge decode by")
    if "cold" in record.meter.flags:
        notes.append("the first step of a process is slower than later ones")
    return notes


def _cures(
    record: RequestRecord, predictor: Predictor | None, chunk: int,
    threads: int | None, cores: int | None,
) -> tuple[Cure, ...]:  # fmt: skip
    total, output = record.prompt.total, record.output.total
    if predictor is None or not total or not output:
        return for_record(record)
    phases, cached = record.phases, min(record.prompt.cached or 0, total - 1)
    batch = max(round(record.batch_mean or 1), 1)
    now = predictor.request(total, output, cached=cached, batch=batch, chunk=chunk)
    workload = Workload(
        prompt=total,
        output=output,
        cached=cached,
        queue_s=phases.queue_s or 0.0,
        lost=_lost(record, predictor),
        batch=batch,
        chunk=chunk,
        threads=threads,
        cores=cores,
        prefill_scale=_scale(phases.prefill_s, now.ttft),
        decode_scale=_scale(phases.decode_s, now.decode),
    )
    # The prediction does not cover loading the model.
    rest = [c for c in for_record(record) if c.key == "keep_loaded"]
    return in_order([*cures_for(predictor, workload), *rest])


def _lost(record: RequestRecord, predictor: Predictor) -> int:
    """Return the tokens whose predicted prefill takes as long as the cache miss cost.

    The number of tokens is found by bisection; 0 where the miss cost nothing or is unknown.
    """
    price, total = record.cache.price_s, record.prompt.total or 0
    cached = record.prompt.cached or 0
    if not price or total - cached < 2:
        return 0
    low, high = 0, total - cached - 1
    while low < high:
        middle = (low + high + 1) // 2
        found = predictor.prefill(cached, cached + middle, chunk=512)
        if found is None:
            return 0
        low, high = (middle, high) if found.value <= price else (low, middle - 1)
    return low


def _scale(measured_s: float | None, predicted: Seconds | None) -> float:
    """Return measured / predicted, 1 where either is unknown."""
    return measured_s / predicted.value if measured_s and predicted and predicted.value else 1.0
