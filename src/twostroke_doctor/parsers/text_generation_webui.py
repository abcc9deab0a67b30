"""text-generation-webui: one line a request, with one rate that holds prefill and decode together.

Two or more lines of different shape give both rates by least squares, t = context/pp + tokens/tg:
an estimate, told as such.
"""

from __future__ import annotations

import re

from twostroke_doctor.parsed import Fact, Item
from twostroke_doctor.parsers.draft import Draft
from twostroke_doctor.parsers.lines import Line
from twostroke_doctor.parsers.numbers import NUMBER, num, rate_agrees, ulp

ENGINE = "text-generation-webui"
_LINE = re.compile(
    rf"Output generated in ({NUMBER}) seconds \(({NUMBER}) tokens/s, (-?\d{{1,12}}) tokens,"
    r" context (\d{1,12})(?:, seed -?\d{1,20})?\)"
)
_MIN_DETERMINANT = 1e-6  # relative; under it the lines are too alike to tell two rates apart


class TextGenerationWebuiParser:
    """One line, one request; keeps five sums for the fit."""

    engine = ENGINE
    signatures = ("Output generated in",)

    def __init__(self) -> None:
        self._sums = [0.0, 0.0, 0.0, 0.0, 0.0]  # cc, cn, nn, ct, nt
        self._count = 0
        self._last: Line | None = None

    def feed(self, line: Line) -> list[Item] | None:
        """Return the request of a line, or None when it is not this engine's."""
        match = _LINE.search(line.text)
        seconds = num(match.group(1)) if match else None
        if match is None or seconds is None:
            return None
        draft = Draft(engine=ENGINE)
        draft.see(line)
        draft.e2e_s = seconds or None
        draft.prompt_total = int(match.group(4))
        draft.flag("prefill_mixed_in")
        self._take_output(draft, match, seconds)
        draft.ctx_end = None if draft.output is None else draft.prompt_total + draft.output
        if draft.output and draft.e2e_s:
            self._last = line
            self._add(float(draft.prompt_total), float(draft.output), draft.e2e_s)
        return [draft.build()]

    def flush(self) -> list[Item]:
        """Return the fitted rates, when the lines seen can tell them apart."""
        rates, line = self._fit(), self._last
        self.__init__()  # type: ignore[misc]
        if rates is None or line is None:
            return []
        names = ("estimated_prefill_tok_s", "estimated_decode_tok_s")
        return [
            Fact(name=name, value=rate, engine=ENGINE, file=line.file, line=line.number)
            for name, rate in zip(names, rates, strict=True)
        ]

    def _take_output(self, draft: Draft, match: re.Match[str], seconds: float) -> None:
        count = int(match.group(3))
        if count < 0 or match.group(2).startswith("-"):
            draft.flag("negative_count")
        elif count == 0:
            draft.output = 0
            draft.flag("no_output")
        else:
            draft.output = count
            rate = num(match.group(2))
            if rate:
                draft.reported["e2e_tok_s"] = rate
            half = ulp(match.group(1)) / 2
            if not rate_agrees(match.group(2), count, seconds, half):
                draft.flag("meter_inconsistent")

    def _add(self, context: float, tokens: float, seconds: float) -> None:
        products = (
            context * context,
            context * tokens,
            tokens * tokens,
            context * seconds,
            tokens * seconds,
        )
        self._sums = [old + new for old, new in zip(self._sums, products, strict=True)]
        self._count += 1

    def _fit(self) -> tuple[float, float] | None:
        """Solve the normal equations; None when they are singular or a rate comes out negative."""
        cc, cn, nn, ct, nt = self._sums
        determinant = cc * nn - cn * cn
        if self._count < 2 or determinant <= _MIN_DETERMINANT * cc * nn:
            return None
        per_context = (ct * nn - nt * cn) / determinant
        per_token = (cc * nt - cn * ct) / determinant
        if per_context <= 0 or per_token <= 0:
            return None
        return 1 / per_context, 1 / per_token
