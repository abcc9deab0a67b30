"""Does it fit: weights, KV, state and buffers against what each device offers, by whole layers.

Three answers: yes, no, and unknown with the evidence that is missing. Yes means that the upper
bound fits, no that not even the lower one does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any

from twostroke.config import EngineConfig
from twostroke.dataclass import dataclass
from twostroke.planner.memory import (
    Bytes,
    Placement,
    Rules,
    cells,
    compute_bytes,
    kv_bytes,
    own_compute_bytes,
    place_layers,
)
from twostroke.planner.target import Target
from twostroke.predict.kv import KvFormat, layer_token_bytes
from twostroke.predict.shape import ModelShape

OWN_MAX_NUM_SEQS = EngineConfig().max_num_seqs
LARGEST_CONTEXT = 1 << 24
LARGEST_CONCURRENCY = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How an engine is set up. arena_bytes: of ours, from a dry run."""

    kv: KvFormat
    rules: Rules = Rules.ANY
    batch_tokens: int = 512
    flash_attention: bool = True
    arena_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Fit:
    """Memory of a model at a context and concurrency. None: unknown. Units: bytes.

    compute is per device. fits: yes, no or unknown; missing: what would decide it.
    """

    weights_bytes: float | None
    kv_bytes: float | None
    state_bytes: float | None
    compute: Bytes | None
    fits: str
    missing: tuple[str, ...] = ()
    placement: Placement | None = None
    per_device_bytes: tuple[float, ...] = field(default=())

    @property
    def total(self) -> Bytes | None:
        """All memory over all devices."""
        parts = (self.weights_bytes, self.kv_bytes, self.state_bytes)
        if self.compute is None or any(part is None for part in parts):
            return None
        known = sum(part for part in parts if part is not None)
        n = max(len(self.per_device_bytes), 1)
        return Bytes(known + n * self.compute.low, known + n * self.compute.high)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON; compute and total as upper bound and range."""
        total, compute = self.total, self.compute
        return {
            "weights_bytes": _whole(self.weights_bytes),
            "kv_bytes": _whole(self.kv_bytes),
            "state_bytes": _whole(self.state_bytes),
            "compute_bytes": _whole(compute.high) if compute else None,
            "compute_bytes_range": [_whole(compute.low), _whole(compute.high)] if compute else None,
            "compute_causes": list(compute.causes) if compute else [],
            "total_bytes": _whole(total.high) if total else None,
            "total_bytes_range": [_whole(total.low), _whole(total.high)] if total else None,
            "fits": self.fits,
            "missing": list(self.missing),
            "layers_per_device": list(self.placement.layers_per_device) if self.placement else None,
        }


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def check_fit(
    shape: ModelShape, setup: Setup, target: Target, *, context: int, concurrency: int
) -> Fit:
    """Return what the model takes and whether it fits the target.

    Raises:
        ShapeError: a KV type whose blocks do not divide a row.
    """
    kv = kv_bytes(
        shape,
        setup.kv,
        context,
        sequences=concurrency,
        rules=setup.rules,
        batch_tokens=setup.batch_tokens,
    )
    state = None if shape.state_bytes is None else float(shape.state_bytes * concurrency)
    compute = _compute(shape, setup, target, context, concurrency)
    weights = None if shape.weights is None else shape.weights.total_bytes
    missing = list(shape.missing)
    for name, value in (
        ("weights", weights),
        ("kv", kv),
        ("memory of the device", target.memory_bytes),
        ("compute: hidden_size, intermediate_size or vocab_size", compute),
    ):
        if value is None and not any(m.startswith(name) for m in missing):
            missing.append(name)
    devices = (0.0,) * target.num_devices
    fit = Fit(weights, kv, state, compute, "unknown", tuple(missing), None, devices)
    return _decided(fit, shape, setup, target, context, concurrency)


def _compute(
    shape: ModelShape, setup: Setup, target: Target, context: int, concurrency: int
) -> Bytes | None:
    if setup.rules is Rules.TWOSTROKE:
        step_tokens = setup.batch_tokens + max(concurrency, OWN_MAX_NUM_SEQS)
        return own_compute_bytes(shape, step_tokens=step_tokens, arena_bytes=setup.arena_bytes)
    return compute_bytes(
        shape,
        context,
        batch_tokens=min(setup.batch_tokens, context),
        flash_attention=setup.flash_attention,
        on_gpu=target.is_gpu,
    )


def _decided(
    fit: Fit, shape: ModelShape, setup: Setup, target: Target, context: int, concurrency: int
) -> Fit:
    """Return the fit with its answer. Even without all parts, a lower bound can already say no."""
    memory, n = target.memory_bytes, target.num_devices
    if memory is None:
        return fit
    parts = (fit.weights_bytes, fit.kv_bytes, fit.state_bytes)
    if fit.compute is None or any(part is None for part in parts):
        least = sum(part for part in parts if part is not None)
        if least > memory * n:
            return _answer(fit, "no", None)
        return fit
    sizes, head = _layer_sizes(shape, setup, context, concurrency)
    answers = []
    for compute in (fit.compute.high, fit.compute.low):
        room = (memory - compute,) * n
        placement = place_layers(sizes, room, last_extra=head)
        if n == 1:  # the head too must fit; where all does not, the layers that do are named
            is_placed = sum(sizes) + head <= room[0]
            held = (len(sizes),) if is_placed else placement.layers_per_device
            placement = Placement(held, is_placed)
        answers.append(placement)
    if answers[0].is_placed:
        return _answer(fit, "yes", answers[0])
    if not answers[1].is_placed:
        return _answer(fit, "no", answers[1])
    causes = ", ".join(fit.compute.causes)
    return _answer(fit, "unknown", answers[1], f"compute buffers decide: {causes}")


def _answer(fit: Fit, answer: str, placement: Placement | None, cause: str | None = None) -> Fit:
    missing = fit.missing if cause is None else (*fit.missing, cause)
    return Fit(
        fit.weights_bytes,
        fit.kv_bytes,
        fit.state_bytes,
        fit.compute,
        answer,
        missing,
        placement,
        fit.per_device_bytes,
    )


def _layer_sizes(
    shape: ModelShape, setup: Setup, context: int, concurrency: int
) -> tuple[tuple[float, ...], float]:
    """Return each layer's bytes, weights spread evenly, and the head's; layer 0 has the rest."""
    layers, w = shape.layers, shape.weights
    assert layers is not None and w is not None
    in_layers = w.body.num_bytes + w.experts.num_bytes
    rest = max(w.total_bytes - in_layers - w.lm_head.num_bytes, 0.0)
    sizes = []
    for layer in layers:
        size = in_layers / len(layers) + layer.state_bytes * concurrency
        if layer.keeps_kv:
            held = cells(layer, context, setup.rules, batch_tokens=setup.batch_tokens)
            size += concurrency * held * layer_token_bytes(layer, setup.kv)
        sizes.append(size)
    sizes[0] += rest
    return tuple(sizes), w.lm_head.num_bytes


def largest_context(
    shape: ModelShape, setup: Setup, target: Target, *, concurrency: int
) -> int | None:
    """Return the longest context that surely fits, at most the model's own; None: unknown."""

    def fits(context: int) -> bool | None:
        fit = check_fit(shape, setup, target, context=context, concurrency=concurrency)
        return _surely(fit)

    return _largest(fits, shape.context_length or LARGEST_CONTEXT)


def largest_concurrency(
    shape: ModelShape, setup: Setup, target: Target, *, context: int
) -> int | None:
    """Return the most sequences of that context that surely fit; None: unknown."""

    def fits(concurrency: int) -> bool | None:
        return _surely(check_fit(shape, setup, target, context=context, concurrency=concurrency))

    return _largest(fits, LARGEST_CONCURRENCY)


def _surely(fit: Fit) -> bool | None:
    """Whether it fits for sure; None where a part is unknown."""
    if fit.fits == "unknown":
        return False if fit.placement else None
    return fit.fits == "yes"


def _largest(fits: Callable[[int], bool | None], most: int) -> int | None:
    first = fits(1)
    if first is None:
        return None
    if not first:
        return 0
    low, high = 1, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low
