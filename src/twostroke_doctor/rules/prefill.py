"""PREFILL and its causes: a CPU, small batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from twostroke.advice import Cure, arithmetic, cures
from twostroke.record import RequestRecord
from twostroke_doctor.evidence import Evidence
from twostroke_doctor.finding import Finding
from twostroke_doctor.remedies import at_most, unpriced
from twostroke_doctor.rules.memory import is_on_gpu
from twostroke_doctor.rules.outside_model import cold_s
from twostroke_doctor.rules.pairs import slower_pairs
from twostroke_doctor.rules.rates import prefill_use
from twostroke_doctor.runs import Run, has_prefill_rate
from twostroke_doctor.wait import seconds_in

_CPU_RATIO = 4.0  # prefill over decode rate: a GPU is far above it
_CPU_TOK_S = 100.0  # slower than this with such a ratio, no GPU did it
_SEQUENTIAL = 1.5  # prefill over decode rate: the prompt runs token by token
_MIN_PROMPT = 128
_OTHER_PREFILL = 2.0  # times faster in another run, where
_SAME_DECODE = (0.9, 1.1)
_SMALL_CHUNK = 256
_MANY_CHUNKS = 4
_BEND = 0.2  # share of the quadratic term at the longest prompt that is worth a sentence


def prefill_cures(records: Sequence[RequestRecord]) -> tuple[Cure, ...]:
    """Return the cures of the first token in order of effect.

    Fewer bits are not among them: they do not speed prefill up.
    """
    tokens = sum(r.prompt.new or 0 for r in records)
    seconds = seconds_in("prefill", records)
    first = (cures.shorter_prompt(tokens or None, seconds),) if seconds else ()
    return (*first, cures.stable_head(None, None), cures.trim_history(), cures.faster_prefill())


def prefill_cpu(e: Evidence) -> Finding | None:
    """PREFILL_CPU: a batch of prompt tokens gains little over single tokens, at a CPU's speed."""
    runs = [run for run in e.runs if _is_prefilled_by_cpu(e, run)]
    hit = [r for run in runs for r in run.records if (r.prompt.new or 0) >= _MIN_PROMPT]
    seconds = seconds_in("prefill", hit)
    if not e.is_enough("PREFILL_CPU", seconds):
        return None
    rate, decode = runs[0].prefill_tok_s() or 0.0, runs[0].decode_tok_s() or 1.0
    return e.finding(
        "PREFILL_CPU",
        f"the prompt runs at {rate:.3g} tok/s, {rate / decode:.1f} times the {decode:.3g} tok/s "
        "of decode: a CPU without fast matrix kernels" + _other_set_up(e, hit),
        seconds=seconds,
        confidence="high" if e.given.on_cpu else "medium",
        shown=(e.fact("layers_offloaded"), hit),
        cures=(*prefill_cures(hit)[:3], *unpriced("gpu_prefill")),
    )


def _is_prefilled_by_cpu(e: Evidence, run: Run) -> bool:
    prefill_rate, decode_rate = run.prefill_tok_s(), run.decode_tok_s()
    if prefill_rate is None or not decode_rate or is_on_gpu(run) or prefill_rate >= _CPU_TOK_S:
        return False
    return prefill_rate / decode_rate < _CPU_RATIO or e.given.on_cpu


def _other_set_up(e: Evidence, hit: list[RequestRecord]) -> str:
    """Say when another run prefills faster and decodes the same: only prefill moved."""
    slow = next((run for run in e.runs if run.records and run.records[0] in hit), None)
    if slow is None:
        return ""
    for pair in slower_pairs([slow], e.runs, Run.prefill_tok_s, _OTHER_PREFILL):
        here, there = slow.decode_tok_s(), pair.fast.decode_tok_s()
        if here and there and _SAME_DECODE[0] <= there / here <= _SAME_DECODE[1]:
            return (
                f"; {pair.fast.name} prefills {pair.fast_rate / pair.slow_rate:.1f} times faster "
                f"and decodes the same ({here:.2f} and {there:.2f} tok/s): the GPU does prefill "
                "only"
            )
    return ""


