"""The text of one answer as it comes: detokenised, its reasoning part and its tool calls apart, cut
at a stop string.

Stop strings count in the answer proper only, not in the reasoning. A tag or a stop never reaches
the client, not even half of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from twostroke.dataclass import dataclass
from twostroke.text.detokenizer import Detokenizer
from twostroke.text.stop import StopMatcher
from twostroke.text.stream import TextStream
from twostroke.text.tokenizer import Tokenizer
from twostroke.text.tool_format import ToolCall
from twostroke.text.tool_text import ToolText

OPEN_TAG, CLOSE_TAG = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class TextPart:
    """What some tokens gave. num_tokens: those taken; num_reasoning: how many were reasoning;
    num_tool: how many tokens, earlier ones included, turned out to be calls.
    """

    text: str
    reasoning: str = ""
    stop: str | None = None
    num_tokens: int = 0
    num_reasoning: int = 0
    calls: tuple[ToolCall, ...] = ()
    num_tool: int = 0


class AnswerText(Protocol):
    """The text of one answer."""

    def push(self, token_ids: Sequence[int]) -> TextPart:
        """Return what these tokens complete, up to the first stop."""
        ...

    def finish(self) -> TextPart:
        """Return what was held back."""
        ...


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


class CallText:
    """Another answer text with tool calls taken out of it. Counts the tokens that became calls."""

    def __init__(self, text: AnswerText, tools: ToolText) -> None:
        self._text = text
        self._tools = tools
        self._num_held = 0  # tokens whose text may still become a call

    def push(self, token_ids: Sequence[int]) -> TextPart:
        """Return what these tokens complete, up to the first stop."""
        part = TextPart("")
        for token_id in token_ids:
            more = self._text.push((token_id,))
            if more.num_tokens == 0:
                break
            part = joined(part, self._without_calls(more, num_tokens=1))
            if more.stop is not None:
                break
        return part

    def finish(self) -> TextPart:
        """Return what was held back."""
        rest = self._text.finish()
        part = self._without_calls(rest, num_tokens=0)
        return part if rest.stop is not None else joined(part, self._end())

    def _without_calls(self, part: TextPart, *, num_tokens: int) -> TextPart:
        text, calls = self._tools.push(part.text)
        self._num_held += num_tokens
        num_tool = self._num_held if calls else 0
        if calls or not self._tools.is_holding:
            self._num_held = 0
        plain = replace(part, text=text, calls=calls, num_tool=num_tool)
        return joined(plain, self._end()) if part.stop is not None else plain

    def _end(self) -> TextPart:
        text, calls = self._tools.finish()
        num_tool, self._num_held = self._num_held if calls else 0, 0
        return TextPart(text, calls=calls, num_tool=num_tool)


def joined(first: TextPart, then: TextPart) -> TextPart:
    """Return two parts of one answer as one."""
    return TextPart(
        first.text + then.text,
        first.reasoning + then.reasoning,
        first.stop if first.stop is not None else then.stop,
        first.num_tokens + then.num_tokens,
        first.num_reasoning + then.num_reasoning,
        first.calls + then.calls,
        first.num_tool + then.num_tool,
    )
