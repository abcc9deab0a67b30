"""The items that one line states: facts, and windows by the keys that an engine prints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from twostroke.record import WindowRecord
from twostroke_doctor.parsed import Fact
from twostroke_doctor.parsers.lines import Line
from twostroke_doctor.parsers.numbers import Value
from twostroke_doctor.parsers.quick import new_fact, new_meter, new_window

_COUNTS = ("running", "waiting", "preemptions")


def fact_at(line: Line, engine: str, name: str, value: Value, label: str | None = None) -> Fact:
    """Return a fact that a line states."""
    return new_fact(
        name=name, value=value, engine=engine, label=label, file=line.file, line=line.number
    )


def window_at(
    line: Line,
    engine: str,
    facts: dict[str, float | str],
    fields: Mapping[str, Any],
    *,
    flags: tuple[str, ...] = (),
    lines: tuple[int, ...] = (),
) -> WindowRecord:
    """Return the window of a line; fields: those of WindowRecord; lines: where not this one."""
    meter = new_meter(source="log", flags=flags, file=line.file, lines=lines or (line.number,))
    return new_window(engine=engine, t_s=line.t_s, facts=facts, meter=meter, **fields)


def sort_pairs(
    pairs: Iterable[tuple[str, float | str]], names: Mapping[str, str]
) -> tuple[dict[str, float | str], dict[str, Any]]:
    """Return the facts and the fields of a window from printed keys and values.

    names: printed key -> field of WindowRecord; any other key is a fact under its own name.
    """
    facts: dict[str, float | str] = {}
    fields: dict[str, Any] = {}
    for key, value in pairs:
        name = names.get(key)
        if name is None or isinstance(value, str):
            facts[_fact_name(key)] = value
        else:
            fields[name] = int(value) if name in _COUNTS else value
    return facts, fields


@lru_cache(maxsize=256)  # every line has the same keys
def _fact_name(key: str) -> str:
    return key.replace("#", "num ").strip().replace("-", "_").replace(" ", "_").lower()
