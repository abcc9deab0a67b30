"""The forward pass, one for prefill and decode, from top to bottom; all its inputs are arguments.

The batch alone decides which phase a call serves; `ops` decides how each operation is run.
"""

from __future__ import annotations

from typing import TypeVar

from twostroke.model.config import ModelConfig
from twostroke.model.ops import Batch, Ops
from twostroke.model.weights import LayerWeights, ModelWeights

Tensor = TypeVar("Tensor")
Index = TypeVar("Index")
Seqs = TypeVar("Seqs")
Cache = TypeVar("Cache")


def forward(
    ops: Ops[Tensor, Index, Seqs, Cache],
    config: ModelConfig,
    weights: ModelWeights,
    batch: Batch[Index, Seqs],
    kv: Cache,
) -> Tensor:
    """Return the logits of the wanted rows, after filling the cache with the step's K and V.

    Shapes: returns [R, V]
    """
    x = ops.embed(weights.token_embd, batch.token_ids, scale=config.embedding_scale)
    for i, layer in enumerate(weights.layers):
        x = attention_block(ops, config, i, layer, x, batch, kv)
        x = mlp_block(ops, config, layer, x)
    x = ops.take_rows(x, batch.logit_rows)
    x = ops.rms_norm(x, weights.output_norm, eps=config.norm_eps)
    (logits,) = ops.project(x, (weights.output,), (None,))
    return ops.soft_cap(logits, cap=config.logit_soft_cap) if config.logit_soft_cap else logits


def attention_block(
    ops: Ops[Tensor, Index, Seqs, Cache],
    config: ModelConfig,
    index: int,
    layer: LayerWeights,
    x: Tensor,
    batch: Batch[Index, Seqs],
    kv: Cache,
) -> Tensor:
    """Attend: norm, q/k/v, q/k norm, rope, append K/V, attend, project, add."""
    eps, rope = config.norm_eps, config.layer_rope(index)
    h = ops.rms_norm(x, layer.attn_norm, eps=eps)
    q, k, v = ops.project(
        h, (layer.q, layer.k, layer.v), (layer.q_bias, layer.k_bias, layer.v_bias)
    )
    if layer.q_norm and layer.k_norm:
        q = ops.head_norm(q, layer.q_norm, eps=eps)
        k = ops.head_norm(k, layer.k_norm, eps=eps)
    q = ops.rope(q, batch.positions, rope=rope, head_dim=config.head_dim)
    k = ops.rope(k, batch.positions, rope=rope, head_dim=config.head_dim)
    ops.append_kv(kv, index, k, v, batch.slot_mapping)
    a = ops.attend(
        q,
        kv,
        index,
        batch.sequences,
        scale=config.attention_scale,
        window=config.window(index),
        soft_cap=config.attention_soft_cap,
    )
    (a,) = ops.project(a, (layer.o,), (None,))
    if layer.post_attn_norm:
        a = ops.rms_norm(a, layer.post_attn_norm, eps=eps)
    return ops.add(x, a)


def mlp_block(
    ops: Ops[Tensor, Index, Seqs, Cache], config: ModelConfig, layer: LayerWeights, x: Tensor
) -> Tensor:
    """Transform each row: norm, gate and up, gated activation, down, add."""
    h = ops.rms_norm(x, layer.ffn_norm, eps=config.norm_eps)
    gate, up = ops.project(h, (layer.gate, layer.up), (None, None))
    (h,) = ops.project(ops.gated(gate, up, activation=config.activation), (layer.down,), (None,))
    if layer.post_ffn_norm:
        h = ops.rms_norm(h, layer.post_ffn_norm, eps=config.norm_eps)
    return ops.add(x, h)
