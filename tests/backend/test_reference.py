"""The reference backend against Hugging Face transformers in float32 on the same weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.golden_data import ReferenceRun, golden, nll, open_model

LOGIT_BOUND = 2e-3  # of the spread: float32 sums of another order over 30 layers
MARGIN_BOUND = 4e-3  # of the spread: twice the bound, so the top token cannot change honestly

MAX_TOKENS = 1024

Model = tuple[dict[str, Any], ReferenceRun]


def _load(path: Path) -> Iterator[Model]:
    file, config, weights = open_model(path)
    with file:
        yield golden(path.stem), ReferenceRun(config, weights, max_tokens=MAX_TOKENS)


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Iterator[Model]:
    yield from _load(smollm2_path)


@pytest.fixture(scope="module")
def gemma3(gemma3_path: Path) -> Iterator[Model]:
    yield from _load(gemma3_path)


@pytest.fixture(scope="module")
def qwen2(qwen2_path: Path) -> Iterator[Model]:
    yield from _load(qwen2_path)


def check_logits(logits: np.ndarray, record: dict[str, Any]) -> None:
    """Assert that the values are within the bound, and the top token where the margin allows."""
    spread = record["spread"]
    for ids, values in (("top_ids", "top_logits"), ("sample_ids", "sample_logits")):
        error = np.abs(logits[record[ids]] - np.array(record[values])).max()
        assert error <= LOGIT_BOUND * spread
    if record["top_logits"][0] - record["top_logits"][1] > MARGIN_BOUND * spread:
        assert int(logits.argmax()) == record["top_ids"][0]


def check_prompts(model: Model) -> None:
    """Assert the logits after each prompt, and each of its 64 greedy tokens."""
    data, run = model
    for prompt in data["prompts"].values():
        ids, greedy = prompt["ids"], prompt["greedy"]["ids"]
        run.reset()
        rows = range(len(ids) - 1, len(ids) + len(greedy) - 1)
        logits = run.feed(ids + greedy[:-1], list(rows))
        check_logits(logits[0], prompt["last"])
        assert logits.argmax(axis=-1).tolist() == greedy


def check_decode(model: Model, prompt_name: str, num_tokens: int) -> None:
    """Assert that prefill in two chunks and decode token by token choose the golden tokens."""
    data, run = model
    prompt = data["prompts"][prompt_name]
    run.reset()
    run.feed(prompt["ids"][:-3])
    logits = run.feed(prompt["ids"][-3:])
    for expected in prompt["greedy"]["ids"][:num_tokens]:
        assert int(logits[0].argmax()) == expected
        logits = run.feed([expected])


@pytest.mark.weights
def test_smollm2_logits_and_64_greedy_tokens_equal_transformers(smollm2: Model) -> None:
    check_prompts(smollm2)
    check_decode(smollm2, "chat", 16)


@pytest.mark.weights
def test_smollm2_inner_positions_equal_transformers(smollm2: Model) -> None:
    data, run = smollm2
    prompt = data["prompts"]["long"]
    positions = sorted(int(p) for p in prompt["inner"])
    run.reset()
    logits = run.feed(prompt["ids"][: positions[-1] + 1], positions)
    for row, position in zip(logits, positions, strict=True):
        check_logits(row, prompt["inner"][str(position)])


@pytest.mark.weights
def test_smollm2_perplexity_of_512_tokens_equals_transformers(smollm2: Model) -> None:
    data, run = smollm2
    ids = data["perplexity"]["ids"][:512]
    run.reset()
    logits = run.feed(ids, list(range(511)))
    assert nll(logits, ids[1:]) == pytest.approx(data["perplexity"]["first_512_nll"], rel=1e-4)


@pytest.mark.models
def test_gemma3_logits_and_64_greedy_tokens_equal_transformers(gemma3: Model) -> None:
    check_prompts(gemma3)
    check_decode(gemma3, "long", 4)


@pytest.mark.models
def test_qwen2_logits_and_64_greedy_tokens_equal_transformers(qwen2: Model) -> None:
    check_prompts(qwen2)
    check_decode(qwen2, "chat", 4)
