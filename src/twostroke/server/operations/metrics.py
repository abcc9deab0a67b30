"""Running totals for Prometheus: vLLM's names where the meaning is the same, ours beside them.

The engine's thread counts events; a scrape takes one snapshot of all counts, so that counts of one
moment fit each other. Labels have a fixed set of values, never a caller's text.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from twostroke.dataclass import dataclass
from twostroke.events import Admitted, Arrived, Event, Finished, Preempted, StepDone
from twostroke.meters.histogram import REQUEST_BOUNDS_S, TOKEN_BOUNDS_S, Histogram
from twostroke.request import FinishReason

if TYPE_CHECKING:
    from twostroke.engine.async_engine import AsyncEngine

_VLLM_REASONS = {
    FinishReason.STOP.value: "stop",
    FinishReason.LENGTH.value: "length",
    FinishReason.CANCELLED.value: "abort",
}
_HISTOGRAMS = {
    "time_to_first_token": REQUEST_BOUNDS_S,
    "inter_token_latency": TOKEN_BOUNDS_S,
    "request_time_per_output_token": TOKEN_BOUNDS_S,
    "e2e_request_latency": REQUEST_BOUNDS_S,
    "request_queue_time": REQUEST_BOUNDS_S,
    "request_prefill_time": REQUEST_BOUNDS_S,
    "request_decode_time": REQUEST_BOUNDS_S,
}


@dataclass(slots=True)
class _Live:
    """Moments of one request that has not ended. Units: seconds on the engine's clock."""

    arrival_s: float
    handed_s: float
    num_prompt: int
    admitted_s: float | None = None
    first_s: float | None = None
    last_s: float | None = None
    num_tokens: int = 0


