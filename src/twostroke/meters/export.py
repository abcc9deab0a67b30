"""Records for other programs: one JSON line each, and running totals as Prometheus text.

Knows records, not requests: everything here is computed from what the meter made.
"""

from __future__ import annotations

import json
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping

from twostroke.record import PHASES, RequestRecord

PREFIX = "twostroke_"
# Bounds in seconds. Those of tokens start lower than those of whole requests.
TOKEN_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56)
REQUEST_BOUNDS_S = (0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


def json_line(record: RequestRecord) -> str:
    """Return a record as one line of JSON."""
    return json.dumps(record.to_dict(), separators=(",", ":"), allow_nan=False)


class _Histogram:
    def __init__(self, bounds_s: tuple[float, ...]) -> None:
        self.bounds_s = bounds_s
        self.counts = [0] * (len(bounds_s) + 1)
        self.sum_s = 0.0

    def add(self, seconds: float | None) -> None:
        if seconds is not None:
            self.counts[bisect_left(self.bounds_s, seconds)] += 1
            self.sum_s += seconds

    def lines(self, name: str) -> Iterator[str]:
        total = 0
        for bound, count in zip((*map(str, self.bounds_s), "+Inf"), self.counts, strict=True):
            total += count
            yield f'{name}_bucket{{le="{bound}"}} {total}'
        yield f"{name}_sum {self.sum_s!r}"
        yield f"{name}_count {total}"


class Totals:
    """Counts of all requests that have ended. `add` is a meter's on_record; safe across threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[str] = Counter()
        self._misses: Counter[str] = Counter()
        self._phase_s: dict[str, float] = dict.fromkeys(PHASES, 0.0)
        self._tokens: Counter[str] = Counter()
        self._preemptions = 0
        self._histograms = {
            "time_to_first_token_seconds": _Histogram(REQUEST_BOUNDS_S),
            "time_per_output_token_seconds": _Histogram(TOKEN_BOUNDS_S),
            "e2e_request_latency_seconds": _Histogram(REQUEST_BOUNDS_S),
            "request_queue_time_seconds": _Histogram(REQUEST_BOUNDS_S),
            "request_prefill_time_seconds": _Histogram(REQUEST_BOUNDS_S),
            "request_decode_time_seconds": _Histogram(REQUEST_BOUNDS_S),
        }

    def add(self, record: RequestRecord) -> None:
        """Count one record."""
        phases = record.phases
        values = (
            record.ttft_any_s,
            record.tpot_s,
            record.e2e_s,
            phases.queue_s,
            phases.prefill_s,
            phases.decode_s,
        )
        with self._lock:
            self._requests[record.finish or "unknown"] += 1
            if record.cache.reason is not None:
                self._misses[record.cache.reason] += 1
            self._tokens["cached"] += record.prompt.cached or 0
            self._tokens["computed"] += record.prompt.new or 0
            self._tokens["output"] += record.output.total or 0
            self._preemptions += record.preemptions or 0
            for name in PHASES:
                self._phase_s[name] += getattr(phases, f"{name}_s") or 0.0
            for histogram, value in zip(self._histograms.values(), values, strict=True):
                histogram.add(value)

    def prometheus(self, gauges: Mapping[str, float]) -> str:
        """Return the text exposition format; gauges are the caller's, named without prefix."""
        with self._lock:
            return "\n".join(self._lines(gauges)) + "\n"

    def _lines(self, gauges: Mapping[str, float]) -> Iterator[str]:
        prompt = {k: self._tokens[k] for k in ("cached", "computed")}
        yield from _counter("requests_total", "finish", self._requests)
        yield from _counter("prompt_tokens_total", "source", prompt)
        yield from _counter("cache_misses_total", "reason", self._misses)
        yield from _counter("phase_seconds_total", "phase", self._phase_s)
        for name, value in (
            ("generation_tokens_total", self._tokens["output"]),
            ("preemptions_total", self._preemptions),
        ):
            yield f"# TYPE {PREFIX}{name} counter"
            yield f"{PREFIX}{name} {value}"
        for name, histogram in self._histograms.items():
            yield f"# TYPE {PREFIX}{name} histogram"
            yield from histogram.lines(PREFIX + name)
        for name, gauge in gauges.items():
            yield f"# TYPE {PREFIX}{name} gauge"
            yield f"{PREFIX}{name} {gauge!r}"


def _counter(name: str, label: str, values: Mapping[str, float]) -> Iterator[str]:
    """Yield one counter; labels are words of our own, never a caller's text."""
    yield f"# TYPE {PREFIX}{name} counter"
    for key, value in values.items():
        yield f'{PREFIX}{name}{{{label}="{key}"}} {value!r}'
