"""JSON in a log: replies, stream chunks and our own records, told apart by their keys.

One reply gives one record. The chunks of a stream share an id: their last usage and timings
count, and a chunk is never taken for a token.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

from twostroke.dataclass import dataclass
from twostroke_doctor.parsed import Item
from twostroke_doctor.parsers import own
from twostroke_doctor.parsers.draft import Draft
from twostroke_doctor.parsers.items import fact_at
from twostroke_doctor.parsers.json_meters import LLAMA_SERVER, draft_of
from twostroke_doctor.parsers.lines import Line, load_json
from twostroke_doctor.parsers.numbers import json_count
from twostroke_doctor.parsers.table import MAX_OPEN, TableParser

_MAX_ITEMS = 100_000  # records in one document
_MAX_STREAM_LINES = 16
_PARTS = ("usage", "timings", "stats", "metrics")


@dataclass(slots=True)
class _Stream:
    """The parts of a reply that the chunks of one stream have given so far."""

    id: str
    line: Line
    lines: list[int]
    parts: dict[str, Any] = field(default_factory=dict)


class JsonParser(TableParser):
    """Reads any line that holds a JSON object; one open stream a source."""

    engine = "json"

    def __init__(self) -> None:
        super().__init__()
        self._streams: dict[str, _Stream] = {}

    def feed(self, line: Line) -> list[Item] | None:
        """Return the items that a line completes, or None when it holds no JSON that we know."""
        start = line.text.find("{") if not line.text.startswith("[") else 0
        if start < 0:
            return None
        value = load_json(line.text[start:].rstrip())
        return None if value is None else self.read(value, line)

    def read(self, value: Any, line: Line) -> list[Item] | None:
        """Return the items of one JSON value."""
        if isinstance(value, dict):
            return self._object(value, line)
        if not isinstance(value, list):
            return None
        out: list[Item] = []
        for one in value[:_MAX_ITEMS]:
            if isinstance(one, dict):
                out += self._object(one, line) or []
        return out or None

    def flush(self) -> list[Item]:
        """Return the streams that are open."""
        streams = list(self._streams.values())
        self._streams.clear()
        return [item for stream in streams for item in _close(stream)]

    def _object(self, obj: dict[str, Any], line: Line) -> list[Item] | None:
        if isinstance(obj.get("records"), list):
            return self.read(obj["records"], line)
        if own.is_record(obj):
            return [own.record_from_dict(obj)]
        if own.is_window(obj):
            return [own.window_from_dict(obj)]
        for key in ("response", "result", "message", "data"):  # where APIs wrap the same reply
            inner = obj.get(key)
            if isinstance(inner, dict) and any(isinstance(inner.get(p), dict) for p in _PARTS):
                obj = {**obj, **{p: inner[p] for p in _PARTS if isinstance(inner.get(p), dict)}}
        if _is_chunk(obj) or obj.get("type") == "message_start":
            return self._chunk(obj, line)
        if obj.get("type") == "message_delta" and line.source in self._streams:
            return self._more_usage(obj, line)
        if obj.get("stop") is False and "content" in obj:
            return []  # a native chunk with running timings: the last one counts
        draft = draft_of(obj)
        if draft is None:
            return _progress(obj, line)
        draft.see(line)
        _take_names(draft, obj)
        return [draft.build()]

    def _more_usage(self, obj: dict[str, Any], line: Line) -> list[Item]:
        """Add the counts of a later event: the first one's output count was only a beginning."""
        stream = self._streams[line.source]
        usage = obj.get("usage")
        if isinstance(usage, dict):
            stream.parts["usage"] = {**stream.parts.get("usage", {}), **usage}
            stream.lines.append(line.number)
            del stream.lines[_MAX_STREAM_LINES:]
        return []

    def _chunk(self, obj: dict[str, Any], line: Line) -> list[Item]:
        message = obj.get("message")
        starts = isinstance(message, dict)
        name = str((message if isinstance(message, dict) else obj).get("id"))[:128]
        stream = self._streams.get(line.source)
        out: list[Item] = []
        if stream is None or stream.id != name or starts:
            if stream is not None:
                out = _close(stream)
            if len(self._streams) >= MAX_OPEN:
                out += self.flush()
            stream = self._streams[line.source] = _Stream(name, line, [])
        if isinstance(obj.get("model"), str):
            stream.parts["model"] = obj["model"]
        for part in _PARTS:
            if isinstance(obj.get(part), dict):
                stream.parts[part] = obj[part]
                stream.lines = [line.number]
        return out + (_progress(obj, line) or [])


def _is_chunk(obj: dict[str, Any]) -> bool:
    kind = obj.get("object")
    return isinstance(kind, str) and kind.endswith(".chunk")


def _close(stream: _Stream) -> list[Item]:
    draft = draft_of(stream.parts)
    if draft is None:
        return []
    draft.see(stream.line)
    draft.lines = stream.lines or draft.lines
    _take_names(draft, {**stream.parts, "id": stream.id})
    return [draft.build()]


def _take_names(draft: Draft, obj: dict[str, Any]) -> None:
    if isinstance(obj.get("id"), str):
        draft.id = obj["id"][:128]
    if isinstance(obj.get("model"), str):
        draft.model = obj["model"][:200]


def _progress(obj: dict[str, Any], line: Line) -> list[Item] | None:
    """Read llama-server's `prompt_progress`, less the part that came from the cache."""
    progress = obj.get("prompt_progress")
    if not isinstance(progress, dict):
        return None
    total, cached, done = (json_count(progress.get(k)) for k in ("total", "cache", "processed"))
    if total is None or cached is None or done is None or not cached <= done <= total > cached:
        return None
    share = (done - cached) / (total - cached)
    return [fact_at(line, LLAMA_SERVER.engine, "prefill_progress", share)]
