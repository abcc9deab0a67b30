"""Requests that computed a known prefix again: which ones, and at what price."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from twostroke.advice import Cure, cure, cures
from twostroke.record import RequestRecord
from twostroke_doctor.evidence import Evidence
from twostroke_doctor.evidence_lines import Shown
from twostroke_doctor.finding import Finding

LOST_HALF = 0.5
MOSTLY = 0.8
MIN_PREFIX = 256  # tokens: shorter common prefixes are a template's


class Miss(NamedTuple):
    """One request that lost a prefix. seconds: their price; tokens: how many, None unknown."""

    record: RequestRecord
    seconds: float
    tokens: int | None = None


def missed(
    e: Evidence,
    misses: Sequence[Miss],
    says: str,
    *,
    confidence: str,
    shown: tuple[Shown, ...] = (),
    more_cures: tuple[Cure, ...] = (),
    missing: tuple[str, ...] = (),
    is_bound: bool = False,
) -> Finding | None:
    """Return the finding of these misses, None without any; is_bound: their price is the most."""
    if not misses:
        return None
    seconds = sum(miss.seconds for miss in misses)
    tokens = [miss.tokens for miss in misses if miss.tokens is not None]
    stable = cures.stable_head(seconds, sum(tokens) if len(tokens) == len(misses) else None)
    if is_bound:
        basis = "at most this prefill time"
        stable = cure.between(stable.key, stable.what, 0.0, seconds, basis)
    return e.finding(
        "PREFIX_MISS",
        says,
        seconds=seconds,
        confidence=confidence,
        shown=([miss.record for miss in misses], *shown),
        cures=(stable, *more_cures, cures.trim_history()),
        missing=missing,
    )


def priced(record: RequestRecord, lost: int) -> list[Miss]:
    """Price lost tokens at this prefill's own mean rate; nothing where that is unknown."""
    new, seconds = record.prompt.new, record.phases.prefill_s
    if not new or not seconds or not lost:
        return []
    lost = min(lost, new)
    return [Miss(record, seconds * lost / new, lost)]
