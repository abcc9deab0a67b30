"""Shapes of public config.json files, and what happens when keys are taken away."""

from __future__ import annotations

from typing import Any

import pytest

from twostroke.errors import CorruptCheckpoint
from twostroke.predict.cost import CostModel, Span
from twostroke.predict.hf_shape import shape_of_hf_config
from twostroke.predict.kv import kv_format

LLAMA_8B: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}
QWEN3_30B: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "vocab_size": 151936,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}
DEEPSEEK_V3: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "vocab_size": 129280,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}


@pytest.mark.parametrize(
    ("config", "billions"), [(LLAMA_8B, 8.03), (QWEN3_30B, 30.5), (DEEPSEEK_V3, 671.0)]
)
def test_parameters_are_those_of_the_model_cards(config: dict[str, Any], billions: float) -> None:
    weights = shape_of_hf_config(config).weights
    assert weights is not None
    assert weights.total_bytes / 2 / 1e9 == pytest.approx(billions, rel=0.002)


def test_llama_keeps_128_kib_a_token() -> None:
    shape = shape_of_hf_config(LLAMA_8B)
    assert CostModel(shape, kv_format("f16")).kv_bytes_per_token == 131_072
    assert shape.missing == ()


def test_deepseek_keeps_one_latent_row_a_layer() -> None:
    cost = CostModel(shape_of_hf_config(DEEPSEEK_V3), kv_format("bf16"))
    assert cost.kv_bytes_per_token == 70_272


def test_a_mixture_reads_few_experts_for_one_token_and_all_for_many() -> None:
    shape = shape_of_hf_config(QWEN3_30B)
    cost = CostModel(shape, kv_format("bf16"))
    assert shape.weights is not None
    one = cost.spans_work((Span(0, 1, 1),)).total.weight_bytes
    many = cost.spans_work((Span(0, 4096, 1),)).total.weight_bytes
    table = 2048 * 151936 * 2  # the untied embedding is looked up, not read
    assert many == pytest.approx(shape.weights.total_bytes - table)
    assert one / 2 / 1e9 == pytest.approx(3.3 - table / 2e9, abs=0.1)  # "A3B" counts the table


def test_gemma_3_takes_the_defaults_of_its_class() -> None:
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240}
    text |= {"num_hidden_layers": 34, "sliding_window": 1024}
    shape = shape_of_hf_config(
        {"model_type": "gemma3", "torch_dtype": "bfloat16", "text_config": text}
    )
    assert shape.layers is not None and shape.weights is not None
    assert [layer.window for layer in shape.layers[:7]] == [1024] * 5 + [0, 1024]
    assert sum(layer.window == 0 for layer in shape.layers) == 5
    assert shape.layers[0].kv_heads == 4 and shape.layers[0].key_dim == 256
    assert shape.weights.total_bytes / 2 / 1e9 == pytest.approx(3.88, rel=0.01)
    assert any("default of gemma3_text" in note for note in shape.assumed)


def test_layer_types_decide_which_layers_slide() -> None:
    types = ["sliding_attention", "full_attention"] * 12
    config = {**LLAMA_8B, "num_hidden_layers": 24, "layer_types": types, "sliding_window": 128}
    shape = shape_of_hf_config(config)
    assert shape.layers is not None
    assert [layer.window for layer in shape.layers[:3]] == [128, 0, 128]


def test_qwen3_next_keeps_recurrent_state_per_sequence() -> None:
    config = {
        **QWEN3_30B,
        "model_type": "qwen3_next",
        "full_attention_interval": 4,
        "num_key_value_heads": 2,
        "num_attention_heads": 16,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_key_head_dim": 128,
        "linear_num_value_heads": 32,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
    }
    shape = shape_of_hf_config(config)
    assert shape.state_bytes == 36 * (96 * 1024 + 2 * 1024 * 1024)
    assert CostModel(shape, kv_format("f16")).kv_bytes_per_token == 24_576


@pytest.mark.parametrize(
    ("key", "missing"),
    [
        ("num_hidden_layers", "num_hidden_layers"),
        ("num_attention_heads", "num_attention_heads"),
        ("torch_dtype", "weights: torch_dtype"),
        ("vocab_size", "vocab_size"),
        ("intermediate_size", "intermediate_size"),
        ("hidden_size", "head_dim"),
    ],
)
def test_a_key_that_is_gone_is_named_and_nothing_is_guessed(key: str, missing: str) -> None:
    shape = shape_of_hf_config({k: v for k, v in LLAMA_8B.items() if k != key})
    assert missing in shape.missing
    assert shape.weights is None or shape.layers is None


def test_kv_heads_default_to_heads_only_where_the_class_says_so() -> None:
    without = {k: v for k, v in LLAMA_8B.items() if k != "num_key_value_heads"}
    shape = shape_of_hf_config(without)
    assert shape.layers is not None and shape.layers[0].kv_heads == 32
    assert any("default of llama" in note for note in shape.assumed)
    unknown = shape_of_hf_config({**without, "model_type": "brand_new"})
    assert unknown.layers is None and "num_key_value_heads" in unknown.missing


def test_an_encoder_keeps_no_kv() -> None:
    bert = {"model_type": "bert", "num_hidden_layers": 24, "num_attention_heads": 16}
    shape = shape_of_hf_config({**LLAMA_8B, **bert})
    assert shape.layers is not None and not any(layer.has_attention for layer in shape.layers)


@pytest.mark.parametrize("value", [True, -1, 1.5, "32", [32], 1 << 40])
def test_a_hostile_value_is_refused_by_name(value: object) -> None:
    with pytest.raises(CorruptCheckpoint, match="num_hidden_layers"):
        shape_of_hf_config({**LLAMA_8B, "num_hidden_layers": value})


def test_unknown_quantisation_leaves_weights_unknown() -> None:
    known = shape_of_hf_config({**LLAMA_8B, "quantization_config": {"quant_method": "awq"}})
    unknown = shape_of_hf_config({**LLAMA_8B, "quantization_config": {"quant_method": "new"}})
    assert known.weights is not None and unknown.weights is None
    assert known.weights.total_bytes < 6e9
    assert any("quantisation" in text for text in unknown.missing)
