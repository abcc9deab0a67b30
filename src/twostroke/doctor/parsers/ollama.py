"""Ollama: `--verbose` blocks, the final JSON object, the server's log, gin lines, `ollama ps`.

Its prompt count may hold cached tokens while the duration never does (since the llama-server
backend of 2026), so `prompt.new` and a prompt rate are upper bounds unless nothing earlier shares
the prefix: records carry `cached_may_be_counted`.
"""

from __future__ import annotations

import re
from typing import Any

from ..parsed import Fact, Item
from .draft import Draft, Sources
from .lines import Line
from .numbers import (
    NUMBER,
    duration,
    json_count,
    json_positive,
    num,
    size,
    whole,
)

ENGINE = "ollama"
IMPLAUSIBLE_PREFILL_TOK_S = 50_000.0  # above any single GPU on a 1B model: the cache was counted
_FIELD = re.compile(
    r"^\s{0,40}(total duration|load duration|prompt eval (?:count|duration|rate)"
    r"|eval (?:count|duration|rate)):\s{1,40}(\S{1,40})(?: (tokens?/s|token\(s\)))?\s{0,8}$"
)
_GIN = re.compile(
    r"\[GIN\] (\d{4}/\d\d/\d\d - \d\d:\d\d:\d\d) \|\s{0,8}(\d{3}) \|\s{0,20}(\S{1,32}) \|"
    r"\s{0,60}\S{0,60} \|"
    r'\s{1,8}(\w{3,8})\s{1,8}"([^"\s]{1,200})"'
)
_RUNNER = re.compile(rf"llama runner started in ({NUMBER}) seconds")
_TRUNCATED = re.compile(
    r"truncating input prompt\"?\s.{0,40}?limit=(\d{1,9}) prompt=(\d{1,9}) keep=(\d{1,9})"
    r" new="
)
_SLOG = re.compile(r'([\w.]{1,40})=("(?:[^"\\]|\\.){0,400}"|\S{1,200}(?=\s))')
_PS_HEADER = re.compile(r"NAME\s{2,}ID\s{2,}SIZE\s{2,}PROCESSOR\s{2,}(?:CONTEXT\s{2,})?UNTIL")
_PS = re.compile(
    r"^\s{0,4}(\S{1,120})\s{2,60}([0-9a-f]{6,64})\s{2,60}(\d[\d.]{0,12} [KMGT]?B)\s{2,60}"
    r"(?:(\d{1,3})%/(\d{1,3})% CPU/GPU|(\d{1,3})% (GPU|CPU))(?:\s{2,60}(\d{1,9})(?=\s))?"
)
_SLOG_SIZES = {
    "memory.available": "memory_available_bytes",
    "memory.required.full": "memory_required_bytes",
    "memory.required.partial": "memory_partial_bytes",
    "memory.required.kv": "kv_required_bytes",
    "memory.weights.total": "weights_bytes",
    "memory.graph.full": "graph_bytes",
}
_SLOG_LAYERS = {
    "layers.requested": "layers_requested",
    "layers.model": "layers_total",
    "layers.offload": "layers_offloaded",
}
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
        return _access(line) or _server_log(line) or _process_list(line)

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


def _fact(line: Line, name: str, value: float | str, label: str | None = None) -> Fact:
    return Fact(
        name=name, value=value, engine=ENGINE, label=label, file=line.file, line=line.number
    )


def _access(line: Line) -> list[Item] | None:
    match = _GIN.search(line.text)
    seconds = duration(match.group(3)) if match else None
    if match is None or seconds is None:
        return None
    label = f"{match.group(2)} {match.group(4)} {match.group(5)}"
    return [_fact(line, "endpoint_latency_s", seconds, label)]


def _server_log(line: Line) -> list[Item] | None:
    text = line.text
    if (match := _RUNNER.search(text)) is not None:
        seconds = num(match.group(1))
        return None if seconds is None else [_fact(line, "runner_start_s", seconds)]
    if (match := _TRUNCATED.search(text)) is not None:
        limit, prompt, _ = (int(part) for part in match.groups())
        return [_fact(line, "prompt_truncated_tokens", max(prompt - limit, 0), f"limit {limit}")]
    if "layers.offload" in text:
        return _offload(line)
    return None


def _offload(line: Line) -> list[Item]:
    out: list[Item] = []
    for key, quoted in _SLOG.findall(line.text):
        value = quoted.strip('"').strip("[]")
        if key in _SLOG_LAYERS:
            count = -1 if value == "-1" else whole(value)
            if count is not None:
                out.append(_fact(line, _SLOG_LAYERS[key], count))
        elif key in _SLOG_SIZES:
            for number, one in enumerate(_split_sizes(value)):
                label = f"device {number}" if key == "memory.available" else None
                out.append(_fact(line, _SLOG_SIZES[key], one, label))
    return out


def _split_sizes(value: str) -> list[int]:
    """Read `3.2 GiB` or a blank-separated list of such sizes."""
    words = value.split()
    pairs = zip(words[::2], words[1::2], strict=False)
    return [found for number, unit in pairs if (found := size(f"{number} {unit}")) is not None]


def _process_list(line: Line) -> list[Item] | None:
    if _PS_HEADER.search(line.text):
        return []
    match = _PS.search(line.text)
    if match is None:
        return None
    model, _, size_text, cpu, gpu, share, where, context = match.groups()
    on_gpu = int(gpu) if gpu else int(share) if where == "GPU" else 100 - int(share)
    if not 0 <= on_gpu <= 100 or (cpu and int(cpu) + int(gpu) != 100):
        return None
    out: list[Item] = [_fact(line, "gpu_share", on_gpu / 100, model)]
    if (total := size(size_text)) is not None:
        out.append(_fact(line, "model_size_bytes", total, model))
    if context:
        out.append(_fact(line, "n_ctx", int(context), model))
    return out


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
