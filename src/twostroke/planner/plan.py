"""One plan: memory, speed and capacity of a model on a target, and the alternatives as a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from twostroke.dataclass import dataclass
from twostroke.errors import ConfigError, ShapeError
from twostroke.planner.capacity import Capacity, Load, find_capacity
from twostroke.planner.fit import (
    LARGEST_CONCURRENCY,
    Fit,
    Setup,
    check_fit,
    largest_concurrency,
    largest_context,
)
from twostroke.planner.target import Target
from twostroke.predict.cost import CostModel
from twostroke.predict.kv import KvFormat, kv_bytes_per_token
from twostroke.predict.predictor import Prediction, Predictor
from twostroke.predict.shape import ModelShape, requantised
from twostroke.step import BLOCK_SIZE

# Mean bits a weight of whole files: llama.cpp's table for Llama-3.1-8B; other models differ by a
# few percent because embedding and head are stored apart.
QUANT_BITS: Mapping[str, float] = {
    "F16": 16.0,
    "Q8_0": 8.5,
    "Q6_K": 6.5625,
    "Q5_K_M": 5.70,
    "Q4_K_M": 4.89,
}
_DEFAULT_PROMPT = 1000
_DEFAULT_OUTPUT = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a user wants to know about. Units: tokens; seconds."""

    context: int
    concurrency: int
    prompt: int
    output: int
    cached: int = 0
    target_ttft_s: float | None = None
    target_tpot_s: float | None = None


