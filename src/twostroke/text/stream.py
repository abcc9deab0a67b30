"""Token ids in, text out: the detokeniser and the stop matcher of one answer, in that order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from twostroke.dataclass import dataclass
from twostroke.text.detokenizer import Detokenizer
from twostroke.text.stop import StopMatcher
from twostroke.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from twostroke.text.tool_format import ToolCall  # a first token does not wait for it


@dataclass(slots=True)
class TextPart:
    """The text that some tokens gave, and the stop string that ended it, if one did.

    num_tokens: tokens taken, the one that completed the stop string included.
    num_reasoning: those of them that are reasoning.
    num_tool: tokens that turned out to be tool calls, earlier ones included.
    """

    text: str
    reasoning: str = ""
    stop: str | None = None
    num_tokens: int = 0
    num_reasoning: int = 0
    calls: tuple[ToolCall, ...] = ()
    num_tool: int = 0


class AnswerText(Protocol):
    """The text of one answer. End tokens are no part of it: do not push them."""

    def push(self, token_ids: Sequence[int]) -> TextPart:
        """Return the text that these tokens complete, up to the first stop string."""
        ...

    def finish(self) -> TextPart:
        """Return the text that was held back; its last bytes may still complete a stop string."""
        ...


class PlainText:
    """The text of an answer in which neither reasoning nor tool calls are set apart."""

    def __init__(self, tokenizer: Tokenizer, stops: tuple[str, ...]) -> None:
        self._detokenizer = Detokenizer(tokenizer)
        self._matcher = StopMatcher(stops)
        self._is_done = False

    def push(self, token_ids: Sequence[int]) -> TextPart:
        """Return the text that these tokens complete, up to the first stop string."""
        texts: list[str] = []
        for i, token_id in enumerate(token_ids):
            if self._is_done:
                return TextPart("".join(texts), "", None, i)
            text, hit = self._matcher.push(self._detokenizer.push(token_id))
            texts.append(text)
            if hit is not None:
                self._is_done = True
                return TextPart("".join(texts), "", hit, i + 1)
        return TextPart("".join(texts), "", None, len(token_ids))

    def finish(self) -> TextPart:
        """Return the text that was held back; its last bytes may still complete a stop string."""
        if self._is_done:
            return TextPart("")
        self._is_done = True
        text, hit = self._matcher.push(self._detokenizer.flush())
        return TextPart(text if hit is not None else text + self._matcher.flush(), "", hit)


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
