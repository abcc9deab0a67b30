"""The `prompt eval time = 1.00 ms / 2 tokens (...)` lines of llama.cpp's library and server."""

from __future__ import annotations

import re
from typing import NamedTuple

from twostroke_doctor.parsers.draft import Draft
from twostroke_doctor.parsers.numbers import NUMBER, positive, whole

TIME_LINE = re.compile(
    r"\b(?P<what>load|sample|prompt eval|generation eval|eval|total) time\s{0,40}="
    rf"\s{{0,40}}(?P<ms>{NUMBER}) ms"
    rf"(?:\s{{0,40}}/\s{{0,40}}(?P<count>{NUMBER}) (?P<unit>runs|tokens))?"
    rf"(?:\s{{0,40}}\(\s{{0,40}}(?P<per>{NUMBER}) ms per (?:token|run)"
    rf"(?:,\s{{0,40}}(?P<rate>{NUMBER}) tokens per second)?)?"
)


class TimeLine(NamedTuple):
    """One timing line. `seconds` is None where the engine printed zero, nan or worse."""

    what: str
    seconds: float | None
    num: int | None
    unit: str | None
    ms_text: str
    rate_text: str | None


def read_time_line(text: str) -> TimeLine | None:
    """Return the timing in a line, or None. A count must be followed by its unit to be read."""
    at = text.find(" time")
    match = TIME_LINE.search(text, max(at - 15, 0)) if at >= 0 else None  # 15: "generation eval"
    if match is None:
        return None
    what, ms_text, count, unit, _, rate = match.groups()
    ms = positive(ms_text)
    seconds = ms / 1000 if ms is not None else None
    return TimeLine(what, seconds, whole(count), unit, ms_text, rate)


def take_prompt(draft: Draft, time: TimeLine) -> None:
    """Put a `prompt eval time` line into a draft."""
    if time.seconds is None:
        draft.flag("meter_off")
        return
    draft.prefill_s, draft.prompt_new = time.seconds, time.num
    draft.report(
        "prefill_tok_s", time.rate_text, time.num, time.seconds, time.ms_text, time_unit_s=1e-3
    )


def take_decode(draft: Draft, time: TimeLine, *, runs_follow_first: bool) -> None:
    """Put an `eval time` line into a draft.

    runs_follow_first: the count is of decode runs, one fewer than the tokens (the library's way);
    else it is of tokens (the server's).
    """
    if time.seconds is None:
        draft.flag("meter_off")
        return
    draft.decode_s = time.seconds
    if time.num is not None:
        draft.output = time.num + 1 if runs_follow_first else time.num
    draft.report(
        "decode_tok_s", time.rate_text, time.num, time.seconds, time.ms_text, time_unit_s=1e-3
    )


def settle_meter(draft: Draft) -> bool:
    """Tell whether the meter was off: one zero beside a real time is a cache hit or one token."""
    off = "meter_off" in draft.flags
    if off and (draft.prefill_s is not None or draft.decode_s is not None):
        draft.flags.remove("meter_off")
        return False
    return off
