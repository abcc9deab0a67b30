"""Server windows with waiting requests: how full the cache is, what share of a stay is waiting."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from twostroke.advice import arithmetic
from twostroke.record import WindowRecord

KV_FULL_USAGE = 0.9
_STATE_FULL_USAGE = 0.99


def waiting_in(windows: Iterable[WindowRecord]) -> list[WindowRecord]:
    """Return the windows in which requests wait."""
    return [w for w in windows if w.waiting]


def is_kv_full(window: WindowRecord) -> bool:
    """Whether the KV cache has no room for more requests."""
    return (window.kv_usage or 0.0) >= KV_FULL_USAGE


def is_state_full(window: WindowRecord) -> bool:
    """Whether the pool of recurrent state has no room for more requests."""
    usage = window.facts.get("mamba_usage")
    return isinstance(usage, float) and usage >= _STATE_FULL_USAGE


def most_used(windows: Iterable[WindowRecord]) -> float:
    """Return the largest share of the KV cache in use."""
    return max(w.kv_usage or 0.0 for w in windows)


def waiting_share(windows: Iterable[WindowRecord]) -> float | None:
    """Share of their stay that requests wait, by Little's law over the windows with requests."""
    busy = [w for w in windows if w.running is not None and w.waiting is not None]
    running, waiting = (sum(getattr(w, k) for w in busy) for k in ("running", "waiting"))
    return arithmetic.queue_share(running, waiting)


def waiting_text(windows: Sequence[WindowRecord]) -> str:
    """Say how many requests wait and run in the mean."""
    running = sum(w.running or 0 for w in windows) / len(windows)
    waiting = sum(w.waiting or 0 for w in windows) / len(windows)
    return f"{waiting:.4g} requests wait while {running:.4g} run"
