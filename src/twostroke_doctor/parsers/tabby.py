"""TabbyAPI and exllama: `Metrics` lines old and new, and progress lines.

The old line gives one process rate over the whole context, cached part included, so its prompt
count is the total and no prefill rate is computed from it.
"""

from __future__ import annotations

import re

from twostroke_doctor.parsed import Item
from twostroke_doctor.parsers.draft import Draft
from twostroke_doctor.parsers.formats import LineFormat
from twostroke_doctor.parsers.lines import Line
from twostroke_doctor.parsers.numbers import half_digit, is_cached_rate
from twostroke_doctor.parsers.table import TableParser

_METRICS = (
    r"Metrics(?: \(ID: (?P<id>\w{1,64})\))?:\s{1,8}{output:int} `tokens generated in`"
    r" {e2e_s:positive} seconds\s{1,8}\(Queue: {queue_s:num} s, Process: PROCESS ?T/s,"
    r" Generate: {decode_tok_s:num} T/s, Context: {ctx_end:int} tokens"
    r"(?:, Draft: {accepted:int} / {drafted:int} tokens accepted)?"
    r"(?:.*?(?P<cut>Not accurate \(truncated\)))?"
)
_SPLIT = "{prompt_cached:int} cached tokens and {prompt_new:int} new tokens at {prefill_tok_s:num}"
_PROGRESS = (
    r"`Generation progress` \(ID: (?P<id>\w{1,64})\): {output:int} tokens in {e2e_s:positive}"
    r" seconds \(Stage: (?P<stage>\w{1,20}), Generate: {decode_tok_s:num} T/s,"
    r" No activity: {:num} s\)"
)


def _settle(draft: Draft, match: re.Match[str]) -> None:
    """Derive the times that a Metrics line leaves to its rates."""
    context, output = draft.ctx_end or 0, draft.output or 0
    draft.ctx_end = context + output
    draft.derive_decode()
    rate = draft.reported.get("prefill_tok_s")
    if draft.prompt_new is not None:
        draft.prompt_total = (draft.prompt_cached or 0) + draft.prompt_new
        computed = draft.prompt_new
    else:
        draft.prompt_total = computed = context
        if rate:
            cached = "counted_as_prompt" if is_cached_rate(rate) else "may_be_counted"
            draft.flag("cached_" + cached)
    if rate and draft.prompt_new != 0:
        draft.prefill_s = computed / rate or None
        draft.flag("time_derived")
    _check_sum(draft, match["e2e_s"])
    if match["cut"]:
        draft.flag("truncated")
    if output == 0:
        draft.flag("no_output")


def _check_sum(draft: Draft, total_text: str | None) -> None:
    """Flag derived times that do not add up to the printed total."""
    queue, prefill, decode = draft.queue_s, draft.prefill_s, draft.decode_s
    if draft.e2e_s and total_text and None not in (queue, prefill, decode):
        rest = draft.e2e_s - (queue or 0) - (prefill or 0) - (decode or 0)
        if abs(rest) > max(0.02 * draft.e2e_s, 4 * half_digit(total_text)):
            draft.flag("meter_inconsistent")


def _take_progress(draft: Draft, match: re.Match[str]) -> None:
    if match["stage"] == "prefill":
        draft.prefill_s = draft.e2e_s


class TabbyParser(TableParser):
    """One line, one request; progress lines stand for a request until its metrics come."""

    engine = "tabbyapi"
    formats = (
        LineFormat(_METRICS.replace("PROCESS", _SPLIT), _settle, closes=True),
        LineFormat(_METRICS.replace("PROCESS", "{prefill_tok_s:num}"), _settle, closes=True),
        LineFormat(_PROGRESS, _take_progress, flags=("partial",)),
    )

    def key(self, line: Line, match: re.Match[str]) -> object:
        """Return the request's id."""
        return match["id"] or ""

    def take(self, form: LineFormat, match: re.Match[str], line: Line, out: list[Item]) -> None:
        """Let a Metrics line replace the progress lines of its request."""
        if form.closes:
            self._drafts.pop(self.key(line, match), None)
        super().take(form, match, line, out)
