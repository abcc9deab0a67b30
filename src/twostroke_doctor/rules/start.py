"""LOAD, WARMUP, INIT: what happens before the model computes the prompt."""

from __future__ import annotations

from statistics import median

from twostroke.advice import cure
from twostroke.record import MIN_TOKENS_FOR_PREFILL_RATE, RequestRecord
from twostroke_doctor.evidence import Evidence, fact_lines, record_lines
from twostroke_doctor.finding import Finding
from twostroke_doctor.runs import Run, has_decode_rate, has_prefill_rate

MIN_LOAD_SHARE = 0.1
MIN_INIT_SHARE = 0.2
_COLD_S = 1.0  # a short prompt that takes longer than this, and
_COLD_RATIO = 5.0  # than so many times its tokens at decode speed, waits for cold weights
_MIN_START_S = 5.0
_WARMUP_RATIO = 3.0
_WARMUP_RATIO_OF_TWO = 5.0  # one later request is little to compare with
_MAX_CACHED = 0.2  # of a later prompt: a hit would explain its speed


def cold_s(record: RequestRecord) -> float:
    """Return the seconds of a short prompt that neither prefill nor decode speed explains.

    A prompt token costs at most what an output token does, so what is above that is waiting for
    weights to come from the disk.
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
    share = e.share(seconds)
    if share is None or share < MIN_LOAD_SHARE:
        return _start_outside(e)
    hit = [r for r in e.records if r.phases.load_s or cold_s(r)]
    says = f"loading takes {seconds:.2f} s of the wait"
    if cold:
        says += (
            f"; {cold:.2f} s of it were booked as prefill of fewer than "
            f"{MIN_TOKENS_FOR_PREFILL_RATE} tokens: cold weights coming from the disk"
        )
    derived = [r for r in hit if r.id == "probe/first" and "time_derived" in r.meter.flags]
    if derived:
        says += (
            "; it is how much later the first contact's token came than the next: load or warm-up"
        )
    basis = "what loading took inside these requests"
    what = "Keep the model loaded (keep-alive), or load it before the first request comes."
    return Finding(
        code="LOAD",
        says=says,
        phase="load",
        share=share,
        seconds=seconds,
        confidence="medium" if cold > loading or derived else "high",
        evidence=record_lines(hit),
        cures=(cure.exact("keep_loaded", what, seconds, basis),),
    )


def _start_outside(e: Evidence) -> Finding | None:
    """An engine start that no request's record holds; who met it waited for it."""
    start = e.fact("runner_start_s")
    seconds = e.number("runner_start_s") or 0.0
    if start is None or seconds < _MIN_START_S or e.phase_s("load"):
        return None
    what = "Keep the model loaded (keep-alive)."
    return Finding(
        code="LOAD",
        says=f"the engine took {seconds:.1f} s to start; a request that met this waited for it",
        phase="load",
        seconds=seconds,
        confidence="low",
        evidence=fact_lines([start]),
        cures=(cure.exact("keep_loaded", what, seconds, "one start"),),
        missing=("whether a request waited for this start",),
    )


def warmup(e: Evidence) -> Finding | None:
    """WARMUP: the first request of a run decodes or prefills far slower than those after it."""
    for run in e.runs:
        excess = _first_excess(run)
        if excess is None:
            continue
        seconds, ratio, what = excess
        cure_text = "Warm up with the real shapes before serving; leave the first out of averages."
        return Finding(
            code="WARMUP",
            says=f"the first request's {what} is {ratio:.0f} times slower than the later ones'",
            phase=what,
            share=e.share(seconds),
            seconds=seconds,
            confidence="high" if len(run.records) > 2 else "medium",
            evidence=(
                *fact_lines([run.fact("warmup_s")]),
                *record_lines([run.records[0], *run.records[1:4]]),
            ),
            cures=(
                cure.exact("warm_up", cure_text, seconds, "first request minus its later speed"),
            ),
        )
    return None


def _first_excess(run: Run) -> tuple[float, float, str] | None:
    """Return (seconds, ratio, phase) by which the first request is slower."""
    if len(run.records) < 2:
        return None
    first, later = run.records[0], run.records[1:]
    rates = [r.decode_tok_s for r in later if has_decode_rate(r) and r.decode_tok_s]
    if has_decode_rate(first) and first.decode_tok_s and rates and first.phases.decode_s:
        found = _slower(first.decode_tok_s, rates, later[0].decode_tok_s)
        if found is not None:
            return first.phases.decode_s * (1 - 1 / found), found, "decode"
    rates = [r.prefill_tok_s for r in later if _is_uncached(r) and r.prefill_tok_s]
    if has_prefill_rate(first) and first.prefill_tok_s and rates and first.phases.prefill_s:
        found = _slower(first.prefill_tok_s, rates, rates[0])
        if found is not None:
            return first.phases.prefill_s * (1 - 1 / found), found, "prefill"
    return None


def _is_uncached(record: RequestRecord) -> bool:
    """Whether a prefill rate is known not to come from a cache hit."""
    cached, total = record.prompt.cached, record.prompt.total
    known = cached is not None and total is not None and cached <= _MAX_CACHED * total
    return has_prefill_rate(record) and known


def _slower(first: float, later: list[float], second: float | None) -> float | None:
    """Return how many times slower, None unless the second request is already fast."""
    ratio = median(later) / first
    least = _WARMUP_RATIO if len(later) > 1 else _WARMUP_RATIO_OF_TWO
    already_fast = second is not None and second >= least * first
    return ratio if ratio >= least and already_fast else None


def init(e: Evidence) -> Finding | None:
    """INIT: tokenising, template, grammar or images take a good part of the wait."""
    seconds = e.phase_s("init")
    share = e.share(seconds)
    if share is None or share < MIN_INIT_SHARE:
        return None
    hit = [r for r in e.records if r.phases.init_s]
    what = (
        "Look at what is done before the model runs: a template with many special tokens, "
        "a grammar compiled anew, images encoded, too few tokeniser workers."
    )
    return Finding(
        code="INIT",
        says=f"{seconds:.2f} s go before the model computes anything",
        phase="init",
        share=share,
        seconds=seconds,
        confidence="high",
        evidence=record_lines(hit),
        cures=(cure.between("less_init", what, 0.0, seconds, "at most the time of init"),),
    )
