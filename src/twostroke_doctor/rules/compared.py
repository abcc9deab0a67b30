"""What two set-ups show side by side: KV type, drafting, threads, number of devices."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

from twostroke.advice import cure
from twostroke.record import RequestRecord
from twostroke_doctor.evidence import Evidence, fact_lines, model_seconds, record_lines
from twostroke_doctor.finding import Finding
from twostroke_doctor.runs import Run, number_of

_SLOWER = 1.1  # a ratio of rates that is no noise
_MUCH_SLOWER = 2.0
_BUSY = 0.25  # of the machine's CPU
_SIXTEEN_BIT = ("f16", "bf16", "f32", "fp16")
_BILLIONS = re.compile(r"[:\-_](\d{1,4}(?:\.\d{1,2})?)b\b")


def _decode_of(records: list[RequestRecord]) -> float:
    return sum(r.phases.decode_s or 0.0 for r in records)


def _compared(
    e: Evidence, *, code: str, slow: Run, fast: Run, says: str, what: str, key: str
) -> Finding | None:
    """A finding from two runs: the slow one's work at the fast one's rates."""
    saved = sum(_saved(r, fast) for r in slow.records)
    seconds = _decode_of(slow.records)
    return Finding(
        code=code,
        says=says,
        phase="decode",
        share=e.share(seconds),
        seconds=seconds or None,
        confidence="high" if min(len(slow.records), len(fast.records)) >= 3 else "medium",
        evidence=record_lines([*slow.records[:2], *fast.records[:2]]),
        cures=(cure.exact(key, what, saved, f"the same tokens at the speed of {fast.name}"),),
    )


def _saved(record: RequestRecord, fast: Run) -> float:
    saved, rates = 0.0, (fast.prefill_tok_s(), fast.decode_tok_s())
    if rates[0] and record.prompt.new and record.phases.prefill_s:
        saved += max(record.phases.prefill_s - record.prompt.new / rates[0], 0.0)
    if rates[1] and record.output.total and record.phases.decode_s:
        saved += max(record.phases.decode_s - (record.output.total - 1) / rates[1], 0.0)
    return saved


def _faster_pair(runs: list[Run], others: list[Run], least: float) -> tuple[Run, Run] | None:
    """Return (slow, fast) where a run of `others` decodes faster than one of `runs`."""
    for slow in runs:
        for fast in others:
            a, b = slow.decode_tok_s(), fast.decode_tok_s()
            if a is not None and b is not None and b >= least * a:
                return slow, fast
    return None


def kvq_fallback(e: Evidence) -> Finding | None:
    """KVQ_FALLBACK: slower with a quantised KV cache, or a small model slower than a large."""
    quantised = [r for r in e.runs if _is_quantised(r)]
    plain = [r for r in e.runs if not _is_quantised(r)]
    stated = [r for r in plain if r.fact("kv_type_k")]
    pair = _slower_prefill(quantised, stated) or _faster_pair(quantised, stated, 1.5)
    what = "Use 16-bit KV here, or a build whose kernels have this head size and KV type."
    if pair is not None:
        slow, fast = pair
        rates = [(r.prefill_tok_s(), r.decode_tok_s()) for r in (slow, fast)]
        says = (
            f"with {_kv_type(slow)} KV: {_pair(rates[0])}; with 16 bits: {_pair(rates[1])}. "
            "Attention has no fast kernel for the quantised cache"
        )
        found = _compared(
            e, code="KVQ_FALLBACK", slow=slow, fast=fast, says=says, what=what, key="f16_kv"
        )
        if found is not None:
            return _with_prefill(e, found, slow)
    return _smaller_is_slower(e, quantised, what)


def _with_prefill(e: Evidence, found: Finding, slow: Run) -> Finding:
    """Both phases run attention: count both."""
    explains = model_seconds(slow.records)
    seconds = sum(explains.values())
    facts = fact_lines([slow.fact("kv_type_k"), slow.fact("kv_type_v")])
    return replace(
        found,
        seconds=seconds,
        share=e.share(seconds),
        evidence=facts + found.evidence,
        explains=explains,
    )


def _is_quantised(run: Run) -> bool:
    return run.fact("kv_type_k") is not None and _kv_type(run) not in _SIXTEEN_BIT


def _kv_type(run: Run) -> str:
    fact = run.fact("kv_type_k")
    return str(fact.value).lower() if fact else ""


def _pair(rates: tuple[float | None, float | None]) -> str:
    names = zip(("prefill", "decode"), rates, strict=True)
    return ", ".join(f"{name} {rate:.4g} tok/s" for name, rate in names if rate is not None)


def _slower_prefill(runs: list[Run], others: list[Run]) -> tuple[Run, Run] | None:
    for slow in runs:
        for fast in others:
            a, b = slow.prefill_tok_s(), fast.prefill_tok_s()
            if a is not None and b is not None and b >= _MUCH_SLOWER * a:
                return slow, fast
    return None


def _smaller_is_slower(e: Evidence, quantised: list[Run], what: str) -> Finding | None:
    """Under one quantised KV type, the smaller of two models decodes slower."""
    by_size: dict[float, RequestRecord] = {}  # the fastest request of each size
    for record in (r for run in quantised for r in run.records if r.decode_tok_s):
        size = _billions(record)
        best = by_size.get(size) if size is not None else None
        if size is not None and (best is None or _rate(record) > _rate(best)):
            by_size[size] = record
    sized = sorted(by_size.items())
    for (small, slow), (large, fast) in pairwise(sized):
        a, b = _rate(slow), _rate(fast)
        if b < _SLOWER * a:
            continue
        explains = model_seconds([slow])
        seconds = sum(explains.values())
        return Finding(
            code="KVQ_FALLBACK",
            says=(
                f"with {_kv_type(quantised[0])} KV the {small:g}B model decodes at {a:.3g} "
                f"tok/s and the {large:g}B model at {b:.3g}: the small one's head size has no "
                "fast kernel"
            ),
            phase="decode",
            share=e.share(seconds),
            seconds=seconds,
            confidence="medium",
            evidence=fact_lines([quantised[0].fact("kv_type_k")]) + record_lines([slow, fast]),
            cures=(cure.unpredicted("f16_kv", what),),
            explains=explains,
        )
    return None


def _rate(record: RequestRecord) -> float:
    return record.decode_tok_s or 0.0


def _billions(record: RequestRecord) -> float | None:
    """Read the size out of a model's name: gemma3:4b is 4."""
    found = _BILLIONS.search((record.model or "").lower())
    return float(found.group(1)) if found else None


