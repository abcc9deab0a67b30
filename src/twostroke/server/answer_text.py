"""The text of one answer as it comes: detokenised, its reasoning part apart, cut at a stop string.

Stop strings count in the answer proper only, not in the reasoning. A tag or a stop never reaches
the client, not even half of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from twostroke.text.detokenizer import Detokenizer
from twostroke.text.stop import StopMatcher
from twostroke.text.stream import TextStream
from twostroke.text.tokenizer import Tokenizer

OPEN_TAG, CLOSE_TAG = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class TextPart:
    """What some tokens gave. num_tokens: those taken; num_reasoning: how many were reasoning."""

    text: str
    reasoning: str = ""
    stop: str | None = None
    num_tokens: int = 0
    num_reasoning: int = 0


class PlainText:
    """The text of an answer without a reasoning part."""

    def __init__(self, tokenizer: Tokenizer, stops: tuple[str, ...]) -> None:
        self._stream = TextStream(tokenizer, stops)

    def push(self, token_ids: Sequence[int]) -> TextPart:
        """Return what these tokens complete, up to the first stop."""
        piece = self._stream.push(token_ids)
        return TextPart(piece.text, "", piece.stop, piece.num_tokens)

    def finish(self) -> TextPart:
        """Return what was held back."""
        piece = self._stream.finish()
        return TextPart(piece.text, "", piece.stop)


class ReasoningText:
    """The same for a model that thinks aloud between tags before it answers.

    is_open: the prompt already ends with the opening tag.
    """

    def __init__(self, tokenizer: Tokenizer, stops: tuple[str, ...], *, is_open: bool) -> None:
        self._detokenizer = Detokenizer(tokenizer)
        self._stops = StopMatcher(stops)
        self._close = StopMatcher((CLOSE_TAG,))
        self._place = "reasoning" if is_open else "start"
        self._begun = ""  # an answer's start while it may still become the opening tag
        self._skips_lines = False  # between the closing tag and the answer's first character
        self._is_done = False

    def push(self, token_ids: Sequence[int]) -> TextPart:
        """Return what these tokens complete, up to the first stop."""
        texts: list[str] = []
        thoughts: list[str] = []
        num_reasoning = 0
        for i, token_id in enumerate(token_ids):
            if self._is_done:
                return TextPart("".join(texts), "".join(thoughts), None, i, num_reasoning)
            num_reasoning += self._place == "reasoning"
            stop = self._take(self._detokenizer.push(token_id), texts, thoughts)
            if stop is not None:
                self._is_done = True
                return TextPart("".join(texts), "".join(thoughts), stop, i + 1, num_reasoning)
        return TextPart("".join(texts), "".join(thoughts), None, len(token_ids), num_reasoning)

    def finish(self) -> TextPart:
        """Return what was held back."""
        if self._is_done:
            return TextPart("")
        self._is_done = True
        texts: list[str] = []
        thoughts: list[str] = []
        stop = self._take(self._detokenizer.flush(), texts, thoughts)
        if stop is None:
            thoughts.append(self._close.flush())
            shown, stop = self._stops.push(self._begun)
            texts.append(shown if stop is not None else shown + self._stops.flush())
        return TextPart("".join(texts), "".join(thoughts), stop)

    def _take(self, text: str, texts: list[str], thoughts: list[str]) -> str | None:
        if self._place == "start":
            text = self._at_start(text)
        if self._place == "reasoning":
            text = self._thought(text, thoughts)
        if self._place != "answer":
            return None
        if self._skips_lines:
            text = text.lstrip("\n")
            self._skips_lines = not text
        shown, stop = self._stops.push(text)
        texts.append(shown)
        return stop

    def _at_start(self, text: str) -> str:
        """Look whether the answer opens with the tag; return what goes on after the decision."""
        self._begun += text
        begun = self._begun.lstrip()
        if begun.startswith(OPEN_TAG):
            self._place, self._begun = "reasoning", ""
            return begun[len(OPEN_TAG) :]
        if OPEN_TAG.startswith(begun):
            return ""
        whole, self._begun, self._place = self._begun, "", "answer"
        return whole

    def _thought(self, text: str, thoughts: list[str]) -> str:
        """Take reasoning; return the text after the closing tag, if it came."""
        for i, character in enumerate(text):
            shown, hit = self._close.push(character)
            thoughts.append(shown)
            if hit is not None:
                self._place = "answer"
                self._skips_lines = True
                return text[i + 1 :]
        return ""
