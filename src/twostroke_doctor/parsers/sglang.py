"""SGLang: a line a batch in its old and new forms, and per-request time statistics.

Batch lines are windows: `gen throughput` is an average since the last one, and `input throughput`
is the previous prefill over the gap since it, idle time included. Keys are read by name.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from twostroke.record import Meter, WindowRecord
from twostroke_doctor.parsed import Fact, Item
from twostroke_doctor.parsers.draft import Draft
from twostroke_doctor.parsers.lines import Line
from twostroke_doctor.parsers.numbers import NUMBER, num, positive, whole

ENGINE = "sglang"
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
_STATS = re.compile(r"ReqTimeStats\((.{1,400}?)\): (.{1,600})")
_STAT = re.compile(rf"(\w{{1,40}})=({NUMBER})(ms|s)?(?=[,\s)]|$)")
_ID = re.compile(r"rid=([\w\-]{1,64})")
_GRAPH = re.compile(rf"Capture cuda graph end\. Time elapsed: ({NUMBER}) s")
_KV_TOKENS = re.compile(r"max_total_num_tokens=(\d{1,12}),")


class SglangParser:
    """One line, one item."""

    engine = ENGINE
    signatures = (
        "Prefill batch",
        "Decode batch",
        "ReqTimeStats",
        "Capture cuda graph end",
        "max_total_num_tokens=",
    )

    def feed(self, line: Line) -> list[Item] | None:
        """Return what a line holds, or None when it is not this engine's."""
        match = _BATCH.search(line.text)
        if match is not None:
            batch, mark, text = match.groups()
            new_prefill = batch == "Prefill" and mark.endswith(",")
            last = "input throughput (token/s)" if new_prefill else "#queue-req"
            return _window(line, batch.lower(), _pairs(text, last))
        if "ReqTimeStats" in line.text:
            return _request(line)
        if (match := _GRAPH.search(line.text)) and (seconds := num(match.group(1))) is not None:
            return [_fact(line, "warmup_s", seconds)]
        if (match := _KV_TOKENS.search(line.text)) is not None:
            return [_fact(line, "kv_tokens", int(match.group(1)))]
        return None

    def flush(self) -> list[Item]:
        """Return nothing: no line waits for another."""
        return []


def _fact(line: Line, name: str, value: float) -> Fact:
    return Fact(name=name, value=value, engine=ENGINE, file=line.file, line=line.number)


def _window(line: Line, batch: str, pairs: list[tuple[str, str]]) -> list[Item] | None:
    fields: dict[str, Any] = {}
    facts: dict[str, float | str] = {"batch": batch}
    for key, value in pairs:
        _take(key, value, fields, facts)
    if not fields:
        return None
    if "prefix_hit_rate" not in fields:
        fields["prefix_hit_rate"] = _hit_rate(facts)
    meter = Meter(source="log", file=line.file, lines=(line.number,))
    return [WindowRecord(engine=ENGINE, t_s=line.t_s, facts=facts, meter=meter, **fields)]


def _pairs(text: str, last: str) -> list[tuple[str, str]]:
    """Split on commas; a final pair other than `last` may be cut in its digits: leave it out."""
    parts = text.split(",")[:32]
    found = [match.groups() for part in parts if (match := _PAIR.match(part)) is not None]
    pairs = [(str(key), str(value)) for key, value in found]
    ends_open = bool(pairs) and parts[-1].strip().endswith(pairs[-1][1])
    return pairs[:-1] if ends_open and pairs[-1][0] != last else pairs


def _take(key: str, text: str, fields: dict[str, Any], facts: dict[str, float | str]) -> None:
    name = _FIELDS.get(key)
    value = num(text.removesuffix("%"))
    if text in ("True", "False"):
        facts[_fact_key(key)] = text.lower()
    elif value is None:
        return
    elif name in ("running", "waiting"):
        count = whole(text)
        if count is not None:
            fields[name] = count
    elif name is not None:
        share = text.endswith("%") or (name == "prefix_hit_rate" and value > 1)
        fields[name] = value / 100 if share else value
    else:
        facts[_fact_key(key)] = value


@lru_cache(maxsize=256)  # every line has the same keys
def _fact_key(key: str) -> str:
    return key.replace("#", "num ").strip().replace("-", "_").replace(" ", "_").lower()


def _hit_rate(facts: dict[str, float | str]) -> float | None:
    new, cached = facts.get("num_new_token"), facts.get("num_cached_token")
    if isinstance(new, float) and isinstance(cached, float) and new + cached > 0:
        return cached / (new + cached)
    return None


def _request(line: Line) -> list[Item] | None:
    match = _STATS.search(line.text)
    if match is None:
        return None
    draft = Draft(engine=ENGINE)
    draft.see(line)
    name = _ID.search(match.group(1))
    draft.id = name.group(1) if name else ""
    counts = {key: whole(value) for key, value, unit in _STAT.findall(match.group(1)) if not unit}
    times = {
        key: value / (1000 if unit == "ms" else 1)
        for key, text, unit in _STAT.findall(match.group(2))
        if unit and (value := num(text)) is not None
    }
    draft.prompt_total, draft.prompt_cached = (
        counts.get("input_len"),
        counts.get("cached_input_len"),
    )
    draft.output = counts.get("output_len")
    draft.queue_s = times.get("queue_duration")
    draft.prefill_s = times.get("initial_prefill_elapsed") or None
    draft.decode_s = times.get("post_prefill_elapsed") or None
    forward = positive(str(times.get("forward_duration", "")))
    if forward is not None and draft.queue_s is not None:
        draft.e2e_s = draft.queue_s + forward
    if draft.prefill_s is not None and draft.queue_s is not None:
        draft.ttft_any_s = draft.queue_s + draft.prefill_s
    return [draft.build()] if times else None
