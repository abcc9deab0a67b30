"""Line formats as data: a pattern whose named places say which field each value sets.

The literal in backticks stands in every such line, and the pattern is tried only where it does. A
place is `{field:kind}` with a kind of numbers.KINDS; `{:kind}` is read over, `~` stands for a few
blanks or none. A field of FACTS makes a Fact, one of Draft or a rate belongs to a request;
places whose names begin with `label` together are the label of the facts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import fields

from twostroke_doctor.parsed import FACTS, Item
from twostroke_doctor.parsers.draft import RATES, Draft
from twostroke_doctor.parsers.items import fact_at
from twostroke_doctor.parsers.lines import Line
from twostroke_doctor.parsers.numbers import KINDS, NUMBER, PLAIN, Value, plain

Stated = tuple[str, Value, str | None]  # a fact's name, value and label
Then = Callable[[Draft, re.Match[str]], None]
Facts = Callable[[re.Match[str]], Iterable[Stated]]
ALWAYS = ("engine",)  # `opens` of a format that begins a request whatever came before

_LITERAL = re.compile("`([^`]+)`")
_PLACE = re.compile(r"\{(\w*):(\w+)\}")
_DRAFT = frozenset(one.name for one in fields(Draft))


def _expanded(place: re.Match[str]) -> str:
    name, kind = place.group(1), KINDS[place.group(2)]
    if kind.pattern:
        return f"(?P<{name}>{kind.pattern})" if name else f"(?:{kind.pattern})"
    # a group that did not match although the line did: the text at its place is no number
    return f"(?:(?P<{name}>{PLAIN})|(?!{PLAIN}){NUMBER})" if name else f"(?:{NUMBER})"


class LineFormat:
    """One shape of line, and the facts or the part of a request that it states.

    opens: fields; the line begins a new request where one of them is known already.
    joins: the line completes an open request and never begins one. closes: the request is whole.
    alone: a line of this shape has no other; no further format is tried.
    flags: raised on the request. then: arithmetic on the request, after its fields are set.
    facts: makes facts that need arithmetic. literal: where it is no part of the pattern.
    """

    def __init__(
        self,
        pattern: str,
        then: Then | None = None,
        *,
        opens: tuple[str, ...] = (),
        joins: bool = False,
        closes: bool = False,
        alone: bool = False,
        flags: tuple[str, ...] = (),
        facts: Facts | None = None,
        literal: str = "",
    ) -> None:
        self.literal = literal or _LITERAL.findall(pattern)[0]
        self.opens, self.joins, self.closes, self.alone = opens, joins, closes, alone
        regex = _LITERAL.sub(lambda match: re.escape(match.group(1)), pattern)
        compiled = re.compile(_PLACE.sub(_expanded, regex.replace("~", r"\s{0,40}")))
        self.search = compiled.search
        self._make_facts, self._flags, self._then = facts, flags, then
        kinds = {name: KINDS[kind].read for name, kind in _PLACE.findall(pattern)}
        places = [(name, at - 1, kinds.get(name, str)) for name, at in compiled.groupindex.items()]
        self._facts = [one for one in places if one[0] in FACTS]
        self._rates = [one[:2] for one in places if one[0] in RATES]
        self._fields = [one for one in places if one[0] in _DRAFT]
        self._label = [one for one in places if one[0].startswith("label")]
        self.is_request = bool(opens or joins or closes or self._rates or self._fields)
        self.has_facts = bool(self._facts or facts)

    def facts(self, engine: str, line: Line, match: re.Match[str]) -> list[Item]:
        """Return the facts that a matched line states."""
        stated: list[Stated] = list(self._make_facts(match)) if self._make_facts else []
        texts = match.groups()
        label = " ".join(str(read(texts[at] or "")) for _, at, read in self._label) or None
        for name, at, read in self._facts:
            value = read(texts[at]) if texts[at] is not None else None
            if value is not None:
                stated.append((name, value, label))
        return [fact_at(line, engine, *one) for one in stated]

    def begins(self, draft: Draft) -> bool:
        """Tell whether the line belongs to a request after the open one."""
        return any(getattr(draft, name) is not None for name in self.opens)

    def fill(self, draft: Draft, match: re.Match[str]) -> None:
        """Set the fields of a request that a matched line states."""
        texts = match.groups()
        for name, at, read in self._fields:
            text = texts[at]
            if text is not None and (value := read(text)) is not None:
                setattr(draft, name, value)
        for name, at in self._rates:
            if (printed := texts[at]) is not None and (rate := plain(printed)):
                draft.reported[name] = rate
        if self._flags:
            draft.flag(*self._flags)
        if self._then is not None:
            self._then(draft, match)


def line_formats(*patterns: str) -> tuple[LineFormat, ...]:
    """Return the formats of lines that state facts only."""
    return tuple(LineFormat(pattern) for pattern in patterns)
