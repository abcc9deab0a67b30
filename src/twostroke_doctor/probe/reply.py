"""The moments of one streamed reply and the server's figures of it; its text is not kept."""

from __future__ import annotations

import json
from dataclasses import field
from typing import Any

from twostroke.dataclass import dataclass
from twostroke_doctor.parsers.openai_usage import chunk_kind

_OF_THE_REQUEST = ("usage", "timings", "error", "model")
_TEXT_KINDS = ("content", "reasoning", "tool")
_MAX_NAME = 300


@dataclass(slots=True, kw_only=True)
class TimedReply:
    """Moments of one reply, in seconds after sending began, and the server's own figures.

    finish_s: of the chunk that says why the reply ended; the first token may end it without text.
    """

    started_s: float
    first_empty_s: float | None = None
    first_text_s: float | None = None
    first_visible_s: float | None = None
    last_text_s: float | None = None
    finish_s: float | None = None
    end_s: float = 0.0
    num_text_chunks: int = 0
    gaps: list[float] = field(default_factory=list)
    final: dict[str, Any] = field(default_factory=dict)

    def take(self, chunk: Any, now: float) -> None:
        """Note the moment of a chunk, and the figures of the request in it."""
        if not isinstance(chunk, dict):
            return
        self.final |= {part: chunk[part] for part in _OF_THE_REQUEST if chunk.get(part)}
        if chunk.get("done"):
            self.final["ollama"] = chunk
        kind = _ollama_kind(chunk) if "done" in chunk else chunk_kind(chunk)
        if self.finish_s is None and _is_finish(chunk):
            self.finish_s = now
        if kind == "empty" and self.first_text_s is None and self.first_empty_s is None:
            self.first_empty_s = now
        if kind in _TEXT_KINDS:
            self._take_text(now, is_visible=kind != "reasoning")

    def _take_text(self, now: float, *, is_visible: bool) -> None:
        self.num_text_chunks += 1
        if self.first_text_s is None:
            self.first_text_s = now
        if self.last_text_s is not None:
            self.gaps.append(now - self.last_text_s)
        if is_visible and self.first_visible_s is None:
            self.first_visible_s = now
        self.last_text_s = now


def _ollama_kind(chunk: dict[str, Any]) -> str:
    if chunk.get("thinking"):
        return "reasoning"
    return "content" if chunk.get("response") else "empty"


def _is_finish(chunk: dict[str, Any]) -> bool:
    """Whether a chunk says why the reply ended."""
    choices = chunk.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return bool(chunk.get("done")) or (isinstance(first, dict) and bool(first.get("finish_reason")))


def first_model(body: bytes | None) -> str | None:
    """Return the first model that /v1/models or /api/tags lists."""
    try:
        listed = json.loads(body or b"")
    except ValueError:
        return None
    entries = listed.get("data") or listed.get("models") if isinstance(listed, dict) else None
    if not isinstance(entries, list) or not entries or not isinstance(entries[0], dict):
        return None
    name = entries[0].get("id") or entries[0].get("name")
    return name[:_MAX_NAME] if isinstance(name, str) else None
