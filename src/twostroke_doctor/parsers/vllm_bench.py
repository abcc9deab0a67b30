"""The result block of `vllm bench serve` (and of SGLang's bench_serving, which shares it).

A benchmark run is an average over many requests: it becomes one WindowRecord, never a request.
"""

from __future__ import annotations

import re

from twostroke_doctor.parsed import Item
from twostroke_doctor.parsers.items import window_at
from twostroke_doctor.parsers.lines import Line
from twostroke_doctor.parsers.numbers import NUMBER, num, positive
from twostroke_doctor.parsers.table import MAX_OPEN, TableParser

_MAX_LINES = 64
_FACTS = {  # printed label -> fact of the window
    "Successful requests": "successful_requests",
    "Failed requests": "failed_requests",
    "Maximum request concurrency": "max_concurrency",
    "Request rate configured (RPS)": "request_rate",
    "Traffic request rate": "request_rate",
    "Benchmark duration (s)": "duration_s",
    "Total input tokens": "input_tokens",
    "Total generated tokens": "output_tokens",
    "Request throughput (req/s)": "requests_per_s",
    "Output token throughput (tok/s)": "output_tok_s",
    "Input token throughput (tok/s)": "input_tok_s",
    "Total Token throughput (tok/s)": "total_tok_s",
}
_LINE = re.compile(
    r"^\s{0,20}(?P<label>[A-Z][A-Za-z0-9 ]{2,40}(?: \([\w/]{1,8}\))?):\s{1,60}"
    rf"(?P<value>{NUMBER})\s{{0,20}}$"
)
_LATENCY = re.compile(r"(Mean|Median|P\d{1,2}(?:\.\d)?) (TTFT|TPOT|ITL|E2EL) \(ms\)")
_Facts = dict[str, float | str]


class VllmBenchParser(TableParser):
    """Gathers one block a source; it ends with the next block or the log."""

    engine = "vllm"
    words = (
        *(f"{label}:" for label in _FACTS),
        *(f"{name} (ms)" for name in ("TTFT", "TPOT", "ITL", "E2EL")),
    )

    def __init__(self) -> None:
        super().__init__()
        self._blocks: dict[str, tuple[_Facts, list[Line]]] = {}

    def feed(self, line: Line) -> list[Item] | None:
        """Return the items that a line completes, or None when it is not of such a block."""
        match = _LINE.search(line.text)
        name = _fact_name(match.group("label")) if match else None
        if match is None or name is None:
            return None
        out: list[Item] = []
        block = self._blocks.get(line.source)
        if (block is not None and name in block[0]) or len(self._blocks) > MAX_OPEN:
            out, block = self.flush(), None
        facts, lines = block or self._blocks.setdefault(line.source, ({}, []))
        value = num(match.group("value"))
        if value is not None:
            facts[name] = value * (1e-3 if "(ms)" in line.text else 1.0)
        elif match.group("value") == "inf" and name == "request_rate":
            facts[name] = "inf"  # all at once: an arrival pattern, not a measurement
        if len(lines) < _MAX_LINES:
            lines.append(line)
        return out

    def flush(self) -> list[Item]:
        """Return the windows of the blocks that are open."""
        blocks = list(self._blocks.values())
        self._blocks.clear()
        return [self._window(facts, lines) for facts, lines in blocks if len(facts) > 1]

    def _window(self, facts: _Facts, lines: list[Line]) -> Item:
        """Return the window of a block: rates from its counts, the printed one only without."""
        seconds, printed = positive(str(facts.get("duration_s"))), facts.get("output_tok_s")
        prompt_rate, output_rate = (
            count / seconds if isinstance(count, float) and seconds else None
            for count in (facts.get("input_tokens"), facts.get("output_tokens"))
        )
        flags = ["benchmark"]
        if output_rate is None:
            output_rate = printed if isinstance(printed, float) else None
        elif isinstance(printed, float) and printed and abs(output_rate - printed) > 0.02 * printed:
            flags.append("meter_inconsistent")
        rates = {"prompt_tok_s": prompt_rate, "output_tok_s": output_rate, "window_s": seconds}
        return window_at(
            lines[0]._replace(t_s=None),
            self.engine,
            facts,
            rates,
            flags=tuple(flags),
            lines=tuple(line.number for line in lines),
        )


def _fact_name(label: str) -> str | None:
    match = _LATENCY.fullmatch(label)
    if match is None:
        return _FACTS.get(label)
    return f"{match.group(1).lower().replace('.', '_')}_{match.group(2).lower()}_s"
