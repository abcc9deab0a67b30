"""JSON formats as data: the keys of an engine's timings, and the field that each value sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from twostroke_doctor.parsers.draft import RATES, Draft
from twostroke_doctor.parsers.numbers import json_count, json_number, json_positive
from twostroke_doctor.parsers.openai_usage import add_usage

Json = Mapping[str, Any]
Number = Callable[[object], float | None]


def in_seconds(per_second: float, read: Number = json_positive) -> Number:
    """Return the reader of a time in another unit."""

    def seconds(value: object) -> float | None:
        time = read(value)
        return None if time is None else time / per_second

    return seconds


_KINDS: dict[str, Callable[[object], float | str | None]] = {
    "count": json_count,
    "number": json_number,
    "positive": json_positive,
    "ms": in_seconds(1e3),
    "waited_ms": in_seconds(1e3, json_number),  # a queue may be empty
    "ns": in_seconds(1e9),
    "text": lambda value: value[:200] if isinstance(value, str) else None,
}


def has(*keys: str) -> Callable[[Json], bool]:
    """Return the test of a format that its keys tell."""
    wanted = frozenset(keys)
    return lambda obj: obj.keys() >= wanted


class JsonFormat:
    """One engine's shape of timings.

    parts: keys of the reply under which they may stand; empty: in the reply itself. fits: tells
    the shape by its keys. fields: key, or path `a.b`, to `field:kind`. then: arithmetic on the
    request, after its fields and the usage are set.
    """

    def __init__(
        self,
        engine: str,
        parts: tuple[str, ...],
        fits: Callable[[Json], bool],
        fields: Mapping[str, str],
        then: Callable[[Draft, Json], None] | None = None,
    ) -> None:
        self.engine, self.parts, self.fits, self._then = engine, parts, fits, then
        places = [(key.split("."), place.partition(":")) for key, place in fields.items()]
        self._fields = [(path, name, _KINDS[kind]) for path, (name, _, kind) in places]

    def draft(self, obj: Json, usage: dict[str, Any] | None = None) -> Draft:
        """Return the draft of one reply."""
        draft = Draft(engine=self.engine)
        for path, name, read in self._fields:
            value: object = obj
            for step in path:
                value = value.get(step) if isinstance(value, dict) else None
            found = read(value)
            if name in RATES and isinstance(found, float) and found:
                draft.reported[name] = found
            elif name not in RATES and found is not None:
                setattr(draft, name, found)
        add_usage(draft, usage or {})
        if self._then is not None:
            self._then(draft, obj)
            add_usage(draft, usage or {})  # in place of counts that had no time
        draft.check_rates()
        return draft
