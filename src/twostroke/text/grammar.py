"""JSON and JSON Schema as masks over the next token, by llguidance.

A schema comes from a stranger: its size and depth are bounded here, its cost by llguidance's
limits. Compiling may take a while: call it from a thread. A mask never raises: when the matcher
fails, only end tokens are left, so that the failure hits its own answer alone.
Source: llguidance, github.com/guidance-ai/llguidance (Earley parser over token tries).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import llguidance

from twostroke.errors import RequestError
from twostroke.text.tokenizer import Tokenizer

MAX_SCHEMA_CHARS = 1 << 16
MAX_SCHEMA_DEPTH = 32
MAX_SCHEMA_VALUES = 10_000
# Compact JSON with one blank after a separator: free white space lets small models loop.
_LAYOUT: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_WORD_BYTES = 4


class InvalidGrammar(RequestError):
    """A schema that is malformed, too large, or beyond what can be matched."""

    code = "invalid_grammar"


class _Tokens:
    """The model's tokens as llguidance asks for them."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, end_ids: frozenset[int]) -> None:
        self.eos_token_id = min(end_ids)
        self.bos_token_id = tokenizer.bos_id
        known = tokenizer.vocab_size
        self.special_token_ids = [i for i in range(known) if tokenizer.is_control(i)]
        self.tokens = [
            tokenizer.token_bytes(i, with_control=True) if i < known else b""
            for i in range(vocab_size)
        ]
        self._tokenizer = tokenizer

    def __call__(self, text: bytes) -> list[int]:
        return self._tokenizer.encode(text.decode("utf-8", "replace"))


class GrammarCompiler:
    """Makes grammars for one model. Built once: it holds the vocabulary as a trie.

    Raises:
        RequestError: the model has no end token, so that nothing could close an answer.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, end_ids: frozenset[int]) -> None:
        if not end_ids:
            raise RequestError("this model has no end token, so no grammar can close an answer")
        tokens = _Tokens(tokenizer, vocab_size, end_ids)
        self._tokenizer = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(tokens), n_vocab=vocab_size, eos_token=sorted(end_ids)
        )
        self._num_bytes = -(-vocab_size // 32) * _WORD_BYTES
        self._end_bits = _bits_of(end_ids, self._num_bytes)

    def json_object(self) -> Grammar:
        """Return the grammar of any JSON object."""
        return self.json_schema({"type": "object"})

    def json_schema(self, schema: Mapping[str, Any]) -> Grammar:
        """Return the grammar of a schema.

        Raises:
            InvalidGrammar: too large, malformed, or using what cannot be matched.
        """
        _check_schema(schema)
        try:
            text = llguidance.LLMatcher.grammar_from_json_schema(
                json.dumps(schema), overrides=_LAYOUT
            )
            limits = llguidance.LLParserLimits(
                initial_lexer_fuel=1_000_000, max_grammar_size=500_000, verbose_errors=False
            )
            matcher = llguidance.LLMatcher(self._tokenizer, text, log_level=0, limits=limits)
        except ValueError as error:
            raise _invalid(str(error)) from None
        if matcher.is_error():
            raise _invalid(matcher.get_error())
        return Grammar(matcher, self._num_bytes, self._end_bits)


class Grammar:
    """One answer's place in a grammar; a request.TokenMask. Used by one thread at a time."""

    def __init__(self, matcher: Any, num_bytes: int, end_bits: bytes) -> None:
        self._matcher = matcher
        self._num_bytes = num_bytes
        self._end_bits = end_bits
        self._num_taken = 0

    def fresh(self) -> Grammar:
        """Return the same grammar at its start, for another answer."""
        matcher = self._matcher.deep_copy()
        matcher.reset()
        return Grammar(matcher, self._num_bytes, self._end_bits)

    def bits(self, output_token_ids: Sequence[int]) -> bytes:
        """Return the tokens that may come next, one bit each."""
        matcher = self._matcher
        for token_id in output_token_ids[self._num_taken :]:
            self._num_taken += 1
            if not matcher.is_stopped():
                matcher.consume_token(token_id)
        if matcher.is_stopped():
            return self._end_bits
        found: bytes = matcher.compute_bitmask()
        if matcher.is_error() or not any(found):
            return self._end_bits
        return found[: self._num_bytes].ljust(self._num_bytes, b"\0")


def _bits_of(ids: frozenset[int], num_bytes: int) -> bytes:
    bits = bytearray(num_bytes)
    for i in ids:
        bits[i // 8] |= 1 << i % 8
    return bytes(bits)


def _check_schema(schema: object) -> None:
    budget = [MAX_SCHEMA_VALUES, MAX_SCHEMA_CHARS]

    def walk(value: object, depth: int) -> None:
        budget[0] -= 1
        if depth == 0 or budget[0] < 0 or budget[1] < 0:
            raise _too_large()
        if isinstance(value, str):
            budget[1] -= len(value)
        elif isinstance(value, Mapping):
            for key, found in value.items():
                budget[1] -= len(key)
                walk(found, depth - 1)
        elif isinstance(value, list):
            for found in value:
                walk(found, depth - 1)

    walk(schema, MAX_SCHEMA_DEPTH)
    if budget[1] < 0:
        raise _too_large()


def _too_large() -> InvalidGrammar:
    return InvalidGrammar(
        "the JSON schema is too large or nested too deeply",
        limit=f"{MAX_SCHEMA_CHARS} characters, {MAX_SCHEMA_VALUES} values, "
        f"depth {MAX_SCHEMA_DEPTH}",
        param="response_format",
    )


def _invalid(reason: str) -> InvalidGrammar:
    return InvalidGrammar(
        "the JSON schema cannot be matched", value=reason[:300], param="response_format"
    )
