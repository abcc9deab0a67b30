"""Public models by name: their parameters and their shapes, as their model cards state them."""

from __future__ import annotations

from types import MappingProxyType
from typing import NamedTuple

from twostroke.predict.shape import LayerShape, ModelShape

_BILLION = 1e9


class NamedModel(NamedTuple):
    """A public model. params: all its parameters; active_params: those that one token uses."""

    params: float
    active_params: float
    shape: ModelShape


def _row(
    name: str, params: float, active: float, layers: int, heads: int, kv_heads: int
) -> NamedModel:
    """Return a model whose layers are alike, with heads of 128 values. Units: billions."""
    layer = LayerShape(heads=heads, kv_heads=kv_heads, key_dim=128, value_dim=128)
    shape = ModelShape(name=name, layers=(layer,) * layers, source="model card")
    return NamedModel(params * _BILLION, active * _BILLION, shape)


_ROWS = (
    _row("llama-2-7b", 6.74, 6.74, 32, 32, 32),
    _row("llama-2-13b", 13.02, 13.02, 40, 40, 40),
    _row("llama-3.1-8b", 8.03, 8.03, 32, 32, 8),
    _row("llama-3.1-70b", 70.0, 70.0, 80, 64, 8),
    _row("llama-3.3-70b", 70.0, 70.0, 80, 64, 8),
    _row("deepseek-r1-70b", 70.0, 70.0, 80, 64, 8),
    _row("mistral-7b", 7.24, 7.24, 32, 32, 8),
    _row("qwen2.5-7b", 7.62, 7.62, 28, 28, 4),
    _row("qwen2.5-32b", 32.8, 32.8, 64, 40, 8),
    _row("qwen2.5-72b", 72.7, 72.7, 80, 64, 8),
    _row("qwen3-8b", 8.19, 8.19, 36, 32, 8),
    _row("qwen3-30b-a3b", 30.5, 3.3, 48, 32, 4),
)
MODELS = MappingProxyType({row.shape.name: row for row in _ROWS})
