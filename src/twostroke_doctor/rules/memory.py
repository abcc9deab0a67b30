"""SPILL and OFFLOAD: the model does not sit where it should."""

from __future__ import annotations

from collections.abc import Sequence

from twostroke.advice import cure, cures
from twostroke_doctor.evidence import Evidence, fact_lines, model_seconds, record_lines
from twostroke_doctor.finding import EvidenceLine, Finding
from twostroke_doctor.parsed import Fact
from twostroke_doctor.rules.rates import read_rate
from twostroke_doctor.runs import Run, number_of

SLOWEST_MEMORY = 3e9  # bytes/s: below any memory in use, the speed of disks and swap
_SEQUENTIAL = 1.5  # prefill over decode rate: batching gives nothing
_SLOW_LOAD_S = 60.0
_MIN_PROMPT = 128
_BATCHING_ENGINES = ("llama.cpp", "llama-server")  # engines known to prefill in batches
_GPU_WORDS = ("cuda", "rocm", "metal", "vulkan", "sycl", "gpu")


def _larger_phase(e: Evidence) -> str:
    return "prefill" if e.phase_s("prefill") > e.phase_s("decode") else "decode"


def is_on_gpu(run: Run) -> bool:
    return bool((run.number("layers_offloaded") or 0) > 0 or (run.number("gpu_share") or 0) > 0)


def spill(e: Evidence) -> Finding | None:
    """SPILL: slower on the GPU than without it, weights read at disk speed, or too large."""
    return _slower_on_gpu(e) or _disk_speed(e) or _too_large(e) or _slow_load(e)


def _spill(
    e: Evidence, says: str, runs: Sequence[Run], confidence: str, evidence: tuple[EvidenceLine, ...]
) -> Finding:
    explains = model_seconds(r for run in runs for r in run.records)
    seconds = sum(explains.values())
    what = (
        "Make it fit: fewer layers on the GPU, a smaller context, 8-bit KV, or a smaller "
        "quantisation of the weights."
    )
    return Finding(
        code="SPILL",
        says=says,
        phase=_larger_phase(e),
        share=e.share(seconds),
        seconds=seconds,
        confidence=confidence,
        evidence=evidence,
        cures=(cure.between("fit", what, 0.0, seconds, "at most the time the model ran"),),
        explains=explains,
    )


def _slower_on_gpu(e: Evidence) -> Finding | None:
    """Prefill with layers on the GPU is slower than without: its memory is over-committed."""
    with_gpu = [r for r in e.runs if is_on_gpu(r) and r.prefill_tok_s()]
    without = [r for r in e.runs if not is_on_gpu(r) and r.prefill_tok_s()]
    for gpu in with_gpu:
        for cpu in without:
            slow, fast = gpu.prefill_tok_s(), cpu.prefill_tok_s()
            if slow is None or fast is None or slow >= fast:
                continue
            finding = _spill(
                e,
                f"prefill is {fast / slow:.0f} times slower with layers on the GPU "
                f"({slow:.3g} tok/s) than without ({fast:.3g} tok/s): its memory is over-committed",
                [gpu],
                "high",
                fact_lines([gpu.fact("layers_offloaded")])
                + record_lines([*gpu.records[:2], *cpu.records[:2]]),
            )
            return finding
    return None


def _disk_speed(e: Evidence) -> Finding | None:
    """Weights over the time of a token: a rate that only a disk has."""
    for run in e.runs:
        rate = read_rate(e, run)
        if rate is None or rate >= SLOWEST_MEMORY:
            continue
        return _spill(
            e,
            f"the weights are read at {rate / 1e9:.2f} GB/s, the speed of a disk or of swap, "
            "not of memory",
            [run],
            "high",
            record_lines(run.records[:3]),
        )
    return None


def _too_large(e: Evidence) -> Finding | None:
    """Weights and KV together are larger than the memory."""
    weights, memory = e.given.weights_bytes, e.given.memory_bytes
    kv = e.number("kv_required_bytes") or sum(
        number_of(f) or 0.0 for f in e.facts("kv_buffer_bytes")
    )
    if weights is None or memory is None or weights + kv <= memory or not e.records:
        return None
    return _spill(
        e,
        f"weights and KV take {(weights + kv) / 1e9:.1f} GB of {memory / 1e9:.1f} GB of memory",
        e.runs,
        "medium",
        record_lines(e.records[:3]),
    )


