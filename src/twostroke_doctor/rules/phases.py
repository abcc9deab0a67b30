"""INIT and TAIL: a measured phase that takes a good part of the wait is its own proof."""

from __future__ import annotations

from twostroke.advice import Cure
from twostroke_doctor.evidence import Evidence
from twostroke_doctor.finding import CODES, Finding
from twostroke_doctor.remedies import at_most, exactly

_MIN_TAIL_S = 1.0


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
