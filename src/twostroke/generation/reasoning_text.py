"""The text of an answer with its reasoning part set apart, for models that reason before answering.

Stop strings count in the answer proper, not in the reasoning. Neither a tag nor a stop string
reaches the reader, not even half of one.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from twostroke.text.detokenizer import Detokenizer
from twostroke.text.stop import StopMatcher
from twostroke.text.stream import TextPart
from twostroke.text.tokenizer import Tokenizer

OPEN_TAG, CLOSE_TAG = "<think>", "</think>"


class _Part(enum.Enum):
    """The part of the answer that the next text belongs to."""

    UNDECIDED = enum.auto()  # the text so far may still become the opening tag
    REASONING = enum.auto()
    ANSWER = enum.auto()


class ReasoningText:
    """The text of an answer that may begin with reasoning between two tags.

    is_open: the prompt already ends with the opening tag.
    """

    def __init__(self, tokenizer: Tokenizer, stops: tuple[str, ...], *, is_open: bool) -> None:
        self._detokenizer = Detokenizer(tokenizer)
        self._stops = StopMatcher(stops)
        self._close_tag = StopMatcher((CLOSE_TAG,))
        self._part = _Part.REASONING if is_open else _Part.UNDECIDED
        self._undecided_text = ""
        self._drops_newlines = False  # between the closing tag and the answer's first character
        self._is_done = False

    def push(self, token_ids: Sequence[int]) -> TextPart:
        """Return the text that these tokens complete, up to the first stop string."""
        texts: list[str] = []
        reasoning: list[str] = []
        num_tokens = num_reasoning = 0
        stop: str | None = None
        for token_id in token_ids:
            if self._is_done:
                break
            num_tokens += 1
            if self._part is _Part.REASONING:
                num_reasoning += 1
            stop = self._take(self._detokenizer.push(token_id), texts, reasoning)
            self._is_done = stop is not None
        return TextPart("".join(texts), "".join(reasoning), stop, num_tokens, num_reasoning)

    def finish(self) -> TextPart:
        """Return the text that was held back; its last bytes may still complete a stop string."""
        if self._is_done:
            return TextPart("")
        self._is_done = True
        texts: list[str] = []
        reasoning: list[str] = []
        stop = self._take(self._detokenizer.flush(), texts, reasoning)
        if stop is None:
            reasoning.append(self._close_tag.flush())
            shown, stop = self._stops.push(self._undecided_text)
            texts.append(shown if stop is not None else shown + self._stops.flush())
        return TextPart("".join(texts), "".join(reasoning), stop)

    def _take(self, text: str, texts: list[str], reasoning: list[str]) -> str | None:
        """Add new text to the lists of its part; return the stop string that it completes."""
        if self._part is _Part.UNDECIDED:
            text = self._after_open_tag(text)
        if self._part is _Part.REASONING:
            text = self._after_close_tag(text, reasoning)
        if self._part is not _Part.ANSWER:
            return None
        if self._drops_newlines:
            text = text.lstrip("\n")
            self._drops_newlines = not text
        shown, stop = self._stops.push(text)
        texts.append(shown)
        return stop

    def _after_open_tag(self, text: str) -> str:
        """Decide whether the answer begins with the opening tag; return the text behind the tag.

        Without a tag all text so far is the answer's. Undecided: an empty text.
        """
        self._undecided_text += text
        begun = self._undecided_text.lstrip()
        if begun.startswith(OPEN_TAG):
            self._part, self._undecided_text = _Part.REASONING, ""
            return begun[len(OPEN_TAG) :]
        if OPEN_TAG.startswith(begun):
            return ""
        whole, self._undecided_text, self._part = self._undecided_text, "", _Part.ANSWER
        return whole

    def _after_close_tag(self, text: str, reasoning: list[str]) -> str:
        """Add reasoning to its list; return the text behind the closing tag, empty without one."""
        for i, character in enumerate(text):
            shown, hit = self._close_tag.push(character)
            reasoning.append(shown)
            if hit is not None:
                self._part = _Part.ANSWER
                self._drops_newlines = True
                return text[i + 1 :]
        return ""