def _slow_load(e: Evidence) -> Finding | None:
    """A load at disk speed, and an engine that batches prefill gains nothing by it."""
    for run in e.runs:
        load, pp, tg = run.number("model_load_s"), run.prefill_tok_s(), run.decode_tok_s()
        big = [r for r in run.records if (r.prompt.new or 0) >= _MIN_PROMPT]
        batches = big and big[0].engine in _BATCHING_ENGINES
        if not load or load < _SLOW_LOAD_S or pp is None or tg is None or not batches:
            continue
        if pp > _SEQUENTIAL * tg:
            continue
        finding = _spill(
            e,
            f"loading took {load:.0f} s, and a batch of prompt tokens runs no faster "
            f"({pp:.3g} tok/s) than single ones ({tg:.3g} tok/s): memory is likely too small",
            [run],
            "low",
            fact_lines([run.fact("model_load_s")]) + record_lines(big[:3]),
        )
        return finding
    return None


def offload(e: Evidence) -> Finding | None:
    """OFFLOAD: the log says that part of the model runs on the CPU though there is a GPU."""
    for run in reversed(e.runs):
        found = _part_on_gpu(e, run) or _smaller_than_model(e, run)
        if found is None:
            continue
        on_gpu, total, says, facts = found
        explains = model_seconds(run.records)
        seconds = sum(explains.values()) or None
        cause = _context_cause(e, run)
        moved = cures.move_layers(seconds or 0.0, on_gpu, total)
        if seconds is None:
            moved = cure.unpredicted(moved.key, moved.what, moved.basis)
        return Finding(
            code="OFFLOAD",
            says=says + cause,
            phase=_larger_phase(e) if seconds else None,
            share=e.share(seconds),
            seconds=seconds,
            confidence="high",
            evidence=fact_lines(facts) + record_lines(run.records[:3]),
            cures=(moved,),
            explains=explains,
        )
    return None


_Found = tuple[float, float, str, list[Fact | None]]


def _part_on_gpu(e: Evidence, run: Run) -> _Found | None:
    on_gpu, total = run.number("layers_offloaded"), run.number("layers_total")
    share = run.number("gpu_share")
    memory = [run.fact("memory_required_bytes"), run.fact("memory_available_bytes")]
    if on_gpu is not None and total and on_gpu < total and (on_gpu > 0 or _does_not_fit(run)):
        says = f"{total - on_gpu:g} of {total:g} layers run on the CPU"
        facts = [run.fact("layers_offloaded"), run.fact("layers_total"), *memory]
        return on_gpu, total, says, [*facts, *_contexts(run)]
    has_gpu = any((number_of(f) or 0) > 0 for f in e.facts("gpu_share")) or share
    if share is not None and share < 1 and has_gpu and not e.given.on_cpu:
        worst = min(number_of(f) or 0.0 for f in run.facts if f.name == "gpu_share")
        says = f"{1 - worst:.0%} of the model is on the CPU"
        facts = [f for f in run.facts if f.name in ("gpu_share", "model_size_bytes")]
        return worst, 1.0, says, [*facts, *_contexts(run)]
    return None


def _contexts(run: Run) -> list[Fact | None]:
    return [f for f in run.facts if f.name in ("n_ctx", "kv_required_bytes")]


def _does_not_fit(run: Run) -> bool:
    required, available = (run.number(f"memory_{name}_bytes") for name in ("required", "available"))
    return required is not None and available is not None and required > available


def _smaller_than_model(e: Evidence, run: Run) -> _Found | None:
    """What the GPU holds is smaller than the weights, so the rest is not on it."""
    weights = e.given.weights_bytes
    facts = [f for f in run.facts if f.name == "model_buffer_bytes" and _is_gpu(f)]
    held = sum(number_of(f) or 0.0 for f in facts)
    if weights is None or not facts or held >= 0.9 * weights:
        return None
    says = f"the GPU holds {held / 1e9:.1f} GB of weights of {weights / 1e9:.1f} GB"
    return held, weights, says, [*facts]


def _is_gpu(fact: Fact) -> bool:
    return any(word in (fact.label or "").lower() for word in _GPU_WORDS)


def _context_cause(e: Evidence, run: Run) -> str:
    """Say what the context costs, where the model's KV bytes are known."""
    n_ctx, each = run.number("n_ctx"), e.given.kv_bytes_per_token
    stated = run.number("kv_required_bytes")
    if n_ctx and each:
        kv = n_ctx * each
        return f"; a context of {n_ctx:,.0f} takes {kv / 2**30:.1f} GiB of KV at 16 bits"
    if stated and stated > (run.number("weights_bytes") or float("inf")):
        return f"; the KV cache takes {stated / 2**30:.1f} GiB, more than the weights"
    contexts = sorted({number_of(f) or 0.0 for f in run.facts if f.name == "n_ctx"})
    shares = [number_of(f) or 0.0 for f in run.facts if f.name == "gpu_share"]
    if len(contexts) > 1 and len(set(shares)) > 1:
        moved = f"{contexts[0]:,.0f} to {contexts[-1]:,.0f}"
        return f"; the share moved when the context went from {moved}"
    return ""
