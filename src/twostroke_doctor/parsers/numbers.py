"""Numbers as engines print them: a text that is no measurement is read as None.

Decimal commas are accepted; inf, nan, Indeterminate, negative and over-long numbers are refused.
KINDS is the vocabulary of line formats: how a number stands in a line, and how it is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

NUMBER = r"-?(?:\d{1,15}(?:[.,]\d{1,12}){0,4}|inf|nan|Indeterminate)"  # in place of a number
PLAIN = r"[0-9]{1,15}(?:[.,][0-9]{1,12})?(?![.,]?[0-9])"  # a measurement
_is_plain = re.compile(PLAIN).fullmatch
_WHOLE = re.compile(r"\d{1,15}|\d{1,3}(?:,\d{3}){1,4}", re.ASCII)
_DURATION_PART = re.compile(r"(\d{1,12}(?:\.\d{1,12})?)(h|ms|m|s|µs|μs|us|ns)", re.ASCII)
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "µs": 1e-6, "μs": 1e-6, "us": 1e-6}
_SECONDS["ns"] = 1e-9
_SIZE = re.compile(r"(\d{1,12}(?:[.,]\d{1,6})?)\s?([KMGT]i?)?B", re.ASCII)
_POWER = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_HALVES = tuple(0.5 * 10.0**-digits for digits in range(13))
_IMPLAUSIBLE_PREFILL_TOK_S = 50_000.0  # above any single GPU on a 1B model
RATE_TOLERANCE = 0.02  # a printed rate further off than this is flagged (docs/logs.md)
MAX_DERIVED_ERROR = 0.05  # a count from a rounded time is dropped when it may be further off
MAX_COUNT = 10**15  # no token count or nanosecond is larger


Value = float | int | str | bool


class Kind(NamedTuple):
    """How a value stands in a line (empty: a guarded number), and how its text is read."""

    pattern: str
    read: Callable[[str], Value | None]


def plain(text: str) -> float:
    """Return the value of a text that PLAIN matched."""
    try:
        return float(text)
    except ValueError:  # a decimal comma
        return float(text.replace(",", "."))


def _above_zero(text: str) -> float | None:
    try:  # not by plain(): this is the reading of nearly every time
        return float(text) or None
    except ValueError:
        return plain(text) or None


def num(text: str | None) -> float | None:
    """Return a printed number that is finite and not negative, else None."""
    return None if text is None or _is_plain(text) is None else plain(text)


def positive(text: str | None) -> float | None:
    """Return a printed number above zero: a time or rate of 0.00 is a meter that is off."""
    return num(text) or None


def whole(text: str | None) -> int | None:
    """Return a printed count, thousands commas allowed, else None."""
    if text is None or _WHOLE.fullmatch(text) is None:
        return None
    return int(text.replace(",", ""))


def json_number(value: object) -> float | None:
    """Return a JSON number that is finite and not negative, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value < MAX_COUNT else None  # nan fails both comparisons


def json_positive(value: object) -> float | None:
    """Return a JSON number above zero, else None."""
    return json_number(value) or None


def json_count(value: object) -> int | None:
    """Return a JSON count, else None."""
    number = json_number(value)
    return int(number) if number is not None and number == int(number) else None


def half_digit(text: str | None) -> float:
    """Return half of the last digit of a plain number, the most that rounding moved it."""
    if text is None:
        return 0.0
    point = text.find(".")
    if point < 0:
        point = text.find(",")
    return _HALVES[len(text) - point - 1] if point >= 0 else _HALVES[0]


def duration(text: str | None) -> float | None:
    """Read a Go or Rust duration: 2m27.98s, 986.5ms, 94.9µs.

    Units: seconds.
    """
    if text is None or len(text) > 40 or not text.endswith("s"):
        return None  # every duration ends in a unit of seconds: one that does not was cut
    end, total = 0, 0.0
    for part in _DURATION_PART.finditer(text):
        if part.start() != end:
            return None
        end = part.end()
        total += float(part.group(1)) * _SECONDS[part.group(2)]
    return total if end == len(text) and end else None


