"""JSON in a log: replies, stream chunks and our own records, told apart by their keys.

One reply gives one record. The chunks of a stream share an id: their last usage and timings
count, and a chunk is never taken for a token.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

from twostroke.dataclass import dataclass
from twostroke_doctor.parsed import Fact, Item
from twostroke_doctor.parsers import (
    koboldcpp,
    llama_server,
    lm_studio,
    ollama,
    openai_usage,
    own,
    tabby,
    tgi,
    vllm,
)
from twostroke_doctor.parsers.draft import Draft
from twostroke_doctor.parsers.lines import Line, load_json
from twostroke_doctor.parsers.numbers import json_count

_MAX_ITEMS = 100_000  # records in one document
_MAX_STREAM_LINES = 16
_PARTS = ("usage", "timings", "stats", "metrics")


@dataclass(slots=True)
class _Stream:
    """What the chunks of one stream have said so far."""

    id: str
    line: Line
    lines: list[int]
    parts: dict[str, Any] = field(default_factory=dict)


class JsonParser:
    """Reads any line that holds a JSON object; one open stream a source."""

    engine = "json"
    signatures: tuple[str, ...] = ()

    def __init__(self) -> None:
        self._streams: dict[str, _Stream] = {}

    def feed(self, line: Line) -> list[Item] | None:
        """Return what a line completes, or None when it holds no JSON that we know."""
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
        draft = _draft(obj)
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
            if len(self._streams) >= 64:
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
    draft = _draft(stream.parts)
    if draft is None:
        return []
    draft.see(stream.line)
    draft.lines = stream.lines or draft.lines
    _take_names(draft, {**stream.parts, "id": stream.id})
    return [draft.build()]


def _draft(obj: dict[str, Any]) -> Draft | None:
    """Return a draft by the first shape that the keys fit, engines' own meters first."""
    parts = {name: obj[name] for name in _PARTS if isinstance(obj.get(name), dict)}
    usage = parts.get("usage", {})
    draft = _metered(obj, parts, usage)
    if draft is None and tabby.is_usage(usage):
        draft = tabby.draft_from_usage(usage)
    elif draft is None and openai_usage.is_usage(usage):
        draft = openai_usage.draft_from_usage(usage)
    elif draft is not None:
        openai_usage.add_usage(draft, usage)
    return draft


def _metered(
    obj: dict[str, Any], parts: dict[str, dict[str, Any]], usage: dict[str, Any]
) -> Draft | None:
    timings = parts.get("timings", obj)
    if llama_server.is_timings(timings):
        return llama_server.draft_from_timings(timings)
    if ollama.is_reply(obj):
        return ollama.draft_from_reply(obj)
    if lm_studio.is_stats(parts.get("stats", {})):
        return lm_studio.draft_from_stats(parts["stats"], usage)
    if vllm.has_request_metrics(parts.get("metrics", {})):
        output = json_count(usage.get("completion_tokens"))
        return vllm.draft_from_metrics(parts["metrics"], output)
    if koboldcpp.is_perf(obj):
        return koboldcpp.draft_from_perf(obj)
    span = obj.get("span")
    span = span if isinstance(span, dict) else obj
    if "inference_time" in span and "total_time" in span:
        return tgi.draft_from_span({key: span.get(key) for key in tgi.SPAN_KEYS})
    return None


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
    if total is None or cached is None or done is None or not cached <= done <= total:
        return None
    if total == cached:
        return None
    share = (done - cached) / (total - cached)
    fact = Fact(
        name="prefill_progress",
        value=share,
        engine=llama_server.ENGINE,
        file=line.file,
        line=line.number,
    )
    return [fact]
