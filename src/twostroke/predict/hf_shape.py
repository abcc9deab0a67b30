"""A model's shape from the keys of a Hugging Face config.json.

A key that is absent takes the documented default of its model_type, said in `assumed`, or is
missing; nothing is guessed. Weight bytes are those of hf_weights.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twostroke.errors import CorruptCheckpoint
from twostroke.predict.hf_keys import ConfigKeys
from twostroke.predict.hf_weights import weight_sizes
from twostroke.predict.shape import LayerShape, ModelShape

_MAX_LAYERS = 4096
_MHA_BY_DEFAULT = ("llama", "gpt2", "gpt_neox", "opt", "phi", "phi3", "gptj", "olmo")
_RECURRENT = ("mamba", "mamba2", "rwkv", "jamba", "zamba2", "bamba", "falcon_h1", "nemotron_h")
_ENCODERS = ("bert", "roberta", "xlm-roberta", "nomic_bert", "distilbert", "modernbert")
_STATE_KEYS = (
    "linear_num_key_heads",
    "linear_key_head_dim",
    "linear_num_value_heads",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
)


def shape_of_hf_config(
    config: Mapping[str, Any], *, name: str = "model", weights_bytes: float | None = None
) -> ModelShape:
    """Return the shape that a config.json tells; weights_bytes: where a file list says more.

    Raises:
        CorruptCheckpoint: a key with a value that cannot be.
    """
    keys = ConfigKeys(config)
    layers = _layers(keys)
    if keys.has_other_parts:
        keys.note("only the text model is counted; images need more memory")
    sizes = weight_sizes(keys, layers, weights_bytes) if layers is not None else None
    return ModelShape(
        name=name,
        layers=layers,
        hidden_size=keys.number("hidden_size"),
        intermediate_size=keys.number("intermediate_size"),
        vocab_size=keys.number("vocab_size"),
        context_length=keys.number("max_position_embeddings"),
        weights=sizes,
        num_experts=keys.number("num_experts") or 0,
        experts_per_token=keys.number("num_experts_per_tok") or 0,
        family=keys.kind or None,
        source="config.json",
        assumed=tuple(keys.assumed),
        missing=tuple(dict.fromkeys(keys.missing)),
    )


def _layers(keys: ConfigKeys) -> tuple[LayerShape, ...] | None:
    count, heads = keys.needed("num_hidden_layers"), keys.needed("num_attention_heads")
    if count is not None and count > _MAX_LAYERS:
        raise CorruptCheckpoint("num_hidden_layers is absurd", value=count, limit=_MAX_LAYERS)
    if keys.kind in _ENCODERS:
        return None if count is None else tuple(LayerShape() for _ in range(count))
    if keys.kind in _RECURRENT:
        keys.missing.append(f"recurrent state of {keys.kind}")
        return None
    rank = keys.number("kv_lora_rank") or 0
    dims = _latent_dims(keys) if rank else _head_dims(keys, heads)
    kv_heads = heads if rank else _kv_heads(keys, heads)
    windows = _windows(keys, count)
    if count is None or heads is None or dims is None or kv_heads is None or windows is None:
        return None
    states = _states(keys, count)
    if states is None:
        return None
    shared = keys.number("num_kv_shared_layers") or 0
    latent = rank + (keys.number("qk_rope_head_dim") or 0) if rank else 0
    return tuple(
        LayerShape(state_bytes=states[i])
        if states[i]
        else LayerShape(
            heads=heads,
            kv_heads=kv_heads,
            key_dim=dims[0],
            value_dim=dims[1],
            window=windows[i],
            latent_dim=latent,
            shares_kv=i >= count - shared,
        )
        for i in range(count)
    )


def _head_dims(keys: ConfigKeys, heads: int | None) -> tuple[int, int] | None:
    said, hidden = keys.number("head_dim"), keys.number("hidden_size")
    if not said and hidden and heads and hidden % heads == 0:
        said = hidden // heads
        keys.note(f"head_dim = hidden_size / num_attention_heads = {said}")
    if not said:
        keys.missing.append("head_dim")
        return None
    return said, keys.number("v_head_dim") or said


def _latent_dims(keys: ConfigKeys) -> tuple[int, int] | None:
    rope = keys.needed("qk_rope_head_dim")
    nope, value = keys.needed("qk_nope_head_dim"), keys.needed("v_head_dim")
    if rope is None:
        return None
    if nope is None or value is None:  # the cache is known without them, arithmetic is not
        return 0, 0
    return nope + rope, value


def _kv_heads(keys: ConfigKeys, heads: int | None) -> int | None:
    if keys.raw("multi_query") is True:
        return 1
    said = keys.number("num_key_value_heads")
    if said:
        return said
    if heads is not None and keys.kind in _MHA_BY_DEFAULT:
        keys.note(f"num_key_value_heads = num_attention_heads, the default of {keys.kind}")
        return heads
    keys.missing.append("num_key_value_heads")
    return None


def _windows(keys: ConfigKeys, count: int | None) -> list[int] | None:
    if count is None:
        return None
    window = keys.number("sliding_window") or 0
    if keys.raw("use_sliding_window") is False:
        window = 0
    types = keys.raw("layer_types")
    if isinstance(types, list) and len(types) == count:
        return [_window_of(str(kind), window, keys) for kind in types]
    if not window:
        return [0] * count
    period = keys.number("sliding_window_pattern")
    if period:
        return [window if (i + 1) % period else 0 for i in range(count)]
    keys.note(f"every layer slides over {window} tokens: the config names no layer_types")
    return [window] * count


def _window_of(kind: str, window: int, keys: ConfigKeys) -> int:
    if kind == "chunked_attention":
        return keys.number("attention_chunk_size") or window
    return window if kind == "sliding_attention" else 0


def _states(keys: ConfigKeys, count: int) -> list[int] | None:
    """Return each layer's recurrent state in bytes (float32), 0 for attention layers.

    Source: Qwen3-Next (gated DeltaNet): conv (K - 1) * channels + value heads * Dk * Dv.
    """
    types = keys.raw("layer_types")
    if not isinstance(types, list):
        interval = keys.number("full_attention_interval")
        if not interval:
            return [0] * count
        types = ["" if (i + 1) % interval == 0 else "linear_attention" for i in range(count)]
    if not any(kind == "linear_attention" for kind in types):
        return [0] * count
    sizes = [keys.needed(name) for name in _STATE_KEYS]
    if None in sizes:
        return None
    key_heads, key_dim, value_heads, value_dim, kernel = (size or 0 for size in sizes)
    channels = 2 * key_heads * key_dim + value_heads * value_dim
    state = 4 * ((kernel - 1) * channels + value_heads * key_dim * value_dim)
    return [state if kind == "linear_attention" else 0 for kind in types]
