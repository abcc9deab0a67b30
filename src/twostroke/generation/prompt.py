"""An encoded prompt: token ids ready for the engine."""

from __future__ import annotations

from twostroke.dataclass import dataclass
from twostroke.request import MessageSpan


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedPrompt:
    """The token ids of a prompt, the messages they came from, and the time that encoding took.

    is_reasoning_open: the chat template has already written the tag that opens the reasoning part.
    Units: init_s in seconds: template, tokeniser and grammar together.
    """

    token_ids: tuple[int, ...]
    spans: tuple[MessageSpan, ...] = ()
    init_s: float = 0.0
    is_reasoning_open: bool = False

    @property
    def num_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.token_ids)
