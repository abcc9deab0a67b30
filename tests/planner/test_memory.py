"""KV bytes of public models, to the digit, and the rules of each engine."""

from __future__ import annotations

import pytest

from twostroke.errors import ConfigError, ShapeError
from twostroke.planner.memory import (
    Rules,
    cells,
    kv_bytes,
    place_layers,
)
from twostroke.predict.kv import kv_bytes_per_token, kv_format
from twostroke.predict.shape import LayerShape, ModelShape

GIB = 1 << 30
MIB = 1 << 20
F16 = kv_format("f16")


def shape(
    layers: int, kv_heads: int, head_dim: int, *, window: int = 0, full: int = 0
) -> ModelShape:
    """A model whose last `full` layers see everything, the others `window` tokens."""

    def layer(i: int) -> LayerShape:
        slides = window if i < layers - full else 0
        return LayerShape(
            heads=kv_heads, kv_heads=kv_heads, key_dim=head_dim, value_dim=head_dim, window=slides
        )

    return ModelShape(name="m", layers=tuple(layer(i) for i in range(layers)))


def latent(layers: int, row: int = 576) -> ModelShape:
    one = LayerShape(heads=128, kv_heads=128, key_dim=192, value_dim=128, latent_dim=row)
    return ModelShape(name="m", layers=(one,) * layers)


@pytest.mark.parametrize(
    ("layers", "kv_heads", "head_dim", "per_token", "at_32k"),
    [
        (32, 32, 128, 524_288, ("16.000", "8.500", "4.500")),  # Llama-2-7B
        (40, 40, 128, 819_200, ("25.000", "13.281", "7.031")),  # Llama-2-13B
        (32, 8, 128, 131_072, ("4.000", "2.125", "1.125")),  # Llama-3.1-8B, Mistral-7B
        (80, 8, 128, 327_680, ("10.000", "5.312", "2.812")),  # Llama-3.3-70B, Qwen2.5-72B
        (56, 8, 128, 229_376, ("7.000", "3.719", "1.969")),  # Mistral-Small-22B
        (40, 8, 128, 163_840, ("5.000", "2.656", "1.406")),  # Mistral-Small-24B, Qwen3-14B
        (28, 2, 128, 28_672, ("0.875", "0.465", "0.246")),  # Qwen2.5-1.5B
        (28, 4, 128, 57_344, ("1.750", "0.930", "0.492")),  # Qwen2.5-7B
        (28, 8, 128, 114_688, ("3.500", "1.859", "0.984")),  # Qwen3-0.6B
        (36, 8, 128, 147_456, ("4.500", "2.391", "1.266")),  # Qwen3-4B, 8B
        (48, 4, 128, 98_304, ("3.000", "1.594", "0.844")),  # Qwen3-30B-A3B
        (64, 8, 128, 262_144, ("8.000", "4.250", "2.250")),  # Qwen2.5-32B, Qwen3-32B
        (40, 10, 128, 204_800, ("6.250", "3.320", "1.758")),  # Phi-4
    ],
)
def test_kv_of_plain_models(
    layers: int, kv_heads: int, head_dim: int, per_token: int, at_32k: tuple[str, str, str]
) -> None:
    model = shape(layers, kv_heads, head_dim)
    assert kv_bytes_per_token(model.layers, F16) == per_token
    for name, expected in zip(("f16", "q8_0", "q4_0"), at_32k, strict=True):
        found = kv_bytes(model, kv_format(name), 32_768)
        assert found is not None and f"{found / GIB:.3f}" == expected


@pytest.mark.parametrize(
    ("layers", "per_token", "at_32k"),
    [(27, 31_104, "0.949"), (60, 69_120, "2.109"), (61, 70_272, "2.145")],
)
def test_kv_of_latent_attention(layers: int, per_token: int, at_32k: str) -> None:
    assert kv_bytes_per_token(latent(layers).layers, F16) == per_token
    found = kv_bytes(latent(layers), F16, 32_768)
    assert found is not None and f"{found / GIB:.3f}" == at_32k


