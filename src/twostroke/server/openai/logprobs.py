"""Log-probabilities in OpenAI's two shapes, with the bytes of every token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twostroke.request import TokenLogprob
from twostroke.text.tokenizer import Tokenizer


def _one(tokenizer: Tokenizer, token_id: int, logprob: float) -> dict[str, Any]:
    raw = tokenizer.token_bytes(token_id, with_control=True)
    return {"token": raw.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(raw)}


def chat_logprobs(tokenizer: Tokenizer, entries: Sequence[TokenLogprob]) -> dict[str, Any]:
    """Return the shape of chat completions."""
    content = [
        {
            **_one(tokenizer, entry.token_id, entry.logprob),
            "top_logprobs": [_one(tokenizer, i, p) for i, p in entry.top],
        }
        for entry in entries
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(
    tokenizer: Tokenizer, entries: Sequence[TokenLogprob], first_offset: int
) -> dict[str, Any]:
    """Return the shape of text completions; offsets count characters of the answer."""
    tokens, offsets, offset = [], [], first_offset
    for entry in entries:
        text = _text(tokenizer, entry.token_id)
        tokens.append(text)
        offsets.append(offset)
        offset += len(text)
    return {
        "tokens": tokens,
        "token_logprobs": [entry.logprob for entry in entries],
        "top_logprobs": [{_text(tokenizer, i): p for i, p in entry.top} for entry in entries],
        "text_offset": offsets,
    }


def _text(tokenizer: Tokenizer, token_id: int) -> str:
    return tokenizer.token_bytes(token_id, with_control=True).decode("utf-8", "replace")
