"""The model families that this version runs: one row each, with its differences from llama.

A family that the forward pass can already express is one more row. One that needs a new op, or a
new field of ModelConfig, gets that first.
"""

from __future__ import annotations

from twostroke.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Key:
    """A number of the metadata, below the family's name; `default` where a file lacks it."""

    name: str
    default: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One family. The defaults are llama's decoder with half-split rotary pairs."""

    activation: str = "silu"  # silu | gelu_tanh
    has_interleaved_rope: bool = False
    has_local_rope: bool = False  # sliding layers rotate by a base of their own, unscaled
    has_post_norms: bool = False  # norms behind attention and MLP
    requires_qk_norm: bool = False
    scales_embedding: bool = False  # by the root of the hidden size
    full_layer_period: int | None = None  # one layer of so many has no window; None: no windows
    # With this many layers, queries are scaled by hidden size per head, not by head_dim.
    width_scaled_layers: int | None = None
    attention_soft_cap: Key | None = None
    logit_soft_cap: Key | None = None


FAMILIES: dict[str, Family] = {
    "llama": Family(has_interleaved_rope=True),
    "qwen2": Family(),
    "qwen3": Family(requires_qk_norm=True),
    "gemma2": Family(
        activation="gelu_tanh",
        has_post_norms=True,
        scales_embedding=True,
        full_layer_period=2,
        width_scaled_layers=46,
        attention_soft_cap=Key("attn_logit_softcapping", 50.0),
        logit_soft_cap=Key("final_logit_softcapping", 30.0),
    ),
    "gemma3": Family(
        activation="gelu_tanh",
        has_local_rope=True,
        has_post_norms=True,
        requires_qk_norm=True,
        scales_embedding=True,
        full_layer_period=6,
        width_scaled_layers=62,
    ),
}
