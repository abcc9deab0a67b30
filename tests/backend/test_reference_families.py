"""The reference backend on a tiny model of every family, format and rope against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.golden_data import ReferenceRun, golden, open_model
from tests.tiny_models import TINY_MODELS, write_named

# Of the spread. Two float32 programs that sum in other orders: 2^-24 relative per rounding, a few
# hundred roundings a layer, layers that amplify (random weights); 3e-6 is the most that was seen.
LOGIT_BOUND = 2e-5


@pytest.mark.parametrize("name", TINY_MODELS)
def test_logits_and_greedy_tokens_are_the_golden_ones(name: str, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_named(path, name)
    file, config, weights = open_model(path)
    with file:
        run = ReferenceRun(config, weights, max_tokens=128)
        for prompt in golden("tiny")["models"][name]["prompts"].values():
            check_prompt(run, prompt)


def check_prompt(run: ReferenceRun, prompt: dict[str, Any]) -> None:
    """Assert every logit after the prompt and every greedy token whose margin exceeds the bound."""
    expected = np.array(prompt["logits"])
    ids, greedy = prompt["ids"], prompt["greedy"]
    run.reset()
    rows = list(range(len(ids) - 1, len(ids) + len(greedy["ids"]) - 1))
    logits = run.feed(ids + greedy["ids"][:-1], rows)
    assert np.abs(logits[0] - expected).max() <= LOGIT_BOUND * np.ptp(expected)
    for row, token_id, margin, spread in zip(
        logits, greedy["ids"], greedy["margins"], greedy["spreads"], strict=True
    ):
        if margin > 2 * LOGIT_BOUND * spread:
            assert int(row.argmax()) == token_id
