"""A model's config out of GGUF metadata: its family's row, and each number checked by name.

Knows no tensors and no file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from twostroke.errors import CorruptCheckpoint, UnsupportedModel
from twostroke.model.config import ModelConfig, RopeConfig
from twostroke.model.families import FAMILIES, Family, Key

_MAX_DIM = 1 << 24
_MAX_HEADS = 4096
_MAX_LAYERS = 1024
_MAX_CONTEXT = 1 << 30
_MAX_HEAD_DIM, _HEAD_DIM_STEP = 256, 16  # of the attention kernels


def config_from_gguf(
    metadata: Mapping[str, object], *, vocab_size: int, freq_factors: tuple[float, ...] = ()
) -> ModelConfig:
    """Read a model's config; `freq_factors` are the values of the tensor rope_freqs.weight, if any.

    Raises:
        UnsupportedModel: a family, attention shape or rope scaling that this version does not run.
        CorruptCheckpoint: a key that is missing or out of range, by name.
    """
    name, family = _family(metadata)
    meta = _Metadata(metadata, name)
    num_layers = meta.integer("block_count", low=1, high=_MAX_LAYERS)
    hidden_size = meta.integer("embedding_length", low=1)
    num_heads, num_kv_heads, head_dim = _heads(meta, hidden_size)
    pairs = _rope_pairs(meta, head_dim, freq_factors)
    window, sliding_layers = _sliding(meta, family, num_layers)
    is_width_scaled = num_layers == family.width_scaled_layers
    return ModelConfig(
        family=name,
        name=str(metadata.get("general.name", name)),
        num_layers=num_layers,
        hidden_size=hidden_size,
        intermediate_size=meta.integer("feed_forward_length", low=1),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocab_size=vocab_size,
        context_length=meta.integer("context_length", low=1, high=_MAX_CONTEXT),
        norm_eps=meta.number("attention.layer_norm_rms_epsilon", 1e-6),
        rope=_rope(meta, family, pairs, freq_factors),
        local_rope=_local_rope(meta, pairs) if family.has_local_rope else None,
        sliding_window=window,
        sliding_layers=sliding_layers,
        attention_scale=(hidden_size / num_heads if is_width_scaled else head_dim) ** -0.5,
        attention_soft_cap=meta.value(family.attention_soft_cap),
        logit_soft_cap=meta.value(family.logit_soft_cap),
        embedding_scale=math.sqrt(hidden_size) if family.scales_embedding else 1.0,
        activation=family.activation,
    )


class _Metadata:
    """Reads `family.key` with a type and range check; errors name the key."""

    def __init__(self, values: Mapping[str, object], family: str) -> None:
        self._values, self._family = values, family

    def get(self, key: str, default: object = None) -> object:
        """Return a value as it is stored."""
        return self._values.get(f"{self._family}.{key}", default)

    def integer(
        self, key: str, default: int | None = None, *, low: int = 0, high: int = _MAX_DIM
    ) -> int:
        value = self.get(key, default)
        if isinstance(value, (list, tuple)) and value and all(v == value[0] for v in value):
            value = value[0]  # one number per layer, all alike
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise CorruptCheckpoint(
                f"metadata key {self._family}.{key} is missing or out of range",
                value=value,
                limit=f"an integer in [{low}, {high}]",
            )
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.get(key, default)
        what = f"metadata key {self._family}.{key}"
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise CorruptCheckpoint(f"{what} is missing or not a number", value=value)
        if not math.isfinite(value):
            raise CorruptCheckpoint(f"{what} is not finite", value=value)
        return float(value)

    def value(self, key: Key | None) -> float:
        """Return the number of a family's key, 0 where the family has none."""
        return self.number(key.name, key.default) if key is not None else 0.0


def _family(metadata: Mapping[str, object]) -> tuple[str, Family]:
    name = str(metadata.get("general.architecture", ""))
    family = FAMILIES.get(name)
    if family is None:
        raise UnsupportedModel(
            "model family is not supported", value=name or "none", limit=", ".join(FAMILIES)
        )
    return name, family


