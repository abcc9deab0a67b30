"""The part of an answer that one step of the engine added."""

from __future__ import annotations

from collections.abc import Sequence

from twostroke.dataclass import dataclass
from twostroke.record import RequestRecord
from twostroke.request import FinishReason, TokenLogprob
from twostroke.text.tool_format import ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """New text and tokens of one answer. The last delta has the finish reason and the record.

    reasoning: new text of the reasoning part, which is no part of `text`.
    calls: tool calls that became complete. num_calls: those of the whole answer so far.
    """

    index: int
    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    record: RequestRecord | None = None
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    num_calls: int = 0

    @property
    def has_content(self) -> bool:
        """Whether a reader sees anything new: text, reasoning, tool calls or log-probabilities."""
        return bool(self.text or self.reasoning or self.calls or self.logprobs)


def merged(deltas: Sequence[Delta]) -> Delta:
    """Return all deltas of one answer, in order, as one; the last one gives the end."""
    last = deltas[-1]
    return Delta(
        index=last.index,
        text="".join(delta.text for delta in deltas),
        token_ids=tuple(i for delta in deltas for i in delta.token_ids),
        logprobs=tuple(entry for delta in deltas for entry in delta.logprobs),
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
        record=last.record,
        reasoning="".join(delta.reasoning for delta in deltas),
        calls=tuple(call for delta in deltas for call in delta.calls),
        num_calls=last.num_calls,
    )
