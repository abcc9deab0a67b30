"""The one object that every rule reads: requests, windows, runs, facts, and what the user gave.

Also turns records and facts into evidence lines. Draws no conclusion.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from twostroke.dataclass import dataclass
from twostroke.record import RequestRecord, WindowRecord
from twostroke_doctor.finding import EvidenceLine
from twostroke_doctor.given import Given
from twostroke_doctor.parsed import Fact, Parsed
from twostroke_doctor.runs import Run, number_of, split_runs
from twostroke_doctor.wait import INFERENCE, wait_of

MAX_EVIDENCE = 8  # lines shown a finding
_NO_WAIT_FLAGS = frozenset({"no_output", "benchmark", "control"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything known. wait: seconds by phase over all requests."""

    parsed: Parsed
    given: Given
    records: tuple[RequestRecord, ...]
    runs: tuple[Run, ...]
    wait: dict[str, float]

    @property
    def windows(self) -> list[WindowRecord]:
        """Server windows, benchmarks left out."""
        return [w for w in self.parsed.windows if "benchmark" not in w.meter.flags]

    @property
    def benchmarks(self) -> list[WindowRecord]:
        """Averages of benchmark runs."""
        return [w for w in self.parsed.windows if "benchmark" in w.meter.flags]

    @property
    def total_s(self) -> float:
        """Seconds of all requests' waits."""
        return sum(self.wait.values())

    def share(self, seconds: float | None) -> float | None:
        """Return a share of the wait, None where the wait is unknown."""
        if seconds is None or self.total_s <= 0:
            return None
        return min(seconds / self.total_s, 1.0)

    def phase_s(self, phase: str) -> float:
        """Return the seconds of a phase over all requests."""
        return self.wait.get(phase, 0.0)

    def fact(self, name: str) -> Fact | None:
        """Return the last fact of that name."""
        return self.parsed.fact(name)

    def number(self, name: str) -> float | None:
        """Return the last fact of that name, where it is a number."""
        return number_of(self.parsed.fact(name))

    def facts(self, name: str) -> list[Fact]:
        """Return all facts of that name in order."""
        return [fact for fact in self.parsed.facts if fact.name == name]


def gather(parsed: Parsed, given: Given) -> Evidence:
    """Return the evidence of what was parsed."""
    records = tuple(r for r in parsed.records if not _NO_WAIT_FLAGS & set(r.meter.flags))
    return Evidence(
        parsed=parsed,
        given=given,
        records=records,
        runs=tuple(split_runs(parsed)),
        wait=wait_of(records),
    )


def model_seconds(records: Iterable[RequestRecord]) -> dict[str, float]:
    """Return the seconds in which the model ran, by phase."""
    wait = wait_of(records)
    return {name: wait[name] for name in ("prefill", "decode", INFERENCE) if name in wait}


def fact_lines(facts: Iterable[Fact | None]) -> tuple[EvidenceLine, ...]:
    """Return facts as evidence: name, value and label."""
    return tuple(
        EvidenceLine(
            text=f"{fact.name.replace('_', ' ')}: {_value(fact)}", file=fact.file, line=fact.line
        )
        for fact in facts
        if fact is not None
    )


def _value(fact: Fact) -> str:
    label = f" ({fact.label})" if fact.label else ""
    if fact.name.endswith("_bytes") and isinstance(fact.value, int | float):
        return f"{fact.value / 2**30:.2f} GiB{label}"
    if isinstance(fact.value, float):
        return f"{fact.value:.4g}{label}"
    return f"{fact.value}{label}"


def record_line(record: RequestRecord) -> EvidenceLine:
    """Return one request as evidence: its counts, times and rates."""
    parts = [_prompt_text(record), _output_text(record)]
    for name in ("queue", "load", "init", "cache", "stall", "tail"):
        seconds = getattr(record.phases, f"{name}_s")
        if seconds and seconds >= 5e-4:
            parts.append(f"{name} {seconds:.3f} s")
    if record.e2e_s is not None:
        parts.append(f"total {record.e2e_s:.3f} s")
    if record.meter.flags:
        parts.append("flags " + " ".join(record.meter.flags))
    lines = record.meter.lines
    return EvidenceLine(
        text=", ".join(part for part in parts if part),
        file=record.meter.file,
        line=lines[0] if lines else None,
    )


def _prompt_text(record: RequestRecord) -> str:
    prompt, seconds = record.prompt, record.phases.prefill_s
    count = prompt.new if prompt.new is not None else prompt.total
    cached = f" ({prompt.cached:,} cached)" if prompt.cached else ""
    if seconds is None:
        return f"prompt {count:,} tokens{cached}" if count is not None else ""
    if count is None:
        return f"prefill {seconds:.3f} s"
    rate = f" = {record.prefill_tok_s:.4g} tok/s" if record.prefill_tok_s else ""
    return f"prefill {count:,} tokens{cached} in {seconds:.3f} s{rate}"


def _output_text(record: RequestRecord) -> str:
    output, seconds = record.output.total, record.phases.decode_s
    if seconds is None:
        return f"output {output:,} tokens" if output is not None else ""
    if output is None:
        return f"decode {seconds:.3f} s"
    rate = f" = {record.decode_tok_s:.4g} tok/s" if record.decode_tok_s else ""
    return f"decode {output:,} tokens in {seconds:.3f} s{rate}"


def record_lines(records: Sequence[RequestRecord]) -> tuple[EvidenceLine, ...]:
    """Return the requests that waited longest as evidence, at most MAX_EVIDENCE, in log order."""
    if len(records) > MAX_EVIDENCE:
        longest = sorted(records, key=lambda r: -(r.e2e_s or r.phases.known_s()))[:MAX_EVIDENCE]
        kept = {id(r) for r in longest}
        records = [r for r in records if id(r) in kept]
    return tuple(record_line(record) for record in records)


def window_line(window: WindowRecord) -> EvidenceLine:
    """Return one window as evidence."""
    named = (
        ("prompt", window.prompt_tok_s, "{:.4g} tok/s"),
        ("generation", window.output_tok_s, "{:.4g} tok/s"),
        ("running", window.running, "{}"),
        ("waiting", window.waiting, "{}"),
        ("KV", window.kv_usage, "{:.1%}"),
        ("prefix hits", window.prefix_hit_rate, "{:.1%}"),
        ("preemptions", window.preemptions, "{}"),
    )
    parts = [f"{name} {form.format(value)}" for name, value, form in named if value is not None]
    for key in ("mamba_usage", "mean_acceptance_length", "request_rate", "requests_per_s"):
        if key in window.facts:
            parts.append(f"{key.replace('_', ' ')} {window.facts[key]}")
    for key in ("mean_ttft_s", "mean_tpot_s"):
        if key in window.facts:
            parts.append(f"{key[:-2].replace('_', ' ')} {window.facts[key]} s")
    lines = window.meter.lines
    return EvidenceLine(
        text=", ".join(parts), file=window.meter.file, line=lines[0] if lines else None
    )


def window_lines(windows: Sequence[WindowRecord]) -> tuple[EvidenceLine, ...]:
    """Return the first windows as evidence."""
    return tuple(window_line(window) for window in windows[:MAX_EVIDENCE])
