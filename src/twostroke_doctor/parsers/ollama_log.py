"""Ollama's server log, gin's access lines and `ollama ps`: facts, one line at a time."""

from __future__ import annotations

import re

from twostroke_doctor.parsers.formats import Facts, LineFormat, Stated, line_formats
from twostroke_doctor.parsers.numbers import size

_OFFLOAD = {  # printed key -> place of its fact
    "layers.requested": "layers_requested:layers",
    "layers.model": "layers_total:int",
    "layers.offload": "layers_offloaded:int",
    "memory.required.full": "memory_required_bytes:size",
    "memory.required.partial": "memory_partial_bytes:size",
    "memory.required.kv": "kv_required_bytes:size",
    "memory.weights.total": "weights_bytes:size",
    "memory.graph.full": "graph_bytes:size",
}
_FLAGS = {  # flag of the runner's command line -> place of its fact
    "ctx-size": "n_ctx:int",
    "batch-size": "n_batch:int",
    "n-gpu-layers": "layers_requested:int",
    "threads": "threads:int",
}
_PS = (
    r"^\s{0,4}(?P<label>\S{1,120})\s{2,60}[0-9a-f]{6,64}\s{2,60}{model_size_bytes:size}\s{2,60}"
    r"(?:(?P<cpu>\d{1,3})%/(?P<gpu>\d{1,3})% CPU/GPU|(?P<all>\d{1,3})% (?P<where>GPU|CPU))"
    r"(?:\s{2,60}{n_ctx:int}(?=\s))?"
)


def _free_memory(match: re.Match[str]) -> list[Stated]:
    """Return the free memory of each device of a list `3.2 GiB 10.5 GiB`."""
    words = match["sizes"].split()
    sizes = [
        size(f"{number} {unit}") for number, unit in zip(words[::2], words[1::2], strict=False)
    ]
    return [
        ("memory_available_bytes", one, f"device {at}")
        for at, one in enumerate(known for known in sizes if known is not None)
    ]


def _truncation(match: re.Match[str]) -> list[Stated]:
    limit, prompt = int(match["limit"]), int(match["prompt"])
    return [("prompt_truncated_tokens", max(prompt - limit, 0), f"limit {limit}")]


def _cache_types(match: re.Match[str]) -> list[Stated]:
    return [(name, match["type"], None) for name in ("kv_type_k", "kv_type_v")]


def _flag(flag: str, facts: Facts | None = None) -> LineFormat:
    return LineFormat(rf' --{flag}(?=[ "])', facts=facts, literal="--ctx-size")


def _gpu_share(match: re.Match[str]) -> list[Stated]:
    """Return the share of a model on the GPU; the two printed shares must add up."""
    cpu, gpu, one_side = (int(match[name] or 0) for name in ("cpu", "gpu", "all"))
    if match["where"]:
        gpu = one_side if match["where"] == "GPU" else 100 - one_side
        cpu = 100 - gpu
    is_sound = 0 <= gpu <= 100 and cpu + gpu == 100
    return [("gpu_share", gpu / 100, match["label"])] if is_sound else []


LOG_FORMATS = (
    *line_formats(
        r"`[GIN]` \d{4}/\d\d/\d\d - \d\d:\d\d:\d\d \|\s{0,8}(?P<label_status>\d{3}) \|\s{0,20}"
        r"{endpoint_latency_s:duration} \|\s{0,60}\S{0,60} \|"
        r'\s{1,8}(?P<label_method>\w{3,8})\s{1,8}"(?P<label_path>[^"\s]{1,200})"',
        "`llama runner started` in {runner_start_s:num} seconds",
        r"NAME\s{2,}ID\s{2,}SIZE\s{2,}`PROCESSOR`\s{2,}(?:CONTEXT\s{2,})?UNTIL",
    ),
    LineFormat(
        r"`truncating input prompt`\"?\s.{0,40}?limit=(?P<limit>\d{1,9}) prompt=(?P<prompt>\d{1,9})"
        r" keep=\d{1,9} new=",
        facts=_truncation,
    ),
    *(
        LineFormat(rf'(?<![\w.]){re.escape(key)}="?{{{place}}}(?=["\s])', literal="layers.offload")
        for key, place in _OFFLOAD.items()
    ),
    LineFormat(
        r'(?<![\w.])memory\.available="\[?(?P<sizes>[^"\]]{0,400})\]?"',
        facts=_free_memory,
        literal="layers.offload",
    ),
    *(_flag(f"{flag} {{{place}}}") for flag, place in _FLAGS.items()),
    _flag(r"kv-cache-type (?P<type>[\w.]{1,12})", _cache_types),
    _flag("flash-attn", lambda match: [("flash_attention", True, None)]),
    *(LineFormat(_PS, facts=_gpu_share, literal=unit) for unit in ("% GPU", "% CPU")),
)
