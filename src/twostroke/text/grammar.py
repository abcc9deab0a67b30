"""JSON, JSON Schema and tool calls as masks over the next token, by llguidance.

A schema comes from a stranger: its size and depth are bounded here, its cost by llguidance's
limits. Compiling may take a while: call it from a thread. A mask never raises: when the matcher
fails, only end tokens remain allowed, so that other answers of the batch go on.
Source: llguidance, github.com/guidance-ai/llguidance (Earley parser over token tries).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import llguidance

from twostroke.errors import RequestError
from twostroke.text.tokenizer import Tokenizer
from twostroke.text.tool_format import CLOSE_TAG, OPEN_TAG, ToolFormat

MAX_SCHEMA_CHARS = 1 << 16
MAX_SCHEMA_DEPTH = 32
MAX_SCHEMA_VALUES = 10_000
# Compact JSON with one blank after a separator: free white space lets small models loop.
_LAYOUT: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_WORD_BYTES = 4


class InvalidGrammar(RequestError):
    """A schema that is malformed, too large, or uses keywords that llguidance cannot match."""

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
            InvalidGrammar: the schema is malformed, too large, or cannot be matched.
        """
        _check_schema(schema, "response_format")
        try:
            text = llguidance.LLMatcher.grammar_from_json_schema(
                json.dumps(schema), overrides=_LAYOUT
            )
        except ValueError as error:
            raise _invalid(str(error), "response_format") from None
        return self._compile(text, "response_format")

    def tool_calls(
        self,
        form: ToolFormat,
        schemas: Mapping[str, Mapping[str, Any]],
        *,
        is_demanded: bool,
        is_parallel: bool,
        answer_schema: Mapping[str, Any] | None = None,
    ) -> Grammar:
        """Return the grammar of answers that may call tools, or must call one of them.

        schemas: for each name the schema of its arguments. is_demanded: the answer is one call,
        nothing else. With an answer_schema it is calls, or JSON by that schema. Otherwise it is
        free text with calls in it (is_parallel) or one at its end: that needs a form with tags.

        Raises:
            InvalidGrammar: a schema is malformed, too large, or cannot be matched.
        """
        _check_schema(list(schemas.values()), "tools")
        if answer_schema is not None:
            _check_schema(answer_schema, "response_format")
        start = _tool_start(
            form, is_demanded=is_demanded, is_parallel=is_parallel, answer_schema=answer_schema
        )
        lark = _tool_objects(form, schemas) + start
        try:
            text = llguidance.LLMatcher.grammar_from_lark(lark)
        except ValueError as error:
            raise _invalid(str(error), "tools") from None
        return self._compile(text, "tools")

    def _compile(self, text: str, param: str) -> Grammar:
        try:
            limits = llguidance.LLParserLimits(
                initial_lexer_fuel=1_000_000, max_grammar_size=500_000, verbose_errors=False
            )
            matcher = llguidance.LLMatcher(self._tokenizer, text, log_level=0, limits=limits)
        except ValueError as error:
            raise _invalid(str(error), param) from None
        if matcher.is_error():
            raise _invalid(matcher.get_error(), param)
        return Grammar(matcher, self._num_bytes, self._end_bits)


class Grammar:
    """One answer's position in a grammar; a request.TokenMask. Used by one thread at a time."""

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


def _tool_objects(form: ToolFormat, schemas: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the rules of one call, in llguidance's Lark dialect.

    Each schema is a document of its own, so that its references resolve.
    """
    bodies = []
    for name, schema in schemas.items():
        before = json.dumps(f'{{"name": "{name}", "{form.arguments_name}": ')
        bodies.append(f'{before} {_inline(schema)} "}}"')
    rules = f"%llguidance {{}}\nobject: {' | '.join(bodies)}\n"
    if not form.is_tagged:
        return rules + "call: object\n"
    opening, closing = json.dumps(OPEN_TAG), json.dumps(f"\n{CLOSE_TAG}")
    return rules + (
        f'rest: "\\n" object {closing}\ncall: {opening} rest\n'
        f"until_call[lazy]: TEXT {opening}\nTEXT: /(.|\\n)*/\n"
    )


def _tool_start(
    form: ToolFormat,
    *,
    is_demanded: bool,
    is_parallel: bool,
    answer_schema: Mapping[str, Any] | None,
) -> str:
    if is_demanded:
        return "start: call"
    calls = 'call ("\\n" call)*' if is_parallel and form.is_tagged else "call"
    if answer_schema is not None:
        return f"start: {calls} | {_inline(answer_schema)}"
    assert form.is_tagged, "only tags separate free text from calls"
    return "start: (until_call rest)* TEXT" if is_parallel else "start: until_call rest | TEXT"


def _inline(schema: Mapping[str, Any]) -> str:
    return f"%json {json.dumps({**schema, 'x-guidance': _LAYOUT})}"


def _check_schema(schema: object, param: str) -> None:
    """Refuse a schema with too many values or characters, or nested too deeply."""
    num_values, num_chars = 1, 0
    waiting = [(schema, 1)]
    while waiting:
        value, depth = waiting.pop()
        inside: Collection[object] = ()
        if isinstance(value, str):
            num_chars += len(value)
        elif isinstance(value, Mapping):
            num_chars += sum(map(len, value))
            inside = value.values()
        elif isinstance(value, list):
            inside = value
        num_values += len(inside)
        is_deep = depth > MAX_SCHEMA_DEPTH
        if is_deep or num_values > MAX_SCHEMA_VALUES or num_chars > MAX_SCHEMA_CHARS:
            raise _too_large(param)
        waiting += [(found, depth + 1) for found in inside]


def _too_large(param: str) -> InvalidGrammar:
    return InvalidGrammar(
        "the JSON schema is too large or nested too deeply",
        limit=f"{MAX_SCHEMA_CHARS} characters, {MAX_SCHEMA_VALUES} values, "
        f"depth {MAX_SCHEMA_DEPTH}",
        param=param,
    )


def _invalid(reason: str, param: str) -> InvalidGrammar:
    return InvalidGrammar("the JSON schema cannot be matched", value=reason[:300], param=param)
