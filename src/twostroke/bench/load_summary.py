"""A load's results in a few rows: percentiles by kind of prompt, throughput and goodput."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twostroke.bench.client_record import Result, percentile
from twostroke.bench.remote import KINDS
from twostroke.dataclass import dataclass
from twostroke.record import RequestRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Goals:
    """The longest times of a good request; None: no such goal. Units: seconds."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    def are_met(self, record: RequestRecord) -> bool:
        """Whether a request met all of them; an unknown value meets no goal."""
        if "failed" in record.meter.flags:
            return False
        pairs = (
            (self.ttft_s, record.ttft_any_s),
            (self.tpot_s, record.tpot_s),
            (self.e2e_s, record.e2e_s),
        )
        return all(goal is None or (v is not None and v <= goal) for goal, v in pairs)


def summary(
    results: Sequence[Result], wall_s: float, loop_lag_s: float, goals: Goals
) -> dict[str, Any]:
    """Return one row for each kind and one for all. Units: seconds, tokens and requests per second.

    itl percentiles are of the requests' own medians, so that long answers do not outvote others.
    """
    rows = {kind: _row([r for r in results if r.kind == kind]) for kind in KINDS}
    tokens = sum(r.record.output.total or 0 for r in results)
    good = sum(goals.are_met(r.record) for r in results)
    return {
        "wall_s": wall_s,
        "requests": len(results),
        "failed": sum(r.error is not None for r in results),
        "output_tok_s": tokens / wall_s,
        "goodput_requests_s": good / wall_s,
        "client_loop_lag_max_s": loop_lag_s,
        "schedule_lag_max_s": max(r.lag_s for r in results),
        "all": _row(results),
        "kinds": {kind: row for kind, row in rows.items() if row is not None},
    }


def _row(results: Sequence[Result]) -> dict[str, Any] | None:
    fine = [r.record for r in results if r.error is None]
    if not fine:
        return None
    values: dict[str, list[float | None]] = {
        "ttft_any_s": [r.ttft_any_s for r in fine],
        "ttft_visible_s": [r.ttft_visible_s for r in fine],
        "tpot_s": [r.tpot_s for r in fine],
        "itl_p50_s": [r.itl.p50_s for r in fine],
        "e2e_s": [r.e2e_s for r in fine],
    }
    row: dict[str, Any] = {"requests": len(fine)}
    for name, some in values.items():
        known = sorted(v for v in some if v is not None)
        row[name] = {f"p{p}": percentile(known, p) for p in (50, 95, 99)}
    return row
