"""Bytes read and operations computed a second, where sizes are known; shared by the rules."""

from __future__ import annotations

from typing import NamedTuple

from twostroke.advice import arithmetic
from twostroke.predict.formulas import prefill_flop
from twostroke.record import RequestRecord
from twostroke_doctor.evidence import Evidence
from twostroke_doctor.runs import Run, has_decode_rate
from twostroke_doctor.wait import seconds_in

HEALTHY = 0.6  # share of a hardware limit from which on a phase is as fast as it gets


class DecodeUse(NamedTuple):
    """How decode uses the bandwidth. share: 0 to 1. Units: seconds a token, least and measured."""

    share: float
    floor_s: float
    token_s: float


class PrefillUse(NamedTuple):
    """How prefill uses the arithmetic. share: 0 to 1. flop None: only its share is known."""

    share: float
    flop: float | None
    floor_s: float


def context_of(record: RequestRecord) -> int | None:
    """Return the tokens in the cache at the end of a request."""
    if record.ctx_end is not None:
        return record.ctx_end
    prompt = record.prompt.total if record.prompt.total is not None else record.prompt.new
    return None if prompt is None else prompt + (record.output.total or 0)


def _passes_per_s(run: Run) -> float | None:
    """Return decode tokens a second; where prefill is mixed in, an upper bound of it.

    A token of the prompt costs at most a pass over the weights, so every token counts as one.
    """
    rate = run.decode_tok_s()
    if rate is not None:
        return rate
    for record in run.records:
        passes = context_of(record)
        if record.output.total and passes and record.e2e_s:
            return passes / record.e2e_s
    return None


def read_rate(e: Evidence, run: Run) -> float | None:
    """Return the bytes of weights read a second, at most."""
    size, rate = e.given.weights_bytes, _passes_per_s(run)
    return None if size is None or rate is None else size * rate


def decode_use(e: Evidence) -> DecodeUse | None:
    """Return how decode uses the bandwidth, None where sizes or times are unknown.

    By the user's sizes where given, else by the ceilings that our own records carry.
    """
    timed = [r for r in e.records if has_decode_rate(r) and r.decode_tok_s]
    if not timed:
        return None
    steps = [(r.output.total or 1) - 1 for r in timed]
    seconds = sum(n / (r.decode_tok_s or 1) for n, r in zip(steps, timed, strict=True))
    token_s = seconds / sum(steps)
    size, bandwidth = e.given.read_bytes, e.given.bandwidth
    if size is not None and bandwidth is not None:
        contexts = [c for r in timed if (c := context_of(r)) is not None]
        mean = sum(contexts) / len(contexts) if contexts else 0.0
        kv = mean * (e.given.kv_bytes_per_token or 0)
        floor = arithmetic.decode_floor_s(size, kv, bandwidth)
        return DecodeUse(floor / token_s, floor, token_s)
    ceilings = [r.decode_ceiling_tok_s for r in timed if r.decode_ceiling_tok_s]
    if len(ceilings) < len(timed):
        return None
    floor = sum(1 / c for c in ceilings) / len(ceilings)
    return DecodeUse(floor / token_s, floor, token_s)


def prefill_use(e: Evidence) -> PrefillUse | None:
    """Return how the prefills use the arithmetic, None where sizes or times are unknown."""
    given = e.given
    timed = [r for r in e.records if r.phases.prefill_s and (r.prompt.new or r.prompt.total)]
    params = given.active_params or given.params
    if not timed or params is None or given.flops is None:
        return _own_prefill_use(timed)
    flop = sum(
        prefill_flop(
            params,
            given.attention_width,
            r.prompt.new if r.prompt.new is not None else r.prompt.total or 0,
            r.prompt.cached or 0,
        )
        for r in timed
    )
    floor = flop / given.flops
    return PrefillUse(floor / seconds_in("prefill", timed), flop, floor)


def _own_prefill_use(timed: list[RequestRecord]) -> PrefillUse | None:
    """Take the share of the peak that our own records carry."""
    shares = [r.prefill_mfu for r in timed if r.prefill_mfu is not None]
    if not timed or len(shares) < len(timed):
        return None
    floor = sum(m * (r.phases.prefill_s or 0.0) for m, r in zip(shares, timed, strict=True))
    return PrefillUse(floor / seconds_in("prefill", timed), None, floor)
