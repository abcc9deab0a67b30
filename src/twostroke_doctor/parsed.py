"""The content of a log, in three kinds: requests, server windows, and facts about the set-up.

Knows no engine's words (those are in `parsers`) and draws no conclusion (that is `diagnose`).
Everything kept here is bounded: items of a huge log beyond the caps are counted, not stored.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, field
from types import MappingProxyType
from typing import Any

from twostroke.dataclass import dataclass
from twostroke.record import RequestRecord, WindowRecord

MAX_RECORDS = (
    50_000  # about 100 MB of records; a longer log keeps the first ones and counts the rest
)
MAX_WINDOWS = 50_000
MAX_FACTS = 5_000

# name -> (meaning, unit). A parser emits no other name; the label says which device, model or call.
FACTS = MappingProxyType(
    {
        "model_load_s": ("time to load the model, outside any request", "s"),
        "runner_start_s": ("time until the engine's runner process answered", "s"),
        "warmup_s": ("time of warm-up, graph capture or compilation at start", "s"),
        "layers_offloaded": ("layers placed on the GPU", "layers"),
        "layers_total": ("layers of the model, output layer included", "layers"),
        "layers_requested": ("layers asked for on the GPU, -1 for as many as fit", "layers"),
        "model_buffer_bytes": ("weights held by one device (label)", "bytes"),
        "kv_buffer_bytes": ("KV cache held by one device (label)", "bytes"),
        "compute_buffer_bytes": ("scratch buffers of one device (label)", "bytes"),
        "state_buffer_bytes": ("recurrent state held by one device (label)", "bytes"),
        "output_buffer_bytes": ("logits buffer of one device (label)", "bytes"),
        "device_free_bytes": ("free memory of one device (label)", "bytes"),
        "memory_required_bytes": ("memory the engine says a full offload needs", "bytes"),
        "memory_partial_bytes": ("memory the engine says the chosen offload needs", "bytes"),
        "memory_available_bytes": ("memory the engine says the devices have", "bytes"),
        "memory_margin_bytes": ("memory left after the fit", "bytes"),
        "kv_required_bytes": ("memory the KV cache needs", "bytes"),
        "graph_bytes": ("memory of the compute graph", "bytes"),
        "weights_bytes": ("memory of the weights, all devices", "bytes"),
        "non_torch_bytes": ("memory outside the framework's allocator", "bytes"),
        "activation_peak_bytes": ("peak memory of activations", "bytes"),
        "kv_reserve_bytes": (
            "memory left for the KV cache; negative when nothing is left",
            "bytes",
        ),
        "gpu_memory_bytes": ("memory of the GPU", "bytes"),
        "gpu_memory_utilization": ("share of the GPU that the engine may use", "0 to 1"),
        "gpu_memory_budget_bytes": ("memory that the engine may use", "bytes"),
        "peak_memory_bytes": ("peak memory of a run", "bytes"),
        "kv_tokens": ("tokens that the KV cache holds", "tokens"),
        "kv_blocks": ("blocks of the KV cache on the GPU", "blocks"),
        "cpu_kv_blocks": ("blocks of the KV cache in host memory", "blocks"),
        "max_concurrency": ("requests of full length (label: tokens) that fit at once", "requests"),
        "n_ctx": ("context length of the server or sequence", "tokens"),
        "n_ctx_slot": ("context length of one slot", "tokens"),
        "n_batch": ("logical batch of prefill", "tokens"),
        "n_ubatch": ("physical batch of prefill", "tokens"),
        "threads": ("threads of decode", "threads"),
        "threads_batch": ("threads of prefill", "threads"),
        "threads_available": ("hardware threads of the machine", "threads"),
        "kv_type_k": ("stored type of K", "name"),
        "kv_type_v": ("stored type of V", "name"),
        "flash_attention": ("fused attention on", "bool"),
        "full_reprocess": ("the whole prompt is computed again, and why", "text"),
        "prefix_match": ("a prefix of the prompt was found in the cache", "bool"),
        "prompt_truncated_tokens": ("prompt tokens cut away to fit (label: limit)", "tokens"),
        "preemptions_total": ("preemptions since the server started", "preemptions"),
        "preemption_mode": ("action on preemption: recompute or swap", "text"),
        "endpoint_latency_s": ("server's time for one call (label: status method path)", "s"),
        "gpu_share": ("share of the model on the GPU (label: model)", "0 to 1"),
        "model_size_bytes": ("memory of the loaded model (label: model)", "bytes"),
        "prefill_progress": ("share of a prompt computed so far", "0 to 1"),
        "graphs_reused": ("decode steps that reused a compute graph", "steps"),
        "estimated_prefill_tok_s": ("fitted over several lines with one rate each", "tok/s"),
        "estimated_decode_tok_s": ("fitted over several lines with one rate each", "tok/s"),
        "meter_off": ("the engine's own timing is switched off and prints zeros", "bool"),
        "cpu_busy_share": ("share of this machine's CPU that others took before a probe", "0 to 1"),
    }
)

# flag -> meaning: the flags that `meter.flags` of a record from a log may hold.
FLAGS = MappingProxyType(
    {
        "meter_inconsistent": "a printed rate is not its count over its time (more than 2 %)",
        "meter_off": "the engine printed zeros: its timing was off",
        "cached_counted_as_prompt": "the printed prompt rate counts tokens that the cache gave",
        "cached_may_be_counted": "the engine's prompt count may hold cached tokens",
        "chunk_is_not_token": "the count is of stream chunks, not tokens",
        "requested_count": "the printed rate used the requested count, not the generated one",
        "count_derived": "a token count was derived from a time and a rate",
        "time_derived": "a phase's time was derived from a count and a rate",
        "ttft_as_prefill": "prefill_s is the time to the first token: queue and init may be in it",
        "prefill_mixed_in": "the only rate printed covers prefill and decode together",
        "negative_count": "the engine printed a negative count: its meter is broken",
        "truncated": "the engine cut the prompt or its context",
        "partial": "the log ends before the request does",
        "no_output": "the request produced no token (aborted or refused)",
        "benchmark": "an average over a benchmark run",
        "control": "a control experiment of the probe, no part of the judged wait",
        "empty_first_chunk": "the stream's first chunk came early and held no text",
        "buffered_stream": "the stream carries many tokens a chunk: gaps are not decode",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One thing a log states that is neither a request nor a window. `name` is a key of FACTS."""

    name: str
    value: float | int | str | bool
    engine: str
    label: str | None = None
    file: str | None = None
    line: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data in field order, ready for JSON."""
        return asdict(self)


Item = RequestRecord | WindowRecord | Fact


@dataclass(slots=True, kw_only=True)
class Parsed:
    """All that was read from one or more logs, in order of reading.

    records, windows, facts: the first MAX_*; `dropped` counts the later ones, by kind. A fact
    repeated with the same value is kept once and counted in `fact_counts`. unknown: lines that told
    nothing, by kind: an engine's name for lines in its words that no parser took, `other` for the
    rest.
    """

    records: list[RequestRecord] = field(default_factory=list)
    windows: list[WindowRecord] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)
    fact_counts: dict[str, int] = field(default_factory=dict)
    unknown: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    engines: dict[str, int] = field(default_factory=dict)
    num_lines: int = 0
    _seen: set[tuple[object, ...]] = field(default_factory=set, repr=False)

    def add(self, item: Item) -> None:
        """Keep one item, or count it when the caps are reached."""
        self.engines[item.engine] = self.engines.get(item.engine, 0) + 1
        if isinstance(item, RequestRecord):
            self._keep(self.records, item, "records", MAX_RECORDS)
        elif isinstance(item, WindowRecord):
            self._keep(self.windows, item, "windows", MAX_WINDOWS)
        else:
            self._add_fact(item)

    def add_all(self, items: Iterable[Item]) -> None:
        """Keep every item of a stream."""
        for item in items:
            self.add(item)

    def fact(self, name: str, *, engine: str | None = None) -> Fact | None:
        """Return the last fact of that name, or None."""
        for found in reversed(self.facts):
            if found.name == name and engine in (None, found.engine):
                return found
        return None

    def _add_fact(self, fact: Fact) -> None:
        self.fact_counts[fact.name] = self.fact_counts.get(fact.name, 0) + 1
        key = (fact.name, fact.value, fact.engine, fact.label, fact.file)
        if key in self._seen:
            return
        if len(self.facts) < MAX_FACTS:
            self._seen.add(key)
        self._keep(self.facts, fact, "facts", MAX_FACTS)

    def _keep(self, kept: list[Any], item: Item, kind: str, limit: int) -> None:
        if len(kept) < limit:
            kept.append(item)
        else:
            self.dropped[kind] = self.dropped.get(kind, 0) + 1
