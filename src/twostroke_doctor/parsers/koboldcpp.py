"""KoboldCpp: the line at the end of a generation, in its four shapes.

Counts are not printed before 2024-10; they follow from time and rate, which a version of 2024-05
computed from the requested count (koboldcpp#852). `Total` leaves the `Init` time out.
"""

from __future__ import annotations

import re

from twostroke_doctor.parsed import Item
from twostroke_doctor.parsers.draft import Draft
from twostroke_doctor.parsers.formats import ALWAYS, LineFormat, line_formats
from twostroke_doctor.parsers.lines import Line
from twostroke_doctor.parsers.numbers import derived_count, positive
from twostroke_doctor.parsers.table import MAX_OPEN, TableParser

_PROCESS = r"`Process:`\s?{prefill_s:positive}s \((?:{:num}ms/T = )?{prefill_tok_s:num}T/s\)"
_GENERATE = r"`Generate:`\s?{decode_s:positive}s \((?:{:num}ms/T = )?{decode_tok_s:num}T/s\)"
_INIT, _TOTAL = r"`Init:`\s?{init_s:positive}s,", r"`Total:`\s?{e2e_s:positive}s"
_USED, _AMOUNT = r"`CtxLimit`:\s?{ctx_end:int}/{:int},", r"`Amt:`\s?{output:int}/{:int},"
_TEXTS = ("prefill_s", "prefill_tok_s", "decode_s", "decode_tok_s")
_PARTS = line_formats(
    *(_PROCESS, _GENERATE, _USED, _AMOUNT, _INIT, _TOTAL),
    r"^\s{0,8}{ctx_end:int}/{:int}, `Process:`",
)
_PROGRESS = re.compile(r"Generating \((\d{1,9}) / (\d{1,9}) tokens\)")


def _settle(draft: Draft, printed: re.Match[str] | dict[str, str | None]) -> None:
    """Derive the counts that a line since 2024 does not print, and check its rate."""
    generate, decode_rate = printed["decode_s"], printed["decode_tok_s"]
    draft.prompt_new = derived_count(printed["prefill_s"], printed["prefill_tok_s"])
    amount = draft.output
    derived = None
    if amount is None or draft.prompt_new is None:
        derived = derived_count(generate, decode_rate)
    if derived is not None or draft.prompt_new is not None:
        draft.flag("count_derived")
    if amount is None:
        draft.output = derived
    else:
        draft.check("decode_tok_s", amount, draft.decode_s, decode_rate, generate)
        if draft.ctx_end is not None:
            draft.prompt_total = max(draft.ctx_end - amount, 0) or None
    if draft.prompt_total is not None and draft.prompt_new is not None:
        draft.prompt_new = min(draft.prompt_new, draft.prompt_total)
    if draft.e2e_s is not None:
        draft.e2e_s += draft.init_s or 0.0


def _settle_old(draft: Draft, match: re.Match[str]) -> None:
    """Derive counts and rates from whole milliseconds a token; below 10 ms they hide the count."""
    per_prompt, per_token = positive(match["per_prompt"]), positive(match["per_token"])
    if draft.prefill_s and per_prompt and per_prompt >= 10:
        draft.prompt_new = round(draft.prefill_s * 1000 / per_prompt)
    if draft.decode_s and per_token and per_token >= 10:
        draft.output = round(draft.decode_s * 1000 / per_token)
    if draft.prompt_new is not None or draft.output is not None:
        draft.flag("count_derived")
    rates = {"prefill_tok_s": per_prompt, "decode_tok_s": per_token}
    draft.reported |= {name: 1000 / ms for name, ms in rates.items() if ms}


class KoboldcppParser(TableParser):
    """Holds each line back until the next, which may tell the count that was really generated."""

    engine = "koboldcpp"
    words = ("Generating (", ", Process:")
    formats = (
        LineFormat(  # the order that every version since 2024 prints
            rf"{_USED} (?:{_AMOUNT} )?(?:{_INIT} )?{_PROCESS}, {_GENERATE}, {_TOTAL}",
            _settle,
            opens=ALWAYS,
            alone=True,
        ),
        LineFormat(
            r"`Time Taken - Processing`:\s?{prefill_s:positive}s \({per_prompt:num}ms/T\), "
            r"Generation:\s?{decode_s:positive}s \({per_token:num}ms/T\)"
            r"(?:, Total:\s?{e2e_s:positive}s)?",
            _settle_old,
            opens=ALWAYS,
        ),
    )

    def __init__(self) -> None:
        super().__init__()
        self._before: dict[str, tuple[int, int]] = {}  # counts told before their line

    def feed(self, line: Line) -> list[Item] | None:
        """Return the items that a line completes, or None when it is not this engine's."""
        progress = _PROGRESS.findall(line.text) if "Generating (" in line.text else None
        if progress:
            return self._generating(line, int(progress[-1][0]), int(progress[-1][1]))
        items = super().feed(line)
        items = self._any_order(line) if items is None else items
        if self._before and items is not None and line.source in self._before:
            held = self._drafts.get(line.source)
            if held is not None:
                _correct_count(held, *self._before.pop(line.source))
        return items

    def flush(self) -> list[Item]:
        """Return the lines held back."""
        self._before.clear()
        return super().flush()

    def _any_order(self, line: Line) -> list[Item] | None:
        """Read a line whose parts stand in another order, or are not all there."""
        draft, printed = Draft(engine=self.engine), dict.fromkeys(_TEXTS)
        for form in _PARTS:
            match = form.search(line.text)
            if match is not None:
                form.fill(draft, match)
                printed |= match.groupdict()
            elif form is _PARTS[1] and not any(printed.values()):
                return None  # neither phase is there
        _settle(draft, printed)
        draft.see(line)
        return self.opened(line.source, draft)

    def _generating(self, line: Line, done: int, asked: int) -> list[Item]:
        """Give the count to the line before, when its rate used `asked`; else to the one after."""
        held = self._drafts.get(line.source)
        if held is not None and done < asked and held.output == asked:
            held.see(line)
            _correct_count(held, done, asked)
        elif len(self._before) < MAX_OPEN:
            self._before[line.source] = (done, asked)
        return []


def _correct_count(draft: Draft, done: int, asked: int) -> None:
    """Replace a count that was the requested one by the generated one."""
    if done < asked and draft.output == asked:
        draft.output = done
        draft.flag("requested_count", "meter_inconsistent")
