"""The cost model of a small model, for tests that need predicted steps but no weights."""

from __future__ import annotations

from twostroke.predict.cost import CostModel
from twostroke.predict.kv import kv_format
from twostroke.predict.shape import LayerShape, ModelShape, WeightGroup, WeightSizes


def small_cost() -> CostModel:
    """Return the cost of a model of SmolLM2-135M's shape with 4-bit weights and bf16 KV."""
    layer = LayerShape(heads=9, kv_heads=3, key_dim=64, value_dim=64)
    body = WeightGroup(7e7, {"int8": 1.06e8})
    head = WeightGroup(3e7, {"int8": 2.8e7})
    sizes = WeightSizes(total_bytes=1e8, body=body, lm_head=head)
    shape = ModelShape(name="small", layers=(layer,) * 30, weights=sizes)
    return CostModel(shape, kv_format("bf16"))
