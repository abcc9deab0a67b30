"""Token ids in, text out: the detokeniser and the stop matcher of one answer, in that order."""

from __future__ import annotations

from collections.abc import Sequence

from twostroke.dataclass import dataclass
from twostroke.text.detokenizer import Detokenizer
from twostroke.text.stop import StopMatcher
from twostroke.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TextPiece:
    """What some tokens gave: text that may leave, and the stop that ended the answer, if one did.

    num_tokens counts the tokens taken, the one that completed the stop included.
    """

    text: str
    stop: str | None = None
    num_tokens: int = 0


class TextStream:
    """The text of one answer. End and stop tokens are not part of it: do not push them."""

    def __init__(self, tokenizer: Tokenizer, stops: tuple[str, ...]) -> None:
        self._detokenizer = Detokenizer(tokenizer)
        self._matcher = StopMatcher(stops)
        self._is_done = False

    def push(self, token_ids: Sequence[int]) -> TextPiece:
        """Return the text that these tokens complete, up to the first stop."""
        parts: list[str] = []
        for i, token_id in enumerate(token_ids):
            if self._is_done:
                return TextPiece("".join(parts), None, i)
            text, hit = self._matcher.push(self._detokenizer.push(token_id))
            parts.append(text)
            if hit is not None:
                self._is_done = True
                return TextPiece("".join(parts), hit, i + 1)
        return TextPiece("".join(parts), None, len(token_ids))

    def finish(self) -> TextPiece:
        """Return what was held back; the end of the bytes may still complete a stop."""
        if self._is_done:
            return TextPiece("")
        self._is_done = True
        text, hit = self._matcher.push(self._detokenizer.flush())
        return TextPiece(text if hit is not None else text + self._matcher.flush(), hit)