def spec_bad(e: Evidence) -> Finding | None:
    """SPEC_BAD: the same set-up is faster without drafting."""
    drafting = [r for r in e.runs if _acceptance(r) is not None]
    plain = [r for r in e.runs if _acceptance(r) is None and r.records]
    pair = _faster_pair(drafting, plain, 1.0)
    if pair is None:
        return None
    slow, fast = pair
    rates = (slow.decode_tok_s() or 0.0, fast.decode_tok_s() or 0.0)
    says = (
        f"with drafting {rates[0]:.3g} tok/s ({_acceptance(slow):.0%} accepted), without "
        f"{rates[1]:.3g}: it pays only above an accepted length of 1 + k * draft cost / target cost"
    )
    what = "Switch drafting off, or draft fewer tokens with a cheaper or better draft model."
    return _compared(
        e, code="SPEC_BAD", slow=slow, fast=fast, says=says, what=what, key="no_drafts"
    )


def _acceptance(run: Run) -> float | None:
    """Return the accepted share of a run's drafts, None where it does not draft."""
    drafted = sum(r.speculation.drafted or 0 for r in run.records)
    accepted = sum(r.speculation.accepted or 0 for r in run.records)
    if drafted:
        return accepted / drafted
    rates = [w.facts.get("draft_acceptance") for w in run.windows]
    known = [r for r in rates if isinstance(r, float)]
    return sum(known) / len(known) if known else None


def threads(e: Evidence) -> Finding | None:
    """THREADS: fewer threads are faster, or there are more than cores, or the cores are taken."""
    return _fewer_is_faster(e) or _more_than_cores(e) or _cores_taken(e)


def _fewer_is_faster(e: Evidence) -> Finding | None:
    counted = [(run, n) for run in e.runs if (n := run.number("threads"))]
    for slow, many in counted:
        for fast, few in counted:
            a, b = slow.decode_tok_s(), fast.decode_tok_s()
            if few >= many or a is None or b is None or b < _SLOWER * a:
                continue
            says = (
                f"{many:.0f} threads decode at {a:.3g} tok/s and {few:.0f} at {b:.3g}: more "
                "threads than free cores wait for each other"
            )
            what = f"Decode with {few:.0f} threads (--threads); prefill may keep more."
            return _compared(
                e, code="THREADS", slow=slow, fast=fast, says=says, what=what, key="fewer_threads"
            )
    return None


def _more_than_cores(e: Evidence) -> Finding | None:
    used, cores = e.number("threads"), e.given.threads
    seconds = e.phase_s("decode")
    if used is None or cores is None or used <= cores or not seconds:
        return None
    what = f"Decode with {cores} threads (--threads); prefill may keep more (--threads-batch)."
    return Finding(
        code="THREADS",
        says=f"{used:.0f} threads run on {cores} cores",
        phase="decode",
        share=e.share(seconds),
        seconds=seconds,
        confidence="medium",
        evidence=fact_lines([e.fact("threads"), e.fact("threads_available")]),
        cures=(cure.between("fewer_threads", what, 0.0, seconds, "at most the time of decode"),),
    )


def _cores_taken(e: Evidence) -> Finding | None:
    """Somebody else kept the machine busy while nothing was asked of the server."""
    busy = e.number("cpu_busy_share")
    explains = model_seconds(e.records)
    seconds = sum(explains.values())
    if busy is None or busy < _BUSY or not seconds:
        return None
    what = "Stop or move what takes the CPU, or give the server fewer threads than cores are free."
    high = seconds * min(busy, 1.0)
    return Finding(
        code="THREADS",
        says=(
            f"{busy:.0%} of this machine's CPU was taken by others before anything was asked: "
            "the server's threads share their cores"
        ),
        phase="decode" if e.phase_s("decode") >= e.phase_s("prefill") else "prefill",
        share=e.share(seconds),
        seconds=seconds,
        confidence="medium",
        evidence=fact_lines([e.fact("cpu_busy_share")]),
        cures=(cure.between("free_cores", what, 0.0, high, "at most the share that was taken"),),
        explains=explains,
    )


def comm(e: Evidence) -> Finding | None:
    """COMM: more devices, slower decode."""
    counted = [(run, _num_devices(run)) for run in e.runs]
    for slow, many in counted:
        for fast, few in counted:
            a, b = slow.decode_tok_s(), fast.decode_tok_s()
            if not 0 < few < many or a is None or b is None or b < _SLOWER * a:
                continue
            says = f"{many} devices decode at {a:.3g} tok/s and {few} at {b:.3g}"
            what = f"Use {few} devices where the model fits, or a faster link between them."
            return _compared(
                e, code="COMM", slow=slow, fast=fast, says=says, what=what, key="fewer_devices"
            )
    return None


def _num_devices(run: Run) -> int:
    labels = {f.label for f in run.facts if f.name == "model_buffer_bytes" and number_of(f)}
    return sum(1 for label in labels if label and "cpu" not in label.lower())
