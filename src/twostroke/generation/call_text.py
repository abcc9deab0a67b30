"""The text of an answer with its tool calls taken out, and the number of tokens they took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from twostroke.text.stream import AnswerText, TextPart, joined
from twostroke.text.tool_text import ToolText


class CallText:
    """The text of another answer text without its tool calls. Counts the tokens of the calls."""

    def __init__(self, text: AnswerText, tools: ToolText) -> None:
        self._text = text
        self._tools = tools
        self._num_held = 0  # tokens whose text may still become a call

    def push(self, token_ids: Sequence[int]) -> TextPart:
        """Return the text and calls that these tokens complete, up to the first stop string."""
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
        """Return the text that was held back; text that is no whole call stays text."""
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
        num_tool = self._num_held if calls else 0
        self._num_held = 0
        return TextPart(text, calls=calls, num_tool=num_tool)
