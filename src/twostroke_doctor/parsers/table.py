"""A parser that applies a table of line formats; engines add only the state that is their own."""

from __future__ import annotations

import re

from twostroke_doctor.parsed import Item
from twostroke_doctor.parsers.draft import Draft
from twostroke_doctor.parsers.formats import LineFormat
from twostroke_doctor.parsers.lines import Line

MAX_OPEN = 64  # requests, windows or sources that a parser holds at once


class Sources:
    """At most MAX_OPEN open drafts by key, the oldest given back when a new one needs its place."""

    def __init__(self) -> None:
        self._open: dict[object, Draft] = {}

    def get(self, key: object) -> Draft | None:
        """Return the open draft of a key."""
        return self._open.get(key)

    def put(self, key: object, draft: Draft) -> list[Draft]:
        """Open a draft; return those that had to make way."""
        out = [old] if (old := self._open.pop(key, None)) is not None else []
        self._open[key] = draft
        if len(self._open) > MAX_OPEN:
            out.append(self._open.pop(next(iter(self._open))))
        return out

    def pop(self, key: object) -> Draft | None:
        """Close and return the draft of a key."""
        return self._open.pop(key, None)

    def drain(self) -> list[Draft]:
        """Close and return every draft, oldest first."""
        out = list(self._open.values())
        self._open.clear()
        return out


class TableParser:
    """Reads an engine's lines by its formats; every format that a line fits is applied."""

    engine = ""
    formats: tuple[LineFormat, ...] = ()
    words: tuple[str, ...] = ()  # further texts by which a line is routed here

    def __init__(self) -> None:
        self._drafts = Sources()

    @property
    def signatures(self) -> tuple[str, ...]:
        """The texts by which a line is routed here."""
        return (*self.words, *dict.fromkeys(one.literal for one in self.formats))

    def feed(self, line: Line) -> list[Item] | None:
        """Return the items that a line completes, or None when it is not this engine's."""
        out: list[Item] = []
        text, is_known = line.text, False
        for form in self.formats:
            if form.literal in text and (match := form.search(text)) is not None:
                is_known = True
                if form.is_request:
                    out += self.take(form, match, line)
                out += form.facts(self.engine, line, match)
        return out if is_known else None

    def take(self, form: LineFormat, match: re.Match[str], line: Line) -> list[Item]:
        """Add a line to its request; return the items of the requests that it ends."""
        out: list[Item] = []
        key = self.key(line, match)
        draft = self._drafts.get(key)
        if draft is None or any(getattr(draft, name) is not None for name in form.opens):
            if form.joins:
                return out
            draft = Draft(engine=self.engine)
            out = self.opened(key, draft)
        draft.see(line)
        form.fill(draft, match)
        if form.closes:
            self._drafts.pop(key)
            out += self.finish(draft)
        return out

    def opened(self, key: object, draft: Draft) -> list[Item]:
        """Open a draft; return the items of those that make way for it."""
        return [item for old in self._drafts.put(key, draft) for item in self.finish(old)]

    def key(self, line: Line, match: re.Match[str]) -> object:
        """Return the key of a line's request: two sources in one file do not mix."""
        return line.source

    def finish(self, draft: Draft) -> list[Item]:
        """Return the items of a request that is whole or will get no more lines."""
        return [draft.build()]

    def flush(self) -> list[Item]:
        """Return the items that the log's end leaves open."""
        return [item for draft in self._drafts.drain() for item in self.finish(draft)]