class EngineMeters(Collector):
    """An events.Observer (the engine's thread) and a Prometheus collector (any thread).

    replies: HTTP replies by (route, status), and loop_lag_s: both written by the event loop.
    """

    def __init__(self, model: str) -> None:
        self.registry = CollectorRegistry()
        self.replies: Counter[tuple[str, str]] = Counter()
        self.loop_lag_s = 0.0
        self._model = model
        self._engine: AsyncEngine | None = None
        self._lock = threading.Lock()  # over everything below
        self._live: dict[str, _Live] = {}
        self._ended: Counter[str] = Counter()
        self._misses: Counter[str] = Counter()
        self._tokens: Counter[str] = Counter()
        self._step_s: defaultdict[str, float] = defaultdict(float)
        self._num_preemptions = 0
        self._histograms = {name: Histogram(bounds) for name, bounds in _HISTOGRAMS.items()}
        self.registry.register(self)

    def watch(self, engine: AsyncEngine) -> None:
        """Show the gauges of this engine."""
        self._engine = engine

    def set_loop_lag(self, lag_s: float) -> None:
        """Note how late the event loop runs."""
        self.loop_lag_s = lag_s

    # The engine's thread

    def on_event(self, event: Event) -> None:
        """Account for one event."""
        with self._lock:
            if isinstance(event, StepDone):
                self._on_step(event)
            elif isinstance(event, Arrived):
                before_s = (event.load_s or 0.0) + (event.init_s or 0.0)
                live = _Live(event.t_s - before_s, event.t_s, event.num_prompt_tokens)
                self._live[event.request_id] = live
            elif isinstance(event, Admitted):
                self._on_admitted(event)
            elif isinstance(event, Preempted):
                self._num_preemptions += 1
            else:
                self._on_finished(event)

    def _on_admitted(self, event: Admitted) -> None:
        live = self._live.get(event.request_id)
        if live is None or live.admitted_s is not None:
            return
        live.admitted_s = event.t_s
        self._histograms["request_queue_time"].add(event.lookup_start_s - live.handed_s)
        self._tokens["cached"] += event.num_cached_tokens
        self._tokens["prompt"] += live.num_prompt
        if event.cache.reason is not None:
            self._misses[event.cache.reason] += 1

    def _on_step(self, event: StepDone) -> None:
        end_s, plan = event.result.end_s, event.plan
        kind = "mixed" if plan.is_mixed else "prefill" if plan.prefill else "decode"
        self._step_s[kind] += end_s - event.result.start_s
        self._tokens["computed"] += sum(len(s.token_ids) for s in plan.prefill)
        gaps = self._histograms["inter_token_latency"]
        for request_id in event.result.sampled:
            live = self._live.get(request_id)
            if live is None:
                continue
            self._tokens["output"] += 1
            live.num_tokens += 1
            if live.last_s is None:
                live.first_s = end_s
                self._histograms["time_to_first_token"].add(end_s - live.arrival_s)
                if live.admitted_s is not None:
                    self._histograms["request_prefill_time"].add(end_s - live.admitted_s)
            else:
                gaps.add(end_s - live.last_s)
            live.last_s = end_s

    def _on_finished(self, event: Finished) -> None:
        live = self._live.pop(event.request_id, None)
        if live is None:
            return
        self._ended[event.reason.value] += 1
        self._histograms["e2e_request_latency"].add(event.t_s - live.arrival_s)
        if live.first_s is not None and live.last_s is not None and live.num_tokens > 1:
            decode_s = live.last_s - live.first_s
            self._histograms["request_decode_time"].add(decode_s)
            self._histograms["request_time_per_output_token"].add(decode_s / (live.num_tokens - 1))

    # A scrape

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        yield from self._gauges()
        with self._lock:
            metrics = [*self._counters(), *map(self._histogram, self._histograms)]
        yield from metrics

    def _gauges(self) -> Iterator[Metric]:
        engine = self._engine
        if engine is not None:
            status = engine.status
            yield self._gauge("vllm:num_requests_running", status.num_running)
            yield self._gauge("vllm:num_requests_waiting", status.num_waiting)
            yield self._gauge("twostroke_stuck_seconds", engine.seconds_without_progress())
            yield self._gauge("twostroke_engine_alive", float(engine.is_alive))
        yield self._gauge("twostroke_loop_lag_seconds", self.loop_lag_s)

    def _gauge(self, name: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, name.partition("_")[2], labels=["model_name"])
        family.add_metric([self._model], value)
        return family

    def _counters(self) -> Iterator[Metric]:
        prompt = self._tokens["prompt"]
        for name, value in (
            ("vllm:prompt_tokens", prompt),
            ("vllm:generation_tokens", self._tokens["output"]),
            ("vllm:prefix_cache_queries", prompt),
            ("vllm:prefix_cache_hits", self._tokens["cached"]),
            ("vllm:num_preemptions", self._num_preemptions),
        ):
            family = CounterMetricFamily(name, name.partition(":")[2], labels=["model_name"])
            family.add_metric([self._model], value)
            yield family
        success = {_VLLM_REASONS[k]: v for k, v in self._ended.items() if k in _VLLM_REASONS}
        tokens = {k: self._tokens[k] for k in ("cached", "computed")}
        yield self._labelled("vllm:request_success", "finished_reason", success)
        yield self._labelled("twostroke_requests", "finish", self._ended)
        yield self._labelled("twostroke_cache_misses", "reason", self._misses)
        yield self._labelled("twostroke_prompt_tokens", "source", tokens)
        yield self._labelled("twostroke_step_seconds", "kind", self._step_s)
        replies = CounterMetricFamily(
            "twostroke_http_replies", "replies", labels=["route", "status"]
        )
        for (route, status), count in list(self.replies.items()):
            replies.add_metric([route, status], count)
        yield replies

    def _labelled(self, name: str, label: str, values: Mapping[str, float]) -> Metric:
        family = CounterMetricFamily(name, name.replace("_", " "), labels=["model_name", label])
        for key, value in values.items():
            family.add_metric([self._model, key], value)
        return family

    def _histogram(self, name: str) -> Metric:
        histogram = self._histograms[name]
        family = HistogramMetricFamily(
            f"vllm:{name}_seconds", name.replace("_", " "), labels=["model_name"]
        )
        family.add_metric([self._model], histogram.buckets(), histogram.sum_s)
        return family
