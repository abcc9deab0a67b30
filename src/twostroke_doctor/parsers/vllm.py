"""vLLM: periodic windows (V0 and V1), speculation, start-up and preemption.

Its log has no per-request line: every periodic line is a window over all requests, idle time
included.
"""

from __future__ import annotations

import re
from dataclasses import replace

from twostroke.record import WindowRecord
from twostroke_doctor.parsed import Item
from twostroke_doctor.parsers.formats import line_formats
from twostroke_doctor.parsers.items import sort_pairs, window_at
from twostroke_doctor.parsers.lines import Line
from twostroke_doctor.parsers.numbers import NUMBER, num
from twostroke_doctor.parsers.table import MAX_OPEN, TableParser

_PAIR = re.compile(rf"([A-Z][A-Za-z \-]{{2,40}}?): ({NUMBER})(%| tokens/s| reqs| tokens|(?=,))")
_HIT_RATE_V0 = re.compile(rf"Prefix cache hit rate: GPU: ({NUMBER})%, CPU: ({NUMBER})%")
_ENGINE_NUMBER = re.compile(r"Engine (\d{1,4}): Avg prompt")
_SPECULATION_KEYS = {  # printed key -> fact of the window
    "Mean acceptance length": "mean_acceptance_length",
    "Accepted throughput": "accepted_throughput",
    "Drafted throughput": "drafted_throughput",
    "Accepted": "accepted",
    "Drafted": "drafted",
    "Avg Draft acceptance rate": "draft_acceptance",
    "Draft acceptance rate": "draft_acceptance",
}
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
_CPU_HIT_RATE = "cpu_prefix_cache_hit_rate"
_MAX_CLOCKS = 256
_MAX_WINDOW_S = 3600


class VllmParser(TableParser):
    """Reads windows, speculation and start-up facts."""

    engine = "vllm"
    words = (
        *("Avg prompt throughput", "SpecDecoding metrics", "Draft acceptance rate"),
        "Prefix cache hit rate: GPU",
    )
    formats = line_formats(
        "`GPU KV cache size`: {kv_tokens:whole} tokens",
        "`Maximum concurrency` for {label:tokens} tokens per request: {max_concurrency:num}x",
        "# `GPU blocks:` {kv_blocks:int},",
        "# `cuda blocks:` {kv_blocks:int},",
        r"# `CPU blocks:` {cpu_kv_blocks:int}(?=\D|$)",
        r"`total_gpu_memory` \({gpu_memory_bytes:GiB}GiB\)",
        r"`gpu_memory_utilization` \({gpu_memory_utilization:num}\)",
        r"`gpu_memory_utilization` \({:num}\) = {gpu_memory_budget_bytes:GiB}GiB",
        "`model weights take` {weights_bytes:GiB}GiB",
        "`Model loading took` {weights_bytes:GiB} Gi?B",
        "`Model loading took` .{1,40} and {model_load_s:num} seconds",
        "`non_torch_memory takes` {non_torch_bytes:GiB}GiB",
        "PyTorch `activation peak memory takes` {activation_peak_bytes:GiB}GiB",
        "`reserved for KV Cache` is {kv_reserve_bytes:signed_GiB}GiB",
        "`Graph capturing finished` in {warmup_s:num} secs",
        "`warmup model)` took {warmup_s:num} s",
        "`torch.compile takes` {warmup_s:num} s in total",
        r"`preempted by PreemptionMode`\.{preemption_mode:lower} mode",
        r"`total_num_cumulative_preemption`={preemptions_total:int}(?=\D|$)",
    )

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[str, float] = {}  # source -> clock of its last window
        self._pending: dict[str, WindowRecord] = {}  # V0: the hit rate may stand on the next line

    def feed(self, line: Line) -> list[Item] | None:
        """Return the items that a line completes, or None when it is not this engine's."""
        text = line.text
        if "Avg prompt throughput" in text:
            return self._window(line)
        if (match := _HIT_RATE_V0.search(text)) is not None:
            return self._late_hit_rate(line, num(match.group(1)), num(match.group(2)))
        return self._speculation(line) if "acceptance rate" in text else super().feed(line)

    def flush(self) -> list[Item]:
        """Return the windows that still waited for their second line."""
        out: list[Item] = list(self._pending.values())
        self._pending.clear()
        return out

    def _window(self, line: Line) -> list[Item] | None:
        facts, fields = sort_pairs(_pairs(line.text), _WINDOW_KEYS)
        if "prompt_tok_s" not in fields:
            return None
        source, engine = line.source, _ENGINE_NUMBER.search(line.text)
        if engine is not None:
            facts["engine_number"] = float(engine.group(1))
            source += f"#{engine.group(1)}"
        fields["window_s"] = self._since_last(source, line.t_s)
        return self._hold(line.source, window_at(line, self.engine, facts, fields))

    def _speculation(self, line: Line) -> list[Item] | None:
        """Read a SpecDecoding line as a window of its own: it has no request and no prompt rate."""
        facts: dict[str, float | str] = {
            _SPECULATION_KEYS[key]: value
            for key, value in _pairs(line.text)
            if key in _SPECULATION_KEYS
        }
        return [window_at(line, self.engine, facts, {})] if facts else None

    def _hold(self, source: str, window: WindowRecord) -> list[Item]:
        """Pass a V1 window on at once; keep a V0 one for the line that may follow it."""
        waiting = self._pending.pop(source, None)
        out: list[Item] = [] if waiting is None else [waiting]
        if window.prefix_hit_rate is not None or len(self._pending) >= MAX_OPEN:
            return [*out, window]
        self._pending[source] = window
        return out

    def _late_hit_rate(self, line: Line, gpu: float | None, cpu: float | None) -> list[Item]:
        waiting = self._pending.pop(line.source, None)
        if waiting is None:
            return []
        facts = waiting.facts if cpu is None else {**waiting.facts, _CPU_HIT_RATE: cpu / 100}
        meter = replace(waiting.meter, lines=(*waiting.meter.lines, line.number))
        rate = None if gpu is None else gpu / 100
        return [replace(waiting, prefix_hit_rate=rate, facts=facts, meter=meter)]

    def _since_last(self, source: str, t_s: float | None) -> float | None:
        last = self._last.get(source)
        if t_s is not None and len(self._last) < _MAX_CLOCKS:
            self._last[source] = t_s
        if t_s is None or last is None:
            return None
        return t_s - last if 0 < t_s - last < _MAX_WINDOW_S else None


def _pairs(text: str) -> list[tuple[str, float]]:
    """Return the printed keys with numbers, percentages as shares."""
    found = ((key, num(number), unit) for key, number, unit in _PAIR.findall(text))
    return [
        (key, value * 0.01 if unit == "%" else value)
        for key, value, unit in found
        if value is not None
    ]
