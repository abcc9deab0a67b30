"""A record in the making: parsers fill it as lines arrive, `build` turns it into a RequestRecord.

Rates are computed here and nowhere else, from count and time; what an engine printed goes to
`reported` and raises `meter_inconsistent` where it is not its own count over its own time.
"""

from __future__ import annotations

from dataclasses import field

from twostroke.dataclass import dataclass
from twostroke.record import (
    MIN_TOKENS_FOR_PREFILL_RATE,
    CacheOutcome,
    InterTokenLatency,
    Meter,
    OutputTokens,
    PhaseTimes,
    PromptTokens,
    RequestRecord,
    Speculation,
)
from twostroke_doctor.parsers.lines import Line
from twostroke_doctor.parsers.numbers import positive, rate_agrees, ulp

_NO_CACHE, _NO_GAPS, _NO_SPECULATION = CacheOutcome(), InterTokenLatency(), Speculation()
_MAX_LINES = 16  # evidence lines kept a record
_UNACCOUNTED_MIN_S = 0.0005


@dataclass(slots=True, kw_only=True)
class Draft:
    """Mutable fields of one request. Units: seconds, tokens, tokens per second; None is unknown."""

    engine: str
    id: str = ""
    model: str | None = None
    file: str | None = None
    t_end_s: float | None = None
    queue_s: float | None = None
    load_s: float | None = None
    init_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    e2e_s: float | None = None
    ttft_any_s: float | None = None
    prompt_total: int | None = None
    prompt_cached: int | None = None
    prompt_new: int | None = None
    output: int | None = None
    output_reasoning: int | None = None
    output_visible: int | None = None
    chunks: int | None = None
    ctx_end: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    preemptions: int | None = None
    finish: str | None = None
    reported: dict[str, float] = field(default_factory=dict)
    flags: list[str] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)

    def see(self, line: Line) -> None:
        """Note a line as evidence."""
        self.file = line.file
        self.t_end_s = line.t_s if line.t_s is not None else self.t_end_s
        if len(self.lines) < _MAX_LINES and (not self.lines or self.lines[-1] != line.number):
            self.lines.append(line.number)

    def flag(self, name: str) -> None:
        """Raise a flag once."""
        if name not in self.flags:
            self.flags.append(name)

    def report(
        self,
        name: str,
        printed: str | None,
        count: float | None = None,
        seconds: float | None = None,
        time_text: str | None = None,
        time_unit_s: float = 1.0,
    ) -> None:
        """Keep a printed rate, and flag it when it is not its count over its time."""
        rate = positive(printed)
        if rate is None or printed is None:
            return
        self.reported[name] = rate
        half = ulp(time_text) * time_unit_s / 2 if time_text else 0.0
        if count is None or seconds is None:
            return
        if not rate_agrees(printed, count, seconds, half):
            self.flag("meter_inconsistent")

    def report_value(
        self, name: str, rate: float | None, count: float | None, seconds: float | None
    ) -> None:
        """Keep a rate that came as a JSON number."""
        if rate:
            self.reported[name] = rate
            if count is not None and seconds and not rate_agrees(f"{rate:.6f}", count, seconds):
                self.flag("meter_inconsistent")

    def complete_prompt(self) -> None:
        """Fill the third of total = cached + new where two are known; drop what contradicts it."""
        total, cached, new = self.prompt_total, self.prompt_cached, self.prompt_new
        if total is None and cached is not None and new is not None:
            self.prompt_total = cached + new
        elif cached is None and total is not None and new is not None and total >= new:
            self.prompt_cached = total - new
        elif new is None and total is not None and cached is not None and total >= cached:
            self.prompt_new = total - cached

    def unaccounted_s(self) -> float | None:
        """Return what the engine's total leaves open, None when no total or nothing is open."""
        known = [self.queue_s, self.load_s, self.init_s, self.prefill_s, self.decode_s]
        if self.e2e_s is None or all(part is None for part in known):
            return None
        rest = self.e2e_s - sum(part for part in known if part is not None)
        return rest if rest > _UNACCOUNTED_MIN_S else None

    def decode_tok_s(self) -> float | None:
        """Return (output - 1) / decode time: the first token belongs to prefill."""
        if self.output is None or self.output < 2 or not self.decode_s:
            return None
        return (self.output - 1) / self.decode_s

    def prefill_tok_s(self) -> float | None:
        """Return new tokens / prefill time, None under the least count that means anything."""
        few = self.prompt_new is None or self.prompt_new < MIN_TOKENS_FOR_PREFILL_RATE
        if few or not self.prefill_s or "ttft_as_prefill" in self.flags:
            return None
        return self.prompt_new / self.prefill_s if self.prompt_new else None

    def _speculation(self) -> Speculation:
        if self.drafted is None and self.accepted is None:
            return _NO_SPECULATION
        return Speculation(drafted=self.drafted, accepted=self.accepted)

    def build(self) -> RequestRecord:
        """Return the frozen record."""
        self.complete_prompt()
        decode_rate = self.decode_tok_s()
        arrival = None
        if self.t_end_s is not None and self.e2e_s is not None and self.e2e_s <= self.t_end_s:
            arrival = self.t_end_s - self.e2e_s
        return RequestRecord(
            id=self.id,
            engine=self.engine,
            model=self.model,
            t_arrival_s=arrival,
            phases=PhaseTimes(
                queue_s=self.queue_s,
                load_s=self.load_s,
                init_s=self.init_s,
                prefill_s=self.prefill_s,
                decode_s=self.decode_s,
                unaccounted_s=self.unaccounted_s(),
            ),
            e2e_s=self.e2e_s,
            prompt=PromptTokens(
                total=self.prompt_total, cached=self.prompt_cached, new=self.prompt_new
            ),
            output=OutputTokens(
                total=self.output, reasoning=self.output_reasoning, visible=self.output_visible
            ),
            chunks=self.chunks,
            preemptions=self.preemptions,
            ttft_any_s=self.ttft_any_s,
            tpot_s=1 / decode_rate if decode_rate else None,
            itl=_NO_GAPS,
            cache=_NO_CACHE,
            prefill_tok_s=self.prefill_tok_s(),
            decode_tok_s=decode_rate,
            ctx_end=self.ctx_end,
            speculation=self._speculation(),
            reported=dict(self.reported),
            finish=self.finish,
            meter=Meter(
                source="log", flags=tuple(self.flags), file=self.file, lines=tuple(self.lines)
            ),
        )


class Sources:
    """At most `limit` open drafts by key, the oldest given back when a new one needs its place."""

    def __init__(self, limit: int = 64) -> None:
        self._limit = limit
        self._open: dict[object, Draft] = {}

    def get(self, key: object) -> Draft | None:
        """Return the open draft of a key."""
        return self._open.get(key)

    def put(self, key: object, draft: Draft) -> list[Draft]:
        """Open a draft; return those that had to make way."""
        out = [old] if (old := self._open.pop(key, None)) is not None else []
        self._open[key] = draft
        if len(self._open) > self._limit:
            out.append(self._open.pop(next(iter(self._open))))
        return out

    def pop(self, key: object) -> Draft | None:
        """Close and return the draft of a key."""
        return self._open.pop(key, None)

    def keys(self) -> list[object]:
        """Return the keys of the open drafts, oldest first."""
        return list(self._open)

    def drain(self) -> list[Draft]:
        """Close and return every draft, oldest first."""
        out = list(self._open.values())
        self._open.clear()
        return out
