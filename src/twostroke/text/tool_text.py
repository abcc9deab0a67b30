"""Takes the tool calls out of an answer's text while it is generated.

Text that does not parse as a call is plain text, never an error. Blanks between text and a call are
dropped.
"""

from __future__ import annotations

from twostroke.text.stop import StopMatcher
from twostroke.text.tool_format import CLOSE_TAG, OPEN_TAG, ToolCall, ToolFormat, parsed_calls

_FENCES = ("", "```", "```json")
_FIRST_KEYS = ("name", "type", "arguments", "parameters")
_OPENINGS = tuple(f'{f}{b}"{k}"' for f in _FENCES for b in ("{", "[{") for k in _FIRST_KEYS)
_OPENING_CHARS = 200
Taken = tuple[str, tuple[ToolCall, ...]]


class ToolText:
    """One answer. names: the tools that may be called.

    An answer that is a call from its first character on, bare or in a block of code, counts in
    every form: models write that too. The answer is held back until its first key rules that out.
    """

    def __init__(self, form: ToolFormat, names: frozenset[str]) -> None:
        self._names = names
        self._begun: str | None = ""  # the answer while all of it may be calls
        self._tagged = _Tagged(names) if form.is_tagged else None

    @property
    def is_holding(self) -> bool:
        """Whether text is held back because it may be part of a call."""
        return bool(self._begun) or (self._tagged is not None and self._tagged.is_holding)

    def push(self, text: str) -> Taken:
        """Take the next text; return its plain text and the calls that it completes."""
        if self._begun is not None:
            self._begun += text
            if _may_be_calls(self._begun):
                return "", ()
            text, self._begun = self._begun, None
        return self._tagged.push(text) if self._tagged is not None else (text, ())

    def finish(self) -> Taken:
        """Return the text held back: as calls if they are whole, else as plain text."""
        begun, self._begun = self._begun or "", None
        if begun.strip() and (calls := parsed_calls(_unfenced(begun), self._names)):
            return "", calls
        if self._tagged is None:
            return begun, ()
        shown, calls = self._tagged.push(begun)
        rest, more = self._tagged.finish()
        return shown + rest, calls + more


def _may_be_calls(text: str) -> bool:
    """Whether an answer that begins so may consist of calls, by its first key."""
    compact = "".join(text[:_OPENING_CHARS].split())
    return any(o.startswith(compact) or compact.startswith(o) for o in _OPENINGS)


def _unfenced(text: str) -> str:
    """Return the inside of a text that is one block of code, else the text."""
    lines = text.strip().splitlines()
    if len(lines) > 2 and lines[0].strip() in _FENCES[1:] and lines[-1].strip() == _FENCES[1]:
        return "\n".join(lines[1:-1])
    return text


class _Tagged:
    """Calls between tags, anywhere in the text."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        self._tag = StopMatcher((OPEN_TAG,))
        self._num_tag = 0  # characters that the matcher holds
        self._is_inside = False
        self._is_after = False  # directly after a call: blanks are dropped
        self._blanks = ""  # after the text shown: dropped if a call follows
        self._held: list[str] = []

    @property
    def is_holding(self) -> bool:
        return self._is_inside or self._is_after or self._num_tag > 0 or bool(self._blanks)

    def push(self, text: str) -> Taken:
        shown: list[str] = []
        calls: list[ToolCall] = []
        for character in text:  # a tag may end inside the text
            part, hit = self._tag.push(character)
            self._num_tag += 1 - len(part)
            if self._is_inside:
                self._held.append(part)
            else:
                self._plain(part, shown)
            if hit is not None:
                if self._is_inside:
                    self._close(shown, calls)
                self._is_inside = not self._is_inside
                self._tag = StopMatcher((CLOSE_TAG if self._is_inside else OPEN_TAG,))
                self._num_tag = 0
        return "".join(shown), tuple(calls)

    def finish(self) -> Taken:
        rest, self._num_tag = self._tag.flush(), 0
        if not self._is_inside:
            shown: list[str] = []
            self._plain(rest, shown)
            self._is_after = False
            return "".join(shown) + self._flushed_blanks(), ()
        inner = "".join(self._held) + rest
        self._is_inside, self._held = False, []
        calls = parsed_calls(inner, self._names)
        blanks = self._flushed_blanks()
        return ("", calls) if calls else (blanks + OPEN_TAG + inner, ())

    def _plain(self, text: str, shown: list[str]) -> None:
        """Show text but its last blanks, which may turn out to stand before a call."""
        if self._is_after:
            text = text.lstrip()
        if not text:
            return
        self._is_after = False
        kept = text.rstrip()
        if kept:
            shown.append(self._blanks + kept)
            self._blanks = ""
        self._blanks += text[len(kept) :]

    def _close(self, shown: list[str], calls: list[ToolCall]) -> None:
        inner, self._held = "".join(self._held), []
        found = parsed_calls(inner, self._names)
        if found:
            calls.extend(found)
            self._blanks, self._is_after = "", True
        else:
            shown.append(self._flushed_blanks() + OPEN_TAG + inner + CLOSE_TAG)

    def _flushed_blanks(self) -> str:
        blanks, self._blanks = self._blanks, ""
        return blanks
