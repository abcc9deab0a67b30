"""Causes that two set-ups show side by side: KV type, drafting, threads, number of devices."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

from twostroke.record import RequestRecord
from twostroke_doctor.evidence import Evidence, model_seconds
from twostroke_doctor.evidence_lines import lines_of
from twostroke_doctor.finding import Finding
from twostroke_doctor.remedies import at_most, unpriced
from twostroke_doctor.rules.pairs import Pair, compared, slower_pairs
from twostroke_doctor.runs import Run, number_of

_SLOWER = 1.1  # a ratio of rates that is no noise
_SLOWER_KV_DECODE = 1.5
_SLOWER_KV_PREFILL = 2.0
_BUSY = 0.25  # of the machine's CPU
_SIXTEEN_BIT = ("f16", "bf16", "f32", "fp16")
_BILLIONS = re.compile(r"[:\-_](\d{1,4}(?:\.\d{1,2})?)b\b")


def kvq_fallback(e: Evidence) -> Finding | None:
    """KVQ_FALLBACK: slower with a quantised KV cache, or a small model slower than a large."""
    quantised = [run for run in e.runs if _kv_type(run) not in (None, *_SIXTEEN_BIT)]
    plain = [run for run in e.runs if _kv_type(run) in _SIXTEEN_BIT]
    by_prefill = slower_pairs(quantised, plain, Run.prefill_tok_s, _SLOWER_KV_PREFILL)
    by_decode = slower_pairs(quantised, plain, Run.decode_tok_s, _SLOWER_KV_DECODE)
    pair = next(by_prefill, None) or next(by_decode, None)
    if pair is None:
        return _smaller_is_slower(e, quantised)
    slow = pair.slow
    says = (
        f"with {_kv_type(slow)} KV: {_rates_text(slow)}; with 16 bits: {_rates_text(pair.fast)}. "
        "Attention has no fast kernel for the quantised cache"
    )
    found = compared(e, "KVQ_FALLBACK", pair, says, "f16_kv")
    explains = model_seconds(slow.records)  # both phases run attention
    seconds = sum(explains.values())
    types = lines_of(slow.fact("kv_type_k"), slow.fact("kv_type_v"))
    return replace(
        found,
        seconds=seconds,
        share=e.share(seconds),
        explains=explains,
        evidence=types + found.evidence,
    )


def _kv_type(run: Run) -> str | None:
    fact = run.fact("kv_type_k")
    return str(fact.value).lower() if fact else None


def _rates_text(run: Run) -> str:
    rates = (("prefill", run.prefill_tok_s()), ("decode", run.decode_tok_s()))
    return ", ".join(f"{name} {rate:.4g} tok/s" for name, rate in rates if rate is not None)


def _smaller_is_slower(e: Evidence, quantised: list[Run]) -> Finding | None:
    """Under one quantised KV type, the smaller of two models decodes slower."""
    fastest: dict[float, RequestRecord] = {}  # of each size
    for record in (r for run in quantised for r in run.records if r.decode_tok_s):
        size = _billions(record)
        if size is not None and _rate(record) > _rate(fastest.get(size)):
            fastest[size] = record
    for (small, slow), (large, fast) in pairwise(sorted(fastest.items())):
        if _rate(fast) < _SLOWER * _rate(slow):
            continue
        return e.finding(
            "KVQ_FALLBACK",
            f"with {_kv_type(quantised[0])} KV the {small:g}B model decodes at {_rate(slow):.3g} "
            f"tok/s and the {large:g}B model at {_rate(fast):.3g}: the small one's head size has "
            "no fast kernel",
            explains=model_seconds([slow]),
            shown=(quantised[0].fact("kv_type_k"), [slow, fast]),
            cures=unpriced("f16_kv"),
        )
    return None


def _rate(record: RequestRecord | None) -> float:
    return (record.decode_tok_s if record else None) or 0.0


def _billions(record: RequestRecord) -> float | None:
    """Read the size in a model's name: gemma3:4b is 4."""
    found = _BILLIONS.search((record.model or "").lower())
    return float(found.group(1)) if found else None


def spec_bad(e: Evidence) -> Finding | None:
    """SPEC_BAD: the same set-up is faster without drafting."""
    drafting = [run for run in e.runs if _acceptance(run) is not None]
    plain = [run for run in e.runs if _acceptance(run) is None and run.records]
    pair = next(slower_pairs(drafting, plain, Run.decode_tok_s, 1.0), None)
    if pair is None:
        return None
    says = (
        f"with drafting {pair.slow_rate:.3g} tok/s ({_acceptance(pair.slow):.0%} accepted), "
        f"without {pair.fast_rate:.3g}: it pays only above an accepted length of 1 + k * draft "
        "cost / target cost"
    )
    return compared(e, "SPEC_BAD", pair, says, "no_drafts")


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
    found = _more_is_slower(e, lambda run: run.number("threads") or 0)
    if found is None:
        return None
    pair, many, few = found
    says = (
        f"{many:.0f} threads decode at {pair.slow_rate:.3g} tok/s and {few:.0f} at "
        f"{pair.fast_rate:.3g}: more threads than free cores wait for each other"
    )
    return compared(e, "THREADS", pair, says, "fewer_threads", few)


def comm(e: Evidence) -> Finding | None:
    """COMM: more devices, slower decode."""
    found = _more_is_slower(e, _num_devices)
    if found is None:
        return None
    pair, many, few = found
    says = f"{many} devices decode at {pair.slow_rate:.3g} tok/s and {few} at {pair.fast_rate:.3g}"
    return compared(e, "COMM", pair, says, "fewer_devices", few)


def _more_is_slower(e: Evidence, count: Callable[[Run], float]) -> tuple[Pair, float, float] | None:
    """Return the first pair whose slow run has more of something, and both counts of it."""
    counted = [run for run in e.runs if count(run)]
    for pair in slower_pairs(counted, counted, Run.decode_tok_s, _SLOWER):
        many, few = count(pair.slow), count(pair.fast)
        if few < many:
            return pair, many, few
    return None


def _num_devices(run: Run) -> int:
    labels = {f.label for f in run.facts if f.name == "model_buffer_bytes" and number_of(f)}
    return sum(1 for label in labels if label and "cpu" not in label.lower())


def _more_than_cores(e: Evidence) -> Finding | None:
    used, cores = e.number("threads"), e.given.threads
    seconds = e.phase_s("decode")
    if used is None or cores is None or used <= cores or not seconds:
        return None
    return e.finding(
        "THREADS",
        f"{used:.0f} threads run on {cores} cores",
        seconds=seconds,
        shown=(e.fact("threads"), e.fact("threads_available")),
        cures=(at_most("fewer_threads", seconds, "the time of decode", cores),),
    )


def _cores_taken(e: Evidence) -> Finding | None:
    """Other processes kept the machine busy while nothing was asked of the server."""
    busy = e.number("cpu_busy_share")
    explains = model_seconds(e.records)
    if busy is None or busy < _BUSY or not explains:
        return None
    most = sum(explains.values()) * min(busy, 1.0)
    return e.finding(
        "THREADS",
        f"{busy:.0%} of this machine's CPU was taken by others before anything was asked: "
        "the server's threads share their cores",
        phase=e.larger_phase(),
        explains=explains,
        shown=(e.fact("cpu_busy_share"),),
        cures=(at_most("free_cores", most, "the share that was taken"),),
    )
