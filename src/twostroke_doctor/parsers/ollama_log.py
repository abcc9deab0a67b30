"""Ollama's server log, gin's access lines and `ollama ps`: facts, one line at a time."""

from __future__ import annotations

import re

from twostroke_doctor.parsed import Fact, Item
from twostroke_doctor.parsers.lines import Line
from twostroke_doctor.parsers.numbers import NUMBER, duration, num, size, whole

ENGINE = "ollama"
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
_FLAG = re.compile(
    r" --(ctx-size|batch-size|n-gpu-layers|threads|kv-cache-type|flash-attn)"
    r"(?: ([\w.]{1,12}))?(?=[ \"])"
)
_FLAG_COUNTS = {
    "ctx-size": "n_ctx",
    "batch-size": "n_batch",
    "n-gpu-layers": "layers_requested",
    "threads": "threads",
}


def read_log_line(line: Line) -> list[Item] | None:
    """Return the facts of a line of the log or the process list, or None."""
    return _access(line) or _server_log(line) or _process_list(line)


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
    return _runner_flags(line) if " --ctx-size " in text else None


def _runner_flags(line: Line) -> list[Item] | None:
    """Read the command line with which the server starts its runner."""
    out: list[Item] = []
    for flag, value in _FLAG.findall(line.text):
        if flag == "flash-attn":
            out.append(_fact(line, "flash_attention", True))
        elif flag == "kv-cache-type" and value:
            out += [_fact(line, name, value) for name in ("kv_type_k", "kv_type_v")]
        elif flag in _FLAG_COUNTS and (count := whole(value)) is not None:
            out.append(_fact(line, _FLAG_COUNTS[flag], count))
    return out or None


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
