"""Ollama: `--verbose` blocks, the final JSON object, the server's log, gin lines, `ollama ps`.

Its prompt count may hold cached tokens while the duration never does (since the llama-server
backend of 2026), so `prompt.new` and a prompt rate are upper bounds unless nothing earlier shares
the prefix: records carry `cached_may_be_counted`.
"""

from __future__ import annotations

import re
from typing import Any

from twostroke_doctor.parsed import Item
from twostroke_doctor.parsers.draft import Draft, Sources
from twostroke_doctor.parsers.lines import Line
from twostroke_doctor.parsers.numbers import duration, json_count, json_positive, whole
from twostroke_doctor.parsers.ollama_log import read_log_line

ENGINE = "ollama"
IMPLAUSIBLE_PREFILL_TOK_S = 50_000.0  # above any single GPU on a 1B model: the cache was counted
_FIELD = re.compile(
    r"^\s{0,40}(total duration|load duration|prompt eval (?:count|duration|rate)"
    r"|eval (?:count|duration|rate)):\s{1,40}(\S{1,40})(?: (tokens?/s|token\(s\)))?\s{0,8}$"
)
_JSON_KEYS = ("total_duration", "eval_duration", "prompt_eval_duration")


_GAP = r"[ \t]{1,20}"
_BLOCK = re.compile(  # the eight lines as they are printed, each absent when its value is zero
    rf"total duration:{_GAP}(\S{{1,40}})\r?\n(?:load duration:{_GAP}(\S{{1,40}})\r?\n)?"
    rf"(?:prompt eval count:{_GAP}(\d{{1,12}}) token\(s\)\r?\n)?"
    rf"(?:prompt eval duration:{_GAP}(\S{{1,40}})\r?\n)?"
    rf"(?:prompt eval rate:{_GAP}(\S{{1,40}}) tokens/s\r?\n)?"
    rf"(?:eval count:{_GAP}(\d{{1,12}}) token\(s\)\r?\n)?"
    rf"(?:eval duration:{_GAP}(\S{{1,40}})\r?\n)?eval rate:{_GAP}(\S{{1,40}}) tokens/s(?=[\r\n])"
)
BLOCK_OPENS = "total duration:"


class OllamaParser:
    """Reads verbose blocks by source; everything else is one line, one fact."""

    engine = ENGINE
    signatures = (
        "total duration:",
        "load duration:",
        "eval count:",
        "eval duration:",
        "eval rate:",
        "[GIN]",
        "llama runner started",
        "truncating input prompt",
        "layers.offload",
        "--ctx-size",
        "% GPU",
        "% CPU",
        "PROCESSOR",
    )

    def __init__(self) -> None:
        self._blocks = Sources()

    def feed(self, line: Line) -> list[Item] | None:
        """Return what a line completes, or None when it is not this engine's."""
        match = _FIELD.search(line.text)
        if match is not None:
            return self._field(line, match)
        return read_log_line(line)

    def feed_block(self, line: Line, text: str) -> tuple[list[Item], int] | None:
        """Read a whole verbose block at once; return its items and the number of its lines."""
        match = _BLOCK.match(text)
        if match is None:
            return None
        total, load, prompt_count, prefill, prompt_rate, count, decode, rate = match.groups()
        out = self.flush()
        draft = Draft(engine=ENGINE)
        draft.see(line)
        draft.prompt_new, draft.output = whole(prompt_count), whole(count)
        draft.e2e_s, draft.load_s = duration(total) or None, duration(load) or None
        draft.prefill_s, draft.decode_s = duration(prefill) or None, duration(decode) or None
        draft.report("prefill_tok_s", prompt_rate, draft.prompt_new, draft.prefill_s)
        draft.report("decode_tok_s", rate, draft.output, draft.decode_s)
        lines = match.group().count("\n") + 1
        draft.lines = list(range(line.number, line.number + lines))
        return out + _finish(draft), lines

    def flush(self) -> list[Item]:
        """Return the blocks that the log's end leaves open."""
        return [record for draft in self._blocks.drain() for record in _finish(draft)]

    def _field(self, line: Line, match: re.Match[str]) -> list[Item] | None:
        name, text, unit = match.groups()
        out: list[Item] = []
        draft = self._blocks.get(line.source)
        if draft is None or name == "total duration":
            draft = Draft(engine=ENGINE)
            out += [r for old in self._blocks.put(line.source, draft) for r in _finish(old)]
        draft.see(line)
        if name.endswith("count"):
            _take_count(draft, name, text if unit else None)
        elif name.endswith("rate"):
            _take_rate(draft, name, text if unit else None)
        else:
            _take_duration(draft, name, duration(text))
        if name == "eval rate":
            self._blocks.pop(line.source)
            out += _finish(draft)
        return out


def _take_count(draft: Draft, name: str, text: str | None) -> None:
    if name.startswith("prompt"):
        draft.prompt_new = whole(text)
    else:
        draft.output = whole(text)


def _take_duration(draft: Draft, name: str, seconds: float | None) -> None:
    if not seconds:
        return
    if name == "total duration":
        draft.e2e_s = seconds
    elif name == "load duration":
        draft.load_s = seconds
    elif name.startswith("prompt"):
        draft.prefill_s = seconds
    else:
        draft.decode_s = seconds


def _take_rate(draft: Draft, name: str, text: str | None) -> None:
    if name.startswith("prompt"):
        draft.report("prefill_tok_s", text, draft.prompt_new, draft.prefill_s)
    else:
        draft.report("decode_tok_s", text, draft.output, draft.decode_s)


def _finish(draft: Draft) -> list[Item]:
    if all(part is None for part in (draft.e2e_s, draft.prefill_s, draft.decode_s)):
        return []
    _judge_prompt_count(draft)
    return [draft.build()]


def _judge_prompt_count(draft: Draft) -> None:
    """Say how far the prompt count can be trusted; drop it as `new` where it cannot be."""
    if draft.prompt_new is None:
        return
    rate = draft.reported.get("prefill_tok_s")
    if rate is None and draft.prefill_s:
        rate = draft.prompt_new / draft.prefill_s
    if rate is not None and rate > IMPLAUSIBLE_PREFILL_TOK_S:
        draft.flag("cached_counted_as_prompt")
        draft.prompt_total, draft.prompt_new = draft.prompt_new, None
    else:
        draft.flag("cached_may_be_counted")


def is_reply(obj: dict[str, Any]) -> bool:
    """Tell whether a JSON object is the final object of /api/generate or /api/chat."""
    return any(json_positive(obj.get(key)) is not None for key in _JSON_KEYS)


def draft_from_reply(obj: dict[str, Any]) -> Draft:
    """Return a draft from the final JSON object; its durations are nanoseconds."""
    draft = Draft(engine=ENGINE)
    model, reason = obj.get("model"), obj.get("done_reason")
    draft.model = model[:200] if isinstance(model, str) else None
    draft.finish = reason[:40] if isinstance(reason, str) else None
    for key in ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration"):
        ns = json_positive(obj.get(key))
        _take_duration(draft, key.replace("_", " "), ns / 1e9 if ns is not None else None)
    draft.prompt_new = json_count(obj.get("prompt_eval_count"))
    draft.output = json_count(obj.get("eval_count"))
    _judge_prompt_count(draft)
    return draft
