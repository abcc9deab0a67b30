"""Server averages from a line: one place makes the WindowRecord of every engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twostroke.record import WindowRecord
from twostroke_doctor.parsers.lines import Line
from twostroke_doctor.parsers.quick import new_meter, new_window


def make_window(
    engine: str,
    line: Line,
    facts: dict[str, float | str],
    fields: Mapping[str, Any],
    *,
    flags: tuple[str, ...] = (),
    lines: tuple[int, ...] = (),
) -> WindowRecord:
    """Return the window of a line; fields: those of WindowRecord; lines: where not this one."""
    meter = new_meter(source="log", flags=flags, file=line.file, lines=lines or (line.number,))
    return new_window(engine=engine, t_s=line.t_s, facts=facts, meter=meter, **fields)
