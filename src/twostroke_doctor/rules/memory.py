"""SPILL and OFFLOAD: the model is not where it should be, in fast memory or on the GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from twostroke.advice import cure, cures
from twostroke_doctor.evidence import Evidence, model_seconds
from twostroke_doctor.evidence_lines import Shown
from twostroke_doctor.finding import Finding
from twostroke_doctor.parsed import Fact
from twostroke_doctor.remedies import at_most
from twostroke_doctor.rules.pairs import slower_pairs
from twostroke_doctor.rules.rates import read_rate
from twostroke_doctor.runs import Run, number_of

SLOWEST_MEMORY = 3e9  # bytes/s: below any memory in use, the speed of disks and swap
_SEQUENTIAL = 1.5  # prefill over decode rate: batching gives nothing
_SLOW_LOAD_S = 60.0
_MIN_PROMPT = 128
_BATCHING_ENGINES = ("llama.cpp", "llama-server")  # engines known to prefill in batches
_GPU_NAMES = ("cuda", "rocm", "metal", "vulkan", "sycl", "gpu")
_MOST_OF_WEIGHTS = 0.9


def is_on_gpu(run: Run) -> bool:
    """Whether the log says that layers ran on a GPU."""
    return bool((run.number("layers_offloaded") or 0) > 0 or (run.number("gpu_share") or 0) > 0)


def spill(e: Evidence) -> Finding | None:
    """SPILL: slower on the GPU than without it, weights read at disk speed, or too large."""
    return _slower_on_gpu(e) or _disk_speed(e) or _too_large(e) or _slow_load(e)


def _spill(e: Evidence, says: str, runs: Sequence[Run], confidence: str, *shown: Shown) -> Finding:
    explains = model_seconds(r for run in runs for r in run.records)
    return e.finding(
        "SPILL",
        says,
        phase=e.larger_phase(),
        explains=explains,
        confidence=confidence,
        shown=shown,
        cures=(at_most("fit", sum(explains.values()), "the time the model ran"),),
    )


def _slower_on_gpu(e: Evidence) -> Finding | None:
    """Prefill with layers on the GPU is slower than without: its memory is over-committed."""
    with_gpu = [run for run in e.runs if is_on_gpu(run)]
    without = [run for run in e.runs if not is_on_gpu(run)]
    for pair in slower_pairs(with_gpu, without, Run.prefill_tok_s, 1.0):
        if pair.fast_rate > pair.slow_rate:
            return _spill(
                e,
                f"prefill is {pair.fast_rate / pair.slow_rate:.0f} times slower with layers on "
                f"the GPU ({pair.slow_rate:.3g} tok/s) than without ({pair.fast_rate:.3g} tok/s): "
                "its memory is over-committed",
                [pair.slow],
                "high",
                pair.slow.fact("layers_offloaded"),
                [*pair.slow.records[:2], *pair.fast.records[:2]],
            )
    return None


def _disk_speed(e: Evidence) -> Finding | None:
    """Weights over the time of a token: a rate that only a disk has."""
    for run in e.runs:
        rate = read_rate(e, run)
        if rate is not None and rate < SLOWEST_MEMORY:
            return _spill(
                e,
                f"the weights are read at {rate / 1e9:.2f} GB/s, the speed of a disk or of swap, "
                "not of memory",
                [run],
                "high",
                run.records[:3],
            )
    return None


def _too_large(e: Evidence) -> Finding | None:
    """Weights and KV together are larger than the memory."""
    weights, memory = e.given.weights_bytes, e.given.memory_bytes
    buffers = sum(number_of(f) or 0.0 for f in e.facts("kv_buffer_bytes"))
    kv = e.number("kv_required_bytes") or buffers
    if weights is None or memory is None or weights + kv <= memory or not e.records:
        return None
    return _spill(
        e,
        f"weights and KV take {(weights + kv) / 1e9:.1f} GB of {memory / 1e9:.1f} GB of memory",
        e.runs,
        "medium",
        e.records[:3],
    )


def _slow_load(e: Evidence) -> Finding | None:
    """A load at disk speed, and an engine that batches prefill gains nothing by it."""
    for run in e.runs:
        load, prefill, decode = run.number("model_load_s"), run.prefill_tok_s(), run.decode_tok_s()
        long = [r for r in run.records if (r.prompt.new or 0) >= _MIN_PROMPT]
        is_slow = load is not None and load >= _SLOW_LOAD_S
        if not is_slow or prefill is None or decode is None or prefill > _SEQUENTIAL * decode:
            continue
        if long and long[0].engine in _BATCHING_ENGINES:
            return _spill(
                e,
                f"loading took {load:.0f} s, and a batch of prompt tokens runs no faster "
                f"({prefill:.3g} tok/s) than single ones ({decode:.3g} tok/s): memory is likely "
                "too small",
                [run],
                "low",
                run.fact("model_load_s"),
                long[:3],
            )
    return None


class _Placed(NamedTuple):
    """How much of the model is on the GPU, in any unit, and the facts that say so."""

    on_gpu: float
    total: float
    says: str
    facts: Sequence[Fact | None]


def offload(e: Evidence) -> Finding | None:
    """OFFLOAD: the log says that part of the model runs on the CPU though there is a GPU."""
    for run in reversed(e.runs):
        placed = _by_layers(run) or _by_share(e, run) or _by_weights(e, run)
        if placed is None:
            continue
        explains = model_seconds(run.records) or None
        seconds = sum(explains.values()) if explains else 0.0
        moved = cures.move_layers(seconds, placed.on_gpu, placed.total)
        if not explains:
            moved = cure.unpredicted(moved.key, moved.what, moved.basis)
        return e.finding(
            "OFFLOAD",
            placed.says + _context_cause(e, run),
            phase=e.larger_phase() if explains else None,
            explains=explains,
            confidence="high",
            shown=(placed.facts, run.records[:3]),
            cures=(moved,),
        )
    return None


def _by_layers(run: Run) -> _Placed | None:
    on_gpu, total = run.number("layers_offloaded"), run.number("layers_total")
    if on_gpu is None or not total or on_gpu >= total or not (on_gpu > 0 or _does_not_fit(run)):
        return None
    stated = ("layers_offloaded", "layers_total", "memory_required_bytes", "memory_available_bytes")
    facts = [*map(run.fact, stated), *_facts(run, "n_ctx", "kv_required_bytes")]
    return _Placed(on_gpu, total, f"{total - on_gpu:g} of {total:g} layers run on the CPU", facts)


def _does_not_fit(run: Run) -> bool:
    required, available = (run.number(f"memory_{name}_bytes") for name in ("required", "available"))
    return required is not None and available is not None and required > available


def _by_share(e: Evidence, run: Run) -> _Placed | None:
    share = run.number("gpu_share")
    has_gpu = share or any((number_of(f) or 0) > 0 for f in e.facts("gpu_share"))
    if share is None or share >= 1 or not has_gpu or e.given.on_cpu:
        return None
    least = min(number_of(f) or 0.0 for f in _facts(run, "gpu_share"))
    facts = [
        *_facts(run, "gpu_share", "model_size_bytes"),
        *_facts(run, "n_ctx", "kv_required_bytes"),
    ]
    return _Placed(least, 1.0, f"{1 - least:.0%} of the model is on the CPU", facts)


def _facts(run: Run, *names: str) -> list[Fact]:
    return [fact for fact in run.facts if fact.name in names]


def _by_weights(e: Evidence, run: Run) -> _Placed | None:
    """The GPU holds less than the weights, so the rest is not on it."""
    weights = e.given.weights_bytes
    facts = [f for f in _facts(run, "model_buffer_bytes") if _is_of_gpu(f)]
    held = sum(number_of(f) or 0.0 for f in facts)
    if weights is None or not facts or held >= _MOST_OF_WEIGHTS * weights:
        return None
    says = f"the GPU holds {held / 1e9:.1f} GB of weights of {weights / 1e9:.1f} GB"
    return _Placed(held, weights, says, facts)


def _is_of_gpu(fact: Fact) -> bool:
    return any(name in (fact.label or "").lower() for name in _GPU_NAMES)


def _context_cause(e: Evidence, run: Run) -> str:
    """Say how much memory the context takes, where the model's KV bytes are known."""
    n_ctx, each = run.number("n_ctx"), e.given.kv_bytes_per_token
    stated = run.number("kv_required_bytes")
    if n_ctx and each:
        kv = n_ctx * each
        return f"; a context of {n_ctx:,.0f} takes {kv / 2**30:.1f} GiB of KV at 16 bits"
    if stated and stated > (run.number("weights_bytes") or float("inf")):
        return f"; the KV cache takes {stated / 2**30:.1f} GiB, more than the weights"
    contexts = sorted({number_of(f) or 0.0 for f in _facts(run, "n_ctx")})
    shares = {number_of(f) or 0.0 for f in _facts(run, "gpu_share")}
    if len(contexts) > 1 and len(shares) > 1:
        moved = f"{contexts[0]:,.0f} to {contexts[-1]:,.0f}"
        return f"; the share moved when the context went from {moved}"
    return ""
