"""EXPECTED: prefill is as fast as the hardware allows."""

from __future__ import annotations

from twostroke.advice import arithmetic
from twostroke.record import MIN_TOKENS_FOR_PREFILL_RATE, RequestRecord
from twostroke_doctor.evidence import Evidence
from twostroke_doctor.finding import Finding
from twostroke_doctor.remedies import unpriced
from twostroke_doctor.rules.prefill import prefill_cures
from twostroke_doctor.rules.rates import HEALTHY, decode_use, prefill_use


def expected(e: Evidence) -> Finding | None:
    """EXPECTED: prefill at the arithmetic's limit, or a first token that costs one pass."""
    if not e.is_enough("EXPECTED", e.phase_s("prefill")):
        return None
    return _at_the_roof(e) or _one_pass(e)


def _at_the_roof(e: Evidence) -> Finding | None:
    seconds, use = e.phase_s("prefill"), prefill_use(e)
    if use is None or use.share < HEALTHY:
        return None
    work = (
        f"{use.flop / 1e15:.2f} PFLOP take at least {use.floor_s:.2f} s here; " if use.flop else ""
    )
    says = f"{work}prefill took {seconds:.2f} s, {use.share:.0%} of the arithmetic's limit"
    is_too_much = use.share > 1
    if is_too_much:
        says += (
            ". More than all of it: fewer tokens were computed than stated, because the prompt "
            "was shorter or partly cached"
        )
    records = [r for r in e.records if r.phases.prefill_s]
    return e.finding(
        "EXPECTED",
        says,
        seconds=seconds,
        confidence="medium" if is_too_much else "high",
        shown=(records,),
        cures=prefill_cures(records),
        missing=("how many prompt tokens were really computed",) if is_too_much else (),
    )


def _one_pass(e: Evidence) -> Finding | None:
    """A short prompt's first token takes one pass over the weights, as every later one does."""
    seconds = e.phase_s("prefill")
    timed = [r for r in e.records if r.phases.prefill_s]
    if not timed or not all(_is_short(r) for r in timed):
        return None
    mean, floor = seconds / len(timed), _pass_s(e, timed)
    if not floor or mean > floor / HEALTHY:
        return None
    return e.finding(
        "EXPECTED",
        f"a short prompt's first token takes {mean * 1000:.0f} ms, and one pass over the weights "
        f"takes {floor * 1000:.0f} ms: that is the floor of the first token too",
        seconds=seconds,
        confidence="high",
        shown=(timed,),
        cures=unpriced("smaller_model"),
    )


def _pass_s(e: Evidence, timed: list[RequestRecord]) -> float | None:
    """Return the seconds of one pass over the weights, None where nothing tells."""
    size, bandwidth, use = e.given.weights_bytes, e.given.bandwidth, decode_use(e)
    if size and bandwidth:
        return arithmetic.decode_floor_s(size, 0.0, bandwidth)
    if use is not None:
        return use.floor_s
    return max((1 / r.decode_tok_s for r in timed if r.decode_tok_s), default=None)


def _is_short(record: RequestRecord) -> bool:
    return 0 < (record.prompt.new or record.prompt.total or 0) < MIN_TOKENS_FOR_PREFILL_RATE
