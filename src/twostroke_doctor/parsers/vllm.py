"""vLLM: periodic windows (V0 and V1), speculation, start-up, preemption, benchmark blocks.

Its log has no per-request line: every periodic line is a window over all requests, idle time
included. `--enable-per-request-metrics` adds JSON `metrics`, whose first-token time starts when
the request is scheduled, not when it arrives.
"""

from __future__ import annotations

import re
from typing import Any

from twostroke.record import Meter, WindowRecord
from twostroke_doctor.parsed import Fact, Item
from twostroke_doctor.parsers.draft import Draft
from twostroke_doctor.parsers.lines import Line
from twostroke_doctor.parsers.numbers import (
    NUMBER,
    json_count,
    json_number,
    json_positive,
    num,
    whole,
)

ENGINE = "vllm"
_GIB = 1 << 30
_PAIR = re.compile(
    r"([A-Z][A-Za-z \-]{2,40}?): "
    rf"({NUMBER})(%| tokens/s| reqs| tokens|(?=,))"
)
_SCALE = {"%": 0.01}
_HIT_RATE_V0 = re.compile(rf"Prefix cache hit rate: GPU: ({NUMBER})%, CPU: ({NUMBER})%")
_ENGINE_NUMBER = re.compile(r"Engine (\d{1,4}): Avg prompt")
_SPEC_LENGTH = re.compile(rf"Mean acceptance length: ({NUMBER}),")
_SPEC_RATE = re.compile(rf"Draft acceptance rate: ({NUMBER})(%|(?=,))")
_PREEMPTED = re.compile(r"preempted by PreemptionMode\.(RECOMPUTE|SWAP) mode")
_CUMULATIVE = re.compile(r"total_num_cumulative_preemption=(\d{1,12})(?=\D|$)")
_WINDOW_KEYS = {  # printed key -> field of WindowRecord
    "Avg prompt throughput": "prompt_tok_s",
    "Avg generation throughput": "output_tok_s",
    "Running": "running",
    "Waiting": "waiting",
    "Pending": "waiting",
    "GPU KV cache usage": "kv_usage",
    "Prefix cache hit rate": "prefix_hit_rate",
    "Preemptions": "preemptions",
}
_COUNTS = ("running", "waiting", "preemptions")
_START_UP = (  # (pattern, fact, factor)
    (re.compile(r"GPU KV cache size: ([\d,]{1,20}) tokens"), "kv_tokens", 1),
    (re.compile(r"# (?:GPU|cuda|CPU) blocks: (\d{1,12}),"), "kv_blocks", 1),
    (re.compile(r"# CPU blocks: (\d{1,12})(?=\D|$)"), "cpu_kv_blocks", 1),
    (re.compile(rf"total_gpu_memory \(({NUMBER})GiB\)"), "gpu_memory_bytes", _GIB),
    (re.compile(rf"gpu_memory_utilization \(({NUMBER})\)"), "gpu_memory_utilization", 1.0),
    (
        re.compile(rf"gpu_memory_utilization \({NUMBER}\) = ({NUMBER})GiB"),
        "gpu_memory_budget_bytes",
        _GIB,
    ),
    (re.compile(rf"model weights take ({NUMBER})GiB"), "weights_bytes", _GIB),
    (re.compile(rf"Model loading took ({NUMBER}) Gi?B"), "weights_bytes", _GIB),
    (re.compile(rf"non_torch_memory takes ({NUMBER})GiB"), "non_torch_bytes", _GIB),
    (
        re.compile(rf"PyTorch activation peak memory takes ({NUMBER})GiB"),
        "activation_peak_bytes",
        _GIB,
    ),
    (re.compile(rf"reserved for KV Cache is ({NUMBER})GiB"), "kv_reserve_bytes", _GIB),
    (re.compile(rf"Model loading took .{{1,40}} and ({NUMBER}) seconds"), "model_load_s", 1.0),
    (re.compile(rf"Graph capturing finished in ({NUMBER}) secs"), "warmup_s", 1.0),
    (re.compile(rf"warmup model\) took ({NUMBER}) s"), "warmup_s", 1.0),
    (re.compile(rf"torch\.compile takes ({NUMBER}) s in total"), "warmup_s", 1.0),
)
_CONCURRENCY = re.compile(rf"concurrency for ([\d,]{{1,20}}) tokens per request: ({NUMBER})x")


