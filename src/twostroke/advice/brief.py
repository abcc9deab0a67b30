"""Advice in a line, for logs, from one record's own numbers; none where they are too few."""

from __future__ import annotations

from twostroke.advice.cure import Cure
from twostroke.advice.cures import for_record
from twostroke.record import RequestRecord

MIN_NEW_TOKENS = 32
_MOST = 3
_SHARE = 0.05  # of the wait; a smaller saving is not worth a line


def brief(record: RequestRecord) -> tuple[str, ...]:
    """Return up to three cures of a record as short lines for a log, by its own numbers alone."""
    new, output = record.prompt.new or 0, record.output.total or 0
    if not record.e2e_s or max(new, output) < MIN_NEW_TOKENS:
        return ()
    least = _SHARE * record.e2e_s
    cures = [c for c in for_record(record) if (c.saves_low_s or 0.0) > least]
    return tuple(
        f"{cure.key} saves {saving_text(cure)} (from this request alone)" for cure in cures[:_MOST]
    )


def saving_text(cure: Cure) -> str:
    """Return the saving of a cure, for people."""
    low, high = cure.saves_low_s, cure.saves_high_s
    if low is None or high is None:
        return "what this request does not tell"
    return seconds_text(low) if low == high else f"{seconds_text(low)} to {seconds_text(high)}"


def seconds_text(value: float) -> str:
    """Return seconds for people."""
    return f"{1e3 * value:.0f} ms" if value < 1 else f"{value:.2f} s"
