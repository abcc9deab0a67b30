"""The origin of each character of a rendered prompt: the template, or one message of a user.

A template is rendered twice: with the messages as they are, and with private-use characters in
place of user text. If the second prompt with the user's characters put back equals the first, the
origin of every character is known, whatever the template trimmed, cut or joined.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from twostroke.dataclass import dataclass
from twostroke.text.messages import Message, text_hash
from twostroke.text.segments import Segment

# Templates branch on the values of these keys; they are checked, not replaced.
_CHOOSING_KEYS = frozenset({"role", "type"})
# Private use: one plane stands for characters, one for the first and last of each text.
_CHARACTERS = range(0xF0000, 0xFFFFD)
_OVERFLOW = 0xFFFFD  # for characters beyond the plane: such a prompt restores to another text
_EDGES = range(0x100000, 0x10FFFE)
# White space between stand-ins counts as user text: one segment per message, not one per word.
_USER_TEXT = re.compile("[\U000f0000-\U0010fffd]+(?:\\s+[\U000f0000-\U0010fffd]+)*")
_EDGE = re.compile("[\U00100000-\U0010fffd]")


@dataclass(frozen=True, slots=True)
class MessagePart:
    """Where one message stands in the prompt: [start, end) in characters.

    A part is the mark-up before a message and the message's own text, so that the parts cover the
    prompt without gaps. A message that the template left out has no part.
    """

    index: int
    role: str
    start: int
    end: int
    text_hash: str


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt in segments: control tokens count in the template's text, not in user text."""

    segments: tuple[Segment, ...]
    parts: tuple[MessagePart, ...]

    @property
    def text(self) -> str:
        """The whole prompt."""
        return "".join(segment.text for segment in self.segments)


class Standins:
    """Private-use characters in place of user text, one for each distinct character.

    The first and the last character of each text have stand-ins of their own, which tell the
    message. White space stays, so that templates can trim. Literals of the template that share
    nothing with a control token stay too, so that a template can look for `</think>`.
    """

    def __init__(self, taken: str, literals: tuple[str, ...]) -> None:
        used = {ord(character) for character in set(taken)}
        self._free = (code for code in _CHARACTERS if code not in used)
        self._free_edges = (code for code in _EDGES if code not in used)
        self._of: dict[int, str] = {}
        self._original: dict[int, str] = {}
        self._message: dict[str, int] = {}
        self._num_messages = 0
        self._literals = literals

    def replaced(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return a copy of the next message with stand-ins in every text but its choosing keys."""
        index, self._num_messages = self._num_messages, self._num_messages + 1
        return {
            key: value if key in _CHOOSING_KEYS else self._inside(value, index)
            for key, value in message.items()
        }

    def restored(self, text: str) -> str:
        """Return the text with the original characters."""
        return text.translate(self._original)

    def split(self, marked: str, plain: str, messages: Sequence[Message]) -> Rendered:
        """Return the segments and message parts of a prompt; marked: the prompt with stand-ins."""
        segments: list[Segment] = []
        done = 0
        for found in _USER_TEXT.finditer(marked):
            segments.append(Segment(plain[done : found.start()], True))
            segments.append(Segment(plain[found.start() : found.end()], False))
            done = found.end()
        segments.append(Segment(plain[done:], True))
        ends: dict[int, int] = {}
        for found in _EDGE.finditer(marked):
            index = self._message.get(found.group())
            if index is not None:
                ends[index] = found.end()
        filled = tuple(segment for segment in segments if segment.text)
        return Rendered(filled, parts_of(ends, messages, len(marked)))

    def _inside(self, value: Any, index: int) -> Any:
        if isinstance(value, str):
            return self._text(value, index)
        if isinstance(value, dict):
            return {
                key: found if key in _CHOOSING_KEYS else self._inside(found, index)
                for key, found in value.items()
            }
        if isinstance(value, list):
            return [self._inside(found, index) for found in value]
        return value

    def _text(self, text: str, index: int) -> str:
        pieces = [text]
        for literal in self._literals:
            if literal in text:
                pieces = [part for piece in pieces for part in _cut(piece, literal)]
        shown = [piece if piece in self._literals else self._mapped(piece) for piece in pieces]
        joined = "".join(shown)
        first, last = _edges(joined, self._original)
        if first is None or last is None:
            return joined
        characters = list(joined)
        for place in {first, last}:
            code = next(self._free_edges, None)
            if code is None:
                break
            self._original[code] = self._original[ord(characters[place])]
            self._message[chr(code)] = index
            characters[place] = chr(code)
        return "".join(characters)

    def _mapped(self, text: str) -> str:
        for character in set(text):
            if ord(character) not in self._of and not character.isspace():
                standin = next(self._free, _OVERFLOW)
                self._of[ord(character)] = chr(standin)
                self._original[standin] = character
        return text.translate(self._of)


def _edges(text: str, standins: Mapping[int, str]) -> tuple[int | None, int | None]:
    first = next((i for i, c in enumerate(text) if ord(c) in standins), None)
    last = next((i for i in range(len(text) - 1, -1, -1) if ord(text[i]) in standins), None)
    return first, last


def _cut(text: str, literal: str) -> Iterator[str]:
    """Yield the text in pieces, each the literal or without it."""
    first, *rest = text.split(literal)
    if first:
        yield first
    for piece in rest:
        yield literal
        if piece:
            yield piece


def parts_of(
    ends: Mapping[int, int], messages: Sequence[Message], length: int
) -> tuple[MessagePart, ...]:
    """Return the parts of messages by their ends; a message out of order has no part."""
    parts: list[MessagePart] = []
    start = 0
    for index in sorted(ends):
        if ends[index] <= start:
            continue
        message = messages[index]
        parts.append(MessagePart(index, message["role"], start, ends[index], text_hash(message)))
        start = ends[index]
    if parts:
        last = parts[-1]
        parts[-1] = MessagePart(last.index, last.role, last.start, length, last.text_hash)
    return tuple(parts)


def is_apart(literal: str, control_texts: frozenset[str]) -> bool:
    """Whether a literal neither holds, is part of, nor overlaps any control token."""
    if len(literal) < 2 or literal.isspace():
        return False
    for control in control_texts:
        if literal in control or control in literal:
            return False
        for size in range(1, min(len(literal), len(control))):
            if literal[:size] == control[-size:] or literal[-size:] == control[:size]:
                return False
    return True


def spelt_control_text(text: str, control_texts: frozenset[str]) -> str | None:
    """Return a control token that a text spells, or begins to spell at one of its ends."""
    if not any(control[0] in text or control[-1] in text for control in control_texts):
        return None
    stripped = text.strip()
    for control in control_texts:
        if control in text:
            return control
        for size in range(2, len(control)):
            if stripped.endswith(control[:size]) or stripped.startswith(control[-size:]):
                return control
    return None