class VllmParser:
    """Reads windows, speculation, start-up facts; a bench block is gathered until it ends."""

    engine = ENGINE
    signatures = (
        "Avg prompt throughput",
        "SpecDecoding metrics",
        "Draft acceptance rate",
        "Prefix cache hit rate: GPU",
        "GPU KV cache size",
        "Maximum concurrency",
        "GPU blocks:",
        "gpu_memory_utilization",
        "model weights take",
        "reserved for KV Cache",
        "Model loading took",
        "Graph capturing finished",
        "warmup model)",
        "torch.compile takes",
        "preempted by PreemptionMode",
        "total_num_cumulative_preemption",
    )

    def __init__(self) -> None:
        self._last: dict[str, float] = {}  # source -> clock of its last window
        self._pending: dict[str, WindowRecord] = {}  # V0: the hit rate may stand on the next line

    def feed(self, line: Line) -> list[Item] | None:
        """Return what a line completes, or None when it is not this engine's."""
        text = line.text
        if "Avg prompt throughput" in text:
            return self._window(line)
        if (match := _HIT_RATE_V0.search(text)) is not None:
            return self._late_hit_rate(line, match)
        if "acceptance rate" in text:
            return _speculation(line)
        return _preemption(line) or _start_up(line)

    def flush(self) -> list[Item]:
        """Return the windows that still waited for their second line."""
        out: list[Item] = list(self._pending.values())
        self._pending.clear()
        return out

    def _window(self, line: Line) -> list[Item] | None:
        fields: dict[str, Any] = {}
        facts: dict[str, float | str] = {}
        for key, number, unit in _PAIR.findall(line.text):
            value = num(number)
            if value is None:
                continue
            value *= _SCALE.get(unit, 1.0)
            name = _WINDOW_KEYS.get(key)
            if name is None:
                facts[key.lower().replace(" ", "_")] = value
            else:
                fields[name] = int(value) if name in _COUNTS else value
        if "prompt_tok_s" not in fields:
            return None
        engine = _ENGINE_NUMBER.search(line.text)
        source = f"{line.source}#{engine.group(1)}" if engine else line.source
        if engine:
            facts["engine_number"] = float(engine.group(1))
        window = WindowRecord(
            engine=ENGINE,
            t_s=line.t_s,
            window_s=self._since_last(source, line.t_s),
            facts=facts,
            meter=Meter(source="log", file=line.file, lines=(line.number,)),
            **fields,
        )
        return self._hold(line.source, window)

    def _hold(self, source: str, window: WindowRecord) -> list[Item]:
        """Pass a V1 window on at once; keep a V0 one for the line that may follow it."""
        out: list[Item] = []
        if (waiting := self._pending.pop(source, None)) is not None:
            out.append(waiting)
        if window.prefix_hit_rate is not None or len(self._pending) >= 64:
            return [*out, window]
        self._pending[source] = window
        return out

    def _late_hit_rate(self, line: Line, match: re.Match[str]) -> list[Item]:
        gpu, cpu = num(match.group(1)), num(match.group(2))
        waiting = self._pending.pop(line.source, None)
        if waiting is None:
            return []
        facts = dict(waiting.facts)
        if cpu is not None:
            facts["cpu_prefix_cache_hit_rate"] = cpu / 100
        lines = (*waiting.meter.lines, line.number)
        meter = Meter(source="log", file=line.file, lines=lines)
        rate = None if gpu is None else gpu / 100
        return [_replaced(waiting, prefix_hit_rate=rate, facts=facts, meter=meter)]

    def _since_last(self, source: str, t_s: float | None) -> float | None:
        last = self._last.get(source)
        if t_s is not None and len(self._last) < 256:
            self._last[source] = t_s
        if t_s is None or last is None:
            return None
        return t_s - last if 0 < t_s - last < 3600 else None


def _replaced(window: WindowRecord, **changes: Any) -> WindowRecord:
    fields = {name: getattr(window, name) for name in WindowRecord.__slots__}
    return WindowRecord(**{**fields, **changes})


def _fact(line: Line, name: str, value: float | str, label: str | None = None) -> Fact:
    return Fact(
        name=name, value=value, engine=ENGINE, label=label, file=line.file, line=line.number
    )


