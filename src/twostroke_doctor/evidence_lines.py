"""Requests, windows and facts as lines of evidence: place and numbers, never a word of a prompt."""

from __future__ import annotations

from collections.abc import Sequence

from twostroke.record import RequestRecord, WindowRecord
from twostroke_doctor.finding import EvidenceLine
from twostroke_doctor.parsed import Fact, Item

MAX_EVIDENCE = 8  # requests, and windows, shown of each group
# A rule shows one fact, or a group of facts, requests or windows; None is left out.
Shown = Fact | Sequence[RequestRecord] | Sequence[WindowRecord] | Sequence[Fact | None] | None

_OTHER_PHASES = ("queue", "load", "init", "cache", "stall", "tail")
_LEAST_SHOWN_S = 5e-4
# name in the line, attribute, format
_WINDOW_PARTS = (
    ("prompt", "prompt_tok_s", "{:.4g} tok/s"),
    ("generation", "output_tok_s", "{:.4g} tok/s"),
    ("running", "running", "{}"),
    ("waiting", "waiting", "{}"),
    ("KV", "kv_usage", "{:.1%}"),
    ("prefix hits", "prefix_hit_rate", "{:.1%}"),
    ("preemptions", "preemptions", "{}"),
)
# fact of a window, format
_WINDOW_FACTS = (
    ("mamba_usage", "mamba usage {}"),
    ("mean_acceptance_length", "mean acceptance length {}"),
    ("request_rate", "request rate {}"),
    ("requests_per_s", "requests per s {}"),
    ("mean_ttft_s", "mean ttft {} s"),
    ("mean_tpot_s", "mean tpot {} s"),
)


def lines_of(*groups: Shown) -> tuple[EvidenceLine, ...]:
    """Return the groups as evidence, one after the other.

    Of many requests those that waited longest are shown, in log order; of many windows the first.
    """
    out = list[EvidenceLine]()
    for group in groups:
        items = [group] if isinstance(group, Fact) else group or ()
        out += [_line(item) for item in _most_telling([i for i in items if i is not None])]
    return tuple(out)


def _most_telling(items: list[Item]) -> list[Item]:
    if len(items) <= MAX_EVIDENCE or isinstance(items[0], Fact):
        return items
    if isinstance(items[0], WindowRecord):
        return items[:MAX_EVIDENCE]
    longest = {id(r) for r in sorted(items, key=_known_wait_s, reverse=True)[:MAX_EVIDENCE]}
    return [r for r in items if id(r) in longest]


def _known_wait_s(item: Item) -> float:
    assert isinstance(item, RequestRecord)
    return item.e2e_s or item.phases.known_s()


def _line(item: Item) -> EvidenceLine:
    if isinstance(item, Fact):
        text = f"{item.name.replace('_', ' ')}: {_fact_value(item)}"
        return EvidenceLine(text=text, file=item.file, line=item.line)
    parts = _request_parts(item) if isinstance(item, RequestRecord) else _window_parts(item)
    lines = item.meter.lines
    return EvidenceLine(
        text=", ".join(part for part in parts if part),
        file=item.meter.file,
        line=lines[0] if lines else None,
    )


def _fact_value(fact: Fact) -> str:
    label = f" ({fact.label})" if fact.label else ""
    if fact.name.endswith("_bytes") and isinstance(fact.value, int | float):
        return f"{fact.value / 2**30:.2f} GiB{label}"
    if isinstance(fact.value, float):
        return f"{fact.value:.4g}{label}"
    return f"{fact.value}{label}"


def _request_parts(record: RequestRecord) -> list[str]:
    prompt, phases = record.prompt, record.phases
    count = prompt.new if prompt.new is not None else prompt.total
    cached = f" ({prompt.cached:,} cached)" if prompt.cached else ""
    parts = [
        _work(("prompt", "prefill"), count, cached, phases.prefill_s, record.prefill_tok_s),
        _work(("output", "decode"), record.output.total, "", phases.decode_s, record.decode_tok_s),
    ]
    for name in _OTHER_PHASES:
        seconds = getattr(phases, f"{name}_s")
        if seconds and seconds >= _LEAST_SHOWN_S:
            parts.append(f"{name} {seconds:.3f} s")
    if record.e2e_s is not None:
        parts.append(f"total {record.e2e_s:.3f} s")
    if record.meter.flags:
        parts.append("flags " + " ".join(record.meter.flags))
    return parts


def _work(
    names: tuple[str, str], count: int | None, note: str, seconds: float | None, rate: float | None
) -> str:
    """Say the tokens of a phase under `names`: their own name, and the phase's where timed."""
    tokens, phase = names
    if seconds is None:
        return f"{tokens} {count:,} tokens{note}" if count is not None else ""
    if count is None:
        return f"{phase} {seconds:.3f} s"
    speed = f" = {rate:.4g} tok/s" if rate else ""
    return f"{phase} {count:,} tokens{note} in {seconds:.3f} s{speed}"


def _window_parts(window: WindowRecord) -> list[str]:
    parts = [
        f"{name} {form.format(value)}"
        for name, attribute, form in _WINDOW_PARTS
        if (value := getattr(window, attribute)) is not None
    ]
    facts = window.facts
    return parts + [form.format(facts[name]) for name, form in _WINDOW_FACTS if name in facts]
