"""A model's config as read from GGUF metadata, by family."""

from __future__ import annotations

from typing import Any

import pytest

from twostroke.errors import CorruptCheckpoint, UnsupportedModel
from twostroke.model.config import ModelConfig
from twostroke.model.gguf_config import config_from_gguf


def metadata(family: str = "llama", **keys: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "block_count": 4,
        "embedding_length": 64,
        "feed_forward_length": 128,
        "context_length": 2048,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.layer_norm_rms_epsilon": 1e-5,
    }
    values.update({key.replace("__", "."): value for key, value in keys.items()})
    return {
        "general.architecture": family,
        **{f"{family}.{key}": value for key, value in values.items() if value is not None},
    }


def config(family: str = "llama", **keys: Any) -> ModelConfig:
    return config_from_gguf(metadata(family, **keys), vocab_size=320)


def test_head_dim_defaults_to_hidden_over_heads_and_key_length_wins() -> None:
    assert config().head_dim == 16
    assert config(attention__key_length=32, attention__value_length=32).head_dim == 32


@pytest.mark.parametrize("family", ["", "mamba", "gpt2", "phi3"])
def test_an_unknown_family_is_refused_by_name(family: str) -> None:
    with pytest.raises(UnsupportedModel, match=family or "none"):
        config_from_gguf({"general.architecture": family}, vocab_size=10)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("block_count", None),
        ("block_count", 0),
        ("block_count", 10**9),
        ("embedding_length", "64"),
        ("attention.head_count", True),
        ("attention.head_count", 0),
        ("feed_forward_length", -1),
        ("attention.layer_norm_rms_epsilon", float("nan")),
        ("rope.freq_base", "ten thousand"),
        ("rope.dimension_count", 0),
        ("rope.dimension_count", 64),
    ],
)
def test_an_absurd_value_is_refused_and_its_key_named(key: str, value: Any) -> None:
    with pytest.raises(CorruptCheckpoint, match=key.split(".")[-1].split("_")[-1]):
        config(**{key.replace(".", "__"): value})


def test_heads_that_do_not_divide_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match="4 heads, 3 KV heads"):
        config(attention__head_count_kv=3)


def test_gemma3_slides_five_of_six_layers_with_a_local_rope() -> None:
    c = config(
        "gemma3", block_count=12, attention__sliding_window=512, attention__key_length=32,
        attention__value_length=32, rope__freq_base=1e6,
    )  # fmt: skip
    assert [c.window(i) for i in range(12)] == ([512] * 5 + [0]) * 2
    assert c.layer_rope(0).base == 10000.0
    assert c.layer_rope(5).base == 1e6
    assert c.embedding_scale == 8.0
    assert c.attention_scale == pytest.approx(32**-0.5)


def test_gemma2_alternates_and_has_soft_caps() -> None:
    c = config("gemma2", attention__sliding_window=4096)
    assert [c.window(i) for i in range(4)] == [4096, 0, 4096, 0]
    assert (c.attention_soft_cap, c.logit_soft_cap) == (50.0, 30.0)
    assert c.activation == "gelu_tanh"


def test_the_widest_gemma_scales_queries_by_hidden_over_heads() -> None:
    c = config("gemma2", block_count=46, attention__key_length=32, attention__value_length=32)
    assert c.attention_scale == pytest.approx((64 / 4) ** -0.5)


def test_llama_rotates_interleaved_pairs_and_the_others_halves() -> None:
    assert config().rope.interleaved
    assert not config("qwen2").rope.interleaved


def test_an_unknown_rope_scaling_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedModel, match="longrope"):
        config(rope__scaling__type="longrope", rope__scaling__factor=4.0)


def test_frequency_factors_must_match_the_pairs() -> None:
    with pytest.raises(CorruptCheckpoint, match="rope_freqs"):
        config_from_gguf(metadata(), vocab_size=320, freq_factors=(1.0,) * 7)
