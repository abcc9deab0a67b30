"""LOAD, WARMUP, INIT, TAIL: waits before the model computes anything and after its last token."""

from __future__ import annotations

from statistics import median
from typing import NamedTuple

from twostroke.advice import Cure
from twostroke.record import MIN_TOKENS_FOR_PREFILL_RATE, RequestRecord
from twostroke_doctor.evidence import Evidence
from twostroke_doctor.finding import CODES, Finding
from twostroke_doctor.remedies import at_most, exactly
from twostroke_doctor.runs import Run, has_decode_rate, has_prefill_rate

_COLD_S = 1.0  # a short prompt that takes longer than this, and
_COLD_RATIO = 5.0  # than so many times its tokens at decode speed, waits for cold weights
_MIN_START_S = 5.0
_WARMUP_RATIO = 3.0
_WARMUP_RATIO_OF_TWO = 5.0  # one later request is little to compare with
_MIN_TAIL_S = 1.0
_MAX_CACHED = 0.2  # of a later prompt: a hit would explain its speed


def cold_s(record: RequestRecord) -> float:
    """Return the seconds of a short prompt that neither prefill nor decode speed explains.

    A prompt token costs at most as much as an output token, so the seconds above that are waiting
    for weights to come from the disk.
    """
    new, seconds, rate = record.prompt.new, record.phases.prefill_s, record.decode_tok_s
    if not new or not seconds or not rate or new >= MIN_TOKENS_FOR_PREFILL_RATE:
        return 0.0
    warm = new / rate
    return seconds - warm if seconds > max(_COLD_S, _COLD_RATIO * warm) else 0.0


def load(e: Evidence) -> Finding | None:
    """LOAD: load time inside the wait, or cold weights behind a short prompt."""
    loading, cold = e.phase_s("load"), sum(cold_s(r) for r in e.records)
    seconds = loading + cold
    if not e.is_enough("LOAD", seconds):
        return _start_outside(e)
    hit = [r for r in e.records if r.phases.load_s or cold_s(r)]
    is_derived = any(r.id == "probe/first" and "time_derived" in r.meter.flags for r in hit)
    says = f"loading takes {seconds:.2f} s of the wait"
    if cold:
        says += (
            f"; {cold:.2f} s of it were booked as prefill of fewer than "
            f"{MIN_TOKENS_FOR_PREFILL_RATE} tokens: cold weights coming from the disk"
        )
    if is_derived:
        says += (
            "; by so much the first contact's token came later than the next one's: load or warm-up"
        )
    return e.finding(
        "LOAD",
        says,
        seconds=seconds,
        confidence="medium" if cold > loading or is_derived else "high",
        shown=(hit,),
        cures=(exactly("keep_loaded", seconds, "the time of loading inside these requests"),),
    )


def _start_outside(e: Evidence) -> Finding | None:
    """An engine start that no request's record holds; a request that met it waited for it."""
    seconds = e.number("runner_start_s") or 0.0
    if seconds < _MIN_START_S or e.phase_s("load"):
        return None
    return e.finding(
        "LOAD",
        f"the engine took {seconds:.1f} s to start; a request that met this waited for it",
        seconds=seconds,
        is_in_wait=False,
        confidence="low",
        shown=(e.fact("runner_start_s"),),
        cures=(exactly("keep_loaded", seconds, "one start"),),
        missing=("whether a request waited for this start",),
    )


class _Excess(NamedTuple):
    """How much slower the first request of a run is in one phase."""

    phase: str
    seconds: float
    ratio: float


def warmup(e: Evidence) -> Finding | None:
    """WARMUP: the first request of a run decodes or prefills far slower than those after it."""
    for run in e.runs:
        excess = _first_excess(run)
        if excess is None:
            continue
        basis = "first request minus its later speed"
        return e.finding(
            "WARMUP",
            f"the first request's {excess.phase} is {excess.ratio:.0f} times slower than the "
            "later ones'",
            phase=excess.phase,
            seconds=excess.seconds,
            confidence="high" if len(run.records) > 2 else "medium",
            shown=(run.fact("warmup_s"), run.records[:4]),
            cures=(exactly("warm_up", excess.seconds, basis),),
        )
    return None


def _first_excess(run: Run) -> _Excess | None:
    if len(run.records) < 2:
        return None
    first, later = run.records[0], run.records[1:]
    rates = [r.decode_tok_s for r in later if has_decode_rate(r) and r.decode_tok_s]
    if has_decode_rate(first) and first.decode_tok_s and rates and first.phases.decode_s:
        ratio = _ratio(first.decode_tok_s, rates, later[0].decode_tok_s)
        if ratio is not None:
            return _Excess("decode", first.phases.decode_s * (1 - 1 / ratio), ratio)
    rates = [r.prefill_tok_s for r in later if _is_uncached(r) and r.prefill_tok_s]
    if has_prefill_rate(first) and first.prefill_tok_s and rates and first.phases.prefill_s:
        ratio = _ratio(first.prefill_tok_s, rates, rates[0])
        if ratio is not None:
            return _Excess("prefill", first.phases.prefill_s * (1 - 1 / ratio), ratio)
    return None


def _is_uncached(record: RequestRecord) -> bool:
    """Whether a prefill rate is known not to come from a cache hit."""
    cached, total = record.prompt.cached, record.prompt.total
    known = cached is not None and total is not None and cached <= _MAX_CACHED * total
    return has_prefill_rate(record) and known


def _ratio(first: float, later: list[float], second: float | None) -> float | None:
    """Return how many times slower, None unless the second request is already fast."""
    ratio = median(later) / first
    least = _WARMUP_RATIO if len(later) > 1 else _WARMUP_RATIO_OF_TWO
    already_fast = second is not None and second >= least * first
    return ratio if ratio >= least and already_fast else None


def init(e: Evidence) -> Finding | None:
    """INIT: tokenising, template, grammar or images take a good part of the wait."""
    less = at_most("less_init", e.phase_s("init"), "the time of init")
    return _of_phase(e, "INIT", "go before the model computes anything", less)


def tail(e: Evidence) -> Finding | None:
    """TAIL: the end comes long after the last token."""
    if e.phase_s("tail") < _MIN_TAIL_S:
        return None
    close = exactly("close_stream", e.phase_s("tail"), "the measured tail")
    return _of_phase(e, "TAIL", "pass between the last token and the end of the reply", close)


def _of_phase(e: Evidence, code: str, says: str, cure: Cure) -> Finding | None:
    phase = str(CODES[code].phase)
    seconds = e.phase_s(phase)
    if not e.is_enough(code, seconds):
        return None
    return e.finding(
        code,
        f"{seconds:.2f} s {says}",
        seconds=seconds,
        confidence="high",
        shown=([r for r in e.records if getattr(r.phases, f"{phase}_s")],),
        cures=(cure,),
    )
