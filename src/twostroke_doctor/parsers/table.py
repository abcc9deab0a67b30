"""A parser that applies a table of line formats; engines add only the state that is their own."""

from __future__ import annotations

import re

from twostroke_doctor.parsed import Item
from twostroke_doctor.parsers.draft import Draft
from twostroke_doctor.parsers.formats import ALWAYS, LineFormat
from twostroke_doctor.parsers.lines import Line

MAX_OPEN = 64  # requests, windows or sources that a parser holds at once


class TableParser:
    """Reads an engine's lines by its formats; every format that a line fits is applied."""

    engine = ""
    formats: tuple[LineFormat, ...] = ()
    words: tuple[str, ...] = ()  # further texts by which a line is routed here

    def __init__(self) -> None:
        self._drafts: dict[object, Draft] = {}  # open requests, oldest first

    @property
    def signatures(self) -> tuple[str, ...]:
        """The texts by which a line is routed here."""
        return (*self.words, *dict.fromkeys(one.literal for one in self.formats))

    def feed(self, line: Line) -> list[Item] | None:
        """Return the items that a line completes, or None when it is not this engine's."""
        out: list[Item] | None = None
        text = line.text
        for form in self.formats:
            if form.literal in text and (match := form.search(text)) is not None:
                out = [] if out is None else out
                if form.is_request:
                    self.take(form, match, line, out)
                if form.has_facts:
                    out += form.facts(self.engine, line, match)
                if form.alone:
                    break
        return out

    def take(self, form: LineFormat, match: re.Match[str], line: Line, out: list[Item]) -> None:
        """Add a line to its request; put the items of the requests that it ends into `out`."""
        key = self.key(line, match)
        draft = None if form.opens is ALWAYS else self._drafts.get(key)
        if draft is None or form.begins(draft):
            if form.joins:
                return
            draft = Draft(engine=self.engine)
            out += self.opened(key, draft)
        draft.see(line)
        form.fill(draft, match)
        if form.closes:
            self._drafts.pop(key, None)
            out += self.finish(draft)

    def opened(self, key: object, draft: Draft) -> list[Item]:
        """Open a draft; return the items of those that make way for it."""
        old = self._drafts.pop(key, None)
        self._drafts[key] = draft
        if len(self._drafts) > MAX_OPEN:
            old = self._drafts.pop(next(iter(self._drafts)))
        return [] if old is None else self.finish(old)

    def key(self, line: Line, match: re.Match[str]) -> object:
        """Return the key of a line's request: two sources in one file do not mix."""
        return line.source

    def finish(self, draft: Draft) -> list[Item]:
        """Return the items of a request that is whole or will get no more lines."""
        return [draft.build()]

    def flush(self) -> list[Item]:
        """Return the items that the log's end leaves open."""
        left = list(self._drafts.values())
        self._drafts.clear()
        return [item for draft in left for item in self.finish(draft)]
