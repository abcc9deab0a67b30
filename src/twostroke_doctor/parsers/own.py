"""Our own records: JSON lines of RequestRecord.to_dict() and WindowRecord.to_dict().

The file is as untrusted as any log: every field is checked for its type and range, and one that
fails is unknown.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

from twostroke import record
from twostroke.record import RequestRecord, WindowRecord
from twostroke_doctor.parsers.numbers import json_count, json_number

_MAX_TEXT = 1_000
_MAX_ENTRIES = 256
_NESTED: dict[str, type[Any]] = {
    cls.__name__: cls
    for cls in (
        record.PhaseTimes,
        record.PromptTokens,
        record.OutputTokens,
        record.InterTokenLatency,
        record.CacheOutcome,
        record.Speculation,
        record.Meter,
    )
}
_KINDS = {
    cls.__name__: tuple((field.name, str(field.type)) for field in fields(cls))
    for cls in (*_NESTED.values(), RequestRecord, WindowRecord)
}
_REQUEST_KEYS = {"phases", "prompt", "output", "meter"}
_WINDOW_KEYS = {"prompt_tok_s", "output_tok_s", "running", "waiting"}
_Made = TypeVar("_Made")


def is_record(obj: dict[str, Any]) -> bool:
    """Tell whether a JSON object has the shape of a RequestRecord."""
    return obj.keys() >= _REQUEST_KEYS and isinstance(obj["phases"], dict)


def is_window(obj: dict[str, Any]) -> bool:
    """Tell whether a JSON object has the shape of a WindowRecord."""
    return obj.keys() >= _WINDOW_KEYS and isinstance(obj.get("engine"), str)


def record_from_dict(obj: dict[str, Any]) -> RequestRecord:
    """Return the record that `to_dict` wrote; unknown or ill-typed fields are left out."""
    return _make(RequestRecord, obj)


def window_from_dict(obj: dict[str, Any]) -> WindowRecord:
    """Return the window that `to_dict` wrote; unknown or ill-typed fields are left out."""
    return _make(WindowRecord, {**obj, "engine": _text(obj.get("engine")) or "unknown"})


def _make(cls: type[_Made], obj: dict[str, Any]) -> _Made:
    found = {}
    for name, kind in _KINDS[cls.__name__]:
        value = _read(kind, obj.get(name))
        if value is not None:
            found[name] = value
    return cls(**found)


def _read(kind: str, value: object) -> object:
    """Return a value of the annotated type, or None to keep the field's default."""
    if value is None:
        return None
    if kind in _NESTED:
        return _make(_NESTED[kind], value) if isinstance(value, dict) else None
    if kind.startswith("float"):
        return json_number(value)
    if kind.startswith("int"):
        return json_count(value)
    if kind.startswith("str"):
        return _text(value)
    if kind.startswith("tuple[int"):
        counts = [json_count(one) for one in _entries(value)]
        return tuple(one for one in counts if one is not None)
    if kind.startswith("tuple[str"):
        return tuple(one[:_MAX_TEXT] for one in _entries(value) if isinstance(one, str))
    return _mapping(kind, value)


def _entries(value: object) -> list[object]:
    return list(value[:_MAX_ENTRIES]) if isinstance(value, list | tuple) else []


def _mapping(kind: str, value: object) -> dict[str, float | str] | None:
    if not kind.startswith("dict[str") or not isinstance(value, dict):
        return None
    texts = "str]" in kind.removeprefix("dict[str")
    out: dict[str, float | str] = {}
    for key, one in list(value.items())[:_MAX_ENTRIES]:
        number = json_number(one)
        if number is not None:
            out[str(key)[:_MAX_TEXT]] = number
        elif texts and isinstance(one, str):
            out[str(key)[:_MAX_TEXT]] = one[:_MAX_TEXT]
    return out


def _text(value: object) -> str | None:
    return value[:_MAX_TEXT] if isinstance(value, str) else None
