"""Masks that leave exactly what a schema allows, bounded against hostile schemas."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import numpy as np
import pytest

from twostroke.errors import RequestError
from twostroke.text.grammar import Grammar, GrammarCompiler, InvalidGrammar
from twostroke.text.tokenizer import Tokenizer

SCHEMA = {
    "type": "object",
    "properties": {
        "n": {"type": "integer", "minimum": 0, "maximum": 99},
        "s": {"type": "string", "maxLength": 6},
        "e": {"enum": ["x", "yy"]},
        "l": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    },
    "required": ["n", "s", "e", "l"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(tokenizer, tokenizer.vocab_size, tokenizer.end_ids)


def allowed(grammar: Grammar, ids: list[int]) -> list[int]:
    bits = np.unpackbits(np.frombuffer(grammar.bits(ids), np.uint8), bitorder="little")
    return [int(i) for i in np.flatnonzero(bits)]


def wander(grammar: Grammar, tokenizer: Tokenizer, seed: int) -> str:
    """Take random allowed tokens up to an end token and return the text."""
    draw, ids = random.Random(seed), []
    for _ in range(400):
        token_id = draw.choice(allowed(grammar, ids))
        if token_id in tokenizer.end_ids:
            return tokenizer.decode(ids)
        ids.append(token_id)
    raise AssertionError("no end")


@pytest.mark.parametrize("seed", range(8))
def test_every_way_through_a_schema_is_valid(
    compiler: GrammarCompiler, tokenizer: Tokenizer, seed: int
) -> None:
    found = json.loads(wander(compiler.json_schema(SCHEMA), tokenizer, seed))
    assert set(found) == {"n", "s", "e", "l"}
    assert 0 <= found["n"] <= 99 and len(found["s"]) <= 6 and found["e"] in ("x", "yy")
    assert len(found["l"]) <= 3 and all(isinstance(v, bool) for v in found["l"])


def test_a_mask_computed_twice_is_the_same(compiler: GrammarCompiler) -> None:
    grammar = compiler.json_object()
    first = grammar.bits([])
    assert grammar.bits([]) == first
    ids = [allowed(grammar, [])[0]]
    second = grammar.bits(ids)
    assert second == grammar.bits(ids) != first
    assert grammar.fresh().bits([]) == first


def test_a_token_that_was_not_allowed_leaves_only_the_end(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    grammar = compiler.json_object()
    (wrong,) = tokenizer.encode("z")
    assert set(allowed(grammar, [wrong])) == set(tokenizer.end_ids)
    assert set(allowed(grammar, [wrong, wrong, wrong])) == set(tokenizer.end_ids)


def deep(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "foo"},
        {"type": 3},
        {"type": "string", "pattern": "^(?<=a)b$"},
        {"type": "string", "pattern": "{2}x"},
        {"type": "string", "pattern": "(" * 60_000 + ")" * 60_000},
        {"$ref": "#/nothing"},
        {"$ref": "https://elsewhere.example/schema.json"},
        deep(40),
        {"enum": ["x" * 70_000]},
        {"enum": list(range(20_000))},
    ],
)  # fmt: skip
def test_b2_a_hostile_schema_is_refused_soon(
    compiler: GrammarCompiler, schema: dict[str, Any]
) -> None:
    start = time.monotonic()
    with pytest.raises(InvalidGrammar):
        compiler.json_schema(schema)
    assert time.monotonic() - start < 5


@pytest.mark.parametrize("pattern", ["(a*)*b", "^(a+)+$", "(x|xx)*y", "foo**", "a{0,500}b"])
def test_a_pattern_that_blows_up_elsewhere_costs_little(
    compiler: GrammarCompiler, tokenizer: Tokenizer, pattern: str
) -> None:
    start = time.monotonic()
    grammar = compiler.json_schema({"type": "string", "pattern": pattern})
    ids: list[int] = []
    for _ in range(50):
        ids.append(allowed(grammar, ids)[-1])
    assert time.monotonic() - start < 5


def test_a_model_without_an_end_token_takes_no_grammar(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match="no end token"):
        GrammarCompiler(tokenizer, tokenizer.vocab_size, frozenset())
