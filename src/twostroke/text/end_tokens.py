"""The control tokens by which published chat models end a turn, known by their spelling.

A file's metadata names one to three of them; the others count too, or answers would run on.
"""

from __future__ import annotations

from collections.abc import Mapping

END_TOKENS = frozenset(
    [
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end_of_turn|>",
        "<end_of_turn>",
        "<turn|>",
        "<|end_of_text|>",
        "<|endoftext|>",
        "<|end|>",
        "<|eot|>",
        "<|eom|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "<｜end▁of▁sentence｜>",
        "<|END_OF_TURN_TOKEN|>",
        "<end_of_utterance>",
        "<|user|>",
        "<|return|>",
        "<|call|>",
        "[|endofturn|]",
        "<|endofassistant|>",
    ]
)
# `<|user|>` ends a turn only in the families that have `<|observation|>` (GLM); in harmony
# `<|end|>` ends a part, not the answer.
_ENDS_ONLY_WITH = {"<|user|>": "<|observation|>"}
_ENDS_UNLESS = {"<|end|>": "<|return|>"}


def unmarked_end_tokens(ids: Mapping[str, int], control: Mapping[str, int]) -> dict[str, int]:
    """Return end tokens that the file does not mark as control: left so, users could spell them."""
    found = {text: ids.get(text) for text in sorted(END_TOKENS - control.keys())}
    return {
        text: index
        for text, index in found.items()
        if index is not None and "|" in text and text != "<|user|>"
    }


def is_end_token(text: str, control: Mapping[str, int]) -> bool:
    """Whether a control token ends an answer in the family that has these control tokens."""
    if text not in END_TOKENS:
        return False
    needed, excluding = _ENDS_ONLY_WITH.get(text), _ENDS_UNLESS.get(text)
    return (needed is None or needed in control) and (excluding is None or excluding not in control)
