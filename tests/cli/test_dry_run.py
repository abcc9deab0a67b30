"""A plan of our own engine equals what the engine allocates."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiny_models import write_named
from twostroke.backend.native import NativeModel
from twostroke.backend.native_library import native_module
from twostroke.backend.native_weights import pack_weights
from twostroke.cli.dry_run import dry_run
from twostroke.config import KvType
from twostroke.formats.gguf import open_gguf
from twostroke.model.gguf_config import config_from_gguf
from twostroke.model.weights import load_weights, vocab_size_of
from twostroke.planner.memory import Rules, kv_bytes
from twostroke.predict.gguf_shape import shape_of_gguf
from twostroke.predict.kv import kv_block_bytes, kv_format
from twostroke.predict.shape import config_layers

STEP_TOKENS = 96


@pytest.mark.parametrize("name", ["llama-k", "qwen2-mixed", "gemma3", "gemma2-uncapped"])
def test_planned_bytes_are_allocated_bytes(name: str, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_named(path, name)
    planned = dry_run(path, step_tokens=STEP_TOKENS)
    assert planned is not None
    with open_gguf(path) as file:
        config = config_from_gguf(file.metadata, vocab_size=vocab_size_of(file))
        weights = load_weights(file, config)
        packed = pack_weights(weights, native_module().ThreadPool(1))
        model = NativeModel(config, weights, packed, num_blocks=8, max_tokens=STEP_TOKENS)
        assert planned.arena_bytes == model.arena_bytes
        sizes = planned.weights
        assert sizes.body.num_bytes + sizes.lm_head.num_bytes == packed.nbytes
        shape = shape_of_gguf(file.metadata, file.tensors.values())
        kv = kv_bytes(shape, kv_format("bf16"), 8 * 16, rules=Rules.TWOSTROKE)
        assert kv == model.kv_bytes
        for kv_type in KvType:
            one = kv_bytes(shape, kv_format(kv_type.value), 1, rules=Rules.TWOSTROKE)
            assert one == kv_block_bytes(config_layers(config), kv_format(kv_type.value))
