"""METER and WINDOW: numbers that are wrong, or are no speed."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import NamedTuple

from twostroke.advice import cure
from twostroke.record import RequestRecord
from twostroke_doctor.evidence import Evidence
from twostroke_doctor.finding import Finding
from twostroke_doctor.remedies import unpriced
from twostroke_doctor.runs import Run
from twostroke_doctor.wait import INFERENCE, phase_seconds, seconds_in, total_seconds


class _Wrong(NamedTuple):
    """The fault of the printed numbers that a flag names, and the remedy.

    is_partial: spoils only the part that the engine did not split. is_of_chunks: spoils a meter
    that takes chunks for tokens, which the probe does not.
    """

    says: str
    remedy: str
    is_partial: bool = False
    is_of_chunks: bool = False


_WRONG = MappingProxyType(
    {
        "meter_off": _Wrong(
            "the engine's meter was off and printed zeros: these are no speeds",
            "Switch the engine's timing on (llama-cpp-python: no_perf=False) and measure again.",
        ),
        "cached_counted_as_prompt": _Wrong(
            "the printed prompt rate counts tokens that the cache gave, so it is no prefill speed",
            "Divide only the new tokens by the prompt time; measure prefill with an unseen prompt.",
        ),
        "prefill_mixed_in": _Wrong(
            "the engine times prefill and decode as one, so its rate is neither's",
            "Measure the first token apart: stream, or ask the endpoint with --url.",
            is_partial=True,
        ),
        "negative_count": _Wrong(
            "the engine printed a negative count: its meter is broken here",
            "Drop these lines and update the engine.",
        ),
        "empty_first_chunk": _Wrong(
            "the first chunk of the stream is empty: a meter that takes it for a token is wrong",
            "Take the first chunk that holds text as the first token.",
            is_of_chunks=True,
        ),
        "buffered_stream": _Wrong(
            "tokens are held back and arrive in bursts: gaps between chunks are not decode",
            "Take rates from the token counts in `usage`, not from chunks.",
            is_of_chunks=True,
        ),
    }
)
_DIFFERENT_RATES = 1.1
_SAME_RATES = 1.1
_DIFFERENT_WAITS = 1.3
_ROUNDING = 0.02  # of a printed rate
_MIN_PROMPT = 256  # tokens; a shorter prompt's rate is lower and says nothing


def meter(e: Evidence) -> Finding | None:
    """METER: the flags that the parsers or the probe raised, or two meanings of one rate."""
    for flag, wrong in _WRONG.items():
        asked = e.parsed.records if wrong.is_of_chunks else e.records
        hit = [r for r in asked if flag in r.meter.flags]
        if hit:
            return e.finding(
                "METER",
                f"{wrong.says} ({len(hit)} of {len(asked)} requests)",
                seconds=_spoiled_s(hit, wrong, is_all=len(hit) == len(asked)) or None,
                confidence="high",
                shown=(hit,),
                cures=(cure.unpredicted("measure_again", wrong.remedy),),
            )
    return _two_definitions(e) or _unlike_compared(e)


def _spoiled_s(records: Sequence[RequestRecord], wrong: _Wrong, *, is_all: bool) -> float:
    """Return the seconds of the wait whose numbers are wrong."""
    if wrong.is_of_chunks and all(r.id.startswith("probe/") for r in records):
        return 0.0
    if wrong.is_partial:
        return sum(phase_seconds(r).get(INFERENCE, 0.0) for r in records)
    return sum(map(total_seconds, records)) if is_all else seconds_in("prefill", records)


def _two_definitions(e: Evidence) -> Finding | None:
    """One request, two rates: tokens over the whole time, and over the time after the first."""
    for record in e.records:
        whole, after = (record.reported.get(k) for k in ("e2e_tok_s", "decode_tok_s"))
        tokens, total_s = record.output.total, record.e2e_s
        if whole is None or after is None or not tokens or not total_s:
            continue
        is_same_request = abs(tokens / total_s - whole) <= _ROUNDING * whole
        if after <= _DIFFERENT_RATES * whole or not is_same_request:
            continue
        return e.finding(
            "METER",
            f"both rates are right and mean different things: {tokens} tokens over the whole "
            f"{total_s:.3f} s are {whole:.2f} tok/s, {tokens - 1} after the first are "
            f"{after:.2f} tok/s",
            seconds=record.phases.decode_s,
            confidence="high",
            shown=([record],),
            cures=unpriced("name_rates"),
        )
    return None


def _unlike_compared(e: Evidence) -> Finding | None:
    """Two set-ups differ in the wait but not in their rates: the work differed."""
    timed = [run for run in e.runs if run.records and run.decode_tok_s()]
    if len(timed) != 2:
        return None
    one, two = timed
    if not (_is_close(one.decode_tok_s(), two.decode_tok_s()) and _is_same_prefill(one, two)):
        return None
    waits = [sum(map(total_seconds, run.records)) / len(run.records) for run in timed]
    if max(waits) < _DIFFERENT_WAITS * min(waits):
        return None
    return e.finding(
        "METER",
        f"{one.name} and {two.name} run at the same rates and were given different work: "
        f"{waits[0]:.2f} s against {waits[1]:.2f} s a request",
        share=1.0,
        seconds=e.total_s,
        confidence="high",
        shown=([*one.records[:2], *two.records[:2]],),
        cures=unpriced("like_with_like"),
    )


def _is_same_prefill(one: Run, two: Run) -> bool:
    """Whether the prefill rates agree, as far as the prompts are long enough to tell."""
    rates = (one.prefill_tok_s(), two.prefill_tok_s())
    if None in rates:
        return False
    longest = [max(r.prompt.new or 0 for r in run.records) for run in (one, two)]
    return min(longest) < _MIN_PROMPT or _is_close(*rates)


def _is_close(a: float | None, b: float | None) -> bool:
    return a is not None and b is not None and max(a, b) <= _SAME_RATES * min(a, b)


def window(e: Evidence) -> Finding | None:
    """WINDOW: a server's averages, where no request was timed."""
    windows = [w for w in e.windows if w.prompt_tok_s or w.output_tok_s]
    if not windows or e.records:
        return None
    idle = [w for w in windows if w.running == 0]
    says = "averages over time windows, not the speed of a request"
    if idle:
        says += f"; {len(idle)} of {len(windows)} were taken when nothing ran any more"
    return e.finding(
        "WINDOW",
        says,
        confidence="high" if idle else "medium",
        shown=(idle or windows,),
        cures=unpriced("per_request"),
        missing=("times of single requests",),
    )
