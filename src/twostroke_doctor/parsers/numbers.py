"""Numbers as engines print them: guarded, so that what is not a measurement is None.

Accepts decimal commas; refuses inf, nan, Indeterminate, negative and over-long ones. Never guesses.
"""

from __future__ import annotations

import re

NUMBER = r"-?(?:\d{1,15}(?:[.,]\d{1,12}){0,4}|inf|nan|Indeterminate)"  # what stands for a number
_is_plain = re.compile(r"\d{1,15}(?:[.,]\d{1,12})?", re.ASCII).fullmatch
_WHOLE = re.compile(r"\d{1,15}|\d{1,3}(?:,\d{3}){1,4}", re.ASCII)
_DURATION_PART = re.compile(r"(\d{1,12}(?:\.\d{1,12})?)(h|ms|m|s|µs|μs|us|ns)", re.ASCII)
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "µs": 1e-6, "μs": 1e-6, "us": 1e-6}
_SECONDS["ns"] = 1e-9
_SIZE = re.compile(r"(\d{1,12}(?:[.,]\d{1,6})?)\s?([KMGT]i?)?B", re.ASCII)
_POWER = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_ULPS = tuple(10.0**-digits for digits in range(13))
RATE_TOLERANCE = 0.02  # a printed rate further off than this is flagged (docs/logs.md)
MAX_DERIVED_ERROR = (
    0.05  # a count derived from a rounded time is dropped when it may be further off
)
MAX_COUNT = 10**15  # no token count or nanosecond is larger: what is, was never a measurement


def num(text: str | None) -> float | None:
    """Return a printed number that is finite and not negative, else None."""
    if text is None or _is_plain(text) is None:
        return None
    return float(text if "," not in text else text.replace(",", "."))


def positive(text: str | None) -> float | None:
    """Return a printed number above zero: a time or rate of 0.00 is a meter that is off."""
    value = num(text)
    return value if value else None


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


def ulp(text: str) -> float:
    """Return the value of the last printed digit: 0.01 for 12.34."""
    point = text.find(".") if "," not in text else text.find(",")
    return _ULPS[min(len(text) - point - 1, 12)] if point >= 0 else 1.0


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


def rate_agrees(printed: str, count: float, seconds: float, half_digit_s: float = 0.0) -> bool:
    """Tell whether a printed rate is count or count - 1 over the time, within rounding."""
    rate = positive(printed)
    if rate is None or seconds <= 0:
        return True
    high = count / max(seconds - half_digit_s, 1e-9)
    low = max(count - 1, 0) / (seconds + half_digit_s)
    slack = max(RATE_TOLERANCE * rate, 2 * ulp(printed))
    return low - slack <= rate <= high + slack


def derived_count(
    time_s: float | None, per_s: float | None, seconds: str | None, rate: str | None
) -> int | None:
    """Return the count behind a time and a rate, or None where their rounding hides it."""
    if time_s is None or per_s is None or seconds is None or rate is None:
        return None
    half_time, half_rate = ulp(seconds) / 2, ulp(rate) / 2  # never above the value itself
    low = (time_s - half_time) * (per_s - half_rate)
    high = (time_s + half_time) * (per_s + half_rate)
    count = round(time_s * per_s)
    exact = round(low) == round(high)
    return count if exact or high - low <= 2 * MAX_DERIVED_ERROR * time_s * per_s else None
