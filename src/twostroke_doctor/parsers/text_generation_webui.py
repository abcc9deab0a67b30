"""text-generation-webui: one line a request, with one rate that holds prefill and decode together.

Two or more lines of different shape give both rates by least squares, t = context/pp + tokens/tg:
an estimate, told as such.
"""

from __future__ import annotations

import re

from twostroke_doctor.parsed import Item
from twostroke_doctor.parsers.draft import Draft
from twostroke_doctor.parsers.formats import ALWAYS, LineFormat
from twostroke_doctor.parsers.numbers import NUMBER, positive
from twostroke_doctor.parsers.quick import new_fact
from twostroke_doctor.parsers.table import TableParser

_MIN_DETERMINANT = 1e-6  # relative; under it the lines are too alike to tell two rates apart


def _judge(draft: Draft, match: re.Match[str]) -> None:
    """Tell broken and empty counts from real ones, and check the rate of a real one."""
    count, rate = int(match["count"]), match["rate"]
    if count < 0 or rate.startswith("-"):
        draft.flag("negative_count")
        return
    draft.output = count
    draft.ctx_end = (draft.prompt_total or 0) + count
    if count == 0:
        draft.flag("no_output")
    elif (printed := positive(rate)) is not None:
        draft.reported["e2e_tok_s"] = printed
        draft.check("e2e_tok_s", count, draft.e2e_s, rate, match["e2e_s"])


class TextGenerationWebuiParser(TableParser):
    """One line, one request; keeps the five sums of the fit."""

    engine = "text-generation-webui"
    formats = (
        LineFormat(
            r"`Output generated in` (?=[0-9]){e2e_s:positive} seconds"
            rf" \((?P<rate>{NUMBER}) tokens/s, (?P<count>-?\d{{1,12}}) tokens,"
            r" context {prompt_total:int}(?:, seed -?\d{1,20})?\)",
            _judge,
            opens=ALWAYS,
            closes=True,
            flags=("prefill_mixed_in",),
        ),
    )

    def __init__(self) -> None:
        super().__init__()
        self._start_fit()

    def _start_fit(self) -> None:
        self._sums = [0.0, 0.0, 0.0, 0.0, 0.0]  # cc, cn, nn, ct, nt
        self._count = 0
        self._last: Draft | None = None

    def finish(self, draft: Draft) -> list[Item]:
        """Return the request, and add it to the fit."""
        context, tokens, seconds = draft.prompt_total, draft.output, draft.e2e_s
        if context is not None and tokens and seconds:
            pairs = ((context, context), (context, tokens), (tokens, tokens))
            products = [float(one * two) for one, two in pairs]
            products += [context * seconds, tokens * seconds]
            self._sums = [old + new for old, new in zip(self._sums, products, strict=True)]
            self._count += 1
            self._last = draft
        return [draft.build()]

    def flush(self) -> list[Item]:
        """Return the fitted rates, when the lines seen can tell them apart."""
        rates, last = self._fit(), self._last
        self._start_fit()
        return [
            new_fact(name=name, value=rate, engine=self.engine, file=last.file, line=last.lines[0])
            for name, rate in rates.items()
            if last is not None
        ]

    def _fit(self) -> dict[str, float]:
        """Solve the normal equations; empty when they are singular or a rate comes out negative."""
        cc, cn, nn, ct, nt = self._sums
        determinant = cc * nn - cn * cn
        if self._count < 2 or determinant <= _MIN_DETERMINANT * cc * nn:
            return {}
        per_context = (ct * nn - nt * cn) / determinant
        per_token = (cc * nt - cn * ct) / determinant
        if per_context <= 0 or per_token <= 0:
            return {}
        return {
            "estimated_prefill_tok_s": 1 / per_context,
            "estimated_decode_tok_s": 1 / per_token,
        }
