"""Lines without their wrappers: docker, journald, routers, stamps, process prefixes and colours.

A `Line` keeps the part an engine printed, who printed it (so that two containers in one file are
not mixed) and the log's own clock. Knows no engine's words except the prefixes of loggers.
"""

from __future__ import annotations

import json
import re
from calendar import timegm
from functools import lru_cache
from typing import Any, NamedTuple

MAX_TEXT = 8_192  # characters that text patterns see; no known timing line is a tenth of it
MAX_JSON = 1 << 20  # an Ollama reply carries its whole context as numbers
_MAX_WRAPPERS = 6
_MAX_INT_DIGITS = 18

_COLOUR = re.compile(r"\x1b\[[0-9;]{0,16}[A-Za-z]")
_DAY = r"\d{4}[-/]\d\d[-/]\d\d"
_TIME = r"\d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
_ZONE = r"(?:Z| ?[+-]\d\d:?\d\d)?"
_LEVEL = r"TRACE|DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|debug|info|warn|Info|Debug|Warning"
_WRAPPERS = re.compile(
    r"\s*(?:"
    rf"(?P<iso>\[?{_DAY}[T ]{_TIME}{_ZONE}(?: (?P<rank>(?:[A-Z]{{2}}\d{{1,3}} ?)+))?\]?:?)(?=\s|$)"
    rf"|(?:{_LEVEL}):?\s+(?P<short>\d\d-\d\d \d\d:\d\d:\d\d) (?=\[|\S+\.py)"
    r"|(?P<uptime>\d{1,5}\.\d\d\.\d{3}\.\d{3}) [A-Z] "
    r"|(?P<compose>[A-Za-z][\w.\-]{0,63})\s{0,64}\|\s"
    r"|\[(?P<router>\d{2,7})\] "
    r"|\((?P<process>\w{1,32}(?: \w{1,16})? pid=\d{1,9})\) "
    rf"|(?P<journal>[A-Z][a-z]{{2}}\s+\d{{1,2}} \d\d:\d\d:\d\d (?P<host>\S{{1,64}} \S{{1,64}}?)"
    r"(?:\[\d{1,9}\])?:\s)"
    r"|(?:stdout|stderr) [FP] "
    r"|\[(?:Info|Debug|Warning|Error)\] \(\w{1,32}\) "
    r"|\[[\w.\-]{1,40}\.py:\d{1,6}\] "
    r")",
    re.ASCII,
)
_CLOCKS = ("iso", "short", "uptime")
_ISO = re.compile(r"(\d{4})[-/](\d\d)[-/](\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?")


class Line(NamedTuple):
    """One log line as its engine printed it; `t_s` is seconds on the log's own clock."""

    text: str
    number: int
    source: str = ""
    t_s: float | None = None
    file: str | None = None


def _stamp(text: str) -> float | None:
    match = _ISO.search(text)
    if match is None:
        return None
    year, month, day, hour, minute, second = map(int, match.groups()[:6])
    fraction = float(f"0.{match.group(7)}") if match.group(7) else 0.0
    if not (1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second < 61):
        return None
    if year < 1970:
        return None
    return timegm((year, month, day, hour, minute, second)) + fraction


def _clock(kind: str, text: str) -> float | None:
    if kind == "uptime":
        minutes, seconds, ms, us = text.split(".")
        return int(minutes) * 60 + int(seconds) + int(ms + us) / 1e6
    return _stamp(text if kind == "iso" else f"2000-{text}")  # no year printed: a leap one does


def _from_container_json(text: str) -> tuple[str, float | None] | None:
    """Read docker's `{"log": ...}` and journald's `{"MESSAGE": ...}` lines."""
    if not text.startswith("{") or not ('"log"' in text[:64] or '"MESSAGE"' in text):
        return None
    obj = load_json(text)
    if not isinstance(obj, dict):
        return None
    message = obj.get("log", obj.get("MESSAGE"))
    if not isinstance(message, str):
        return None
    stamp = obj.get("time")
    return message.rstrip("\r\n"), _stamp(stamp) if isinstance(stamp, str) else None


def unwrap(raw: str, number: int, file: str | None) -> Line:
    """Strip colours and wrappers from one raw line."""
    text = _COLOUR.sub("", raw) if "\x1b" in raw else raw
    t_s: float | None = None
    source: list[str] = []
    if text.startswith("{") and (inner := _from_container_json(text)) is not None:
        text, t_s = inner
        text = _COLOUR.sub("", text)
    start = 0
    for _ in range(_MAX_WRAPPERS):
        match = _WRAPPERS.match(text, start)
        if match is None:
            break
        start = match.end()
        kind = match.lastgroup
        if kind is None:
            continue
        if kind in _CLOCKS:
            stamp = _clock(kind, match.group(kind))
            t_s = t_s if stamp is None else stamp
            if kind == "uptime":
                break  # llama.cpp's own prefix: its text follows
            kind = "rank" if kind == "iso" else ""
        name = match.group("host" if kind == "journal" else kind) if kind else None
        if name:
            source.append(name)
    if start == 0 and t_s is None and len(text) <= MAX_TEXT:
        return Line(text, number, "", None, file)
    keep = MAX_JSON if text[start : start + 1] in "{[" else MAX_TEXT
    return Line(text[start : start + keep], number, "|".join(source), t_s, file)


def _bounded_int(text: str) -> int | float:
    return int(text) if len(text) <= _MAX_INT_DIGITS else float("inf")


@lru_cache(maxsize=1)  # a line may be asked for by two parsers
def load_json(text: str) -> Any:
    """Return the JSON value of a text, or None; hostile input costs bounded time."""
    if len(text) > MAX_JSON:
        return None
    try:
        return json.loads(text, parse_int=_bounded_int, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None
