"""Line formats as data: a pattern whose named places say which field each value sets.

A place is `{field:kind}` with a kind of numbers.KINDS; `{:kind}` is read over, `~` stands for a few
blanks or none. A field of FACTS makes a Fact, one of Draft or a rate belongs to a request, any
other serves the label.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import fields

from twostroke_doctor.parsed import FACTS, Item
from twostroke_doctor.parsers.draft import Draft
from twostroke_doctor.parsers.lines import Line
from twostroke_doctor.parsers.numbers import KINDS, NUMBER, PLAIN, plain
from twostroke_doctor.parsers.quick import new_fact

Value = float | int | str | bool
Stated = tuple[str, Value, str | None]  # a fact's name, value and label
ALWAYS = ("engine",)  # `opens` of a format that begins a request whatever came before

_PLACE = re.compile(r"\{(\w*):(\w+)\}")
_RATES = frozenset({"prefill_tok_s", "decode_tok_s", "decode_now_tok_s", "e2e_tok_s"})
_DRAFT = frozenset(one.name for one in fields(Draft))


def _expanded(place: re.Match[str]) -> str:
    name, kind = place.group(1), KINDS[place.group(2)]
    if kind.pattern:
        return f"(?P<{name}>{kind.pattern})" if name else f"(?:{kind.pattern})"
    # a group that did not match although the line did: something stands there that is no number
    return f"(?:(?P<{name}>{PLAIN})|(?!{PLAIN}){NUMBER})" if name else f"(?:{NUMBER})"


class LineFormat:
    """One shape of line, and the facts or the part of a request that it states.

    literal: a text in every such line; the pattern is tried only where it stands.
    label: label of its facts, by the names of places. facts: makes facts that need arithmetic.
    opens: fields; the line begins a new request where one of them is known already.
    joins: the line completes an open request and never begins one. closes: the request is whole.
    flags: raised on the request. then: arithmetic on the request, after its fields are set.
    """

    def __init__(
        self,
        literal: str,
        pattern: str,
        *,
        label: str | None = None,
        facts: Callable[[re.Match[str]], Iterable[Stated]] | None = None,
        opens: tuple[str, ...] = (),
        joins: bool = False,
        closes: bool = False,
        flags: tuple[str, ...] = (),
        then: Callable[[Draft, re.Match[str]], None] | None = None,
    ) -> None:
        self.literal, self.opens, self.joins, self.closes = literal, opens, joins, closes
        compiled = re.compile(_PLACE.sub(_expanded, pattern.replace("~", r"\s{0,40}")))
        self.search, names = compiled.search, compiled.groupindex
        self._label, self._make_facts, self._flags, self._then = label, facts, flags, then
        kinds = {name: KINDS[kind].read for name, kind in _PLACE.findall(pattern)}
        places = [(name, names[name] - 1, kinds.get(name, str)) for name in names]
        self._facts = [one for one in places if one[0] in FACTS]
        self._rates = [one for one in places if one[0] in _RATES]
        self._fields = [one for one in places if one[0] in _DRAFT]
        self._rest = [one for one in places if one not in self._facts + self._rates + self._fields]
        self.is_request = bool(opens or joins or closes or self._rates or self._fields)

    def facts(self, engine: str, line: Line, match: re.Match[str]) -> list[Item]:
        """Return the facts that a matched line states."""
        stated: list[Stated] = list(self._make_facts(match)) if self._make_facts else []
        if self._facts:
            texts = match.groups()
            parts = {name: texts[at] and read(texts[at]) for name, at, read in self._rest}
            label = self._label.format_map(parts) if self._label else None
            for name, at, read in self._facts:
                value = read(texts[at]) if texts[at] is not None else None
                if value is not None:
                    stated.append((name, value, label))
        return [
            new_fact(
                name=name,
                value=value,
                engine=engine,
                label=label,
                file=line.file,
                line=line.number,
            )
            for name, value, label in stated
        ]

    def fill(self, draft: Draft, match: re.Match[str]) -> None:
        """Set the fields of a request that a matched line states."""
        texts = match.groups()
        for name, at, read in self._fields:
            text = texts[at]
            if text is not None and (value := read(text)) is not None:
                setattr(draft, name, value)
        for name, at, _ in self._rates:
            text = texts[at]
            if text is not None and (rate := plain(text)):
                draft.reported[name] = rate
        if self._flags:
            draft.flag(*self._flags)
        if self._then is not None:
            self._then(draft, match)
