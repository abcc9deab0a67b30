"""METER and WINDOW: numbers that are wrong, or are no speed."""

from __future__ import annotations

from collections.abc import Sequence

from twostroke.advice import cure
from twostroke.record import RequestRecord
from twostroke_doctor.evidence import Evidence, record_lines, window_lines
from twostroke_doctor.finding import Finding
from twostroke_doctor.runs import Run
from twostroke_doctor.wait import INFERENCE, phase_seconds, total_seconds

# flag -> (what is wrong, what to do)
_WRONG = {
    "meter_off": (
        "the engine's meter was off and printed zeros: these are no speeds",
        "Switch the engine's timing on (llama-cpp-python: no_perf=False) and measure again.",
    ),
    "cached_counted_as_prompt": (
        "the printed prompt rate counts tokens that the cache gave, so it is no prefill speed",
        "Divide only the new tokens by the prompt time; measure prefill with an unseen prompt.",
    ),
    "prefill_mixed_in": (
        "the engine times prefill and decode as one, so its rate is neither's",
        "Measure the first token apart: stream, or ask the endpoint with --url.",
    ),
    "negative_count": (
        "the engine printed a negative count: its meter is broken here",
        "Drop these lines and update the engine.",
    ),
    "empty_first_chunk": (
        "the first chunk of the stream is empty: a meter that takes it for a token is wrong",
        "Take the first chunk that holds text as the first token.",
    ),
    "buffered_stream": (
        "tokens are held back and arrive in bursts: gaps between chunks are not decode",
        "Take rates from the token counts in `usage`, not from chunks.",
    ),
}
_PARTIAL = frozenset({"prefill_mixed_in"})  # spoils only the part that the engine did not split
# Spoils a meter that takes chunks for tokens; the probe itself does not.
_OTHERS_METER = frozenset({"empty_first_chunk", "buffered_stream"})
_DIFFERENT_RATES = 1.1
_SAME_RATES = 1.1
_DIFFERENT_WAITS = 1.3


def meter(e: Evidence) -> Finding | None:
    """METER: the flags that the parsers or the probe raised, or two meanings of one rate."""
    for flag, (what, remedy) in _WRONG.items():
        asked = e.parsed.records if flag in _OTHERS_METER else e.records
        hit = [r for r in asked if flag in r.meter.flags]
        if not hit:
            continue
        seconds = _spoiled_s(hit, flag, whole=len(hit) == len(asked))
        return Finding(
            code="METER",
            says=f"{what} ({len(hit)} of {len(asked)} requests)",
            share=e.share(seconds or None),
            seconds=seconds or None,
            confidence="high",
            evidence=record_lines(hit),
            cures=(cure.unpredicted("measure_again", remedy),),
        )
    return _two_definitions(e) or _unlike_compared(e)


def _spoiled_s(records: Sequence[RequestRecord], flag: str, *, whole: bool) -> float:
    if flag in _OTHERS_METER and all(r.id.startswith("probe/") for r in records):
        return 0.0
    if flag in _PARTIAL:
        return sum(phase_seconds(r).get(INFERENCE, 0.0) for r in records)
    if whole:
        return sum(total_seconds(r) for r in records)
    return sum(r.phases.prefill_s or 0.0 for r in records)


def _two_definitions(e: Evidence) -> Finding | None:
    """One request, two rates: tokens over the whole time, and over the time after the first."""
    for record in e.records:
        whole, after = (record.reported.get(k) for k in ("e2e_tok_s", "decode_tok_s"))
        if whole is None or after is None or not after > _DIFFERENT_RATES * whole:
            continue
        tokens, total_s = record.output.total, record.e2e_s
        if not tokens or not total_s or abs(tokens / total_s - whole) > 0.02 * whole:
            continue
        seconds = record.phases.decode_s
        return Finding(
            code="METER",
            says=(
                f"both rates are right and mean different things: {tokens} tokens over the whole "
                f"{total_s:.3f} s are {whole:.2f} tok/s, {tokens - 1} after the first are "
                f"{after:.2f} tok/s"
            ),
            share=e.share(seconds),
            seconds=seconds,
            confidence="high",
            evidence=record_lines([record]),
            cures=(cure.unpredicted("name_rates", "Call one end-to-end and the other decode."),),
        )
    return None


def _unlike_compared(e: Evidence) -> Finding | None:
    """Two set-ups differ in the wait but not in their rates: the work differed."""
    timed = [run for run in e.runs if run.records and run.decode_tok_s()]
    if len(timed) != 2:
        return None
    one, two = timed
    if not (_close(one.decode_tok_s(), two.decode_tok_s()) and _same_prefill(one, two)):
        return None
    waits = [sum(map(total_seconds, run.records)) / len(run.records) for run in timed]
    if max(waits) < _DIFFERENT_WAITS * min(waits):
        return None
    return Finding(
        code="METER",
        says=(
            f"{one.name} and {two.name} run at the same rates and were given different work: "
            f"{waits[0]:.2f} s against {waits[1]:.2f} s a request"
        ),
        share=1.0,
        seconds=e.total_s,
        confidence="high",
        evidence=record_lines([*one.records[:2], *two.records[:2]]),
        cures=(cure.unpredicted("like_with_like", "Compare with the same prompt and output."),),
    )


def _same_prefill(one: Run, two: Run) -> bool:
    """Whether the prefill rates agree; a short prompt's rate is lower and says nothing."""
    rates = (one.prefill_tok_s(), two.prefill_tok_s())
    if None in rates:
        return False
    counts = [max(r.prompt.new or 0 for r in run.records) for run in (one, two)]
    return min(counts) < 256 or _close(*rates)


def _close(a: float | None, b: float | None) -> bool:
    return a is not None and b is not None and max(a, b) <= _SAME_RATES * min(a, b)


def window(e: Evidence) -> Finding | None:
    """WINDOW: a server's averages, where no request was timed."""
    windows = [w for w in e.windows if w.prompt_tok_s or w.output_tok_s]
    if not windows or e.records:
        return None
    idle = [w for w in windows if w.running == 0]
    what = "averages over time windows, not the speed of a request"
    if idle:
        what += f"; {len(idle)} of {len(windows)} were taken when nothing ran any more"
    return Finding(
        code="WINDOW",
        says=what,
        confidence="high" if idle else "medium",
        evidence=window_lines(idle or windows),
        cures=(
            cure.unpredicted(
                "per_request", "Log single requests, or ask the endpoint itself with --url."
            ),
        ),
        missing=("times of single requests",),
    )
