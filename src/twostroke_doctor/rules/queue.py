"""QUEUE, KV_FULL, PREEMPT, STATE_POOL: a request waits for a place, and for which."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from twostroke.advice import arithmetic, cure, cures
from twostroke.record import WindowRecord
from twostroke_doctor.evidence import Evidence, fact_lines, record_lines, window_lines
from twostroke_doctor.finding import Finding

MIN_QUEUE_SHARE = 0.2
KV_FULL_USAGE = 0.9
STATE_FULL_USAGE = 0.99
_OVERLOAD = 1.05  # offered over completed rate of a benchmark
_STARVED = 10.0  # time to the first token over the time that its prompt takes at the run's rate

_MORE_KV = cure.unpredicted(
    "more_kv",
    "Make room for KV: 8-bit KV, a shorter maximum length, more memory for the cache, replicas.",
)
_FEWER = cure.unpredicted("fewer_sequences", "Admit fewer requests at once (max_num_seqs).")


def _waiting(windows: Iterable[WindowRecord]) -> list[WindowRecord]:
    return [w for w in windows if w.waiting]


def _window_share(windows: Sequence[WindowRecord]) -> float | None:
    """Share of their stay that requests wait, by Little's law over the windows with requests."""
    busy = [w for w in windows if w.running is not None and w.waiting is not None]
    running, waiting = (sum(getattr(w, k) for w in busy) for k in ("running", "waiting"))
    return arithmetic.queue_share(running, waiting)


def _says_waiting(windows: Sequence[WindowRecord]) -> str:
    running = sum(w.running or 0 for w in windows) / len(windows)
    waiting = sum(w.waiting or 0 for w in windows) / len(windows)
    return f"{waiting:.4g} requests wait while {running:.4g} run"


def _is_kv_full(window: WindowRecord) -> bool:
    return (window.kv_usage or 0.0) >= KV_FULL_USAGE


def _state_usage(window: WindowRecord) -> float:
    usage = window.facts.get("mamba_usage")
    return usage if isinstance(usage, float) else 0.0


def kv_full(e: Evidence) -> Finding | None:
    """KV_FULL: requests wait, or the next one must, and the KV cache is full."""
    full = [w for w in e.windows if _is_kv_full(w)]
    if not full or _preemptions(e):
        return None
    waiting = _waiting(full)
    if waiting:
        says = f"{_says_waiting(waiting)}, and the KV cache is {_usage(waiting):.1%} full"
        share, confidence = _window_share(e.windows), "high"
    else:
        each = [(w.kv_usage or 0.0) / w.running for w in full if w.running]
        if not each or min(each) <= 1 - _usage(full):
            return None
        says = (
            f"the KV cache is {_usage(full):.1%} full; one more request of the mean size "
            f"({min(each):.1%}) does not fit and waits"
        )
        share, confidence = None, "medium"
    return Finding(
        code="KV_FULL",
        says=says,
        phase="queue",
        share=share,
        confidence=confidence,
        evidence=window_lines(waiting or full),
        cures=(_MORE_KV, cures.less_queue(None)),
    )


def _usage(windows: Sequence[WindowRecord]) -> float:
    return max(w.kv_usage or 0.0 for w in windows)


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
    share = _window_share(e.windows) if _waiting(full) else None
    stalled = sum(r.phases.stall_s or 0.0 for r in hit)
    return Finding(
        code="PREEMPT",
        says=f"{count} preemptions: requests were thrown out of the KV cache and computed again",
        phase="queue",
        share=share if not stalled else e.share(stalled),
        seconds=stalled or None,
        confidence="high",
        evidence=(
            *fact_lines([e.fact("preemptions_total"), e.fact("preemption_mode")]),
            *window_lines(full),
            *record_lines(hit),
        ),
        cures=(_FEWER, _MORE_KV),
    )


def state_pool(e: Evidence) -> Finding | None:
    """STATE_POOL: requests wait while the KV cache has room and the recurrent state has none."""
    full = [w for w in _waiting(e.windows) if _state_usage(w) >= STATE_FULL_USAGE]
    full = [w for w in full if not _is_kv_full(w)]
    if not full:
        return None
    usage = max(w.kv_usage or 0.0 for w in full)
    return Finding(
        code="STATE_POOL",
        says=(
            f"{_says_waiting(full)}: the recurrent-state pool is full while the KV cache is only "
            f"{usage:.0%} used"
        ),
        phase="queue",
        share=_window_share(e.windows),
        confidence="high",
        evidence=window_lines(full),
        cures=(
            cure.unpredicted(
                "more_state", "Give the state pool more memory (mamba ratio), the KV cache less."
            ),
            cures.less_queue(None),
        ),
    )


