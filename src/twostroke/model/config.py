"""What the shape of a model is: one frozen record that the forward pass, the planner and the cost
model read.

Built from GGUF metadata. Knows no file and no weights; families differ by fields, not by
subclasses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from twostroke.dataclass import dataclass
from twostroke.errors import CorruptCheckpoint, UnsupportedModel

FAMILIES = ("llama", "qwen2", "qwen3", "gemma2", "gemma3")
_GEMMA_WIDE_LAYERS = {
    "gemma2": 46,
    "gemma3": 62,
}  # the 27B models scale queries by hidden_size / num_heads
_MAX_DIM = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary embedding: inverse frequencies per pair and the pairing.

    Source: Su et al. 2021, arXiv:2104.09864; YaRN: Peng et al. 2023, arXiv:2309.00071.
    """

    base: float
    pairs: int
    interleaved: bool  # pairs (2i, 2i+1), as GGUF stores llama; else (i, i + pairs)
    scaling: str = "none"  # none | linear | yarn
    factor: float = 1.0
    original_context: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0
    freq_factors: tuple[float, ...] = ()  # llama3: each inverse frequency is divided by its factor

    def inverse_frequencies(self) -> npt.NDArray[np.float64]:
        """Return radians per position for each pair.

        Shapes: returns [pairs] float64
        """
        index = np.arange(self.pairs, dtype=np.float64)
        plain = self.base ** (-index / self.pairs)
        if self.freq_factors:
            plain = plain / np.asarray(self.freq_factors, dtype=np.float64)
        if self.scaling == "linear":
            return plain / self.factor
        if self.scaling == "yarn":
            ramp = self._yarn_extrapolation(index)
            return plain / self.factor * (1.0 - ramp) + plain * ramp
        return plain

    def _yarn_extrapolation(self, index: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        def pair_turning(rotations: float) -> float:
            ratio = self.original_context / (rotations * 2.0 * math.pi)
            return self.pairs * math.log(ratio) / math.log(self.base)

        low = max(math.floor(pair_turning(self.beta_fast)), 0)
        high = min(math.ceil(pair_turning(self.beta_slow)), 2 * self.pairs - 1)
        return 1.0 - np.clip((index - low) / max(high - low, 0.001), 0.0, 1.0)

    def amplitude(self) -> float:
        """Return what multiplies cos and sin (YaRN's attention temperature)."""
        if self.scaling == "yarn" and self.factor > 1.0:
            return self.attention_factor * (1.0 + 0.1 * math.log(self.factor))
        return self.attention_factor

    def table(self, positions: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Return cos and sin of every position from 0.

        Shapes: both [positions, pairs] float32
        """
        angles = np.arange(positions, dtype=np.float64)[:, None] * self.inverse_frequencies()
        scale = self.amplitude()
        return (np.cos(angles) * scale).astype(np.float32), (np.sin(angles) * scale).astype(
            np.float32
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Sizes and switches of a decoder. Names are those of Hugging Face configs."""

    family: str
    name: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int
    norm_eps: float
    rope: RopeConfig
    local_rope: RopeConfig | None = None  # of sliding layers, where it differs
    sliding_window: int = 0  # 0: none
    sliding_layers: tuple[bool, ...] = ()
    attention_scale: float = 0.0
    attention_soft_cap: float = 0.0  # 0: none
    logit_soft_cap: float = 0.0
    embedding_scale: float = 1.0
    activation: str = "silu"  # silu | gelu_tanh

    def window(self, layer: int) -> int:
        """Return the sliding window of a layer in tokens, 0 for full attention."""
        return self.sliding_window if self.sliding_layers and self.sliding_layers[layer] else 0

    def layer_rope(self, layer: int) -> RopeConfig:
        """Return the rotary embedding of a layer."""
        return self.local_rope if self.local_rope and self.window(layer) else self.rope

    def kv_bytes_per_token(self, bytes_per_head: float) -> int:
        """Return bytes of K and V of one token over all layers, given bytes per token and head."""
        return int(self.num_layers * self.num_kv_heads * bytes_per_head)


class _Metadata:
    """Reads `family.key` with a type and range check; errors name the key."""

    def __init__(self, values: Mapping[str, object], family: str) -> None:
        self.values, self.family = values, family

    def integer(
        self, key: str, default: int | None = None, *, low: int = 0, high: int = _MAX_DIM
    ) -> int:
        value = self.values.get(f"{self.family}.{key}", default)
        if isinstance(value, (list, tuple)) and value and all(v == value[0] for v in value):
            value = value[0]
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise CorruptCheckpoint(
                f"metadata key {self.family}.{key} is missing or out of range",
                value=value,
                limit=f"an integer in [{low}, {high}]",
            )
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.values.get(f"{self.family}.{key}", default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise CorruptCheckpoint(
                f"metadata key {self.family}.{key} is missing or not a number", value=value
            )
        if not math.isfinite(value):
            raise CorruptCheckpoint(f"metadata key {self.family}.{key} is not finite", value=value)
        return float(value)


def _rope(meta: _Metadata, pairs: int, base: float, freq_factors: tuple[float, ...]) -> RopeConfig:
    scaling = str(meta.values.get(f"{meta.family}.rope.scaling.type", "none"))
    if scaling not in ("none", "linear", "yarn"):
        raise UnsupportedModel("unknown rope scaling", value=scaling, limit="none, linear, yarn")
    factor = meta.number("rope.scaling.factor", 1.0)
    original = meta.integer("rope.scaling.original_context_length", 0, high=1 << 30)
    if scaling != "none" and factor <= 0:
        raise CorruptCheckpoint("rope scaling factor must be positive", value=factor)
    if scaling == "yarn" and original < 1:
        original = meta.integer("context_length", high=1 << 30)
    return RopeConfig(
        base=base,
        pairs=pairs,
        interleaved=meta.family == "llama",
        scaling=scaling if factor != 1.0 else "none",
        factor=factor,
        original_context=original,
        beta_fast=meta.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=meta.number("rope.scaling.yarn_beta_slow", 1.0),
        attention_factor=meta.number("rope.scaling.attn_factor", 1.0),
        freq_factors=freq_factors,
    )


def _sliding(meta: _Metadata, num_layers: int) -> tuple[int, tuple[bool, ...]]:
    family = meta.family
    window = meta.integer("attention.sliding_window", 0, high=1 << 30)
    if not window or family not in ("gemma2", "gemma3"):
        return 0, ()
    pattern = meta.values.get(f"{family}.attention.sliding_window_pattern")
    if isinstance(pattern, (list, tuple)):
        if len(pattern) != num_layers:
            raise CorruptCheckpoint(
                "sliding_window_pattern has the wrong length", value=len(pattern)
            )
        return window, tuple(bool(p) for p in pattern)
    period = (
        pattern if isinstance(pattern, int) and pattern > 0 else {"gemma2": 2, "gemma3": 6}[family]
    )
    return window, tuple(i % period < period - 1 for i in range(num_layers))


def config_from_gguf(
    metadata: Mapping[str, object],
    *,
    vocab_size: int,
    freq_factors: tuple[float, ...] = (),
) -> ModelConfig:
    """Read a model's shape from GGUF metadata; `freq_factors` is the tensor rope_freqs.weight if
    present.

    Raises:
        UnsupportedModel: a family or rope scaling that we do not run.
        CorruptCheckpoint: a key that is missing or absurd, by name.
    """
    family = str(metadata.get("general.architecture", ""))
    if family not in FAMILIES:
        raise UnsupportedModel(
            "model family is not supported", value=family or "none", limit=", ".join(FAMILIES)
        )
    meta = _Metadata(metadata, family)
    layers, hidden = (
        meta.integer("block_count", low=1, high=1024),
        meta.integer("embedding_length", low=1),
    )
    heads = meta.integer("attention.head_count", low=1, high=4096)
    kv_heads = meta.integer("attention.head_count_kv", heads, low=1, high=4096)
    head_dim = meta.integer("attention.key_length", hidden // heads, low=1, high=4096)
    value_dim = meta.integer("attention.value_length", head_dim, low=1, high=4096)
    if value_dim != head_dim or head_dim % 16 or head_dim > 256 or heads % kv_heads:
        raise UnsupportedModel(
            "attention shape is not supported",
            value=f"{heads} heads, {kv_heads} KV heads, {head_dim}/{value_dim} per head",
            limit="equal K and V sizes, a multiple of 16 up to 256, heads a multiple of KV heads",
        )
    pairs = meta.integer("rope.dimension_count", head_dim, high=4096) // 2
    if not 1 <= pairs <= head_dim // 2:
        raise CorruptCheckpoint("rope.dimension_count is out of range", value=2 * pairs)
    if freq_factors and len(freq_factors) != pairs:
        raise CorruptCheckpoint("rope_freqs.weight has the wrong length", value=len(freq_factors))
    window, sliding = _sliding(meta, layers)
    gemma = family.startswith("gemma")
    wide = _GEMMA_WIDE_LAYERS.get(family) == layers
    base = meta.number("rope.freq_base", 10000.0)
    local = meta.number("rope.local.freq_base", meta.number("rope.freq_base_swa", 10000.0))
    return ModelConfig(
        family=family,
        name=str(metadata.get("general.name", family)),
        num_layers=layers,
        hidden_size=hidden,
        intermediate_size=meta.integer("feed_forward_length", low=1),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=vocab_size,
        context_length=meta.integer("context_length", low=1, high=1 << 30),
        norm_eps=meta.number("attention.layer_norm_rms_epsilon", 1e-6),
        rope=_rope(meta, pairs, base, freq_factors),
        local_rope=RopeConfig(base=local, pairs=pairs, interleaved=False)
        if family == "gemma3"
        else None,
        sliding_window=window,
        sliding_layers=sliding,
        attention_scale=(hidden / heads if wide else head_dim) ** -0.5,
        attention_soft_cap=meta.number("attn_logit_softcapping", 50.0)
        if family == "gemma2"
        else 0.0,
        logit_soft_cap=meta.number("final_logit_softcapping", 30.0) if family == "gemma2" else 0.0,
        embedding_scale=math.sqrt(hidden) if gemma else 1.0,
        activation="gelu_tanh" if gemma else "silu",
    )
