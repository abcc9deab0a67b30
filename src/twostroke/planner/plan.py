"""One plan: memory, speed and capacity of a model on a target, and the alternatives as a table."""

from __future__ import annotations

from typing import Any

from twostroke.dataclass import dataclass
from twostroke.planner.alternatives import alternatives, predict
from twostroke.planner.ask import Ask
from twostroke.planner.capacity import Capacity, find_capacity
from twostroke.planner.closed_loop import ClientLoad
from twostroke.planner.memory_check import (
    MemoryCheck,
    Setup,
    check_memory,
    largest_concurrency,
    largest_context,
)
from twostroke.planner.target import Target
from twostroke.predict.kv import KvFormat, kv_bytes_per_token
from twostroke.predict.predictor import Prediction, Predictor
from twostroke.predict.shape import ModelShape
from twostroke.step import BLOCK_SIZE


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The answers. None: unknown, and `memory.missing` or `prediction.missing` says why."""

    shape: ModelShape
    setup: Setup
    target: Target
    ask: Ask
    memory: MemoryCheck
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
            **self.memory.to_dict(),
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
    memory = check_memory(shape, setup, target, context=ask.context, concurrency=ask.concurrency)
    most = largest_concurrency(shape, setup, target, context=ask.context)
    predictor, prediction = predict(shape, setup, target, ask)
    layers = shape.layers
    return Plan(
        shape=shape,
        setup=setup,
        target=target,
        ask=ask,
        memory=memory,
        kv_bytes_per_token=None if layers is None else kv_bytes_per_token(layers, setup.kv),
        max_context=largest_context(shape, setup, target, concurrency=ask.concurrency),
        max_concurrency=most,
        predictor=predictor,
        prediction=prediction,
        capacity=_capacity(predictor, setup, ask, most),
        table=alternatives(shape, setup, target, ask, kv_choices),
        notes=_notes(shape, target, ask),
    )


def _capacity(
    predictor: Predictor | None, setup: Setup, ask: Ask, most: int | None
) -> Capacity | None:
    if ask.target_ttft_s is None and ask.target_tpot_s is None:
        return None
    if predictor is None or most is None:
        return Capacity(None, "unknown: see missing")
    load = ClientLoad(
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
