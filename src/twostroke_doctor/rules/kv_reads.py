"""DECODE_KV: reading the KV cache takes over from reading the weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from twostroke.advice import arithmetic
from twostroke.record import WindowRecord
from twostroke_doctor.evidence import Evidence
from twostroke_doctor.finding import Finding
from twostroke_doctor.remedies import at_most, unpriced
from twostroke_doctor.rules.queue import KV_FULL_USAGE
from twostroke_doctor.rules.rates import context_of
from twostroke_doctor.runs import Run, has_decode_rate

_MUCH_SLOWER = 2.0
_FULLER = 1.5
_CONTEXT_RATIO = 2.0
_TPOT_RATIO = 1.3
_MIN_KV_SHARE = 0.3


def decode_kv(e: Evidence) -> Finding | None:
    """DECODE_KV: a token costs more the longer the context, or KV outweighs the weights."""
    for run in e.runs:
        found = _slope(e, run) or _falling(e, run)
        if found is not None:
            return found
    return _kv_over_weights(e)


def _slope(e: Evidence, run: Run) -> Finding | None:
    """The time of a token grows with the context of its request."""
    timed = [r for r in run.records if has_decode_rate(r) and context_of(r)]
    contexts = [float(context_of(r) or 0) for r in timed]
    each = [1 / (r.decode_tok_s or 1) for r in timed]
    if len(timed) < 2 or max(contexts) < _CONTEXT_RATIO * min(contexts):
        return None
    fit = arithmetic.fit_line(contexts, each)
    near, far = (each[contexts.index(pick(contexts))] for pick in (min, max))
    if fit is None or fit[1] <= 0 or far < _TPOT_RATIO * near:
        return None
    slope = fit[1]
    tokens = [(r.output.total or 1) - 1 for r in timed]
    seconds = sum(min(slope * c, t) * n for c, t, n in zip(contexts, each, tokens, strict=True))
    if not e.is_enough("DECODE_KV", seconds) or slope * max(contexts) < _MIN_KV_SHARE * far:
        return None
    says = (
        f"a token takes {near * 1000:.1f} ms at {min(contexts):,.0f} tokens of context and "
        f"{far * 1000:.1f} ms at {max(contexts):,.0f}: {slope * 1e6:.2f} ms more for each 1,000"
    )
    if e.given.kv_bytes_per_token:
        says += f", which reads KV at {e.given.kv_bytes_per_token / slope / 1e9:.0f} GB/s"
    half = at_most("half_kv", seconds / 2, "half of the time that grows with the context")
    return e.finding(
        "DECODE_KV",
        says,
        seconds=seconds,
        confidence="high" if len(timed) > 2 else "medium",
        shown=(timed,),
        cures=(half, *unpriced("less_kv")),
    )


def _falling(e: Evidence, run: Run) -> Finding | None:
    """The same number of running requests, less output, more KV, and no request thrown out."""
    known = [w for w in run.windows if w.running and w.output_tok_s and w.kv_usage is not None]
    if any(w.preemptions or w.waiting for w in known) or e.number("preemptions_total"):
        return None
    for fast, slow in _fastest_and_slowest(known):
        high, low = fast.output_tok_s or 0.0, slow.output_tok_s or 0.0
        before, after = fast.kv_usage or 0.0, slow.kv_usage or 0.0
        if high < _MUCH_SLOWER * low or not before * _FULLER <= after < KV_FULL_USAGE:
            continue
        return e.finding(
            "DECODE_KV",
            f"{fast.running} requests give {high:,.0f} tok/s at {before:.0%} of the KV cache and "
            f"{low:,.0f} at {after:.0%}, with nobody waiting or thrown out: reading KV takes over",
            shown=([fast, slow],),
            cures=unpriced("less_kv"),
        )
    return None


def _fastest_and_slowest(
    windows: Sequence[WindowRecord],
) -> Iterator[tuple[WindowRecord, WindowRecord]]:
    """Pair the windows with most and least output among those with as many running requests."""
    groups: dict[int, list[WindowRecord]] = {}
    for window in windows:
        groups.setdefault(window.running or 0, []).append(window)
    for group in groups.values():
        rates = [w.output_tok_s or 0.0 for w in group]
        yield group[rates.index(max(rates))], group[rates.index(min(rates))]


def _kv_over_weights(e: Evidence) -> Finding | None:
    """The tokens in the cache weigh more than the weights: each step reads them all."""
    size, each, capacity = e.given.read_bytes, e.given.kv_bytes_per_token, e.number("kv_tokens")
    busy = [w for w in e.windows if w.kv_usage and w.running]
    if not (size and each and capacity and busy):
        return None
    top = max(busy, key=lambda w: w.kv_usage or 0.0)
    usage = top.kv_usage or 0.0
    kv = usage * capacity * each
    if kv <= size or usage >= KV_FULL_USAGE or top.waiting:
        return None
    return e.finding(
        "DECODE_KV",
        f"each step reads {kv / 1e9:.1f} GB of KV and {size / 1e9:.1f} GB of weights",
        confidence="high",
        shown=([top], e.fact("kv_tokens")),
        cures=unpriced("less_kv"),
    )
