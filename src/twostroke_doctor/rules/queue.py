"""QUEUE, KV_FULL, PREEMPT, STATE_POOL: a request waits for a place, and for which."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from twostroke.advice import arithmetic, cures
from twostroke.record import WindowRecord
from twostroke_doctor.evidence import Evidence
from twostroke_doctor.finding import Finding
from twostroke_doctor.remedies import unpriced
from twostroke_doctor.rules.overload import overload_text
from twostroke_doctor.wait import seconds_in

KV_FULL_USAGE = 0.9
_STATE_FULL_USAGE = 0.99


def kv_full(e: Evidence) -> Finding | None:
    """KV_FULL: requests wait, or the next one must, and the KV cache is full."""
    full = [w for w in e.windows if _is_kv_full(w)]
    if not full or _preemptions(e):
        return None
    waiting = _waiting_in(full)
    if waiting:
        says = f"{_waiting_text(waiting)}, and the KV cache is {_most_used(waiting):.1%} full"
    else:
        each = min(((w.kv_usage or 0.0) / w.running for w in full if w.running), default=0.0)
        if each <= 1 - _most_used(full):
            return None
        says = (
            f"the KV cache is {_most_used(full):.1%} full; one more request of the mean size "
            f"({each:.1%}) does not fit and waits"
        )
    return e.finding(
        "KV_FULL",
        says,
        share=_waiting_share(e.windows) if waiting else None,
        confidence="high" if waiting else "medium",
        shown=(waiting or full,),
        cures=(*unpriced("more_kv"), cures.less_queue(None)),
    )


def _preemptions(e: Evidence) -> int:
    stated = e.number("preemptions_total") or 0
    windows = max((w.preemptions or 0 for w in e.windows), default=0)
    return int(max(stated, windows, sum(r.preemptions or 0 for r in e.records)))


def preempt(e: Evidence) -> Finding | None:
    """PREEMPT: the engine says that it threw running requests out of the cache."""
    count = _preemptions(e)
    if not count:
        return None
    full = [w for w in e.windows if _is_kv_full(w) or w.preemptions]
    hit = [r for r in e.records if r.preemptions]
    stalled = seconds_in("stall", hit) or None
    waits = bool(_waiting_in(full)) and stalled is None
    return e.finding(
        "PREEMPT",
        f"{count} preemptions: requests were thrown out of the KV cache and computed again",
        share=_waiting_share(e.windows) if waits else None,
        seconds=stalled,
        confidence="high",
        shown=(e.fact("preemptions_total"), e.fact("preemption_mode"), full, hit),
        cures=unpriced("fewer_sequences", "more_kv"),
    )


def state_pool(e: Evidence) -> Finding | None:
    """STATE_POOL: requests wait while the KV cache has room and the recurrent state has none."""
    full = [w for w in _waiting_in(e.windows) if _is_state_full(w) and not _is_kv_full(w)]
    if not full:
        return None
    return e.finding(
        "STATE_POOL",
        f"{_waiting_text(full)}: the recurrent-state pool is full while the KV cache is only "
        f"{_most_used(full):.0%} used",
        share=_waiting_share(e.windows),
        confidence="high",
        shown=(full,),
        cures=(*unpriced("more_state"), cures.less_queue(None)),
    )


def queue(e: Evidence) -> Finding | None:
    """QUEUE: measured queue time, waiting requests, or more arrivals than completions."""
    return _queue_of_records(e) or _queue_of_windows(e) or _queue_of_benchmarks(e)


def _queue_of_records(e: Evidence) -> Finding | None:
    seconds = e.phase_s("queue")
    if not e.is_enough("QUEUE", seconds):
        return None
    is_alone = len(e.records) == 1 and not _waiting_in(e.windows)
    says = f"requests wait {seconds:.2f} s in the queue before any work starts"
    if is_alone:
        says += "; where nothing else was running, compiling a grammar or schema waits here too"
    return e.finding(
        "QUEUE",
        says,
        seconds=seconds,
        confidence="medium" if is_alone else "high",
        shown=([r for r in e.records if r.phases.queue_s],),
        cures=(cures.less_queue(seconds),),
        missing=("how many requests ran at the time",) if is_alone else (),
    )


def _queue_of_windows(e: Evidence) -> Finding | None:
    waiting = [w for w in _waiting_in(e.windows) if not _is_kv_full(w) and not _is_state_full(w)]
    if not waiting:
        return None
    return e.finding(
        "QUEUE",
        f"{_waiting_text(waiting)}, though the KV cache has room: arrivals exceed capacity",
        share=_waiting_share(e.windows),
        confidence="high",
        shown=(waiting,),
        cures=(cures.less_queue(None),),
    )


def _queue_of_benchmarks(e: Evidence) -> Finding | None:
    for bench in e.benchmarks:
        says = overload_text(bench.facts)
        if says is None:
            continue
        ttft = bench.facts.get("mean_ttft_s")
        return e.finding(
            "QUEUE",
            says,
            seconds=ttft if isinstance(ttft, float) else None,
            is_in_wait=False,
            confidence="high",
            shown=([bench],),
            cures=(*unpriced("finite_rate"), cures.less_queue(None)),
        )
    return None


def _waiting_in(windows: Iterable[WindowRecord]) -> list[WindowRecord]:
    """Return the windows in which requests wait."""
    return [w for w in windows if w.waiting]


def _is_kv_full(window: WindowRecord) -> bool:
    """Whether the KV cache has no room for more requests."""
    return (window.kv_usage or 0.0) >= KV_FULL_USAGE


def _is_state_full(window: WindowRecord) -> bool:
    """Whether the pool of recurrent state has no room for more requests."""
    usage = window.facts.get("mamba_usage")
    return isinstance(usage, float) and usage >= _STATE_FULL_USAGE


def _most_used(windows: Iterable[WindowRecord]) -> float:
    """Return the largest share of the KV cache in use."""
    return max(w.kv_usage or 0.0 for w in windows)


def _waiting_share(windows: Iterable[WindowRecord]) -> float | None:
    """Share of their stay that requests wait, by Little's law over the windows with requests."""
    busy = [w for w in windows if w.running is not None and w.waiting is not None]
    running, waiting = (sum(getattr(w, k) for w in busy) for k in ("running", "waiting"))
    return arithmetic.queue_share(running, waiting)


def _waiting_text(windows: Sequence[WindowRecord]) -> str:
    """Say how many requests wait and run in the mean."""
    running = sum(w.running or 0 for w in windows) / len(windows)
    waiting = sum(w.waiting or 0 for w in windows) / len(windows)
    return f"{waiting:.4g} requests wait while {running:.4g} run"