def _speculation(line: Line) -> list[Item] | None:
    """Read a SpecDecoding line as a window of its own: it has no request and no prompt rate."""
    text = line.text
    facts: dict[str, float | str] = {}
    if (match := _SPEC_LENGTH.search(text)) and (value := num(match.group(1))) is not None:
        facts["mean_acceptance_length"] = value
    for key, number, unit in _PAIR.findall(text):
        value = num(number)
        if value is not None and key.strip() in ("Accepted", "Drafted") and unit == " tokens":
            facts[key.strip().lower()] = value
        elif value is not None and key.endswith("throughput"):
            facts[key.lower().replace(" ", "_")] = value
    if (match := _SPEC_RATE.search(text)) and (value := num(match.group(1))) is not None:
        facts["draft_acceptance"] = value / 100 if match.group(2) else value
    if not facts:
        return None
    meter = Meter(source="log", file=line.file, lines=(line.number,))
    return [WindowRecord(engine=ENGINE, t_s=line.t_s, facts=facts, meter=meter)]


def _preemption(line: Line) -> list[Item] | None:
    out: list[Item] = []
    if (match := _PREEMPTED.search(line.text)) is not None:
        out.append(_fact(line, "preemption_mode", match.group(1).lower()))
    if (match := _CUMULATIVE.search(line.text)) is not None:
        out.append(_fact(line, "preemptions_total", int(match.group(1))))
    return out or None


def _start_up(line: Line) -> list[Item] | None:
    out: list[Item] = []
    if (match := _CONCURRENCY.search(line.text)) is not None:
        tokens, times = whole(match.group(1)), num(match.group(2))
        if tokens is not None and times is not None:
            out.append(_fact(line, "max_concurrency", times, f"{tokens} tokens"))
    for pattern, name, factor in _START_UP:
        match = pattern.search(line.text)
        if match is None:
            continue
        text = match.group(1)
        # a negative rest for KV says that the model does not fit: the one sign that means something
        sign = -1 if name == "kv_reserve_bytes" and text.startswith("-") else 1
        value = whole(text) if factor == 1 and name.startswith(("kv", "cpu")) else None
        number = value if value is not None else num(text.removeprefix("-") if sign < 0 else text)
        if number is not None:
            scaled = number * factor * sign
            out.append(_fact(line, name, round(scaled) if factor != 1.0 else scaled))
    return out or None


def has_request_metrics(metrics: dict[str, Any]) -> bool:
    """Tell whether a JSON `metrics` object is vLLM's per-request one."""
    return "time_to_first_token_ms" in metrics


def draft_from_metrics(metrics: dict[str, Any], output: int | None) -> Draft:
    """Return a draft from per-request metrics.

    `generation_time_ms` is taken as decode only where the mean gap times the gaps agrees with it.
    """
    draft = Draft(engine=ENGINE)
    queue, first = (
        json_number(metrics.get(key)) for key in ("queue_time_ms", "time_to_first_token_ms")
    )
    draft.queue_s = None if queue is None else queue / 1000
    draft.prefill_s = None if not first else first / 1000
    if draft.prefill_s is not None and draft.queue_s is not None:
        draft.ttft_any_s = draft.queue_s + draft.prefill_s
    draft.output = output if output is not None else _output_tokens(metrics)
    draft.decode_s = _decode_s(metrics, draft.output)
    if draft.ttft_any_s is not None and draft.decode_s is not None:
        draft.e2e_s = draft.ttft_any_s + draft.decode_s
    speculation = metrics.get("speculative_decoding")
    if isinstance(speculation, dict):
        draft.drafted = json_count(speculation.get("num_draft_tokens"))
        draft.accepted = json_count(speculation.get("num_accepted_draft_tokens"))
    tokens = metrics.get("output_token_metrics")
    if isinstance(tokens, dict):
        draft.output_reasoning = json_count(tokens.get("reasoning_token_count"))
        draft.output_visible = json_count(tokens.get("content_token_count"))
    # it includes prefill, so it is kept beside the phases and never checked against one
    draft.report_value("e2e_tok_s", json_positive(metrics.get("tokens_per_second")), None, None)
    return draft


def _output_tokens(metrics: dict[str, Any]) -> int | None:
    tokens = metrics.get("output_token_metrics")
    if not isinstance(tokens, dict):
        return None
    names = ("reasoning_token_count", "content_token_count", "unclassified_token_count")
    counts = [json_count(tokens.get(name)) for name in names]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _decode_s(metrics: dict[str, Any], output: int | None) -> float | None:
    total = json_positive(metrics.get("generation_time_ms"))
    gap = json_positive(metrics.get("mean_itl_ms"))
    if gap is not None and output is not None and output > 1:
        return gap * (output - 1) / 1000
    return total / 1000 if total is not None and gap is None else None
