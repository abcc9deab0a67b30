"""mlx-lm: prompt, generation and peak-memory lines, and its benchmark's averages.

prompt_tps is all prompt tokens, cached ones included, over the time to the first yield, so the
first decode step is in it; generation_tps counts the first token.
"""

from __future__ import annotations

import re

from twostroke_doctor.parsed import Item
from twostroke_doctor.parsers.draft import Draft
from twostroke_doctor.parsers.formats import ALWAYS, LineFormat
from twostroke_doctor.parsers.items import window_at
from twostroke_doctor.parsers.lines import Line
from twostroke_doctor.parsers.numbers import NUMBER, num
from twostroke_doctor.parsers.table import TableParser

_AVERAGES = re.compile(
    rf"Averages: prompt_tps=({NUMBER}), generation_tps=({NUMBER}), peak_memory=[\d.]+(?=\s|,|$)"
)


def _derive_prefill(draft: Draft, match: re.Match[str]) -> None:
    rate = draft.reported.get("prefill_tok_s")
    if rate and draft.prompt_total:
        draft.ttft_any_s = draft.prefill_s = draft.prompt_total / rate
        draft.flag("time_derived", "ttft_as_prefill", "cached_may_be_counted")


class MlxLmParser(TableParser):
    """A request is its prompt line and the generation line after it."""

    engine = "mlx-lm"
    words = ("Averages: prompt_tps",)
    formats = (
        LineFormat(
            r"\bPrompt: {prompt_total:int} tokens, {prefill_tok_s:num} `tokens-per-sec`",
            _derive_prefill,
            opens=ALWAYS,
        ),
        LineFormat(
            r"\bGeneration: {output:int} tokens, {decode_tok_s:num} `tokens-per-sec`",
            lambda draft, match: draft.derive_decode(),
            closes=True,
        ),
        LineFormat(r"\b`Peak memory:` {peak_memory_bytes:GB} GB"),
        LineFormat(r"generation_tps=.*, `peak_memory=`{peak_memory_bytes:GB}(?=\s|,|$)"),
    )

    def feed(self, line: Line) -> list[Item] | None:
        """Read a benchmark's averages as a window: they are no single request's."""
        items, match = super().feed(line), _AVERAGES.search(line.text)
        if match is None:
            return items
        rates = {"prompt_tok_s": num(match.group(1)), "output_tok_s": num(match.group(2))}
        window = window_at(line, self.engine, {}, rates, flags=("benchmark",))
        return [window, *(items or [])]

    def finish(self, draft: Draft) -> list[Item]:
        """Mark a request without a generation line as partial."""
        if draft.output is None:
            draft.flag("partial")
        return [draft.build()]
