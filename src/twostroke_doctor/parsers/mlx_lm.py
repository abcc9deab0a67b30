"""mlx-lm: prompt, generation and peak-memory lines, and its benchmark's averages.

prompt_tps is all prompt tokens, cached ones included, over the time to the first yield, so the
first decode step is in it; generation_tps counts the first token.
"""

from __future__ import annotations

import re

from twostroke.record import Meter, WindowRecord
from twostroke_doctor.parsed import Fact, Item
from twostroke_doctor.parsers.draft import Draft, Sources
from twostroke_doctor.parsers.lines import Line
from twostroke_doctor.parsers.numbers import NUMBER, num, positive

ENGINE = "mlx-lm"
_GB = 1_000_000_000
_PROMPT = re.compile(rf"\bPrompt: (\d{{1,12}}) tokens, ({NUMBER}) tokens-per-sec")
_GENERATION = re.compile(rf"\bGeneration: (\d{{1,12}}) tokens, ({NUMBER}) tokens-per-sec")
_PEAK = re.compile(rf"\bPeak memory: ({NUMBER}) GB")
_AVERAGES = re.compile(
    rf"Averages: prompt_tps=({NUMBER}), generation_tps=({NUMBER}),"
    r" peak_memory=([\d.]{1,16})(?=\s|,|$)"
)


class MlxLmParser:
    """A request is its prompt line and the generation line after it."""

    engine = ENGINE
    signatures = ("tokens-per-sec", "Peak memory:", "Averages: prompt_tps")

    def __init__(self) -> None:
        self._open = Sources()

    def feed(self, line: Line) -> list[Item] | None:
        """Return what a line completes, or None when it is not this engine's."""
        text = line.text
        if (match := _PROMPT.search(text)) is not None:
            return self._prompt(line, match)
        if (match := _GENERATION.search(text)) is not None:
            return self._generation(line, match)
        if (match := _AVERAGES.search(text)) is not None:
            return _averages(line, match)
        if (match := _PEAK.search(text)) is not None:
            peak = positive(match.group(1))
            return [] if peak is None else [_peak(line, peak)]
        return None

    def flush(self) -> list[Item]:
        """Return the requests without a generation line."""
        out: list[Item] = []
        for draft in self._open.drain():
            draft.flag("partial")
            out.append(draft.build())
        return out

    def _prompt(self, line: Line, match: re.Match[str]) -> list[Item]:
        draft = Draft(engine=ENGINE)
        draft.see(line)
        draft.prompt_total = int(match.group(1))
        draft.report("prefill_tok_s", match.group(2))
        rate = positive(match.group(2))
        if rate is not None and draft.prompt_total:
            draft.ttft_any_s = draft.prefill_s = draft.prompt_total / rate
            for flag in ("time_derived", "ttft_as_prefill", "cached_may_be_counted"):
                draft.flag(flag)
        out: list[Item] = []
        for old in self._open.put(line.source, draft):
            old.flag("partial")
            out.append(old.build())
        return out

    def _generation(self, line: Line, match: re.Match[str]) -> list[Item]:
        draft = self._open.pop(line.source) or Draft(engine=ENGINE)
        draft.see(line)
        draft.output = int(match.group(1))
        draft.report("decode_tok_s", match.group(2))
        rate = positive(match.group(2))
        if rate is not None and draft.output:
            draft.decode_s = draft.output / rate
            draft.flag("time_derived")
        return [draft.build()]


def _peak(line: Line, gigabytes: float) -> Fact:
    return Fact(
        name="peak_memory_bytes",
        value=round(gigabytes * _GB),
        engine=ENGINE,
        file=line.file,
        line=line.number,
    )


def _averages(line: Line, match: re.Match[str]) -> list[Item]:
    """Keep a benchmark's averages as a window: they are no single request's."""
    meter = Meter(source="log", flags=("benchmark",), file=line.file, lines=(line.number,))
    window = WindowRecord(
        engine=ENGINE,
        t_s=line.t_s,
        prompt_tok_s=num(match.group(1)),
        output_tok_s=num(match.group(2)),
        meter=meter,
    )
    peak = positive(match.group(3))
    return [window] if peak is None else [window, _peak(line, peak)]
