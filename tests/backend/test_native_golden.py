"""Real models on the native backend against transformers in float32 on the same weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.backend.native_runs import make_model
from tests.golden_data import golden, nll, open_model
from twostroke.backend.arrays import StepArrays
from twostroke.backend.native import NativeModel
from twostroke.backend.native_library import native_module
from twostroke.step import BLOCK_SIZE

KERNEL_SETS = tuple(native_module().kernel_sets())
NO_INTS = np.zeros(0, np.int32)

# Of the spread of a row of logits: 8-bit activations err by 1/254 of the largest of 32 at most,
# and these errors add up over the layers. Named from the worst of models and sets (0.022).
LOGIT_BOUND = 0.03
MARGIN_BOUND = 2 * LOGIT_BOUND  # both tokens may move: beyond it the top token cannot change
# Of float32, over at least 4,000 tokens (the scalar set, being slow: 512).
PERPLEXITY_BOUND = 0.005


def logits_of(model: NativeModel, ids: list[int]) -> np.ndarray:
    """Return the logits of every token of one request: [n, V]."""
    n = len(ids)
    positions = np.arange(n, dtype=np.int32)
    blocks = np.arange(-(-n // BLOCK_SIZE), dtype=np.int32)
    return model.logits(
        StepArrays(
            token_ids=np.array(ids, np.int32),
            positions=positions,
            slot_mapping=positions.astype(np.int64),
            cu_seqlens_q=np.array([0, n], np.int32),
            context_lens=np.array([n], np.int32),
            block_tables=blocks[None],
            logit_rows=positions,
            specs=(),
            targets=(),
            new_blocks=blocks,
            copies=np.zeros((0, 3), np.int32),
        )
    )


def check_last(logits: np.ndarray, record: dict[str, Any]) -> None:
    """Assert that the logits after a prompt are within the bound."""
    for ids, values in (("top_ids", "top_logits"), ("sample_ids", "sample_logits")):
        error = np.abs(logits[record[ids]] - np.array(record[values])).max()
        assert error <= LOGIT_BOUND * record["spread"]


def check(path: Path, kernel_set: str, num_scored: int) -> None:
    file, config, weights = open_model(path)
    with file:
        model = make_model(
            config, weights, kernel_set=kernel_set, threads=2, max_tokens=1024, num_blocks=64
        )
    data = golden(path.stem)
    for name in ("raw", "chat", "code"):
        prompt = data["prompts"][name]
        ids, greedy = prompt["ids"], prompt["greedy"]
        rows = logits_of(model, ids + greedy["ids"][:-1])[len(ids) - 1 :]
        check_last(rows[0], prompt["last"])
        sure = np.array(greedy["margins"]) > MARGIN_BOUND * np.array(greedy["spreads"])
        assert sure.sum() >= 8, name  # else the comparison says nothing
        assert np.array_equal(rows.argmax(axis=-1)[sure], np.array(greedy["ids"])[sure]), name
    scored = data["perplexity"]
    if num_scored == 512:
        ours, expected = nll_of(model, scored["ids"][:512]), scored["first_512_nll"]
    else:
        starts = range(0, num_scored, scored["window"])
        windows = [scored["ids"][i : i + scored["window"]] for i in starts]
        ours = np.mean([nll_of(model, ids) for ids in windows])
        expected = np.mean(scored["window_nll"][: len(windows)])
    assert abs(np.expm1(ours - expected)) <= PERPLEXITY_BOUND


def nll_of(model: NativeModel, ids: list[int]) -> float:
    """Return the mean negative log-likelihood of all but the first token of one window."""
    return nll(logits_of(model, ids)[:-1], ids[1:])


@pytest.mark.weights
@pytest.mark.parametrize("kernel_set", KERNEL_SETS)
def test_smollm2_equals_transformers_within_the_bounds(smollm2_path: Path, kernel_set: str) -> None:
    check(smollm2_path, kernel_set, 512 if kernel_set == "scalar" else 4096)


@pytest.mark.models
@pytest.mark.parametrize("kernel_set", [name for name in KERNEL_SETS if name != "scalar"])
def test_gemma3_equals_transformers_within_the_bounds(gemma3_path: Path, kernel_set: str) -> None:
    check(gemma3_path, kernel_set, 4096)


@pytest.mark.models
@pytest.mark.parametrize("kernel_set", [name for name in KERNEL_SETS if name != "scalar"])
def test_qwen2_equals_transformers_within_the_bounds(qwen2_path: Path, kernel_set: str) -> None:
    check(qwen2_path, kernel_set, 1024)
