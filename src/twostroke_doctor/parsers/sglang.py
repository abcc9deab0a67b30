"""SGLang: a line a batch in its old and new forms, and per-request time statistics.

Batch lines are windows: `gen throughput` is an average since the last one, and `input throughput`
is the previous prefill over the gap since it, idle time included. Keys are read by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from twostroke_doctor.parsed import Item
from twostroke_doctor.parsers.draft import Draft
from twostroke_doctor.parsers.formats import ALWAYS, LineFormat, line_formats
from twostroke_doctor.parsers.items import sort_pairs, window_at
from twostroke_doctor.parsers.lines import Line
from twostroke_doctor.parsers.numbers import num
from twostroke_doctor.parsers.table import TableParser

_BATCH = re.compile(r"\b(Prefill|Decode) batch([.,]| \[\d{1,12}\][.,]?) ?(.*)", re.DOTALL)
_PAIR = re.compile(r"^\s?(#?[A-Za-z][\w \-/()#]{0,40}): ([\w.%\-]{1,24})\s{0,4}$")
_FIELDS = {  # printed key -> field of WindowRecord
    "#running-req": "running",
    "#queue-req": "waiting",
    "token usage": "kv_usage",
    "full token usage": "kv_usage",
    "cache hit rate": "prefix_hit_rate",
    "gen throughput (token/s)": "output_tok_s",
    "input throughput (token/s)": "prompt_tok_s",
}


def _stat(place: str) -> LineFormat:
    return LineFormat(rf"[ (]{place}(?=[,\s)]|$)", joins=True, literal="ReqTimeStats")


def _add_up(draft: Draft, match: re.Match[str]) -> None:
    """Let the request's time begin with its queue: the printed one begins after it."""
    forward, draft.e2e_s = draft.e2e_s, None
    if draft.queue_s is not None:
        draft.e2e_s = draft.queue_s + forward if forward else None
        draft.ttft_any_s = draft.queue_s + draft.prefill_s if draft.prefill_s else None


class SglangParser(TableParser):
    """One line, one item."""

    engine = "sglang"
    words = ("Prefill batch", "Decode batch")
    formats = (
        LineFormat(  # the order that it prints; below it each part by its key
            r"`ReqTimeStats`\(rid=(?P<id>[\w\-]{1,64}), input_len={prompt_total:int},"
            r" cached_input_len={prompt_cached:int}, output_len={output:int},.{0,60}?\): "
            "queue_duration={queue_s:duration}, initial_prefill_elapsed={prefill_s:time},"
            " post_prefill_elapsed={decode_s:time}, forward_duration={e2e_s:time},",
            _add_up,
            opens=ALWAYS,
            closes=True,
            alone=True,
        ),
        LineFormat(r"`ReqTimeStats`\(.{1,400}?\): ", opens=ALWAYS),
        _stat(r"rid=(?P<id>[\w\-]{1,64})"),
        _stat("input_len={prompt_total:whole}"),
        _stat("cached_input_len={prompt_cached:whole}"),
        _stat("output_len={output:whole}"),
        _stat("queue_duration={queue_s:duration}"),
        _stat("initial_prefill_elapsed={prefill_s:time}"),
        _stat("post_prefill_elapsed={decode_s:time}"),
        _stat("forward_duration={e2e_s:time}"),
        LineFormat("`ReqTimeStats`", _add_up, joins=True, closes=True),
        *line_formats(
            r"`Capture cuda graph end`\. Time elapsed: {warmup_s:num} s",
            "`max_total_num_tokens=`{kv_tokens:int},",
        ),
    )

    def feed(self, line: Line) -> list[Item] | None:
        """Return the items that a line holds, or None when it is not this engine's."""
        match = _BATCH.search(line.text)
        return super().feed(line) if match is None else self._batch(line, match)

    def finish(self, draft: Draft) -> list[Item]:
        """Return a request that has a time at all."""
        times = (draft.queue_s, draft.prefill_s, draft.decode_s)
        return [] if all(one is None for one in times) else [draft.build()]

    def _batch(self, line: Line, match: re.Match[str]) -> list[Item] | None:
        batch, mark, text = match.groups()
        new_prefill = batch == "Prefill" and mark.endswith(",")
        last = "input throughput (token/s)" if new_prefill else "#queue-req"
        facts, fields = sort_pairs(_values(text, last), _FIELDS)
        if not fields:
            return None
        if "prefix_hit_rate" not in fields:
            fields["prefix_hit_rate"] = _hit_rate(facts)
        return [window_at(line, self.engine, {"batch": batch.lower(), **facts}, fields)]


def _values(text: str, last: str) -> Iterator[tuple[str, float | str]]:
    """Yield the printed pairs; a final one other than `last` may be cut in its digits."""
    parts = text.split(",")[:32]
    found = [match for part in parts if (match := _PAIR.match(part)) is not None]
    if found and parts[-1].strip().endswith(found[-1].group(2)) and found[-1].group(1) != last:
        found.pop()
    for key, printed in (match.groups() for match in found):
        value = num(printed.removesuffix("%"))
        if printed in ("True", "False"):
            yield key, printed.lower()
        elif value is not None:
            is_percent = key in _FIELDS and printed.endswith("%")
            is_percent = is_percent or (key == "cache hit rate" and value > 1)
            yield key, value / 100 if is_percent else value


def _hit_rate(facts: dict[str, float | str]) -> float | None:
    new, cached = facts.get("num_new_token"), facts.get("num_cached_token")
    if isinstance(new, float) and isinstance(cached, float) and new + cached > 0:
        return cached / (new + cached)
    return None
