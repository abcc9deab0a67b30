"""Our own records: JSON lines of RequestRecord.to_dict() and WindowRecord.to_dict().

The file is as untrusted as any log: every field is checked for its type and range, and one that
fails is unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, cast

from twostroke import record
from twostroke.record import RequestRecord, WindowRecord
from twostroke_doctor.parsers.numbers import json_count, json_number
from twostroke_doctor.parsers.quick import quick

_MAX_TEXT = 1_000
_MAX_ENTRIES = 256
_REQUEST_KEYS = {"phases", "prompt", "output", "meter"}
_WINDOW_KEYS = {"prompt_tok_s", "output_tok_s", "running", "waiting"}
Reader = Callable[[Any], object]


def is_record(obj: dict[str, Any]) -> bool:
    """Tell whether a JSON object has the shape of a RequestRecord."""
    return obj.keys() >= _REQUEST_KEYS and isinstance(obj["phases"], dict)


def is_window(obj: dict[str, Any]) -> bool:
    """Tell whether a JSON object has the shape of a WindowRecord."""
    return obj.keys() >= _WINDOW_KEYS and isinstance(obj.get("engine"), str)


def record_from_dict(obj: dict[str, Any]) -> RequestRecord:
    """Return the record that `to_dict` wrote; unknown or ill-typed fields are left out."""
    return cast(RequestRecord, _read_request(obj))


def window_from_dict(obj: dict[str, Any]) -> WindowRecord:
    """Return the window that `to_dict` wrote; unknown or ill-typed fields are left out."""
    return cast(WindowRecord, _read_window(obj))


def _text(value: object) -> str | None:
    return value[:_MAX_TEXT] if isinstance(value, str) else None


def _entries(read: Reader, value: object) -> tuple[object, ...]:
    entries = value[:_MAX_ENTRIES] if isinstance(value, list | tuple) else ()
    return tuple(found for one in entries if (found := read(one)) is not None)


def _mapping(read: Reader, value: object) -> dict[str, object] | None:
    if not isinstance(value, dict):
        return None
    pairs = ((str(key)[:_MAX_TEXT], read(one)) for key, one in list(value.items())[:_MAX_ENTRIES])
    return {key: found for key, found in pairs if found is not None}


def _number_or_text(value: object) -> object:
    return _text(value) if isinstance(value, str) else json_number(value)


_READERS: dict[str, Reader] = {  # annotation of a field, less `| None` -> how it is read
    "int": json_count,
    "float": json_number,
    "str": _text,
    "tuple[int, ...]": lambda value: _entries(json_count, value),
    "tuple[str, ...]": lambda value: _entries(_text, value),
    "dict[str, float]": lambda value: _mapping(json_number, value),
    "dict[str, float | str]": lambda value: _mapping(_number_or_text, value),
}


def _reader_of(cls: type[Any]) -> Reader:
    """Return the reader of a record; None where the value is no JSON object."""
    make = quick(cls)
    readers = [(one.name, _READERS[str(one.type).removesuffix(" | None")]) for one in fields(cls)]

    def read(value: Any) -> object:
        if not isinstance(value, dict):
            return None
        found = {name: reads(value[name]) for name, reads in readers if name in value}
        return make(**{name: one for name, one in found.items() if one is not None})

    return read


for _part in (
    *(record.PhaseTimes, record.PromptTokens, record.OutputTokens, record.InterTokenLatency),
    *(record.CacheOutcome, record.Speculation, record.Meter),
):
    _READERS[_part.__name__] = _reader_of(_part)
_read_request, _read_window = _reader_of(RequestRecord), _reader_of(WindowRecord)
