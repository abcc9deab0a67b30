"""Tensors of a model by their place in the forward pass.

Their bytes stay in the mapped file, as stored; backends convert them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

from twostroke.dataclass import dataclass
from twostroke.errors import CorruptCheckpoint
from twostroke.formats.ggml_types import GGMLType
from twostroke.model.config import ModelConfig
from twostroke.model.families import FAMILIES


@dataclass(frozen=True, slots=True, eq=False)
class Weight:
    """One stored tensor: rows are output channels; `raw` is its bytes in GGUF layout."""

    name: str
    type: GGMLType
    shape: tuple[int, ...]
    raw: npt.NDArray[np.uint8]

    @property
    def nbytes(self) -> int:
        """Stored bytes."""
        return int(self.raw.nbytes)


class _TensorInfo(Protocol):
    @property
    def type(self) -> GGMLType: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


class TensorSource(Protocol):
    """Where weights come from: an open GGUF file."""

    @property
    def tensors(self) -> Mapping[str, _TensorInfo]: ...

    def data(self, name: str) -> npt.NDArray[np.uint8]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """Weights of one decoder layer, in the order they are used."""

    attn_norm: Weight  # [E]
    q: Weight  # [H * D, E]
    k: Weight  # [K * D, E]
    v: Weight  # [K * D, E]
    q_bias: Weight | None
    k_bias: Weight | None
    v_bias: Weight | None
    q_norm: Weight | None  # [D]
    k_norm: Weight | None
    o: Weight  # [E, H * D]
    post_attn_norm: Weight | None  # [E]
    ffn_norm: Weight  # [E]
    gate: Weight  # [F, E]
    up: Weight  # [F, E]
    down: Weight  # [E, F]
    post_ffn_norm: Weight | None  # [E]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWeights:
    """All weights of a model. `output`, the output matrix, may be `token_embd` itself."""

    token_embd: Weight  # [V, E]
    layers: tuple[LayerWeights, ...]
    output_norm: Weight  # [E]
    output: Weight  # [V, E]

    def all(self) -> tuple[Weight, ...]:
        """Return each stored tensor once."""
        found: dict[str, Weight] = {self.token_embd.name: self.token_embd}
        for layer in self.layers:
            for field in LayerWeights.__dataclass_fields__:
                weight = getattr(layer, field)
                if weight is not None:
                    found[weight.name] = weight
        for weight in (self.output_norm, self.output):
            found.setdefault(weight.name, weight)
        return tuple(found.values())


class _Tensors:
    """Finds tensors by name and checks their shapes."""

    def __init__(self, source: TensorSource) -> None:
        self.source = source

    def optional(self, name: str, shape: tuple[int, ...]) -> Weight | None:
        info = self.source.tensors.get(name)
        if info is None:
            return None
        if tuple(info.shape) != shape:
            raise CorruptCheckpoint(
                f"tensor {name} has the wrong shape", value=tuple(info.shape), limit=shape
            )
        return Weight(name, info.type, shape, self.source.data(name))

    def required(self, name: str, shape: tuple[int, ...]) -> Weight:
        weight = self.optional(name, shape)
        if weight is None:
            raise CorruptCheckpoint(f"tensor {name} is missing")
        return weight


def vocab_size_of(source: TensorSource) -> int:
    """Return the rows of the embedding table.

    Raises:
        CorruptCheckpoint: there is none, or it is no matrix.
    """
    info = source.tensors.get("token_embd.weight")
    if info is None or len(info.shape) != 2:
        raise CorruptCheckpoint("tensor token_embd.weight is missing or no matrix")
    return info.shape[0]


def load_weights(source: TensorSource, config: ModelConfig) -> ModelWeights:
    """Find every tensor of the model by its GGUF name and check its shape.

    Raises:
        CorruptCheckpoint: a tensor is missing or has the wrong shape, by name.
    """
    tensors, c = _Tensors(source), config
    table = (c.vocab_size, c.hidden_size)
    embedding = tensors.required("token_embd.weight", table)
    return ModelWeights(
        token_embd=embedding,
        layers=tuple(_layer(tensors, c, i) for i in range(c.num_layers)),
        output_norm=tensors.required("output_norm.weight", (c.hidden_size,)),
        output=tensors.optional("output.weight", table) or embedding,
    )


def _layer(tensors: _Tensors, config: ModelConfig, index: int) -> LayerWeights:
    family = FAMILIES[config.family]
    hidden, ffn, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
    q_size, kv_size = config.num_heads * head_dim, config.num_kv_heads * head_dim

    def required(name: str, *shape: int) -> Weight:
        return tensors.required(f"blk.{index}.{name}", shape)

    def optional(name: str, *shape: int) -> Weight | None:
        return tensors.optional(f"blk.{index}.{name}", shape)

    qk_norm = required if family.requires_qk_norm else optional
    post_norm = required if family.has_post_norms else _absent
    return LayerWeights(
        attn_norm=required("attn_norm.weight", hidden),
        q=required("attn_q.weight", q_size, hidden),
        k=required("attn_k.weight", kv_size, hidden),
        v=required("attn_v.weight", kv_size, hidden),
        q_bias=optional("attn_q.bias", q_size),
        k_bias=optional("attn_k.bias", kv_size),
        v_bias=optional("attn_v.bias", kv_size),
        q_norm=qk_norm("attn_q_norm.weight", head_dim),
        k_norm=qk_norm("attn_k_norm.weight", head_dim),
        o=required("attn_output.weight", hidden, q_size),
        post_attn_norm=post_norm("post_attention_norm.weight", hidden),
        ffn_norm=required("ffn_norm.weight", hidden),
        gate=required("ffn_gate.weight", ffn, hidden),
        up=required("ffn_up.weight", ffn, hidden),
        down=required("ffn_down.weight", hidden, ffn),
        post_ffn_norm=post_norm("post_ffw_norm.weight", hidden),
    )


def _absent(name: str, *shape: int) -> None:
    """Return no weight: the family has none of this name."""
