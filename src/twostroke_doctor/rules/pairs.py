"""Two runs side by side: which pairs differ in a rate, and the saving of the slow one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from twostroke.record import RequestRecord
from twostroke_doctor.evidence import Evidence
from twostroke_doctor.finding import Finding
from twostroke_doctor.remedies import exactly
from twostroke_doctor.runs import Run
from twostroke_doctor.wait import seconds_in

_MANY = 3  # requests of both runs that make a comparison sure


class Pair(NamedTuple):
    """Two runs, the second faster. Units: tokens a second."""

    slow: Run
    fast: Run
    slow_rate: float
    fast_rate: float


def slower_pairs(
    slow: Iterable[Run], fast: Iterable[Run], rate: Callable[[Run], float | None], least: float
) -> Iterator[Pair]:
    """Yield the pairs where the second run's rate is at least so many times the first's."""
    faster = [(run, known) for run in fast if (known := rate(run)) is not None]
    for run in slow:
        low = rate(run)
        for other, high in faster:
            if low and high >= least * low:
                yield Pair(run, other, low, high)


def compared(
    e: Evidence, code: str, pair: Pair, says: str, key: str, count: float | None = None
) -> Finding:
    """Return a finding from two runs: the cure does the slow one's work at the fast one's rates."""
    slow, fast = pair.slow, pair.fast
    rates = fast.prefill_tok_s(), fast.decode_tok_s()
    saved = sum(_saved_s(record, *rates) for record in slow.records)
    seconds = seconds_in("decode", slow.records)
    is_sure = min(len(slow.records), len(fast.records)) >= _MANY
    return e.finding(
        code,
        says,
        seconds=seconds or None,
        share=e.share(seconds),
        confidence="high" if is_sure else "medium",
        shown=([*slow.records[:2], *fast.records[:2]],),
        cures=(exactly(key, saved, f"the same tokens at the speed of {fast.name}", count),),
    )


def _saved_s(record: RequestRecord, prefill_rate: float | None, decode_rate: float | None) -> float:
    saved, phases = 0.0, record.phases
    if prefill_rate and record.prompt.new and phases.prefill_s:
        saved += max(phases.prefill_s - record.prompt.new / prefill_rate, 0.0)
    if decode_rate and record.output.total and phases.decode_s:
        saved += max(phases.decode_s - (record.output.total - 1) / decode_rate, 0.0)
    return saved
