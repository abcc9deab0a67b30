"""Weight bytes of a Hugging Face config.json: values of the matrices times the config's type.

Exact but for norms, biases and tensors that the config does not tell of.
"""

from __future__ import annotations

from collections.abc import Mapping

from twostroke.predict.hf_keys import ConfigKeys
from twostroke.predict.shape import LayerShape, WeightGroup, WeightSizes

_TYPE_BYTES = {"bfloat16": 2.0, "float16": 2.0, "float32": 4.0, "float8_e4m3fn": 1.0}
# Bits a weight: AWQ, GPTQ and NF4 by their usual groups (scale and zero point counted).
_QUANT_BITS = {"awq": 4.156, "gptq": 4.156, "fp8": 8.0, "mxfp4": 4.25, "bitsandbytes": 4.5}
_TWO_MATRIX_MLP = ("gpt2", "gpt_neox", "opt", "falcon", "bloom", "phi", "starcoder2", "mpt", "gptj")
_TIED_BY_DEFAULT = ("gemma", "gemma2", "gemma3_text", "cohere", "cohere2", "gpt2")


def weight_sizes(
    keys: ConfigKeys, layers: tuple[LayerShape, ...] | None, given_bytes: float | None
) -> WeightSizes | None:
    """Return the sizes, None where a needed key is absent; given_bytes: of all weight files."""
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


def _is_tied(keys: ConfigKeys) -> bool:
    said = keys.values.get("tie_word_embeddings")
    if isinstance(said, bool):
        return said
    is_tied = keys.kind in _TIED_BY_DEFAULT
    why = f"the default of {keys.kind}" if is_tied else "absent; untied is the larger"
    keys.note(f"tie_word_embeddings = {str(is_tied).lower()}, {why}")
    return is_tied


def _value_bytes(keys: ConfigKeys) -> tuple[float | None, float | None]:
    """Return bytes a value of embedding and output matrix, and of the matrices between."""
    name = str(keys.raw("torch_dtype") or "").removeprefix("torch.")
    plain = _TYPE_BYTES.get(name)
    quant = keys.raw("quantization_config")
    if isinstance(quant, Mapping):
        method = str(quant.get("quant_method", ""))
        bits = _QUANT_BITS.get(method)
        if bits is None:
            keys.missing.append(f"weights: bits of quantisation {ascii(method)[:40]}")
            return None, None
        keys.note(f"{bits} bits a weight for {method}; embedding and output matrix at 16 bits")
        return plain or 2.0, bits / 8
    if plain is None:
        keys.missing.append("weights: torch_dtype")
    return plain, plain


def _layer_values(
    keys: ConfigKeys, layers: tuple[LayerShape, ...], hidden: int | None
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


def _attention_values(keys: ConfigKeys, layer: LayerShape, hidden: int) -> float | None:
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
