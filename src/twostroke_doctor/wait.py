"""The wait of requests as seconds by phase, never more than was measured.

The part of an engine's total that no phase explains stays open: it is `unaccounted`, or
`inference` where the engine times both phases as one.
"""

from __future__ import annotations

from collections.abc import Iterable

from twostroke.record import PHASES, RequestRecord

INFERENCE = "inference"  # prefill and decode under one time
UNACCOUNTED = "unaccounted"
WAIT_PHASES = (*PHASES, INFERENCE, UNACCOUNTED)
_ROUNDING_S = 0.005


def phase_seconds(record: RequestRecord) -> dict[str, float]:
    """Return the seconds of one request by phase, unknown phases left out."""
    found: dict[str, float] = {}
    for name in PHASES:
        seconds = getattr(record.phases, f"{name}_s")
        if seconds:
            found[name] = seconds
    if record.e2e_s is None:
        return found
    rest = record.e2e_s - sum(found.values())
    if rest > max(_ROUNDING_S, 1e-3 * record.e2e_s):
        split = "prefill" in found or "decode" in found
        found[UNACCOUNTED if split else INFERENCE] = rest
    return found


def total_seconds(record: RequestRecord) -> float:
    """Return the wait of one request as far as it is known."""
    return sum(phase_seconds(record).values())


def seconds_in(phase: str, records: Iterable[RequestRecord]) -> float:
    """Return the seconds that the requests are known to spend in one measured phase."""
    return sum(getattr(record.phases, f"{phase}_s") or 0.0 for record in records)


def wait_of(records: Iterable[RequestRecord]) -> dict[str, float]:
    """Return the seconds of all requests by phase, in the order of the phases."""
    total = dict.fromkeys(WAIT_PHASES, 0.0)
    for record in records:
        for name, seconds in phase_seconds(record).items():
            total[name] += seconds
    return {name: seconds for name, seconds in total.items() if seconds > 0}
