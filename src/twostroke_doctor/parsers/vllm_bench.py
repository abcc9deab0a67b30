"""The result block of `vllm bench serve` (and of SGLang's bench_serving, which shares it).

A benchmark run is an average over many requests: it becomes one WindowRecord, never a request.
"""

from __future__ import annotations

import re

from twostroke.record import Meter, WindowRecord
from twostroke_doctor.parsed import Item
from twostroke_doctor.parsers.lines import Line
from twostroke_doctor.parsers.numbers import NUMBER, num, positive

ENGINE = "vllm"
_MAX_LINES = 64
_KEYS = (  # printed label -> fact, factor to base units
    ("Successful requests", "successful_requests", 1.0),
    ("Failed requests", "failed_requests", 1.0),
    ("Maximum request concurrency", "max_concurrency", 1.0),
    ("Request rate configured (RPS)", "request_rate", 1.0),
    ("Traffic request rate", "request_rate", 1.0),
    ("Benchmark duration (s)", "duration_s", 1.0),
    ("Total input tokens", "input_tokens", 1.0),
    ("Total generated tokens", "output_tokens", 1.0),
    ("Request throughput (req/s)", "requests_per_s", 1.0),
    ("Output token throughput (tok/s)", "output_tok_s", 1.0),
    ("Input token throughput (tok/s)", "input_tok_s", 1.0),
    ("Total Token throughput (tok/s)", "total_tok_s", 1.0),
)
_LABELS = {label: (name, factor) for label, name, factor in _KEYS}
_LINE = re.compile(
    r"^\s{0,20}(?P<label>[A-Z][A-Za-z0-9 ]{2,40}(?: \([\w/]{1,8}\))?):\s{1,60}"
    rf"(?P<value>{NUMBER}|inf)\s{{0,20}}$"
)
_LATENCY = re.compile(r"(Mean|Median|P\d{1,2}(?:\.\d)?) (TTFT|TPOT|ITL|E2EL) \(ms\)")
_STARTS = ("Successful requests", "Traffic request rate")


class VllmBenchParser:
    """Gathers one block a source; it ends with the next block or the log."""

    engine = ENGINE
    signatures = (
        "Successful requests:",
        "Failed requests:",
        "Maximum request concurrency:",
        "Request rate configured",
        "Traffic request rate:",
        "Benchmark duration (s)",
        "Total input tokens:",
        "Total generated tokens:",
        "oken throughput (tok/s)",
        "TTFT (ms)",
        "TPOT (ms)",
        "ITL (ms)",
        "E2EL (ms)",
        "Request throughput (req/s)",
    )

    def __init__(self) -> None:
        self._blocks: dict[str, tuple[dict[str, float | str], list[Line]]] = {}

    def feed(self, line: Line) -> list[Item] | None:
        """Return what a line completes, or None when it is not of such a block."""
        match = _LINE.search(line.text)
        found = _key(match.group("label")) if match else None
        if match is None or found is None:
            return None
        name, factor = found
        out: list[Item] = []
        facts, lines = self._blocks.setdefault(line.source, ({}, []))
        if name in facts or len(self._blocks) > 64:
            out = self.flush()
            facts, lines = self._blocks.setdefault(line.source, ({}, []))
        value = num(match.group("value"))
        if match.group("value") == "inf" and name == "request_rate":
            facts[name] = "inf"  # all at once: an arrival pattern, not a measurement
        elif value is not None:
            facts[name] = value * factor
        if len(lines) < _MAX_LINES:
            lines.append(line)
        return out

    def flush(self) -> list[Item]:
        """Return the blocks that are open."""
        out: list[Item] = [
            _window(facts, lines)
            for facts, lines in self._blocks.values()
            if len(facts) > 1 and lines
        ]
        self._blocks.clear()
        return out


def _key(label: str) -> tuple[str, float] | None:
    if label in _LABELS:
        return _LABELS[label]
    match = _LATENCY.fullmatch(label)
    if match is None:
        return None
    return f"{match.group(1).lower().replace('.', '_')}_{match.group(2).lower()}_s", 1e-3


def _window(facts: dict[str, float | str], lines: list[Line]) -> WindowRecord:
    duration, prompt, output = (
        facts.get(name) for name in ("duration_s", "input_tokens", "output_tokens")
    )
    seconds = positive(str(duration)) if duration is not None else None
    flags = ["benchmark"]
    output_rate = _rate(output, seconds)
    printed = facts.get("output_tok_s")
    if output_rate is not None and isinstance(printed, float) and printed:
        if abs(output_rate - printed) > 0.02 * printed:
            flags.append("meter_inconsistent")
    elif output_rate is None and isinstance(printed, float):
        output_rate = printed
    return WindowRecord(
        engine=ENGINE,
        window_s=seconds,
        prompt_tok_s=_rate(prompt, seconds),
        output_tok_s=output_rate,
        facts=facts,
        meter=Meter(
            source="log",
            flags=tuple(flags),
            file=lines[0].file,
            lines=tuple(line.number for line in lines),
        ),
    )


def _rate(count: float | str | None, seconds: float | None) -> float | None:
    return count / seconds if isinstance(count, float) and seconds else None
