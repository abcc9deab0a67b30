"""TabbyAPI and exllama: `Metrics` lines old and new, progress lines, and rates inside JSON usage.

The old line gives one process rate over the whole context, cached part included, so its prompt
count is the total and no prefill rate is computed from it.
"""

from __future__ import annotations

import re
from typing import Any

from twostroke_doctor.parsed import Item
from twostroke_doctor.parsers.draft import Draft
from twostroke_doctor.parsers.lines import Line
from twostroke_doctor.parsers.numbers import (
    NUMBER,
    json_count,
    json_number,
    json_positive,
    num,
    positive,
    ulp,
    whole,
)

ENGINE = "tabbyapi"
IMPLAUSIBLE_PREFILL_TOK_S = 50_000.0  # above any single GPU: cached tokens were counted
_METRICS = re.compile(
    r"Metrics(?: \(ID: (\w{1,64})\))?:\s{1,8}(\d{1,12}) tokens generated in"
    rf" ({NUMBER}) seconds"
    rf"\s{{1,8}}\(Queue: ({NUMBER}) s, Process: (.{{1,120}}?) ?T/s, Generate: ({NUMBER}) T/s,"
    rf" Context: (\d{{1,12}}) tokens(?:, Draft: (\d{{1,12}}) / (\d{{1,12}}) tokens accepted)?"
)
_SPLIT = re.compile(rf"(\d{{1,12}}) cached tokens and (\d{{1,12}}) new tokens at ({NUMBER})")
_RATE = re.compile(NUMBER)
_PROGRESS = re.compile(
    rf"Generation progress \(ID: (\w{{1,64}})\): (\d{{1,12}}) tokens in ({NUMBER}) seconds"
    rf" \(Stage: (\w{{1,20}}), Generate: ({NUMBER}) T/s, No activity: ({NUMBER}) s\)"
)


class TabbyParser:
    """One line, one request; progress lines stand for a request until its metrics come."""

    engine = ENGINE
    signatures = ("tokens generated in", "Generation progress")

    def __init__(self) -> None:
        self._open: dict[str, Draft] = {}

    def feed(self, line: Line) -> list[Item] | None:
        """Return what a line completes, or None when it is not this engine's."""
        match = _METRICS.search(line.text)
        if match is not None:
            process = match.group(5).strip()
            if _SPLIT.fullmatch(process) is None and _RATE.fullmatch(process) is None:
                return None
            self._open.pop(match.group(1) or "", None)
            return [_request(line, match).build()]
        match = _PROGRESS.search(line.text)
        return None if match is None else self._progress(line, match)

    def flush(self) -> list[Item]:
        """Return the requests whose metrics never came."""
        out: list[Item] = [draft.build() for draft in self._open.values()]
        self._open.clear()
        return out

    def _progress(self, line: Line, match: re.Match[str]) -> list[Item]:
        out: list[Item] = self.flush() if len(self._open) >= 64 else []
        name = match.group(1)
        draft = self._open.setdefault(name, Draft(engine=ENGINE, id=name))
        draft.see(line)
        draft.flag("partial")
        draft.output = int(match.group(2))
        draft.e2e_s = positive(match.group(3))
        if match.group(4) == "prefill":
            draft.prefill_s = draft.e2e_s
        draft.report("decode_tok_s", match.group(5))
        return out


def _request(line: Line, match: re.Match[str]) -> Draft:
    name, count, total, queue, process, generate, context, accepted, drafted = match.groups()
    draft = Draft(engine=ENGINE, id=name or "")
    draft.see(line)
    draft.output = int(count)
    draft.e2e_s = positive(total)
    draft.queue_s = num(queue)
    draft.prompt_total = int(context)
    draft.ctx_end = draft.prompt_total + draft.output
    draft.accepted, draft.drafted = whole(accepted), whole(drafted)
    _take_decode(draft, generate)
    split = _SPLIT.fullmatch(process.strip())
    if split is not None:
        _take_split(draft, split)
    else:
        _take_process(draft, process.strip())
    _check_sum(draft, total)
    if "Not accurate (truncated)" in line.text[match.end() :]:
        draft.flag("truncated")
    if draft.output == 0:
        draft.flag("no_output")
    return draft


def _take_decode(draft: Draft, rate_text: str) -> None:
    rate = positive(rate_text)
    draft.report("decode_tok_s", rate_text)
    if rate is not None and draft.output:
        draft.decode_s = draft.output / rate
        draft.flag("time_derived")


def _take_split(draft: Draft, split: re.Match[str]) -> None:
    draft.prompt_cached, draft.prompt_new = int(split.group(1)), int(split.group(2))
    rate = positive(split.group(3))
    draft.report("prefill_tok_s", split.group(3))
    if rate is not None and draft.prompt_new:
        draft.prefill_s = draft.prompt_new / rate
        draft.flag("time_derived")
    if draft.prompt_total != draft.prompt_cached + draft.prompt_new:
        draft.prompt_total = draft.prompt_cached + draft.prompt_new


def _take_process(draft: Draft, rate_text: str) -> None:
    rate = positive(rate_text)
    draft.report("prefill_tok_s", rate_text)
    if rate is None or draft.prompt_total is None:
        return
    if rate > IMPLAUSIBLE_PREFILL_TOK_S:
        draft.flag("cached_counted_as_prompt")
    else:
        draft.flag("cached_may_be_counted")
    draft.prefill_s = draft.prompt_total / rate or None
    draft.flag("time_derived")


def _check_sum(draft: Draft, total_text: str) -> None:
    """Flag derived times that do not add up to the printed total."""
    parts = [draft.queue_s, draft.prefill_s, draft.decode_s]
    if draft.e2e_s is None or any(part is None for part in parts):
        return
    whole_s = sum(part for part in parts if part is not None)
    if abs(whole_s - draft.e2e_s) > max(0.02 * draft.e2e_s, 2 * ulp(total_text)):
        draft.flag("meter_inconsistent")


def is_usage(usage: dict[str, Any]) -> bool:
    """Tell whether a JSON `usage` carries TabbyAPI's rates."""
    return "completion_tokens_per_sec" in usage or "prompt_tokens_per_sec" in usage


def draft_from_usage(usage: dict[str, Any]) -> Draft:
    """Return a draft from JSON usage; a rate may be the text Indeterminate."""
    draft = Draft(engine=ENGINE)
    draft.prompt_total = json_count(usage.get("prompt_tokens"))
    draft.output = json_count(usage.get("completion_tokens"))
    draft.prefill_s = json_positive(usage.get("prompt_time"))
    draft.decode_s = json_positive(usage.get("completion_time"))
    draft.e2e_s = json_positive(usage.get("total_time"))
    details = usage.get("prompt_tokens_details")
    if isinstance(details, dict):
        draft.prompt_cached = json_count(details.get("cached_tokens"))
    rate = json_number(usage.get("prompt_tokens_per_sec"))
    if rate and draft.prefill_s and draft.prompt_cached is None:
        new = round(rate * draft.prefill_s)  # the rate is of new tokens only
        if draft.prompt_total is not None and 0 < new <= draft.prompt_total:
            draft.prompt_new = new
            draft.flag("count_derived")
    draft.complete_prompt()
    draft.report_value("prefill_tok_s", rate, draft.prompt_new, draft.prefill_s)
    decode_rate = json_number(usage.get("completion_tokens_per_sec"))
    draft.report_value("decode_tok_s", decode_rate, draft.output, draft.decode_s)
    return draft
