"""The native backend against the reference, and against itself: the same bits on every path."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import numpy as np
import pytest

from tests.backend.native_runs import (
    BLOCKS_EACH,
    RoundedOps,
    arrays_of,
    in_chunks,
    make_model,
    piece,
)
from tests.golden_data import ReferenceRun, open_model
from tests.tiny_models import FAMILIES, TINY_MODELS, write_named
from twostroke.backend.native_library import native_module
from twostroke.config import KvType
from twostroke.model.config import ModelConfig
from twostroke.model.weights import ModelWeights

KERNEL_SETS = tuple(native_module().kernel_sets())
NUM_TOKENS = 70

# Root mean square over all logits, as a share of each row's spread. Float weights with f16 K and V
# differ by sum order and by the f16 roundings that it flips. Elsewhere a flipped rounding of an
# activation (1/127 of its group), a query or a weight of attention (2^-9) travels through random
# layers that amplify it; a wrong op costs 0.1 and more.
FLOAT_BOUND = 1.5e-4
ROUNDING_BOUND = {KvType.F16: 2.5e-3, KvType.BF16: 1.5e-2, KvType.Q8: 2e-2}


@functools.cache
def tiny(name: str) -> tuple[ModelConfig, ModelWeights]:
    folder = Path(tempfile.mkdtemp())
    write_named(folder / "tiny.gguf", name)
    file, config, weights = open_model(folder / "tiny.gguf")
    with file:
        return config, weights


@functools.cache
def prompt(name: str, num_tokens: int = NUM_TOKENS, seed: int = 0) -> tuple[int, ...]:
    config, _ = tiny(name)
    rng = np.random.default_rng(seed)
    return tuple(int(i) for i in rng.integers(0, config.vocab_size, num_tokens))


@functools.cache
def reference(name: str, kv_type: KvType) -> np.ndarray:
    config, weights = tiny(name)
    run = ReferenceRun(config, weights, max_tokens=NUM_TOKENS, kv_type=kv_type)
    run.model._ops = RoundedOps(config)
    return run.feed(list(prompt(name)), list(range(NUM_TOKENS)))


def error(name: str, kernel_set: str, kv_type: KvType) -> float:
    """Return the root mean square error as a share of the spread of the row's logits."""
    model = make_model(*tiny(name), kernel_set=kernel_set, kv_type=kv_type)
    expected = reference(name, kv_type)
    got = in_chunks(model, prompt(name), NUM_TOKENS)
    spread = expected.max(axis=-1) - expected.min(axis=-1)
    return float(np.sqrt(np.mean(np.square((got - expected) / spread[:, None]))))


@pytest.mark.parametrize("kernel_set", KERNEL_SETS)
@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_every_family_equals_the_reference_on_float_weights(name: str, kernel_set: str) -> None:
    assert error(name, kernel_set, KvType.F16) <= FLOAT_BOUND


@pytest.mark.parametrize("kernel_set", KERNEL_SETS)
@pytest.mark.parametrize("name", sorted(TINY_MODELS))
def test_every_tiny_model_equals_the_reference_with_rounded_activations(
    name: str, kernel_set: str
) -> None:
    assert error(name, kernel_set, KvType.F16) <= ROUNDING_BOUND[KvType.F16]


@pytest.mark.parametrize("kernel_set", KERNEL_SETS)
@pytest.mark.parametrize("kv_type", [KvType.BF16, KvType.Q8])
@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_every_family_is_near_the_reference_for_each_cache_type(
    name: str, kv_type: KvType, kernel_set: str
) -> None:
    assert error(name, kernel_set, kv_type) <= ROUNDING_BOUND[kv_type]


@pytest.mark.parametrize("kernel_set", KERNEL_SETS)
@pytest.mark.parametrize("name", ["llama-4bit", "llama-k", "gemma3", "qwen3-8bit"])
def test_bits_do_not_depend_on_chunks_or_threads(name: str, kernel_set: str) -> None:
    ids = prompt(name)
    whole = in_chunks(make_model(*tiny(name), kernel_set=kernel_set), ids, NUM_TOKENS)
    for threads, size in ((1, 1), (2, 1), (2, 7), (3, 16), (2, NUM_TOKENS)):
        model = make_model(*tiny(name), kernel_set=kernel_set, threads=threads)
        assert np.array_equal(in_chunks(model, ids, size), whole), (threads, size)


@pytest.mark.parametrize("kernel_set", KERNEL_SETS)
def test_bits_do_not_depend_on_the_batch(kernel_set: str) -> None:
    name = "llama-k"
    lengths = (40, 1, 33)
    prompts = [prompt(name, n, seed) for seed, n in enumerate(lengths)]
    alone = []
    for ids in prompts:
        model = make_model(*tiny(name), kernel_set=kernel_set)
        alone.append(in_chunks(model, ids, len(ids)))
    model = make_model(*tiny(name), kernel_set=kernel_set, threads=2)
    slices = [piece(f"r{i}", ids, 0, len(ids), i * BLOCKS_EACH) for i, ids in enumerate(prompts)]
    together = model.logits(arrays_of(slices))
    assert np.array_equal(together, np.concatenate(alone))


@pytest.mark.parametrize("kv_type", list(KvType))
@pytest.mark.parametrize("kernel_set", KERNEL_SETS)
def test_decode_at_every_length_equals_prefill_for_each_cache_type(
    kernel_set: str, kv_type: KvType
) -> None:
    config, weights = tiny("llama")
    ids = prompt("llama", 40)
    model = make_model(config, weights, kernel_set=kernel_set, kv_type=kv_type)
    whole = in_chunks(model, ids, 40)
    assert np.array_equal(in_chunks(model, ids, 1), whole)


@pytest.mark.parametrize("name", ["llama-tied-16bit", "gemma2", "llama-k-head"])
def test_a_wanted_row_has_the_bits_it_has_among_all_rows(name: str) -> None:
    ids = prompt(name)
    model = make_model(*tiny(name), kernel_set=KERNEL_SETS[0], threads=2)
    step = piece("r", ids, 0, len(ids), 0)
    everything = model.logits(arrays_of([step]))  # more rows than are computed at once
    for rows in ([NUM_TOKENS - 1], [3, 50], list(range(5, 30))):
        assert np.array_equal(model.logits(arrays_of([step], rows=rows)), everything[rows])
    assert model.logits(arrays_of([step], rows=[])).shape[0] == 0