def make_ask(
    *,
    context: int | None = None,
    concurrency: int = 1,
    prompt: int | None = None,
    output: int | None = None,
    cached: int = 0,
    target_ttft_s: float | None = None,
    target_tpot_s: float | None = None,
) -> Ask:
    """Return the question with what was left out: a request that fits the context.

    The context is that of the request where none is said, never the model's maximum.
    Raises:
        ConfigError: a number out of range, or a request longer than the context.
    """
    if output is None:
        output = min(_DEFAULT_OUTPUT, max((context or 1 << 24) // 4, 1))
    if prompt is None:
        prompt = min(_DEFAULT_PROMPT, max((context or 1 << 24) - output, 1))
    context = prompt + output if context is None else context
    for name, value, low, high in (
        ("--context", context, 1, 1 << 24),
        ("--concurrency", concurrency, 1, LARGEST_CONCURRENCY),
        ("--prompt", prompt, 1, 1 << 24),
        ("--output", output, 1, 1 << 24),
        ("--cached", cached, 0, prompt - 1),
    ):
        if not low <= value <= high:
            raise ConfigError(f"{name} is out of range", value=value, limit=f"[{low}, {high}]")
    for name, target in (("--target-ttft", target_ttft_s), ("--target-tpot", target_tpot_s)):
        if target is not None and not 0 < target < 1e6:
            raise ConfigError(f"{name} cannot be this", value=target, limit="seconds above 0")
    if prompt + output > context:
        raise ConfigError(
            "the request is longer than the context",
            value=f"{prompt} + {output} tokens",
            limit=f"{context} tokens",
            remedy="Raise --context, or lower --prompt or --output.",
        )
    return Ask(
        context=context,
        concurrency=concurrency,
        prompt=prompt,
        output=output,
        cached=cached,
        target_ttft_s=target_ttft_s,
        target_tpot_s=target_tpot_s,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The answers. None: unknown, and `fit.missing` or `prediction.missing` says why."""

    shape: ModelShape
    setup: Setup
    target: Target
    ask: Ask
    fit: Fit
    kv_bytes_per_token: float | None
    max_context: int | None
    max_concurrency: int | None
    predictor: Predictor | None
    prediction: Prediction | None
    capacity: Capacity | None
    table: tuple[dict[str, Any], ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return one JSON document."""
        per_token = self.kv_bytes_per_token
        document = {
            "model": self.shape.name,
            **self.fit.to_dict(),
            "kv_bytes_per_token": None if per_token is None else round(per_token),
            "max_context": self.max_context,
            "max_concurrency": self.max_concurrency,
            "predicted": _predicted(self.prediction),
            "predicted_missing": list(self.prediction.missing if self.prediction else ()),
            "capacity": self.capacity.to_dict() if self.capacity else None,
            "context": self.ask.context,
            "concurrency": self.ask.concurrency,
            "prompt_tokens": self.ask.prompt,
            "output_tokens": self.ask.output,
            "kv_type": self.setup.kv.name,
            "rules": self.setup.rules.value,
            "device": self.target.to_dict(),
            "shape_source": self.shape.source,
            "assumed": list(self.shape.assumed),
            "notes": list(self.notes),
            "table": list(self.table),
        }
        return document


def _predicted(prediction: Prediction | None) -> dict[str, Any]:
    if prediction is not None:
        return prediction.to_dict()
    return dict.fromkeys(("ttft_s", "tpot_s", "total_s", "prefill_share", "decode_share"))


def make_plan(
    shape: ModelShape,
    setup: Setup,
    target: Target,
    ask: Ask,
    *,
    kv_choices: tuple[KvFormat, ...] = (),
) -> Plan:
    """Answer everything that the shape and the target allow.

    Raises:
        ShapeError: a KV type whose blocks do not divide a row of this model.
    """
    fit = check_fit(shape, setup, target, context=ask.context, concurrency=ask.concurrency)
    most = largest_concurrency(shape, setup, target, context=ask.context)
    predictor = _predictor(shape, setup, target)
    prediction = None
    if predictor is not None:
        prediction = predictor.request(
            ask.prompt,
            ask.output,
            cached=ask.cached,
            batch=ask.concurrency,
            chunk=setup.batch_tokens,
        )
    return Plan(
        shape=shape,
        setup=setup,
        target=target,
        ask=ask,
        fit=fit,
        kv_bytes_per_token=(
            None if shape.layers is None else kv_bytes_per_token(shape.layers, setup.kv)
        ),
        max_context=largest_context(shape, setup, target, concurrency=ask.concurrency),
        max_concurrency=most,
        predictor=predictor,
        prediction=prediction,
        capacity=_capacity(predictor, setup, ask, most),
        table=_table(shape, setup, target, ask, kv_choices),
        notes=_notes(shape, target, ask),
    )


def _predictor(shape: ModelShape, setup: Setup, target: Target) -> Predictor | None:
    if shape.layers is None or shape.weights is None:
        return None
    return Predictor(CostModel(shape, setup.kv), target.speed)


def _capacity(
    predictor: Predictor | None, setup: Setup, ask: Ask, most: int | None
) -> Capacity | None:
    if ask.target_ttft_s is None and ask.target_tpot_s is None:
        return None
    if predictor is None or most is None:
        return Capacity(None, "unknown: see missing")
    load = Load(
        prompt_tokens=ask.prompt,
        output_tokens=ask.output,
        cached_tokens=ask.cached,
        target_ttft_s=ask.target_ttft_s,
        target_tpot_s=ask.target_tpot_s,
    )
    return find_capacity(
        predictor,
        load,
        most=most,
        num_blocks=most * -(-ask.context // BLOCK_SIZE),
        chunk=setup.batch_tokens,
    )


def _notes(shape: ModelShape, target: Target, ask: Ask) -> tuple[str, ...]:
    notes = []
    if shape.context_length is not None and ask.context > shape.context_length:
        notes.append(
            f"the context of {ask.context:,} exceeds the model's own of {shape.context_length:,}"
        )
    if shape.context_length == ask.context:
        notes.append("this is the model's whole context: a smaller --context takes less KV")
    if target.num_devices > 1:
        notes.append(
            "layers are placed whole; one stream gets no faster from several devices, as each "
            "layer waits for the one before"
        )
    return tuple(notes)


# Alternatives


def _table(
    shape: ModelShape, setup: Setup, target: Target, ask: Ask, kv_choices: tuple[KvFormat, ...]
) -> tuple[dict[str, Any], ...]:
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
    fit = check_fit(shape, setup, target, context=ask.context, concurrency=ask.concurrency)
    predictor = _predictor(shape, setup, target)
    assert predictor is not None or shape.layers is None
    prediction = predictor and predictor.request(
        ask.prompt, ask.output, cached=ask.cached, batch=ask.concurrency, chunk=setup.batch_tokens
    )
    total = fit.total
    return {
        "weights": name,
        "kv_type": setup.kv.name,
        "weights_bytes": round(shape.weights.total_bytes) if shape.weights else None,
        "kv_bytes": None if fit.kv_bytes is None else round(fit.kv_bytes),
        "total_bytes": round(total.high) if total else None,
        "fits": fit.fits,
        "max_context": largest_context(shape, setup, target, concurrency=ask.concurrency),
        "ttft_s": prediction.ttft.value if prediction and prediction.ttft else None,
        "tpot_s": prediction.tpot.value if prediction and prediction.tpot else None,
    }
