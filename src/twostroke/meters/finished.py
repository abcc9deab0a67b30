"""The record of a request that has ended, from its account and its last event."""

from __future__ import annotations

from array import array
from itertools import pairwise
from typing import Any

from twostroke.events import Finished
from twostroke.meters.account import Account, PhaseSum
from twostroke.record import (
    MIN_TOKENS_FOR_PREFILL_RATE,
    CacheOutcome,
    InterTokenLatency,
    Meter,
    OutputTokens,
    PhaseTimes,
    PromptTokens,
    RequestRecord,
)


def record_of(
    account: Account, event: Finished, *, tail_s: float, model: str | None, build: str | None
) -> RequestRecord:
    """Return the record of a request whose last event is `event`.

    Units: tail_s in seconds, from the last token to the end.
    """
    arrived, admitted = account.arrived, account.admitted
    prefill, decode = account.prefill, account.decode
    t_arrival_s = arrived.t_s - (arrived.load_s or 0.0) - (arrived.init_s or 0.0)
    times = account.token_times_s
    return RequestRecord(
        id=event.request_id,
        t_arrival_s=t_arrival_s,
        model=model,
        build=build,
        phases=_phases(account, tail_s),
        e2e_s=event.t_s - t_arrival_s,
        mixed_s=account.mixed_s,
        prompt=_prompt(account),
        output=OutputTokens(total=_num_output(account, event)),
        chunks=prefill.num_steps,
        steps=decode.num_steps,
        preemptions=account.num_preemptions,
        ttft_any_s=times[0] - t_arrival_s if times else None,
        tpot_s=_tpot_s(times),
        itl=_inter_token(times),
        prefill_tok_s=_prefill_rate(prefill),
        decode_tok_s=_decode_rate(decode, len(times)),
        tokens_per_step=decode.num_tokens / decode.num_steps if decode.num_steps else None,
        batch_mean=account.batch_sum / decode.num_steps if decode.num_steps else None,
        ctx_end=event.context_len,
        kv_bytes=event.kv_bytes,
        **_beside_peaks("prefill", prefill),
        **_beside_peaks("decode", decode),
        cache=admitted.cache if admitted is not None else CacheOutcome(),
        finish=event.reason.value,
        meter=Meter(flags=("cold",) if account.is_cold else ()),
    )


def _beside_peaks(phase: str, sums: PhaseSum) -> dict[str, Any]:
    """Return a phase's figures beside this machine's peaks and beside its prediction."""
    return {
        f"{phase}_mfu": sums.share(sums.arithmetic_s),
        f"{phase}_mbu": sums.share(sums.traffic_s),
        f"{phase}_ceiling_tok_s": sums.ceiling_tok_s,
        f"predicted_{phase}_s": sums.predicted_s if sums.num_steps else None,
        f"{phase}_error": sums.error,
    }


def _phases(account: Account, tail_s: float) -> PhaseTimes:
    return PhaseTimes(
        queue_s=account.queue_s,
        load_s=account.arrived.load_s,
        init_s=account.arrived.init_s,
        cache_s=account.cache_s,
        prefill_s=account.prefill.seconds,
        stall_s=account.stall_s,
        decode_s=account.decode.seconds,
        tail_s=tail_s,
    )


def _prompt(account: Account) -> PromptTokens:
    total, admitted = account.arrived.num_prompt_tokens, account.admitted
    if admitted is None:
        return PromptTokens(total=total)
    cached = admitted.num_cached_tokens
    return PromptTokens(total=total, cached=cached, new=total - cached)


def _num_output(account: Account, event: Finished) -> int:
    """Return the output tokens that were kept; a stop string cuts off generated ones."""
    if event.num_output_tokens is not None:
        return event.num_output_tokens
    return len(account.token_times_s)


def _tpot_s(times_s: array[float]) -> float | None:
    """Return the mean time per output token after the first; None under two tokens."""
    if len(times_s) < 2:
        return None
    return (times_s[-1] - times_s[0]) / (len(times_s) - 1)


def _decode_rate(decode: PhaseSum, num_generated: int) -> float | None:
    """Return (output - 1) / decode time: the first token belongs to prefill."""
    if num_generated < 2 or not decode.seconds:
        return None
    return (num_generated - 1) / decode.seconds


def _prefill_rate(prefill: PhaseSum) -> float | None:
    if prefill.num_tokens < MIN_TOKENS_FOR_PREFILL_RATE or prefill.seconds <= 0:
        return None
    return prefill.num_tokens / prefill.seconds


def _inter_token(times_s: array[float]) -> InterTokenLatency:
    """Return percentiles by nearest rank."""
    gaps = sorted(b - a for a, b in pairwise(times_s))
    if not gaps:
        return InterTokenLatency()

    def rank(share: float) -> float:
        return gaps[max(-(-int(share * 100) * len(gaps) // 100) - 1, 0)]

    return InterTokenLatency(p50_s=rank(0.50), p95_s=rank(0.95), max_s=gaps[-1])
