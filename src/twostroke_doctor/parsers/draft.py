"""A record in the making: parsers fill it as lines arrive, `build` turns it into a RequestRecord.

Rates are computed here and nowhere else, from count and time; the rate that an engine printed goes
to `reported` and raises `meter_inconsistent` where it is not its own count over its own time.
"""

from __future__ import annotations

from dataclasses import field

from twostroke.dataclass import dataclass
from twostroke.record import MIN_TOKENS_FOR_PREFILL_RATE, PhaseTimes, RequestRecord, Speculation
from twostroke_doctor.parsers.lines import Line
from twostroke_doctor.parsers.numbers import half_digit, rate_agrees
from twostroke_doctor.parsers.quick import (
    new_meter,
    new_output,
    new_phases,
    new_prompt,
    new_record,
)

RATES = frozenset({"prefill_tok_s", "decode_tok_s", "decode_now_tok_s", "e2e_tok_s"})
_NO_SPECULATION = Speculation()
_MAX_LINES = 16  # evidence lines kept a record
_UNACCOUNTED_MIN_S = 0.0005


@dataclass(slots=True, kw_only=True)
class Draft:
    """Mutable fields of one request. Units: seconds, tokens, tokens per second; None is unknown."""

    engine: str
    id: str = ""
    model: str | None = None
    file: str | None = None
    t_end_s: float | None = None  # clock of the last line seen
    t_start_s: float | None = None  # clocks of an engine that stamps its phases
    t_first_s: float | None = None
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

    def flag(self, *names: str) -> None:
        """Raise flags, each once."""
        for name in names:
            if name not in self.flags:
                self.flags.append(name)

    def check(
        self,
        name: str,
        count: float | None,
        seconds: float | None,
        printed: str | None = None,
        printed_s: str | None = None,
        unit_s: float = 1.0,
    ) -> None:
        """Flag a reported rate that is not its count over its time.

        printed, printed_s: the rate and the time as text, for their rounding. unit_s: of the time.
        """
        rate = self.reported.get(name)
        if rate is None or count is None or not seconds:
            return
        if rate_agrees(rate, count, seconds):
            return
        half_s = half_digit(printed_s) * unit_s  # rounding is looked at only where it matters
        if not rate_agrees(rate, count, seconds, half_digit(printed), half_s):
            self.flag("meter_inconsistent")

    def check_rates(self) -> None:
        """Check the reported rates of both phases, where their text is not at hand."""
        self.check("prefill_tok_s", self.prompt_new, self.prefill_s)
        self.check("decode_tok_s", self.output, self.decode_s)

    def derive_decode(self) -> None:
        """Take the decode time from the output count and the reported rate."""
        rate = self.reported.get("decode_tok_s")
        if rate and self.output:
            self.decode_s = self.output / rate
            self.flag("time_derived")

    def complete_prompt(self) -> None:
        """Fill the third of total = cached + new where two are known and agree."""
        total, cached, new = self.prompt_total, self.prompt_cached, self.prompt_new
        if total is None and cached is not None and new is not None:
            self.prompt_total = cached + new
        elif cached is None and total is not None and new is not None and total >= new:
            self.prompt_cached = total - new
        elif new is None and total is not None and cached is not None and total >= cached:
            self.prompt_new = total - cached

    def build(self) -> RequestRecord:
        """Return the frozen record; it takes over the reported rates, so build it once."""
        self.complete_prompt()
        decode_rate = self._decode_tok_s()
        return new_record(
            id=self.id,
            engine=self.engine,
            model=self.model,
            t_arrival_s=self._arrival_s(),
            phases=self._phases(),
            e2e_s=self.e2e_s,
            prompt=new_prompt(
                total=self.prompt_total, cached=self.prompt_cached, new=self.prompt_new
            ),
            output=new_output(
                total=self.output, reasoning=self.output_reasoning, visible=self.output_visible
            ),
            chunks=self.chunks,
            preemptions=self.preemptions,
            ttft_any_s=self.ttft_any_s,
            tpot_s=1 / decode_rate if decode_rate else None,
            prefill_tok_s=self._prefill_tok_s(),
            decode_tok_s=decode_rate,
            ctx_end=self.ctx_end,
            speculation=self._speculation(),
            reported=self.reported,
            finish=self.finish,
            meter=new_meter(
                source="log", flags=tuple(self.flags), file=self.file, lines=tuple(self.lines)
            ),
        )

    def _arrival_s(self) -> float | None:
        end, total = self.t_end_s, self.e2e_s
        return None if end is None or total is None or total > end else end - total

    def _phases(self) -> PhaseTimes:
        """Return the phases; unaccounted is the part of the total that they leave open."""
        queue, load, init = self.queue_s, self.load_s, self.init_s
        prefill, decode, rest = self.prefill_s, self.decode_s, None
        if self.e2e_s is not None:
            known = [one for one in (queue, load, init, prefill, decode) if one is not None]
            rest = self.e2e_s - sum(known) if known else None
        return new_phases(
            queue_s=queue,
            load_s=load,
            init_s=init,
            prefill_s=prefill,
            decode_s=decode,
            unaccounted_s=rest if rest is not None and rest > _UNACCOUNTED_MIN_S else None,
        )

    def _decode_tok_s(self) -> float | None:
        """Return (output - 1) / decode time: the first token belongs to prefill."""
        if self.output is None or self.output < 2 or not self.decode_s:
            return None
        return (self.output - 1) / self.decode_s

    def _prefill_tok_s(self) -> float | None:
        """Return new tokens / prefill time, None under the least count that means anything."""
        if self.prompt_new is None or not self.prefill_s or "ttft_as_prefill" in self.flags:
            return None
        too_few = self.prompt_new < MIN_TOKENS_FOR_PREFILL_RATE
        return None if too_few else self.prompt_new / self.prefill_s

    def _speculation(self) -> Speculation:
        if self.drafted is None and self.accepted is None:
            return _NO_SPECULATION
        return Speculation(drafted=self.drafted, accepted=self.accepted)