def test_fp8_ds_mla_stores_656_bytes_a_layer_and_only_mla_rows() -> None:
    assert kv_bytes_per_token(latent(1).layers, kv_format("fp8_ds_mla")) == 656
    with pytest.raises(ConfigError, match="MLA rows"):
        kv_bytes_per_token(shape(1, 8, 128).layers, kv_format("fp8_ds_mla"))


@pytest.mark.parametrize("rules", [Rules.LLAMA_CPP, Rules.ANY])
@pytest.mark.parametrize(
    ("layers", "full", "kv_heads", "head_dim", "window", "mib", "full_mib"),
    [
        (34, 5, 4, 256, 1024, (334, 814, 2734), (1088, 4352, 17408)),  # gemma3-4b
        (48, 8, 8, 256, 1024, (992, 2528, 8672), (3072, 12288, 49152)),  # gemma3-12b
        (62, 10, 16, 128, 1024, (1264, 3184, 10864), (3968, 15872, 63488)),  # gemma3-27b
        (24, 12, 8, 64, 128, (210, 786, 3090), (384, 1536, 6144)),  # gpt-oss-20b
        (36, 18, 8, 64, 128, (315, 1179, 4635), (576, 2304, 9216)),  # gpt-oss-120b
    ],
)
def test_kv_of_sliding_windows(
    rules: Rules,
    layers: int,
    full: int,
    kv_heads: int,
    head_dim: int,
    window: int,
    mib: tuple[int, int, int],
    full_mib: tuple[int, int, int],
) -> None:
    model = shape(layers, kv_heads, head_dim, window=window, full=full)
    for context, windowed, everything in zip((8192, 32768, 131072), mib, full_mib, strict=True):
        found = kv_bytes(model, F16, context, rules=rules)
        assert found == windowed * MIB
        assert kv_bytes(model, F16, context, rules=rules, keep_all=True) == everything * MIB
        assert kv_bytes(model, F16, context, rules=Rules.TWOSTROKE) == everything * MIB


def test_shared_layers_and_recurrent_layers_keep_no_tokens() -> None:
    kept = LayerShape(heads=8, kv_heads=8, key_dim=128, value_dim=128)
    shared = LayerShape(heads=8, kv_heads=8, key_dim=128, value_dim=128, shares_kv=True)
    state = LayerShape(state_bytes=96 * 1024 + 2 * MIB)
    model = ModelShape(name="m", layers=(kept, kept, shared, state))
    assert kv_bytes_per_token(model.layers, F16) == 2 * 2 * 8 * 128 * 2
    assert model.state_bytes == 96 * 1024 + 2 * MIB


def test_padding_is_each_engines_own() -> None:
    layer = shape(1, 8, 128).layers[0]
    found = {rules.value: cells(layer, 1001, rules) for rules in Rules}
    assert found == {"any": 1001, "twostroke": 1008, "llama.cpp": 1024, "vllm": 1008}


def test_our_8_bit_cache_has_a_scale_per_head_and_ggmls_one_per_32_values() -> None:
    model = shape(32, 8, 128)
    assert kv_bytes_per_token(model.layers, kv_format("q8")) == 32 * 2 * 8 * (128 + 4)
    assert kv_bytes_per_token(model.layers, kv_format("q8_0")) == 32 * 2 * 8 * 128 * 34 // 32


def test_a_row_that_blocks_do_not_divide_is_refused() -> None:
    with pytest.raises(ShapeError, match="whole number of blocks"):
        kv_bytes_per_token(shape(1, 1, 80).layers, kv_format("q8_0"))


def test_an_unknown_kv_type_is_refused_and_an_unknown_shape_is_unknown() -> None:
    with pytest.raises(ConfigError, match="unknown KV type"):
        kv_format("q6_9")
    assert kv_bytes(ModelShape(name="m", layers=None), F16, 4096) is None


def test_layers_are_placed_whole() -> None:
    assert place_layers((3, 3, 3), (5, 5)).is_placed is False  # 9 of 10, yet 3 + 3 > 5
    assert place_layers((3, 2, 3, 2), (5, 5)) == place_layers((3, 2, 3, 2), (5.0, 5.0))
    assert place_layers((3, 2, 3), (5, 5)).layers_per_device == (2, 1)
    assert place_layers((3, 2, 3), (5, 5), last_extra=3).is_placed is False
