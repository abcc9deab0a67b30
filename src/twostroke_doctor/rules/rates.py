"""What a run reads and computes a second, where sizes are known; shared by the rules."""

from __future__ import annotations

from twostroke.advice import arithmetic
from twostroke.record import RequestRecord
from twostroke_doctor.evidence import Evidence
from twostroke_doctor.runs import Run, has_decode_rate


def read_bytes(e: Evidence) -> float | None:
    """Return the weight bytes that one token reads: of a model of experts only the active ones."""
    weights, given = e.given.weights_bytes, e.given
    if weights is None:
        return None
    if given.params and given.active_params:
        return weights * given.active_params / given.params
    return weights


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


def decode_utilisation(e: Evidence) -> tuple[float, float, float] | None:
    """Return (share of the bandwidth, floor of a token in seconds, seconds a token), or None.

    By the user's sizes where given, else by the ceilings that our own records carry.
    """
    timed = [r for r in e.records if has_decode_rate(r) and r.decode_tok_s]
    if not timed:
        return None
    steps = sum((r.output.total or 1) - 1 for r in timed)
    seconds = sum(((r.output.total or 1) - 1) / (r.decode_tok_s or 1) for r in timed)
    each = seconds / steps
    size, bandwidth = read_bytes(e), e.given.bandwidth
    if size is not None and bandwidth is not None:
        contexts = [c for r in timed if (c := context_of(r)) is not None]
        mean = sum(contexts) / len(contexts) if contexts else 0.0
        kv = mean * (e.given.kv_bytes_per_token or 0)
        floor = arithmetic.decode_floor_s(size, kv, bandwidth)
        return floor / each, floor, each
    ceilings = [r.decode_ceiling_tok_s for r in timed if r.decode_ceiling_tok_s]
    if len(ceilings) < len(timed):
        return None
    floor = sum(1 / c for c in ceilings) / len(ceilings)
    return floor / each, floor, each


def prefill_utilisation(e: Evidence) -> tuple[float, float, float] | None:
    """Return (share of the arithmetic, operations, least seconds) of the prefills, or None."""
    given = e.given
    timed = [r for r in e.records if r.phases.prefill_s and (r.prompt.new or r.prompt.total)]
    params = given.active_params or given.params
    if not timed or params is None or given.flops is None:
        return _own_prefill(timed)
    seconds = sum(r.phases.prefill_s or 0.0 for r in timed)
    flop = sum(
        arithmetic.prefill_flop(
            params,
            r.prompt.new if r.prompt.new is not None else r.prompt.total or 0,
            r.prompt.cached or 0,
            layers=given.layers,
            width=given.width,
        )
        for r in timed
    )
    floor = flop / given.flops
    return floor / seconds, flop, floor


def _own_prefill(timed: list[RequestRecord]) -> tuple[float, float, float] | None:
    """Take the share of the peak that our own records carry."""
    own = [r for r in timed if r.prefill_mfu is not None]
    if not own or len(own) < len(timed):
        return None
    seconds = sum(r.phases.prefill_s or 0.0 for r in own)
    floor = sum((r.prefill_mfu or 0.0) * (r.phases.prefill_s or 0.0) for r in own)
    return floor / seconds, 0.0, floor
