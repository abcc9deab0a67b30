"""LM Studio: `stats` of the REST API v0 and v1, and the developer log's time stamps.

Its API gives a time to first token, not a prefill time: queueing, model load and image encoding
may be in it, so such a prefill is flagged `ttft_as_prefill` and no rate is computed from it.
"""

from __future__ import annotations

import re
from typing import Any

from twostroke_doctor.parsed import Fact, Item
from twostroke_doctor.parsers.draft import Draft
from twostroke_doctor.parsers.lines import Line
from twostroke_doctor.parsers.numbers import NUMBER, json_count, json_positive, num

ENGINE = "lm-studio"
_RUNNING = re.compile(r"Running (?:chat completion|completion)\b")
_ACCUMULATING = re.compile(r"Accumulating tokens")
_GENERATED = re.compile(r"Generated prediction:")
_PROGRESS = re.compile(rf"(?:\[([^\]\s]{{1,200}})\] )?Prompt processing progress: ({NUMBER})%")
_MAX_WAIT_S = 86_400.0


class LmStudioParser:
    """Pairs the log's stamps into a request; stamps have whole seconds."""

    engine = ENGINE
    signatures = (
        "[LM STUDIO SERVER]",
        "Accumulating tokens",
        "Generated prediction",
        "Prompt processing progress",
    )

    def __init__(self) -> None:
        self._marks: dict[str, tuple[Draft, float, float | None]] = {}
        self._progress: dict[str, Fact] = {}

    def feed(self, line: Line) -> list[Item] | None:
        """Return what a line completes, or None when it is not this engine's."""
        text = line.text
        if (match := _PROGRESS.search(text)) is not None:
            return self._take_progress(line, match)
        if _RUNNING.search(text):
            return self._start(line)
        if _ACCUMULATING.search(text):
            return self._first_token(line)
        if _GENERATED.search(text):
            return self._finish(line)
        return [] if "[LM STUDIO SERVER]" in text else None

    def flush(self) -> list[Item]:
        """Return how far the prompts came that never finished."""
        out: list[Item] = list(self._progress.values())
        self._progress.clear()
        self._marks.clear()
        return out

    def _start(self, line: Line) -> list[Item]:
        if line.t_s is None or len(self._marks) >= 64:
            return []
        draft = Draft(engine=ENGINE)
        draft.see(line)
        self._marks[line.source] = (draft, line.t_s, None)
        return []

    def _first_token(self, line: Line) -> list[Item]:
        mark = self._marks.get(line.source)
        if mark is not None and line.t_s is not None and mark[2] is None:
            mark[0].see(line)
            self._marks[line.source] = (mark[0], mark[1], line.t_s)
        return []

    def _finish(self, line: Line) -> list[Item]:
        mark = self._marks.pop(line.source, None)
        if mark is None or line.t_s is None:
            return []
        draft, start, first = mark
        draft.see(line)
        total = line.t_s - start
        if not 0 <= total <= _MAX_WAIT_S:
            return []
        draft.e2e_s = total
        draft.flag("time_derived")
        if first is not None and start <= first <= line.t_s:
            draft.prefill_s, draft.decode_s = first - start, line.t_s - first
            draft.ttft_any_s = draft.prefill_s
            draft.flag("ttft_as_prefill")
        return [draft.build()]

    def _take_progress(self, line: Line, match: re.Match[str]) -> list[Item]:
        percent = num(match.group(2))
        if percent is None or percent > 100:
            return []
        if percent == 100:
            self._progress.pop(line.source, None)
            return []
        out: list[Item] = []
        if len(self._progress) >= 64:
            out = list(self._progress.values())
            self._progress.clear()
        self._progress[line.source] = Fact(
            name="prefill_progress",
            value=percent / 100,
            engine=ENGINE,
            label=match.group(1),
            file=line.file,
            line=line.number,
        )
        return out


def is_stats(stats: dict[str, Any]) -> bool:
    """Tell whether a JSON `stats` object is LM Studio's, of either version."""
    return "tokens_per_second" in stats and (
        "time_to_first_token" in stats or "time_to_first_token_seconds" in stats
    )


def draft_from_stats(stats: dict[str, Any], usage: dict[str, Any]) -> Draft:
    """Return a draft from `stats`; v1 holds the counts itself, v0 leaves them in `usage`."""
    draft = Draft(engine=ENGINE)
    rate = json_positive(stats.get("tokens_per_second"))
    v1 = "time_to_first_token_seconds" in stats
    first = json_positive(stats.get("time_to_first_token_seconds" if v1 else "time_to_first_token"))
    if v1:
        draft.prompt_total = json_count(stats.get("input_tokens"))
        draft.output = json_count(stats.get("total_output_tokens"))
        draft.output_reasoning = json_count(stats.get("reasoning_output_tokens"))
        draft.load_s = json_positive(stats.get("model_load_time_seconds"))
        if draft.output and rate:
            draft.decode_s = draft.output / rate
            draft.flag("time_derived")
        draft.report_value("decode_tok_s", rate, None, None)
    else:
        draft.prompt_total = json_count(usage.get("prompt_tokens"))
        draft.output = json_count(usage.get("completion_tokens"))
        draft.decode_s = json_positive(stats.get("generation_time"))
        draft.report_value("decode_tok_s", rate, draft.output, draft.decode_s)
    if first is not None:
        draft.ttft_any_s = draft.prefill_s = first
        draft.flag("ttft_as_prefill")
    reason = stats.get("stop_reason")
    draft.finish = reason[:40] if isinstance(reason, str) else None
    return draft
