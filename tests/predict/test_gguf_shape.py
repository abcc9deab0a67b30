"""Shapes from GGUF headers: as the loaded model says, and careful with other families."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.tiny_models import TINY_MODELS, write_named
from twostroke.formats.ggml_types import GGMLType
from twostroke.formats.gguf import open_gguf
from twostroke.formats.gguf_tensors import TensorInfo
from twostroke.model.gguf_config import config_from_gguf
from twostroke.model.weights import load_weights, vocab_size_of
from twostroke.predict.cost import CostModel, Span
from twostroke.predict.gguf_shape import shape_of_gguf
from twostroke.predict.kv import kv_format
from twostroke.predict.shape import shape_of_model

NAMES = [name for name in TINY_MODELS if "rope" not in name]


@pytest.mark.parametrize("name", NAMES)
def test_the_header_tells_what_the_loaded_model_tells(name: str, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_named(path, name)
    with open_gguf(path) as file:
        header = shape_of_gguf(file.metadata, file.tensors.values())
        config = config_from_gguf(file.metadata, vocab_size=vocab_size_of(file))
        weights = load_weights(file, config)
        loaded = shape_of_model(config, weights)
    assert header.layers == loaded.layers
    assert header.weights is not None and loaded.weights is not None
    assert header.weights.body == loaded.weights.body
    assert header.weights.lm_head == loaded.weights.lm_head
    by_header, by_files = (CostModel(shape, kv_format("bf16")) for shape in (header, loaded))
    assert by_header.spans_work((Span(3, 40, 1),)) == by_files.spans_work((Span(3, 40, 1),))


def llama(**changes: Any) -> dict[str, Any]:
    keys: dict[str, Any] = {
        "block_count": 4,
        "embedding_length": 256,
        "attention.head_count": 8,
        "attention.head_count_kv": 2,
        "feed_forward_length": 512,
        "context_length": 4096,
    }
    family = changes.pop("family", "llama")
    keys.update(changes)
    metadata: dict[str, Any] = {f"{family}.{k}": v for k, v in keys.items() if v is not None}
    return {**metadata, "general.architecture": family}


def tensor(name: str, *shape: int) -> TensorInfo:
    nbytes = 2
    for n in shape:
        nbytes *= n
    return TensorInfo(name, GGMLType.F16, shape, nbytes, 0, 0)


def test_kv_heads_may_differ_from_layer_to_layer() -> None:
    shape = shape_of_gguf(llama(**{"attention.head_count_kv": [2, 2, 4, 0]}), ())
    assert shape.layers is not None
    assert [layer.kv_heads for layer in shape.layers] == [2, 2, 4, 0]
    assert not shape.layers[3].has_attention


def test_absorbed_latent_attention_keeps_rank_and_rope() -> None:
    mla = {
        "attention.kv_lora_rank": 512,
        "rope.dimension_count": 64,
        "attention.key_length": 576,
        "attention.value_length": 512,
        "attention.key_length_mla": 192,
        "attention.value_length_mla": 128,
        "attention.head_count_kv": 1,
    }
    new = shape_of_gguf(llama(family="deepseek2", **mla), ())
    assert new.layers is not None
    assert (new.layers[0].latent_dim, new.layers[0].key_dim) == (576, 192)
    old_keys = {**mla, "attention.key_length_mla": None, "attention.value_length_mla": None}
    old_keys |= {"attention.head_count_kv": 8, "attention.key_length": 192}
    old_keys["attention.value_length"] = 128
    old = shape_of_gguf(llama(family="deepseek2", **old_keys), ())
    assert old.layers is not None
    assert (old.layers[0].latent_dim, old.layers[0].kv_heads) == (0, 8)


def test_the_last_layers_may_share_a_cache() -> None:
    shape = shape_of_gguf(llama(**{"attention.shared_kv_layers": 3}), ())
    assert shape.layers is not None
    assert [layer.shares_kv for layer in shape.layers] == [False, True, True, True]


def test_experts_are_counted_apart() -> None:
    tensors = (
        tensor("token_embd.weight", 100, 256),
        tensor("blk.0.attn_q.weight", 256, 256),
        tensor("blk.0.attn_norm.weight", 256),
        tensor("blk.0.ffn_gate_exps.weight", 8, 512, 256),
    )
    shape = shape_of_gguf(llama(expert_count=8, expert_used_count=2), tensors)
    assert shape.weights is not None and shape.expert_share == 0.25
    assert shape.weights.experts.num_values == 8 * 512 * 256
    assert shape.weights.body.num_values == 256 * 256
    assert shape.weights.lm_head.num_values == 100 * 256  # tied
    assert shape.weights.total_bytes == sum(t.nbytes for t in tensors)


@pytest.mark.parametrize("key", ["block_count", "attention.head_count", "embedding_length"])
@pytest.mark.parametrize("value", [None, -1, "4", True, 1 << 40, [1, 2]])
def test_a_key_that_is_absent_or_absurd_is_named(key: str, value: object) -> None:
    shape = shape_of_gguf(llama(**{key: value}), ())
    assert shape.layers is None and key in shape.missing


def test_a_window_without_a_known_pattern_is_unknown() -> None:
    shape = shape_of_gguf(llama(family="brand-new", **{"attention.sliding_window": 512}), ())
    assert shape.layers is None and "attention.sliding_window_pattern" in shape.missing


def test_recurrent_families_are_unknown_and_encoders_keep_nothing() -> None:
    mamba = shape_of_gguf(llama(family="mamba", **{"ssm.state_size": 16}), ())
    assert mamba.layers is None and any("recurrent" in text for text in mamba.missing)
    bert = shape_of_gguf(llama(family="bert"), ())
    assert bert.layers is not None and not any(layer.has_attention for layer in bert.layers)