def queue(e: Evidence) -> Finding | None:
    """QUEUE: measured queue time, waiting requests, or more arrivals than completions."""
    return _queue_of_records(e) or _queue_of_windows(e) or _queue_of_benchmarks(e)


def _queue_of_records(e: Evidence) -> Finding | None:
    seconds = e.phase_s("queue")
    share = e.share(seconds)
    if share is None or share < MIN_QUEUE_SHARE:
        return None
    hit = [r for r in e.records if r.phases.queue_s]
    alone = len(e.records) == 1 and not _waiting(e.windows)
    says = f"requests wait {seconds:.2f} s in the queue before any work starts"
    if alone:
        says += "; where nothing else was running, compiling a grammar or schema waits here too"
    return Finding(
        code="QUEUE",
        says=says,
        phase="queue",
        share=share,
        seconds=seconds,
        confidence="medium" if alone else "high",
        evidence=record_lines(hit),
        cures=(cures.less_queue(seconds),),
        missing=("how many requests ran at the time",) if alone else (),
    )


def _queue_of_windows(e: Evidence) -> Finding | None:
    waiting = [w for w in _waiting(e.windows) if not _is_kv_full(w)]
    waiting = [w for w in waiting if _state_usage(w) < STATE_FULL_USAGE]
    if not waiting:
        return None
    return Finding(
        code="QUEUE",
        says=f"{_says_waiting(waiting)}, though the KV cache has room: arrivals exceed capacity",
        phase="queue",
        share=_window_share(e.windows),
        confidence="high",
        evidence=window_lines(waiting),
        cures=(cures.less_queue(None),),
    )


def _queue_of_benchmarks(e: Evidence) -> Finding | None:
    for bench in e.benchmarks:
        facts = bench.facts
        says = _overload(facts) or _starved(facts)
        if says is None:
            continue
        ttft = facts.get("mean_ttft_s")
        return Finding(
            code="QUEUE",
            says=says,
            phase="queue",
            seconds=ttft if isinstance(ttft, float) else None,
            confidence="high",
            evidence=window_lines([bench]),
            cures=(
                cure.unpredicted(
                    "finite_rate",
                    "Measure at a rate below capacity, or with a fixed number of requests at once.",
                ),
                cures.less_queue(None),
            ),
        )
    return None


def _overload(facts: dict[str, float | str]) -> str | None:
    offered, done = facts.get("request_rate"), _completed(facts)
    if offered == "inf" and (facts.get("successful_requests") or 0) != 1:
        count = facts.get("successful_requests")
        many = f"{count:.0f} requests" if isinstance(count, float) else "all requests"
        return f"{many} were sent at once: the time to the first token is their queue"
    if isinstance(offered, float) and done is not None and offered > _OVERLOAD * done:
        return (
            f"{offered:g} requests a second arrive and {done:g} are completed: the queue grows, "
            "and the time to the first token with it"
        )
    return None


def _completed(facts: dict[str, float | str]) -> float | None:
    """Return requests completed a second, computed rather than printed where possible."""
    count, seconds = facts.get("successful_requests"), facts.get("duration_s")
    if isinstance(count, float) and isinstance(seconds, float) and seconds > 0:
        return count / seconds
    printed = facts.get("requests_per_s")
    return printed if isinstance(printed, float) else None


def _starved(facts: dict[str, float | str]) -> str | None:
    """The first token takes far longer than its prompt does at the rate of the whole run."""
    names = ("mean_ttft_s", "input_tokens", "successful_requests", "duration_s")
    ttft, tokens, count, seconds = (facts.get(n) for n in names)
    values = [v for v in (ttft, tokens, count, seconds) if isinstance(v, float) and v > 0]
    if len(values) < 4:
        return _little(facts)
    ttft_s, input_tokens, requests, duration_s = values
    prompt_s = (input_tokens / requests) / (input_tokens / duration_s)
    if ttft_s < _STARVED * prompt_s:
        return None
    return (
        f"the first token takes {ttft_s:.1f} s, though the server takes in such a prompt every "
        f"{prompt_s:.2f} s: by Little's law {ttft_s / prompt_s:.0f} requests wait at once"
    )


def _little(facts: dict[str, float | str]) -> str | None:
    rate, ttft = facts.get("request_rate"), facts.get("mean_ttft_s")
    if not isinstance(rate, float) or not isinstance(ttft, float) or rate * ttft < 64:
        return None
    return (
        f"{rate:g} requests a second, each {ttft:g} s before its first token: by Little's law "
        f"{rate * ttft:.0f} wait at once"
    )
