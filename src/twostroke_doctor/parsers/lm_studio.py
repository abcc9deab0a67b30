"""LM Studio's developer log: stamps of a request's phases, and prompt progress.

The time to the first token is no prefill time: queueing, model load and image encoding may be in
it, so such a prefill is flagged `ttft_as_prefill` and no rate is computed from it.
"""

from __future__ import annotations

import re

from twostroke_doctor.parsed import Fact, Item
from twostroke_doctor.parsers.draft import Draft
from twostroke_doctor.parsers.formats import ALWAYS, LineFormat
from twostroke_doctor.parsers.items import fact_at
from twostroke_doctor.parsers.lines import Line
from twostroke_doctor.parsers.numbers import NUMBER, num
from twostroke_doctor.parsers.table import MAX_OPEN, TableParser

SERVER_MARK = "[LM STUDIO SERVER]"
_PROGRESS = re.compile(rf"(?:\[([^\]\s]{{1,200}})\] )?Prompt processing progress: ({NUMBER})%")
_MAX_WAIT_S = 86_400.0


def _start(draft: Draft, match: re.Match[str]) -> None:
    draft.t_start_s = draft.t_end_s


def _first_token(draft: Draft, match: re.Match[str]) -> None:
    if draft.t_first_s is None:
        draft.t_first_s = draft.t_end_s


def _end(draft: Draft, match: re.Match[str]) -> None:
    """Take the request's times from the clocks of its lines."""
    start, first, end = draft.t_start_s, draft.t_first_s, draft.t_end_s
    if start is None or end is None or not 0 <= end - start <= _MAX_WAIT_S:
        return
    draft.e2e_s = end - start
    draft.flag("time_derived")
    if first is not None and start <= first <= end:
        draft.ttft_any_s = draft.prefill_s = first - start
        draft.decode_s = end - first
        draft.flag("ttft_as_prefill")


class LmStudioParser(TableParser):
    """Pairs the log's stamps, of whole seconds, into a request; keeps the last progress."""

    engine = "lm-studio"
    words = ("Prompt processing progress",)
    formats = (
        LineFormat(r"Running (?:chat )?completion\b", _start, opens=ALWAYS, literal=SERVER_MARK),
        LineFormat("`Accumulating tokens`", _first_token, joins=True),
        LineFormat("`Generated prediction`:", _end, joins=True, closes=True),
        LineFormat(f"`{SERVER_MARK}`"),
    )

    def __init__(self) -> None:
        super().__init__()
        self._progress: dict[str, Fact] = {}

    def feed(self, line: Line) -> list[Item] | None:
        """Return the items that a line completes, or None when it is not this engine's."""
        match = _PROGRESS.search(line.text)
        return super().feed(line) if match is None else self._take_progress(line, match)

    def take(self, form: LineFormat, match: re.Match[str], line: Line, out: list[Item]) -> None:
        """Add a line to its request; without a stamp the request's times cannot be told."""
        if line.t_s is None:
            self._drafts.pop(line.source, None)
        else:
            super().take(form, match, line, out)

    def finish(self, draft: Draft) -> list[Item]:
        """Return a request whose start and end had a clock."""
        return [] if draft.e2e_s is None else [draft.build()]

    def flush(self) -> list[Item]:
        """Return how far the prompts came that never finished."""
        return [*super().flush(), *self._given_up()]

    def _given_up(self) -> list[Fact]:
        out = list(self._progress.values())
        self._progress.clear()
        return out

    def _take_progress(self, line: Line, match: re.Match[str]) -> list[Item]:
        """Keep the progress of a prompt until the next line of it; 100 % is none to tell."""
        out: list[Item] = []
        percent = num(match.group(2))
        if percent is None or percent > 100:
            return out
        self._progress.pop(line.source, None)
        if len(self._progress) >= MAX_OPEN:
            out += self._given_up()
        if percent < 100:
            self._progress[line.source] = fact_at(
                line, self.engine, "prefill_progress", percent / 100, match.group(1)
            )
        return out
