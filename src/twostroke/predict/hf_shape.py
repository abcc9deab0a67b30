"""A model's shape from the keys of a Hugging Face config.json.

Weight bytes are matrices times the config's number type: exact but for norms, biases and tensors
that the config does not tell of. A key that is absent takes the documented default of its
model_type, said in `assumed`, or is missing; nothing is guessed.
Source: the configuration classes of transformers (LlamaConfig, Gemma3TextConfig, DeepseekV3Config).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twostroke.errors import CorruptCheckpoint
from twostroke.predict.shape import LayerShape, ModelShape, WeightGroup, WeightSizes

_LARGEST = 1 << 31
_MAX_LAYERS = 4096
_TYPE_BYTES = {"bfloat16": 2.0, "float16": 2.0, "float32": 4.0, "float8_e4m3fn": 1.0}
# Bits a weight: AWQ, GPTQ and NF4 by their usual groups (scale and zero point counted).
_QUANT_BITS = {"awq": 4.156, "gptq": 4.156, "fp8": 8.0, "mxfp4": 4.25, "bitsandbytes": 4.5}
_TWO_MATRIX_MLP = ("gpt2", "gpt_neox", "opt", "falcon", "bloom", "phi", "starcoder2", "mpt", "gptj")
_MHA_BY_DEFAULT = ("llama", "gpt2", "gpt_neox", "opt", "phi", "phi3", "gptj", "olmo")
_TIED_BY_DEFAULT = ("gemma", "gemma2", "gemma3_text", "cohere", "cohere2", "gpt2")
_RECURRENT = ("mamba", "mamba2", "rwkv", "jamba", "zamba2", "bamba", "falcon_h1", "nemotron_h")
_ENCODERS = ("bert", "roberta", "xlm-roberta", "nomic_bert", "distilbert", "modernbert")
_STATE_KEYS = (
    "linear_num_key_heads",
    "linear_key_head_dim",
    "linear_num_value_heads",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
)
_DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma": {"head_dim": 256},
    "gemma2": {"head_dim": 256, "sliding_window": 4096, "sliding_window_pattern": 2},
    "gemma3_text": {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262208,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
        "max_position_embeddings": 131072,
    },
    "gpt_oss": {"sliding_window": 128, "sliding_window_pattern": 2},
    "cohere2": {"sliding_window_pattern": 4},
}
_ALIASES = {
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads"),
    "hidden_size": ("n_embd", "d_model"),
    "intermediate_size": ("n_inner", "ffn_dim"),
    "max_position_embeddings": ("n_positions", "max_seq_len"),
    "num_experts": ("num_local_experts", "n_routed_experts"),
    "num_experts_per_tok": ("num_experts_per_token",),
    "torch_dtype": ("dtype",),
}


class _Keys:
    """The config's keys with their aliases and documented defaults; notes what is missing."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        inner = config.get("text_config")
        self.has_other_parts = isinstance(inner, Mapping) or "vision_config" in config
        self.values = {**config, **inner} if isinstance(inner, Mapping) else dict(config)
        kind = self.values.get("model_type")
        self.kind = kind if isinstance(kind, str) else ""
        if self.kind == "gemma3":
            self.kind = "gemma3_text"
        self.missing: list[str] = []
        self.assumed: list[str] = []

    def raw(self, key: str) -> Any:
        for name in (key, *_ALIASES.get(key, ())):
            if self.values.get(name) is not None:
                return self.values[name]
        default = _DEFAULTS.get(self.kind, {}).get(key)
        if default is not None:
            self.note(f"{key} = {default}, the default of {self.kind}")
        return default

    def note(self, text: str) -> None:
        if text not in self.assumed:
            self.assumed.append(text)

    def number(self, key: str) -> int | None:
        value = self.raw(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _LARGEST:
            raise CorruptCheckpoint(
                f"config key {key} is no usable number",
                value=ascii(value)[:60],
                limit=f"an integer in [0, {_LARGEST})",
            )
        return value

    def needed(self, key: str) -> int | None:
        value = self.number(key)
        if not value:
            self.missing.append(key)
            return None
        return value


def shape_of_hf_config(
    config: Mapping[str, Any], *, name: str = "model", weights_bytes: float | None = None
) -> ModelShape:
    """Return the shape that a config.json tells; weights_bytes: where a file list says more.

    Raises:
        CorruptCheckpoint: a key with a value that cannot be.
    """
    keys = _Keys(config)
    layers = _layers(keys)
    if keys.has_other_parts:
        keys.note("only the text model is counted; images need more memory")
    sizes = _weights(keys, layers, weights_bytes) if layers is not None else None
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


def _layers(keys: _Keys) -> tuple[LayerShape, ...] | None:
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


def _head_dims(keys: _Keys, heads: int | None) -> tuple[int, int] | None:
    said, hidden = keys.number("head_dim"), keys.number("hidden_size")
    if not said and hidden and heads and hidden % heads == 0:
        said = hidden // heads
        keys.note(f"head_dim = hidden_size / num_attention_heads = {said}")
    if not said:
        keys.missing.append("head_dim")
        return None
    return said, keys.number("v_head_dim") or said


def _latent_dims(keys: _Keys) -> tuple[int, int] | None:
    rope = keys.needed("qk_rope_head_dim")
    nope, value = keys.needed("qk_nope_head_dim"), keys.needed("v_head_dim")
    if rope is None:
        return None
    if nope is None or value is None:  # the cache is known without them, arithmetic is not
        return 0, 0
    return nope + rope, value


def _kv_heads(keys: _Keys, heads: int | None) -> int | None:
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


def _windows(keys: _Keys, count: int | None) -> list[int] | None:
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


def _window_of(kind: str, window: int, keys: _Keys) -> int:
    if kind == "chunked_attention":
        return keys.number("attention_chunk_size") or window
    return window if kind == "sliding_attention" else 0


def _states(keys: _Keys, count: int) -> list[int] | None:
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


# Weights


def _weights(
    keys: _Keys, layers: tuple[LayerShape, ...] | None, given_bytes: float | None
) -> WeightSizes | None:
    hidden, vocab = keys.needed("hidden_size"), keys.needed("vocab_size")
    body, experts = _layer_values(keys, layers or (), hidden)
    plain_bytes, quant_bytes = _value_bytes(keys)
    if hidden is None or vocab is None or body is None or experts is None or quant_bytes is None:
        return None
    assert plain_bytes is not None
    table = float(hidden * vocab)
    total = (body + experts) * quant_bytes + table * plain_bytes * (1 if _is_tied(keys) else 2)
    scale = given_bytes / total if given_bytes is not None else 1.0
    unit = "bf16" if plain_bytes == 2 else "fp32"
    return WeightSizes(
        total_bytes=total * scale,
        body=WeightGroup(body * quant_bytes * scale, {unit: body}),
        lm_head=WeightGroup(table * plain_bytes * scale, {unit: table}),
        experts=WeightGroup(experts * quant_bytes * scale, {unit: experts} if experts else {}),
    )


def _is_tied(keys: _Keys) -> bool:
    said = keys.values.get("tie_word_embeddings")
    if isinstance(said, bool):
        return said
    is_tied = keys.kind in _TIED_BY_DEFAULT
    what = f"the default of {keys.kind}" if is_tied else "absent; untied is the larger"
    keys.note(f"tie_word_embeddings = {str(is_tied).lower()}, {what}")
    return is_tied


def _value_bytes(keys: _Keys) -> tuple[float | None, float | None]:
    """Return bytes a value of embedding and head, and of the matrices between."""
    name = str(keys.raw("torch_dtype") or "").removeprefix("torch.")
    plain = _TYPE_BYTES.get(name)
    quant = keys.raw("quantization_config")
    if isinstance(quant, Mapping):
        method = str(quant.get("quant_method", ""))
        bits = _QUANT_BITS.get(method)
        if bits is None:
            keys.missing.append(f"weights: bits of quantisation {ascii(method)[:40]}")
            return None, None
        keys.note(f"{bits} bits a weight for {method}; embedding and head at 16 bits")
        return plain or 2.0, bits / 8
    if plain is None:
        keys.missing.append("weights: torch_dtype")
    return plain, plain


def _layer_values(
    keys: _Keys, layers: tuple[LayerShape, ...], hidden: int | None
) -> tuple[float | None, float | None]:
    """Return values of the dense matrices and of the experts, over all layers."""
    inner, num_experts = keys.number("intermediate_size"), keys.number("num_experts") or 0
    expert = keys.number("moe_intermediate_size") or (inner if num_experts else None)
    if hidden is None or (inner is None and not num_experts):
        keys.missing.append("intermediate_size")
        return None, None
    if num_experts and not keys.needed("num_experts_per_tok"):
        return None, None
    per_mlp = (2 if keys.kind in _TWO_MATRIX_MLP else 3) * hidden
    first_dense = keys.number("first_k_dense_replace") or 0
    step = keys.number("decoder_sparse_step") or 1
    dense_only = keys.raw("mlp_only_layers") or []
    body = experts = 0.0
    for i, layer in enumerate(layers):
        attention = _attention_values(keys, layer, hidden)
        if attention is None:
            return None, None
        body += attention
        is_sparse = num_experts and i >= first_dense and (i + 1) % step == 0
        if not is_sparse or i in dense_only:
            body += per_mlp * (inner or 0)
            continue
        assert expert is not None
        experts += num_experts * per_mlp * expert
        shared = keys.number("shared_expert_intermediate_size") or expert * (
            keys.number("n_shared_experts") or 0
        )
        body += hidden * num_experts + per_mlp * shared
    return body, experts


def _attention_values(keys: _Keys, layer: LayerShape, hidden: int) -> float | None:
    if layer.state_bytes:
        key = (keys.number("linear_num_key_heads") or 0) * (keys.number("linear_key_head_dim") or 0)
        value_heads = keys.number("linear_num_value_heads") or 0
        value = value_heads * (keys.number("linear_value_head_dim") or 0)
        return float(hidden * (2 * key + 2 * value + 2 * value_heads) + value * hidden)
    if not layer.latent_dim:
        query, out = layer.heads * layer.key_dim, layer.heads * layer.value_dim
        kept = 0 if layer.shares_kv else layer.kv_heads * (layer.key_dim + layer.value_dim)
        return float(hidden * (query + kept + out))
    rank, rope = keys.number("kv_lora_rank") or 0, keys.number("qk_rope_head_dim") or 0
    query_rank = keys.number("q_lora_rank") or 0
    if not layer.key_dim:
        return None
    query = layer.heads * layer.key_dim
    queries = query_rank * (hidden + query) if query_rank else hidden * query
    up = rank * layer.heads * (layer.key_dim - rope + layer.value_dim)
    return float(queries + hidden * (rank + rope) + up + layer.heads * layer.value_dim * hidden)
