"""Token ids to text, one at a time, in whole Unicode code points.

One object per answer. The text is that of `Tokenizer.decode`, however the ids are chunked.
"""

from __future__ import annotations

import codecs

from twostroke.text.tokenizer import Tokenizer


class Detokenizer:
    """Buffers the bytes of an unfinished character; invalid bytes become U+FFFD, nothing throws."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = tokenizer.vocab_size
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._strips_next_space = tokenizer.strips_first_space

    def push(self, token_id: int) -> str:
        """Take one id and return the characters that it completes, often none or several."""
        if not 0 <= token_id < self._vocab_size:
            return ""
        data = self._tokenizer.token_bytes(token_id)
        if self._strips_next_space and data:
            self._strips_next_space = False
            data = data.removeprefix(b" ")
        return self._decoder.decode(data)

    def flush(self) -> str:
        """End the text and return U+FFFD for an unfinished character; the next id begins a text."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        self._strips_next_space = self._tokenizer.strips_first_space
        return text
