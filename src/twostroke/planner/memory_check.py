"""Does a model fit: weights, KV, state and buffers against each device's memory, by whole layers.

Three answers: yes, no, and unknown with the evidence that is missing. Yes means that the upper
bound fits, no that not even the lower bound does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
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
from twostroke.planner.search import largest_that
from twostroke.planner.target import Target
from twostroke.predict.kv import KvFormat, layer_token_bytes
from twostroke.predict.shape import ModelShape

OWN_MAX_NUM_SEQS = EngineConfig().max_num_seqs
LARGEST_CONTEXT = 1 << 24
LARGEST_CONCURRENCY = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Settings of an engine that decide memory. arena_bytes: our buffers, from a dry run."""

    kv: KvFormat
    rules: Rules = Rules.ANY
    batch_tokens: int = 512
    flash_attention: bool = True
    arena_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class MemoryCheck:
    """Memory of a model at a context and concurrency. None: unknown. Units: bytes.

    compute is per device. fits: yes, no or unknown; missing: facts that would decide it.
    """

    weights_bytes: float | None
    kv_bytes: float | None
    state_bytes: float | None
    compute: Bytes | None
    num_devices: int
    fits: str = "unknown"
    missing: tuple[str, ...] = ()
    placement: Placement | None = None

    @property
    def total(self) -> Bytes | None:
        """All memory over all devices."""
        parts = (self.weights_bytes, self.kv_bytes, self.state_bytes)
        if self.compute is None or any(part is None for part in parts):
            return None
        known = sum(part for part in parts if part is not None)
        n = self.num_devices
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


def check_memory(
    shape: ModelShape, setup: Setup, target: Target, *, context: int, concurrency: int
) -> MemoryCheck:
    """Return the memory of a model and whether it fits the target.

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
    check = MemoryCheck(
        weights,
        kv,
        state,
        compute,
        target.num_devices,
        missing=_missing(shape, target, weights, kv, compute),
    )
    if target.memory_bytes is None:
        return check
    if check.total is None:  # a part is unknown, yet the known ones may already be too much
        least = sum(part for part in (weights, kv, state) if part is not None)
        is_too_much = least > target.memory_bytes * target.num_devices
        return replace(check, fits="no") if is_too_much else check
    sizes = _layer_bytes(shape, setup, context, concurrency)
    return _decided(check, sizes, target.memory_bytes)


def _missing(
    shape: ModelShape,
    target: Target,
    weights: float | None,
    kv: float | None,
    compute: Bytes | None,
) -> tuple[str, ...]:
    """Return the facts without which the answer is unknown, each once."""
    missing = list(shape.missing)
    for name, value in (
        ("weights", weights),
        ("kv", kv),
        ("memory of the device", target.memory_bytes),
        ("compute: hidden_size, intermediate_size or vocab_size", compute),
    ):
        if value is None and not any(m.startswith(name) for m in missing):
            missing.append(name)
    return tuple(missing)


def _decided(check: MemoryCheck, sizes: _LayerBytes, memory_bytes: float) -> MemoryCheck:
    """Return the check with its answer, from the largest and the smallest compute buffers."""
    compute = check.compute
    assert compute is not None, "the total is known"
    worst, best = (
        _placed(sizes, memory_bytes - buffers, check.num_devices)
        for buffers in (compute.high, compute.low)
    )
    if worst.is_placed:
        return replace(check, fits="yes", placement=worst)
    if not best.is_placed:
        return replace(check, fits="no", placement=best)
    cause = f"compute buffers decide: {', '.join(compute.causes)}"
    return replace(check, missing=(*check.missing, cause), placement=best)


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


@dataclass(frozen=True, slots=True)
class _LayerBytes:
    """Bytes of each layer in order; the output matrix lies where the last layer is."""

    layers: tuple[float, ...]
    lm_head: float


def _layer_bytes(shape: ModelShape, setup: Setup, context: int, concurrency: int) -> _LayerBytes:
    """Return each layer's bytes, weights spread evenly; layer 0 has all small tensors too."""
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
    return _LayerBytes(tuple(sizes), w.lm_head.num_bytes)


def _placed(sizes: _LayerBytes, room: float, num_devices: int) -> Placement:
    """Return where the layers lie when each device has that room."""
    placement = place_layers(sizes.layers, (room,) * num_devices, last_extra=sizes.lm_head)
    if num_devices > 1:
        return placement
    # On one device the output matrix must fit too; else the layers that do are told.
    if sum(sizes.layers) + sizes.lm_head <= room:
        return Placement((len(sizes.layers),), True)
    return Placement(placement.layers_per_device, False)


def largest_context(
    shape: ModelShape, setup: Setup, target: Target, *, concurrency: int
) -> int | None:
    """Return the longest context that surely fits, at most the model's own; None: unknown."""

    def fits(context: int) -> bool | None:
        return _surely(check_memory(shape, setup, target, context=context, concurrency=concurrency))

    return _largest(fits, shape.context_length or LARGEST_CONTEXT)


def largest_concurrency(
    shape: ModelShape, setup: Setup, target: Target, *, context: int
) -> int | None:
    """Return the most sequences of that context that surely fit; None: unknown."""

    def fits(concurrency: int) -> bool | None:
        return _surely(check_memory(shape, setup, target, context=context, concurrency=concurrency))

    return _largest(fits, LARGEST_CONCURRENCY)


def _surely(check: MemoryCheck) -> bool | None:
    """Whether it fits for sure; None where a part is unknown."""
    if check.fits == "unknown":
        return False if check.placement else None
    return check.fits == "yes"


def _largest(fits: Callable[[int], bool | None], most: int) -> int | None:
    if fits(1) is None:
        return None
    return largest_that(lambda n: bool(fits(n)), most)
