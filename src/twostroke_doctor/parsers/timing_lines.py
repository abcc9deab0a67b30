"""The `prompt eval time = 1.00 ms / 2 tokens (...)` lines of llama.cpp's library and server."""

from __future__ import annotations

import re

from twostroke_doctor.parsers.draft import Draft
from twostroke_doctor.parsers.formats import LineFormat
from twostroke_doctor.parsers.numbers import half_digit, whole

_TIME = r" time~=~(?=[0-9.,]*[1-9])"  # a time above zero follows
_NO_TIME = r"\beval time~=~(?![0-9.,]*[1-9]){:num} ms"
_RATE = r"(?:~\(~{:num} ms per (?:token|run)(?:,~{RATE:num} tokens per second)?)?"
_COUNT = r"(?:~/~{COUNT} (?:runs|tokens))?"
_PREFILL = rf"\bprompt eval{_TIME}{{prefill_s:ms}} ms{_COUNT}{_RATE}"
_DECODE = rf"(?<!prompt )\beval{_TIME}{{decode_s:ms}} ms{_COUNT}{_RATE}"
_TOTAL = rf"\btotal{_TIME}{{e2e_s:ms}} ms"


def timing_formats(
    before: str, output: str, opens: tuple[str, ...], *, is_closed_by_total: bool
) -> tuple[LineFormat, ...]:
    """Return the formats of a timing block.

    before: pattern in front of each line. output: place of the decode count: the library counts
    decode runs, one fewer than the tokens, the server tokens. opens: of the prompt line.
    """
    prefill = _PREFILL.replace("COUNT", "prompt_new:whole").replace("RATE", "prefill_tok_s")
    decode = _DECODE.replace("COUNT", output).replace("RATE", "decode_tok_s")
    done = ("e2e_s",)  # a block whose total was printed is over
    return (
        LineFormat("prompt eval time", before + prefill, opens=opens, then=_check_prefill),
        LineFormat("eval time", before + decode, opens=done, then=_check_decode),
        LineFormat("eval time", before + _NO_TIME, opens=done, flags=("meter_off",)),
        LineFormat("total time", before + _TOTAL, closes=is_closed_by_total, then=_replace_partial),
    )


def _replace_partial(draft: Draft, match: re.Match[str]) -> None:
    """Let final timings replace the rates that progress lines said."""
    if "partial" in draft.flags:
        draft.flags.remove("partial")
        rates = match.groupdict()
        draft.reported = {name: one for name, one in draft.reported.items() if rates.get(name)}


def _check_prefill(draft: Draft, match: re.Match[str]) -> None:
    _replace_partial(draft, match)
    half_s = half_digit(match["prefill_s"]) / 1000
    draft.check(match["prefill_tok_s"], whole(match["prompt_new"]), draft.prefill_s, half_s)


def _check_decode(draft: Draft, match: re.Match[str]) -> None:
    _replace_partial(draft, match)
    half_s = half_digit(match["decode_s"]) / 1000
    draft.check(match["decode_tok_s"], whole(match["output"]), draft.decode_s, half_s)


def settle_meter(draft: Draft) -> bool:
    """Tell whether the meter was off: one zero beside a real time is a cache hit or one token."""
    is_off = "meter_off" in draft.flags
    if is_off and (draft.prefill_s is not None or draft.decode_s is not None):
        draft.flags.remove("meter_off")
        return False
    return is_off
