"""INIT and TAIL: a measured phase that takes a good part of the wait is its own proof."""

from __future__ import annotations

from collections.abc import Callable

from twostroke.advice import Cure, cure
from twostroke_doctor.evidence import Evidence
from twostroke_doctor.finding import CODES, Finding

_MIN_TAIL_S = 1.0
_LESS_INIT = (
    "Look at what is done before the model runs: a template with many special tokens, "
    "a grammar compiled anew, images encoded, too few tokeniser workers."
)
_CLOSE_STREAM = "Close the stream with the last token: look at buffers, stop handling and proxies."


def init(e: Evidence) -> Finding | None:
    """INIT: tokenising, template, grammar or images take a good part of the wait."""

    def less_init(seconds: float) -> Cure:
        return cure.between("less_init", _LESS_INIT, 0.0, seconds, "at most the time of init")

    return _of_phase(e, "INIT", "go before the model computes anything", less_init)


def tail(e: Evidence) -> Finding | None:
    """TAIL: the end comes long after the last token."""

    def close_stream(seconds: float) -> Cure:
        return cure.exact("close_stream", _CLOSE_STREAM, seconds, "the measured tail")

    says = "pass between the last token and the end of the reply"
    return _of_phase(e, "TAIL", says, close_stream, least_s=_MIN_TAIL_S)


def _of_phase(
    e: Evidence, code: str, says: str, cure_of: Callable[[float], Cure], least_s: float = 0.0
) -> Finding | None:
    phase = str(CODES[code].phase)
    seconds = e.phase_s(phase)
    if seconds < least_s or not e.is_enough(code, seconds):
        return None
    return e.finding(
        code,
        f"{seconds:.2f} s {says}",
        seconds=seconds,
        confidence="high",
        shown=([r for r in e.records if getattr(r.phases, f"{phase}_s")],),
        cures=(cure_of(seconds),),
    )
