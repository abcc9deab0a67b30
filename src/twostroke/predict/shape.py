"""The shape of a model: what one token keeps, and what one step reads and multiplies.

Independent of files: built from a loaded model, a GGUF header, a Hugging Face config or flags.
A fact that the source does not tell is None and named in `missing`; it never becomes a number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING

from twostroke.dataclass import dataclass
from twostroke.formats.ggml_types import GGMLType

if TYPE_CHECKING:  # both load NumPy, which the doctor does without
    from twostroke.model.config import ModelConfig
    from twostroke.model.weights import ModelWeights, Weight

_FP32_TYPES = (GGMLType.F32, GGMLType.F16)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """The cache of one layer for one token, and the width of its attention.

    window 0: full attention. latent_dim: MLA keeps one row of so many values and no V. shares_kv:
    reads another layer's cache. state_bytes: of a recurrent layer, per sequence.
    """

    heads: int = 0
    kv_heads: int = 0
    key_dim: int = 0
    value_dim: int = 0
    window: int = 0
    latent_dim: int = 0
    shares_kv: bool = False
    state_bytes: int = 0

    @property
    def has_attention(self) -> bool:
        """Whether it reads a cache that grows with the context."""
        return bool(self.kv_heads or self.latent_dim)

    @property
    def keeps_kv(self) -> bool:
        """Whether it has a cache of its own."""
        return self.has_attention and not self.shares_kv


@dataclass(frozen=True, slots=True)
class WeightGroup:
    """Matrices that are read together. Units: stored bytes; values by the unit that multiplies."""

    num_bytes: float = 0.0
    values: Mapping[str, float] = field(default_factory=dict)

    @property
    def num_values(self) -> float:
        """Values of any unit."""
        return float(sum(self.values.values()))

    def scaled(self, factor: float) -> WeightGroup:
        """Return the same group, so many times."""
        return WeightGroup(self.num_bytes * factor, {k: v * factor for k, v in self.values.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSizes:
    """Weights by when they are read: the layers' matrices (body) and the output matrix (lm_head) in
    every step, an expert where a token is sent to it.

    total_bytes: all tensors in memory. A tied output matrix is the embedding table itself.
    """

    total_bytes: float
    body: WeightGroup
    lm_head: WeightGroup = field(default_factory=WeightGroup)
    experts: WeightGroup = field(default_factory=WeightGroup)

    def touched_bytes(self, num_tokens: float, share: float) -> float:
        """Return expected bytes of experts that so many tokens touch, `share` of them each.

        Independent routing: an upper bound in practice.
        """
        untouched = float((1.0 - share) ** num_tokens)
        return self.experts.num_bytes * (1.0 - untouched)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A model for memory and time. weights None: unknown. source: where the shape was read.

    assumed: facts that the source leaves to its reader, in words. missing: facts without which an
    answer is unknown.
    """

    name: str
    layers: tuple[LayerShape, ...] | None
    hidden_size: int | None = None
    intermediate_size: int | None = None
    vocab_size: int | None = None
    context_length: int | None = None
    weights: WeightSizes | None = None
    num_experts: int = 0
    experts_per_token: int = 0
    family: str | None = None
    source: str = "flags"
    assumed: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def expert_share(self) -> float:
        """Share of the experts that one token uses."""
        return self.experts_per_token / self.num_experts if self.num_experts else 0.0

    @property
    def num_values(self) -> float | None:
        """Values of the matrices, the output matrix once; None while unknown."""
        w = self.weights
        if w is None:
            return None
        return w.body.num_values + w.lm_head.num_values + w.experts.num_values

    @property
    def state_bytes(self) -> int | None:
        """Bytes of recurrent state that one sequence keeps, whatever its length."""
        return sum(layer.state_bytes for layer in self.layers) if self.layers is not None else None

    def grouped_layers(self) -> tuple[tuple[LayerShape, int], ...]:
        """Return the distinct layers and how many there are of each."""
        return tuple(Counter(self.layers or ()).items())

    def with_weights(self, weights: WeightSizes, note: str) -> ModelShape:
        """Return a copy with other weights, said in `assumed`."""
        missing = tuple(m for m in self.missing if not m.startswith("weights"))
        return replace(self, weights=weights, assumed=(*self.assumed, note), missing=missing)


def unit_of(type_: GGMLType) -> str:
    """Return the unit that our kernels multiply a tensor type with: int8, bf16 or fp32."""
    if type_ in _FP32_TYPES:
        return "fp32"
    return "bf16" if type_ is GGMLType.BF16 else "int8"


def matrix_group(matrices: tuple[Weight, ...], stored: Mapping[str, int]) -> WeightGroup:
    """Return matrices as one group, with the bytes that `stored` says where it does."""
    values: dict[str, float] = {}
    for weight in matrices:
        unit = unit_of(weight.type)
        values[unit] = values.get(unit, 0.0) + weight.shape[0] * weight.shape[1]
    return WeightGroup(sum(stored.get(w.name, w.nbytes) for w in matrices), values)


def requantised(shape: ModelShape, bits: float) -> ModelShape:
    """Return the shape with all matrices at a mean number of bits; small tensors keep their size.

    16 bits are multiplied as fp32, fewer as int8: prefill gains only where a device's own rates of
    the two say so, decode gains by the bytes.
    """
    w = shape.weights
    if w is None:
        return shape
    unit = "fp32" if bits >= 16 else "int8"

    def at(group: WeightGroup) -> WeightGroup:
        values = {unit: group.num_values} if group.values else {}
        return WeightGroup(group.num_values * bits / 8, values)

    groups = (w.body, w.lm_head, w.experts)
    before = sum(group.num_bytes for group in groups)
    after = sum(group.num_values for group in groups) * bits / 8
    table = w.total_bytes - before  # an untied embedding among small tensors
    is_untied = w.lm_head.num_bytes > 0 and table > 0.9 * w.lm_head.num_bytes
    rest = w.lm_head.num_values * bits / 8 if is_untied else table
    sizes = WeightSizes(
        total_bytes=after + rest, body=at(w.body), lm_head=at(w.lm_head), experts=at(w.experts)
    )
    return shape.with_weights(sizes, f"{bits:g} bits a weight")


def shape_of_model(
    config: ModelConfig, weights: ModelWeights, packed_bytes: Mapping[str, int] | None = None
) -> ModelShape:
    """Return the shape of a loaded model; packed_bytes: of each matrix as the backend stores it."""
    stored = packed_bytes or {}
    body = tuple(
        w
        for layer in weights.layers
        for w in (layer.q, layer.k, layer.v, layer.o, layer.gate, layer.up, layer.down)
    )
    sizes = WeightSizes(
        total_bytes=sum(stored.get(w.name, w.nbytes) for w in weights.all()),
        body=matrix_group(body, stored),
        lm_head=matrix_group((weights.output,), stored),
    )
    return ModelShape(
        name=config.name,
        layers=config_layers(config),
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        vocab_size=config.vocab_size,
        context_length=config.context_length,
        weights=sizes,
        family=config.family,
        source="model",
    )


def config_layers(config: ModelConfig) -> tuple[LayerShape, ...]:
    """Return the layers of a model that this program runs."""
    return tuple(
        LayerShape(
            heads=config.num_heads,
            kv_heads=config.num_kv_heads,
            key_dim=config.head_dim,
            value_dim=config.head_dim,
            window=config.window(i),
        )
        for i in range(config.num_layers)
    )
