"""The same plan with other weights and KV types, one row each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from twostroke.errors import ConfigError, ShapeError
from twostroke.planner.ask import Ask
from twostroke.planner.memory_check import Setup, check_memory, largest_context
from twostroke.planner.target import Target
from twostroke.predict.cost import CostModel
from twostroke.predict.kv import KvFormat
from twostroke.predict.predictor import Prediction, Predictor
from twostroke.predict.shape import ModelShape, requantised

# Mean bits a weight of whole files: llama.cpp's table for Llama-3.1-8B; other models differ by a
# few percent because the embedding and the output matrix are stored apart.
QUANT_BITS: Mapping[str, float] = {
    "F16": 16.0,
    "Q8_0": 8.5,
    "Q6_K": 6.5625,
    "Q5_K_M": 5.70,
    "Q4_K_M": 4.89,
}


def predict(
    shape: ModelShape, setup: Setup, target: Target, ask: Ask
) -> tuple[Predictor | None, Prediction | None]:
    """Return the predictor of a shape on a target and its prediction; None: layers or weights are
    unknown.
    """
    if shape.layers is None or shape.weights is None:
        return None, None
    predictor = Predictor(CostModel(shape, setup.kv), target.speed)
    prediction = predictor.request(
        ask.prompt,
        ask.output,
        cached=ask.cached,
        batch=ask.concurrency,
        chunk=setup.batch_tokens,
    )
    return predictor, prediction


def alternatives(
    shape: ModelShape, setup: Setup, target: Target, ask: Ask, kv_choices: tuple[KvFormat, ...]
) -> tuple[dict[str, Any], ...]:
    """Return the shape as it is stored and at the usual quantisations, with each KV type."""
    variants: list[tuple[str, ModelShape]] = [("as stored", shape)]
    variants += [(name, requantised(shape, bits)) for name, bits in QUANT_BITS.items()]
    rows = []
    for name, variant in variants:
        if variant.weights is None or (name != "as stored" and not shape.num_values):
            continue
        for kv in kv_choices or (setup.kv,):
            try:
                rows.append(_row(name, variant, replace(setup, kv=kv), target, ask))
            except (ShapeError, ConfigError):
                continue  # this KV type cannot store this model's rows
    return tuple(rows)


def _row(name: str, shape: ModelShape, setup: Setup, target: Target, ask: Ask) -> dict[str, Any]:
    memory = check_memory(shape, setup, target, context=ask.context, concurrency=ask.concurrency)
    _, prediction = predict(shape, setup, target, ask)
    total = memory.total
    return {
        "weights": name,
        "kv_type": setup.kv.name,
        "weights_bytes": round(shape.weights.total_bytes) if shape.weights else None,
        "kv_bytes": None if memory.kv_bytes is None else round(memory.kv_bytes),
        "total_bytes": round(total.high) if total else None,
        "fits": memory.fits,
        "max_context": largest_context(shape, setup, target, concurrency=ask.concurrency),
        "ttft_s": prediction.ttft.value if prediction and prediction.ttft else None,
        "tpot_s": prediction.tpot.value if prediction and prediction.tpot else None,
    }
