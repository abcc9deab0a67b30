"""Tiny models have the weights that the golden data was made from."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.tiny_models import (
    FAMILIES,
    RANDOM_BLOCKS,
    TINY_MODELS,
    llama3_rope_factors,
    write_named,
    write_tiny,
)

GOLDEN = json.loads((Path(__file__).parent / "golden" / "tiny.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", TINY_MODELS)
def test_weights_are_those_of_the_golden_data(name: str, tmp_path: Path) -> None:
    digest = write_named(tmp_path / "tiny.gguf", name)
    assert digest == GOLDEN["models"][name]["weights_sha256"]


def test_golden_data_has_no_model_that_is_gone() -> None:
    assert set(GOLDEN["models"]) == set(TINY_MODELS)


def test_every_family_has_golden_data() -> None:
    assert {family for family, _ in TINY_MODELS.values()} == set(FAMILIES)


@pytest.mark.parametrize("kind", RANDOM_BLOCKS)
def test_random_blocks_have_the_asked_spread(kind: str, tmp_path: Path) -> None:
    from gguf import GGUFReader
    from gguf.quants import dequantize

    path = tmp_path / "tiny.gguf"
    write_tiny(path, "llama", hidden_size=256, intermediate_size=256, head_dim=64, types=(kind,))
    tensors = {tensor.name: tensor for tensor in GGUFReader(path).tensors}
    weight = tensors["blk.0.ffn_up.weight"]
    values = dequantize(weight.data, weight.tensor_type)
    assert values.shape == (256, 256)
    assert np.isfinite(values).all()
    assert values.std() == pytest.approx(1 / 16, rel=0.1)


def test_llama3_factors_leave_high_frequencies_alone_and_divide_low_ones() -> None:
    factors = llama3_rope_factors(FAMILIES["llama"])
    assert factors[0] == 1.0
    assert factors[-1] == FAMILIES["llama"].rope_factor
    assert (np.diff(factors) >= 0).all()


def test_unfit_rows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Q4_K needs rows of a multiple of 256, not 128"):
        write_tiny(tmp_path / "tiny.gguf", "llama", types=("Q4_K",))
