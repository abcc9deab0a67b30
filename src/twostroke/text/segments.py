"""A prompt in segments: its size checked, control tokens found in it, character positions followed.

Text that came from a user stands in segments with `parse_special=False`, in which control tokens
are not looked for. Knows nothing of how text becomes ids.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Sequence

from twostroke.dataclass import dataclass
from twostroke.errors import RequestError
from twostroke.text.finder import TokenFinder


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a prompt, and whether control tokens count in it: only in the template's own."""

    text: str
    parse_special: bool


def pieces(segments: Iterable[Segment], control: TokenFinder) -> Iterator[str | int]:
    """Yield the control ids and the longest runs of text between them."""
    text: list[str] = []
    for segment in segments:
        if not segment.parse_special:
            text.append(segment.text)
            continue
        for _, piece, token in control.split(segment.text):
            if token is None:
                text.append(piece)
                continue
            if joined := "".join(text):
                yield joined
            text.clear()
            yield token
    if joined := "".join(text):
        yield joined


def check_size(segments: Sequence[Segment], max_bytes: int) -> None:
    """Check a prompt before anything is done with it.

    Raises:
        RequestError: longer than max_bytes in UTF-8, or not valid Unicode.
    """
    num_chars = sum(len(segment.text) for segment in segments)
    num_bytes = num_chars
    if num_chars <= max_bytes:
        try:
            num_bytes = sum(len(segment.text.encode()) for segment in segments)
        except UnicodeEncodeError as error:
            raise RequestError(
                "the text is not valid Unicode: it has half of a surrogate pair",
                value=f"U+{ord(error.object[error.start]):04X} at character {error.start}",
            ) from None
    if num_bytes > max_bytes:
        raise RequestError(
            "the prompt is too long to tokenise",
            value=f"{num_bytes} bytes",
            limit=f"{max_bytes} bytes",
            remedy="Send less text.",
            param="prompt",
        )


class CutFinder:
    """Finds, for cuts (character positions, ascending), the first token at or after each.

    tokens: for each cut found so far, that token's place among the ids.
    """

    def __init__(self, cuts: Sequence[int]) -> None:
        self.tokens: list[int] = []
        self._cuts = cuts

    def reach(self, position: int, num_tokens: int) -> None:
        """Note that `num_tokens` tokens precede this position, and a token begins here."""
        while self._next_is_before(position + 1):
            self.tokens.append(num_tokens)

    def pass_piece(self, position: int, end: int, starts: list[int], num_tokens: int) -> None:
        """Note a piece [position, end) whose tokens begin at `starts`, counted from its own start.

        num_tokens: the tokens before the piece.
        """
        if not self._next_is_before(end):
            return
        absolute = [position + start for start in starts]
        while self._next_is_before(end):
            cut = self._cuts[len(self.tokens)]
            self.tokens.append(num_tokens + bisect.bisect_left(absolute, cut))

    def finish(self, num_tokens: int) -> list[int]:
        """Return the place for every cut; those behind the text get the end."""
        return self.tokens + [num_tokens] * (len(self._cuts) - len(self.tokens))

    def _next_is_before(self, position: int) -> bool:
        return len(self.tokens) < len(self._cuts) and self._cuts[len(self.tokens)] < position
