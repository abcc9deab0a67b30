"""Text Generation Inference: the span of a finished request, as text, as JSON, as headers.

It logs no token count: tokens are the inference time over the time per token. That time holds the
prefill, so the phases cannot be told apart from one line.
"""

from __future__ import annotations

import re
from typing import Any

from twostroke_doctor.parsed import Item
from twostroke_doctor.parsers.draft import Draft, Sources
from twostroke_doctor.parsers.lines import Line
from twostroke_doctor.parsers.numbers import duration, whole

ENGINE = "tgi"
_FIELD = re.compile(
    r"\b(total_time|validation_time|queue_time|inference_time|time_per_token)=\"([^\"\s]{1,40})\""
)
_HEADER = re.compile(
    r"\b(x-total-time|x-validation-time|x-queue-time|x-inference-time|x-time-per-token"
    r"|x-prompt-tokens|x-generated-tokens|x-compute-time|x-compute-characters):\s{0,8}"
    r"(\d{1,15})(?=\s|$)",
    re.IGNORECASE,
)
SPAN_KEYS = ("total_time", "validation_time", "queue_time", "inference_time", "time_per_token")
_MAX_COUNT_ERROR = (
    0.05  # printed times are exact: a quotient further from a whole number is no count
)


class TgiParser:
    """One span, one record; headers are gathered until they repeat."""

    engine = ENGINE
    signatures = (
        "inference_time",
        "time_per_token",
        "x-total-time",
        "x-validation-time",
        "x-queue-time",
        "x-inference-time",
        "x-time-per-token",
        "x-prompt-tokens",
        "x-generated-tokens",
        "x-compute-",
    )

    def __init__(self) -> None:
        self._headers: dict[str, dict[str, int]] = {}
        self._drafts = Sources()

    def feed(self, line: Line) -> list[Item] | None:
        """Return what a line completes, or None when it is not this engine's."""
        fields = dict(_FIELD.findall(line.text))
        if fields:
            draft = draft_from_span(fields)
            draft.see(line)
            return [draft.build()]
        headers = _HEADER.findall(line.text)
        return self._header(line, headers) if headers else None

    def flush(self) -> list[Item]:
        """Return the responses whose headers are open."""
        return [record for draft in self._drafts.drain() for record in self._finish(draft)]

    def _header(self, line: Line, headers: list[tuple[str, str]]) -> list[Item]:
        out: list[Item] = []
        for name, text in headers:
            key, value = name.lower(), whole(text)
            known = self._headers.get(line.source, {})
            if key in known or self._drafts.get(line.source) is None:
                draft = Draft(engine=ENGINE)
                draft.id = line.source
                closed = self._drafts.put(line.source, draft)
                out += [record for old in closed for record in self._finish(old)]
                self._headers[line.source] = {}
            open_draft = self._drafts.get(line.source)
            if open_draft is not None and value is not None:
                open_draft.see(line)
                self._headers[line.source][key] = value
        return out

    def _finish(self, draft: Draft) -> list[Item]:
        headers = self._headers.pop(draft.id, {})
        draft.id = ""
        _fill_from_headers(draft, headers)
        return [draft.build()] if draft.e2e_s is not None or draft.output is not None else []


def draft_from_span(fields: dict[str, Any]) -> Draft:
    """Return a draft from the span's fields, durations as text."""
    draft = Draft(engine=ENGINE)
    times = {key: duration(value) for key, value in fields.items() if isinstance(value, str)}
    draft.e2e_s = times.get("total_time")
    draft.init_s = times.get("validation_time")
    draft.queue_s = times.get("queue_time")
    inference, per_token = times.get("inference_time"), times.get("time_per_token")
    if inference and per_token:
        tokens = inference / per_token
        if abs(tokens - round(tokens)) <= _MAX_COUNT_ERROR * max(1.0, tokens / 20):
            draft.output = round(tokens)
            draft.flag("count_derived")
    if per_token:
        draft.reported["e2e_tok_s"] = 1 / per_token
    draft.flag("prefill_mixed_in")
    return draft


def _fill_from_headers(draft: Draft, headers: dict[str, int]) -> None:
    def seconds(name: str) -> float | None:
        return headers[name] / 1000 if name in headers else None

    draft.e2e_s = seconds("x-total-time")
    draft.init_s = seconds("x-validation-time")
    draft.queue_s = seconds("x-queue-time")
    draft.prompt_total = headers.get("x-prompt-tokens")
    draft.output = headers.get("x-generated-tokens")
    per_token = seconds("x-time-per-token")
    if per_token:
        draft.reported["e2e_tok_s"] = 1 / per_token
    draft.flag("prefill_mixed_in")
