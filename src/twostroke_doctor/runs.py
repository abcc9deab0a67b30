"""Requests grouped by the set-up they ran under, so that two set-ups can be compared.

A run is one log file, or the part of one between two starts of an engine. Knows no rule.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import field
from itertools import chain
from statistics import median

from twostroke.dataclass import dataclass
from twostroke.record import MIN_TOKENS_FOR_PREFILL_RATE, RequestRecord, WindowRecord
from twostroke_doctor.parsed import Fact, Item, Parsed

# Facts that a start of an engine states: a second one after a request opens another run.
_SETTINGS = frozenset(
    {"layers_offloaded", "threads", "threads_batch", "kv_type_k", "kv_type_v", "n_ctx"}
    | {"n_batch", "n_ubatch", "gpu_share", "flash_attention"}
)
_MIN_OUTPUT_FOR_RATE = 8
_SLOWEST_RATE = 1e-6  # tokens/s; one token in eleven days is a damaged log
_MAX_RUNS = 32  # more restarts in one file are not told apart: every pair of runs is compared


@dataclass(slots=True, kw_only=True)
class Run:
    """Requests, windows and facts of one set-up, in the order of the log."""

    name: str
    records: list[RequestRecord] = field(default_factory=list)
    windows: list[WindowRecord] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)

    def add(self, item: Item) -> None:
        """Keep one item."""
        if isinstance(item, RequestRecord):
            self.records.append(item)
        elif isinstance(item, WindowRecord):
            self.windows.append(item)
        else:
            self.facts.append(item)

    def fact(self, name: str) -> Fact | None:
        """Return the last fact of that name."""
        return next((f for f in reversed(self.facts) if f.name == name), None)

    def number(self, name: str) -> float | None:
        """Return the last fact of that name, where it is a number."""
        return number_of(self.fact(name))

    def prefill_tok_s(self) -> float | None:
        """Return the median prefill rate of requests with enough new tokens."""
        return _median([r.prefill_tok_s for r in self.records if has_prefill_rate(r)])

    def decode_tok_s(self) -> float | None:
        """Return the median decode rate of requests with enough output."""
        return _median([r.decode_tok_s for r in self.records if has_decode_rate(r)])


def number_of(fact: Fact | None) -> float | None:
    """Return a fact's value where it is a number."""
    if fact is None or isinstance(fact.value, bool) or not isinstance(fact.value, int | float):
        return None
    return float(fact.value)


def has_prefill_rate(record: RequestRecord) -> bool:
    """Whether a request's prefill rate means anything."""
    enough = (record.prompt.new or 0) >= MIN_TOKENS_FOR_PREFILL_RATE
    return record.prefill_tok_s is not None and enough


def has_decode_rate(record: RequestRecord) -> bool:
    """Whether a request's decode rate means anything."""
    is_long = (record.output.total or 0) >= _MIN_OUTPUT_FOR_RATE
    return is_long and (record.decode_tok_s or 0.0) >= _SLOWEST_RATE


def _median(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return median(known) if known else None


def split_runs(parsed: Parsed) -> list[Run]:
    """Return the runs of all logs, in order of reading."""
    files: dict[str | None, Run] = {}
    for item in chain[Item](parsed.records, parsed.windows, parsed.facts):
        file = item.file if isinstance(item, Fact) else item.meter.file
        if file not in files:
            files[file] = Run(name=file or "the log")
        files[file].add(item)
    return [part for run in list(files.values())[:_MAX_RUNS] for part in _split(run, parsed)]


def _split(run: Run, parsed: Parsed) -> list[Run]:
    """Cut a file where a setting is stated again after a request, unless repeats were folded."""
    settings = [f.line for f in run.facts if f.name in _SETTINGS and f.line is not None]
    ends = [_line(r) for r in run.records if r.meter.lines]
    if not settings or len(ends) < len(run.records) or _was_folded(run, parsed):
        return [run]
    cuts = _cuts(settings, ends)
    parts = [Run(name=run.name)] + [Run(name=f"{run.name} from line {c}") for c in cuts]
    for item in chain[Item](run.records, run.windows, run.facts):
        parts[bisect_right(cuts, _line(item))].add(item)
    return [part for part in parts if part.records or part.windows or part.facts]


def _line(item: Item) -> int:
    """Return the last line that an item was read from, 0 where it has no line."""
    if isinstance(item, Fact):
        return item.line or 0
    return item.meter.lines[-1] if item.meter.lines else 0


def _cuts(lines: list[int], ends: list[int]) -> list[int]:
    """Return the lines of settings that come after a request, the first of each such group."""
    cuts, ended = list[int](), False
    for line, is_end in sorted([(line, False) for line in lines] + [(end, True) for end in ends]):
        if is_end:
            ended = True
        elif ended:
            cuts.append(line)
            ended = False
    return cuts if len(cuts) < _MAX_RUNS else []


def _was_folded(run: Run, parsed: Parsed) -> bool:
    """Whether a setting was stated again with an old value: those are kept once, without a place.

    Then it is not known which requests ran under which value.
    """
    stated = Counter(f.name for f in parsed.facts if f.name in _SETTINGS)
    values: dict[str, set[object]] = {}
    for fact in run.facts:
        if fact.name in _SETTINGS:
            values.setdefault(fact.name, set()).add(fact.value)
    mixed = [name for name, found in values.items() if len(found) > 1]
    return any(parsed.fact_counts.get(name, 0) > stated[name] for name in mixed)
