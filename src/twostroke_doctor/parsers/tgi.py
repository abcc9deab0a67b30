"""Text Generation Inference: the span of a finished request, as text, and its headers.

It logs no token count: tokens are the inference time over the time per token. That time holds the
prefill, so the phases cannot be told apart from one line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from twostroke_doctor.parsed import Item
from twostroke_doctor.parsers.draft import Draft
from twostroke_doctor.parsers.formats import LineFormat, Then
from twostroke_doctor.parsers.lines import Line
from twostroke_doctor.parsers.numbers import duration
from twostroke_doctor.parsers.table import TableParser

_SPAN_KEYS = ("total_time", "validation_time", "queue_time", "inference_time", "time_per_token")
_FIELD = re.compile(rf"\b({'|'.join(_SPAN_KEYS)})=\"([^\"\s]{{1,40}})\"")
_MAX_COUNT_ERROR = 0.05  # printed times are exact: a quotient not this near to a whole is no count


def fill_span(draft: Draft, fields: Mapping[str, Any]) -> None:
    """Set a request's times from the span's fields, durations as text."""
    total, validation, queue, inference, per_token = (
        duration(value) if isinstance(value, str) else None
        for value in (fields.get(key) for key in _SPAN_KEYS)
    )
    draft.e2e_s, draft.init_s, draft.queue_s = total, validation, queue
    if inference and per_token:
        tokens = inference / per_token
        if abs(tokens - round(tokens)) <= _MAX_COUNT_ERROR * max(1.0, tokens / 20):
            draft.output = round(tokens)
            draft.flag("count_derived")
    if per_token:
        draft.reported["e2e_tok_s"] = 1 / per_token
    draft.flag("prefill_mixed_in")


def _take_rate(draft: Draft, match: re.Match[str]) -> None:
    if per_token_ms := int(match["per_token_ms"]):
        draft.reported["e2e_tok_s"] = 1000 / per_token_ms


def _header(name: str, place: str, then: Then | None = None, opens: str = "") -> LineFormat:
    pattern = rf"(?i)\b`x-{name}`:\s{{0,8}}{place}(?=\s|$)"
    return LineFormat(pattern, then, opens=(opens,) if opens else (), joins=not opens)


class TgiParser(TableParser):
    """One span, one record; headers are gathered until the total time repeats."""

    engine = "tgi"
    words = ("inference_time", "time_per_token")
    formats = (
        _header("compute-time", r"\d{1,15}", opens="e2e_s"),
        _header("compute-characters", r"\d{1,15}", opens="e2e_s"),
        _header("total-time", "{e2e_s:whole_ms}", opens="e2e_s"),
        _header("validation-time", "{init_s:whole_ms}", opens="init_s"),
        _header("queue-time", "{queue_s:whole_ms}", opens="queue_s"),
        _header("inference-time", r"\d{1,15}"),
        _header("time-per-token", r"(?P<per_token_ms>\d{1,15})", _take_rate),
        _header("prompt-tokens", "{prompt_total:int}", opens="prompt_total"),
        _header("generated-tokens", "{output:int}", opens="output"),
    )

    def feed(self, line: Line) -> list[Item] | None:
        """Return the items that a line completes, or None when it is not this engine's."""
        fields = dict(_FIELD.findall(line.text))
        if not fields:
            return super().feed(line)
        draft = Draft(engine=self.engine)
        fill_span(draft, fields)
        draft.see(line)
        return [draft.build()]

    def finish(self, draft: Draft) -> list[Item]:
        """Return a response's record, where its headers told a total."""
        draft.flag("prefill_mixed_in")
        return [draft.build()] if draft.e2e_s is not None or draft.output is not None else []