def _heads(meta: _Metadata, hidden_size: int) -> tuple[int, int, int]:
    """Return the number of heads, of KV heads, and the values per head."""
    heads = meta.integer("attention.head_count", low=1, high=_MAX_HEADS)
    kv_heads = meta.integer("attention.head_count_kv", heads, low=1, high=_MAX_HEADS)
    head_dim = meta.integer("attention.key_length", hidden_size // heads, low=1, high=4096)
    value_dim = meta.integer("attention.value_length", head_dim, low=1, high=4096)
    is_supported_dim = head_dim % _HEAD_DIM_STEP == 0 and head_dim <= _MAX_HEAD_DIM
    if value_dim != head_dim or not is_supported_dim or heads % kv_heads:
        raise UnsupportedModel(
            "attention shape is not supported",
            value=f"{heads} heads, {kv_heads} KV heads, {head_dim}/{value_dim} per head",
            limit="equal K and V sizes, a multiple of 16 up to 256, heads a multiple of KV heads",
        )
    return heads, kv_heads, head_dim


def _rope_pairs(meta: _Metadata, head_dim: int, freq_factors: tuple[float, ...]) -> int:
    """Return how many pairs of a head are rotated."""
    pairs = meta.integer("rope.dimension_count", head_dim, high=4096) // 2
    if not 1 <= pairs <= head_dim // 2:
        raise CorruptCheckpoint("rope.dimension_count is out of range", value=2 * pairs)
    if freq_factors and len(freq_factors) != pairs:
        raise CorruptCheckpoint("rope_freqs.weight has the wrong length", value=len(freq_factors))
    return pairs


def _rope(
    meta: _Metadata, family: Family, pairs: int, freq_factors: tuple[float, ...]
) -> RopeConfig:
    scaling = str(meta.get("rope.scaling.type", "none"))
    if scaling not in ("none", "linear", "yarn"):
        raise UnsupportedModel("unknown rope scaling", value=scaling, limit="none, linear, yarn")
    factor = meta.number("rope.scaling.factor", 1.0)
    original = meta.integer("rope.scaling.original_context_length", 0, high=_MAX_CONTEXT)
    if scaling != "none" and factor <= 0:
        raise CorruptCheckpoint("rope scaling factor must be positive", value=factor)
    if scaling == "yarn" and original < 1:
        original = meta.integer("context_length", high=_MAX_CONTEXT)
    return RopeConfig(
        base=meta.number("rope.freq_base", 10000.0),
        pairs=pairs,
        interleaved=family.has_interleaved_rope,
        scaling=scaling if factor != 1.0 else "none",
        factor=factor,
        original_context=original,
        beta_fast=meta.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=meta.number("rope.scaling.yarn_beta_slow", 1.0),
        attention_factor=meta.number("rope.scaling.attn_factor", 1.0),
        freq_factors=freq_factors,
    )


def _local_rope(meta: _Metadata, pairs: int) -> RopeConfig:
    """Return the rope of sliding layers; converters of two ages name its base differently."""
    base = meta.number("rope.local.freq_base", meta.number("rope.freq_base_swa", 10000.0))
    return RopeConfig(base=base, pairs=pairs, interleaved=False)


def _sliding(meta: _Metadata, family: Family, num_layers: int) -> tuple[int, tuple[bool, ...]]:
    """Return the window in tokens, and for each layer whether it slides; 0 and () for none."""
    window = meta.integer("attention.sliding_window", 0, high=_MAX_CONTEXT)
    if not window or family.full_layer_period is None:
        return 0, ()
    pattern = meta.get("attention.sliding_window_pattern")
    if isinstance(pattern, (list, tuple)):
        if len(pattern) != num_layers:
            raise CorruptCheckpoint(
                "sliding_window_pattern has the wrong length", value=len(pattern)
            )
        return window, tuple(bool(p) for p in pattern)
    period = pattern if isinstance(pattern, int) and pattern > 0 else family.full_layer_period
    return window, tuple(i % period < period - 1 for i in range(num_layers))
