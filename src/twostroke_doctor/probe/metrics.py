"""Prometheus metrics of a server, before and after a probe: its load, cache and hit rate."""

from __future__ import annotations

import re

from twostroke.record import Meter, WindowRecord

_MAX_LINES = 20_000
_SAMPLE = re.compile(r"^([A-Za-z_:][A-Za-z0-9_:]{0,120})(?:\{[^}]{0,2000}\})?\s+([-+0-9.eE]{1,40})")
# our field -> names that servers use; gauges are read at the start, counters as differences
_GAUGES = {
    "running": (
        "vllm:num_requests_running",
        "sglang:num_running_reqs",
        "llamacpp:requests_processing",
    ),
    "waiting": (
        "vllm:num_requests_waiting",
        "sglang:num_queue_reqs",
        "llamacpp:requests_deferred",
        "tgi_queue_size",
    ),
    "kv_usage": (
        "vllm:kv_cache_usage_perc",
        "vllm:gpu_cache_usage_perc",
        "sglang:token_usage",
        "llamacpp:kv_cache_usage_ratio",
    ),
}
_COUNTERS = {
    "hits": ("vllm:prefix_cache_hits_total", "vllm:prefix_cache_hits"),
    "queries": ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_queries"),
    "preempted": ("vllm:num_preemptions_total", "vllm:num_preemptions"),
}


def read_metrics(body: bytes | None) -> dict[str, float]:
    """Return the samples of a metrics page, those of one name added up."""
    out: dict[str, float] = {}
    for line in (body or b"").decode("utf-8", "replace").splitlines()[:_MAX_LINES]:
        match = _SAMPLE.match(line)
        if match is None:
            continue
        try:
            value = float(match.group(2))
        except ValueError:
            continue
        out[match.group(1)] = out.get(match.group(1), 0.0) + value
    return out


def _first(metrics: dict[str, float], names: tuple[str, ...]) -> float | None:
    return next((metrics[name] for name in names if name in metrics), None)


def _count(value: float | None) -> int | None:
    return int(value) if value is not None and 0 <= value < 1e9 else None


def window_between(before: dict[str, float], after: dict[str, float]) -> WindowRecord | None:
    """Return the gauges at the start and the change of the counters; None without metrics."""
    gauges = {name: _first(before, names) for name, names in _GAUGES.items()}
    moved = {name: _difference(before, after, names) for name, names in _COUNTERS.items()}
    if all(value is None for value in (*gauges.values(), *moved.values())):
        return None
    hits, queries, usage = moved["hits"], moved["queries"], gauges["kv_usage"]
    return WindowRecord(
        engine="endpoint",
        running=_count(gauges["running"]),
        waiting=_count(gauges["waiting"]),
        kv_usage=usage if usage is not None and 0 <= usage <= 1 else None,
        prefix_hit_rate=hits / queries if hits is not None and queries else None,
        preemptions=_count(moved["preempted"]),
        meter=Meter(source="client"),
    )


def _difference(
    before: dict[str, float], after: dict[str, float], names: tuple[str, ...]
) -> float | None:
    first, last = _first(before, names), _first(after, names)
    if first is None or last is None or last < first:
        return None
    return last - first