def small_ubatch(e: Evidence) -> Finding | None:
    """SMALL_UBATCH: a long prompt in pieces under 256 tokens reads all weights for each."""
    stated = e.number("n_ubatch")
    sized = [(record, size) for record in e.records if (size := _piece_size(record, stated))]
    hit = [record for record, _ in sized]
    seconds = seconds_in("prefill", hit)
    if not e.is_enough("SMALL_UBATCH", seconds):
        return None
    mean = sum(size for _, size in sized) / len(sized)
    larger = at_most("larger_ubatch", seconds, "this prefill time")
    return e.finding(
        "SMALL_UBATCH",
        f"the prompt is computed {mean:.0f} tokens at a time: each piece reads all weights",
        seconds=seconds,
        shown=(e.fact("n_ubatch"), hit),
        cures=(larger, *prefill_cures(hit)),
    )


def _piece_size(record: RequestRecord, stated: float | None) -> float | None:
    """Return the tokens of a piece where a long prompt was computed in small pieces."""
    new, chunks = record.prompt.new or 0, record.chunks or 0
    if new < _SMALL_CHUNK * _MANY_CHUNKS or not record.phases.prefill_s:
        return None
    size = new / chunks if chunks >= _MANY_CHUNKS else stated
    return size if size is not None and size < _SMALL_CHUNK else None


def prefill(e: Evidence, claimed: Mapping[str, float]) -> Finding | None:
    """PREFILL: the seconds of prefill that no cause has claimed, and their speed."""
    cold = sum(cold_s(r) for r in e.records)
    left = e.phase_s("prefill") - claimed.get("prefill", 0.0) - cold
    if not e.is_enough("PREFILL", left):
        return None
    records = [r for r in e.records if r.phases.prefill_s and not cold_s(r)]
    if not any(_ends_known(r) for r in records):
        return None
    rated = [r for r in records if has_prefill_rate(r)]
    return e.finding(
        "PREFILL",
        "computing the prompt holds the first token" + _speed(e, rated) + _shape(rated),
        seconds=left,
        confidence="medium" if rated else "low",
        shown=(records,),
        cures=prefill_cures(records),
        missing=_missing(e),
    )


def _ends_known(record: RequestRecord) -> bool:
    """Whether the wait beyond prefill is known: it ended, or it is still in its prefill."""
    still_there = record.chunks is not None and "partial" in record.meter.flags
    return bool(record.phases.decode_s or record.e2e_s or record.output.total == 1 or still_there)


def _speed(e: Evidence, rated: list[RequestRecord]) -> str:
    tokens, seconds = sum(r.prompt.new or 0 for r in rated), seconds_in("prefill", rated)
    if not tokens or not seconds:
        return ""
    rate = tokens / seconds
    says = f": {rate:,.4g} tok/s"
    use = prefill_use(e)
    if use is not None:
        return f"{says}, {use.share:.0%} of the arithmetic's limit"
    slowest = min((low for run in e.runs if (low := run.decode_tok_s())), default=None)
    if slowest is not None and rate < _SEQUENTIAL * slowest and tokens >= _MIN_PROMPT:
        return f"{says}, the rate of decode ({slowest:.4g} tok/s): it runs token by token"
    return says


def _shape(rated: list[RequestRecord]) -> str:
    """Say how prefill grows with length, where several lengths were seen."""
    first_of: dict[int, float] = {}
    for record in rated:
        if record.prompt.new and record.phases.prefill_s:
            first_of.setdefault(record.prompt.new, record.phases.prefill_s)
    fit = arithmetic.fit_prefill(list(first_of), list(first_of.values()))
    if fit is None:
        return ""
    longest = max(first_of)
    bend = fit[1] * longest / (fit[0] + fit[1] * longest)
    if bend < _BEND:
        return ""
    return f"; {bend:.0%} of it grows with the square of the prompt at {longest:,} tokens"


def _missing(e: Evidence) -> tuple[str, ...]:
    out = []
    if prefill_use(e) is None:
        out.append("model size and arithmetic of the device (--model, --device or --flops)")
    if all(r.prompt.cached is None for r in e.records):
        out.append("how many prompt tokens came from the cache")
    return tuple(out)
