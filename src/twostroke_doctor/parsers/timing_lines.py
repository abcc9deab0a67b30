"""The `prompt eval time = 1.00 ms / 2 tokens (...)` lines of llama.cpp's library and server."""

from __future__ import annotations

import re

from twostroke_doctor.parsers.draft import Draft
from twostroke_doctor.parsers.formats import LineFormat
from twostroke_doctor.parsers.numbers import whole

_IS_TIMED, _IS_ZERO = "(?=[0-9.,]*[1-9])", "(?![0-9.,]*[1-9])"
_PREFILL = (
    rf"`prompt eval time`~=~{_IS_TIMED}{{prefill_s:ms}} ms"
    r"(?:~/~{prompt_new:whole} (?:runs|tokens))?"
    r"(?:~\(~{:num} ms per (?:token|run)(?:,~{prefill_tok_s:num} tokens per second)?)?"
)
_DECODE = (
    rf"`eval time`~=~{_IS_TIMED}{{decode_s:ms}} ms"
    r"(?:~/~{output:COUNT} (?:runs|tokens))?"
    r"(?:~\(~{:num} ms per (?:token|run)(?:,~{decode_tok_s:num} tokens per second)?)?"
)
_ZERO = rf"`eval time`~=~{_IS_ZERO}{{:num}} ms"
_TOTAL = rf"`total time`~=~{_IS_TIMED}{{e2e_s:ms}} ms"
_DONE = ("e2e_s",)  # a block whose total was printed is over


def timing_formats(
    before: str, decode_count: str, opens: tuple[str, ...], *, is_closed_by_total: bool
) -> tuple[LineFormat, ...]:
    """Return the formats of a timing block.

    before: pattern in front of each line. decode_count: kind of the decode count: the library
    counts decode runs, one fewer than the tokens, the server tokens. opens: of the prompt line.
    """
    decode = _DECODE.replace("COUNT", decode_count)
    return (
        LineFormat(before + _PREFILL, _check_prefill, opens=opens, alone=True),
        LineFormat(before + decode, _check_decode, opens=_DONE, alone=True),
        LineFormat(before + _ZERO, opens=_DONE, flags=("meter_off",), alone=True),
        LineFormat(before + _TOTAL, _replace_partial, closes=is_closed_by_total, alone=True),
    )


def _replace_partial(draft: Draft, match: re.Match[str]) -> None:
    """Let final timings replace the rates that progress lines said."""
    if "partial" in draft.flags:
        draft.flags.remove("partial")
        rates = match.groupdict()
        draft.reported = {name: one for name, one in draft.reported.items() if rates.get(name)}


def _check_prefill(draft: Draft, match: re.Match[str]) -> None:
    _replace_partial(draft, match)
    rate, time, count = match["prefill_tok_s"], match["prefill_s"], whole(match["prompt_new"])
    draft.check("prefill_tok_s", count, draft.prefill_s, rate, time, unit_s=1e-3)


def _check_decode(draft: Draft, match: re.Match[str]) -> None:
    _replace_partial(draft, match)
    rate, time, count = match["decode_tok_s"], match["decode_s"], whole(match["output"])
    draft.check("decode_tok_s", count, draft.decode_s, rate, time, unit_s=1e-3)


def settle_meter(draft: Draft) -> bool:
    """Tell whether the meter was off: one zero beside a real time is a cache hit or one token."""
    is_off = "meter_off" in draft.flags
    if is_off and (draft.prefill_s is not None or draft.decode_s is not None):
        draft.flags.remove("meter_off")
        return False
    return is_off