def size(text: str | None) -> int | None:
    """Read a size such as 3.2 GiB, 51 GB or 0 B.

    Units: bytes.
    """
    match = _SIZE.fullmatch(text.strip()) if text is not None and len(text) < 40 else None
    if match is None:
        return None
    prefix = match.group(2) or ""
    base = 1024 if prefix.endswith("i") else 1000
    scale = float(base) ** _POWER[prefix[:1]]
    return round(float(match.group(1).replace(",", ".")) * scale)


def rate_agrees(
    rate: float, count: float, seconds: float, half_rate: float = 0.0, half_s: float = 0.0
) -> bool:
    """Tell whether a rate is count or count - 1 over the time, within the rounding of both."""
    slack = max(RATE_TOLERANCE * rate, 4 * half_rate)
    is_fast_enough = count - 1 <= (rate + slack) * (seconds + half_s)
    return is_fast_enough and (rate - slack) * (seconds - half_s) <= count


def is_cached_rate(prefill_tok_s: float) -> bool:
    """Tell whether a prefill rate is too high for any device: its count holds cached tokens."""
    return prefill_tok_s > _IMPLAUSIBLE_PREFILL_TOK_S


def derived_count(seconds: str | None, rate: str | None) -> int | None:
    """Return the count behind a printed time and rate, or None where their rounding hides it."""
    if seconds is None or rate is None:
        return None
    time_s, per_s = plain(seconds), plain(rate)
    count = time_s * per_s
    half_time, half_rate = half_digit(seconds), half_digit(rate)
    error = time_s * half_rate + per_s * half_time
    is_near = error <= MAX_DERIVED_ERROR * count
    if not count or not (is_near or round(count - error) == round(count + error)):
        return None
    return round(count)


def _after_first(text: str) -> int | None:
    """Read a count of decode runs as output tokens: the first token comes from prefill."""
    runs = whole(text)
    return None if runs is None else runs + 1


def _signed_gib(text: str) -> int:
    """Read a rest of memory: it is negative when the model does not fit."""
    size_bytes = round(plain(text.removeprefix("-")) * _GIB)
    return -size_bytes if text.startswith("-") else size_bytes


_MIB, _GIB, _GB = 1 << 20, 1 << 30, 10**9
_WITH_COMMAS = r"\d(?:[\d,]{0,18}\d)?"
_DURATION = r"[^\s,|)\"]{1,40}"
KINDS = {
    "num": Kind("", plain),
    "positive": Kind("", _above_zero),
    "ms": Kind("", lambda text: plain(text) / 1000 or None),
    "whole_ms": Kind(r"\d{1,15}", lambda text: int(text) / 1000),
    "duration": Kind(_DURATION, duration),
    "time": Kind(_DURATION, lambda text: duration(text) or None),
    "int": Kind(r"\d{1,12}", int),
    "whole": Kind(_WITH_COMMAS, whole),
    "runs": Kind(_WITH_COMMAS, _after_first),
    "layers": Kind(r"-1|\d{1,12}", int),
    "MiB": Kind("", lambda text: round(plain(text) * _MIB)),
    "buffer_MiB": Kind("", lambda text: round(plain(text) * _MIB) or None),
    "GiB": Kind("", lambda text: round(plain(text) * _GIB)),
    "signed_GiB": Kind("-?" + PLAIN, _signed_gib),
    "GB": Kind("", lambda text: round(plain(text) * _GB) or None),
    "size": Kind(r"\d[\d.]{0,12} [KMGT]?i?B", size),
    "word": Kind(r"[\w.]{1,40}", str),
    "tokens": Kind(_WITH_COMMAS, lambda text: f"{whole(text)} tokens"),
    "lower": Kind(r"[A-Z]{1,40}", str.lower),
    "text": Kind(r".{1,160}", str.strip),
    "switch": Kind(r"0|1|enabled|disabled", lambda text: text in ("1", "enabled")),
}
