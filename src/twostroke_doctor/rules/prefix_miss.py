"""Requests that computed a known prefix again: which ones, at what price, and how that is known."""

from __future__ import annotations

from twostroke.advice import Cure
from twostroke.dataclass import dataclass
from twostroke.record import RequestRecord
from twostroke_doctor.evidence_lines import Shown

LOST_HALF = 0.5
MOSTLY = 0.8
MIN_PREFIX = 256  # tokens: shorter common prefixes are a template's


@dataclass(frozen=True, slots=True)
class Miss:
    """One request that lost a prefix. seconds: their price; tokens: how many, None unknown."""

    record: RequestRecord
    seconds: float
    tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MissedPrefixes:
    """The misses that one sign shows. is_bound: their seconds are an upper bound."""

    misses: list[Miss]
    says: str
    confidence: str
    shown: tuple[Shown, ...] = ()
    cures: tuple[Cure, ...] = ()
    missing: tuple[str, ...] = ()
    is_bound: bool = False

    @property
    def seconds(self) -> float:
        """Price of all misses."""
        return sum(miss.seconds for miss in self.misses)

    @property
    def tokens(self) -> int | None:
        """Tokens computed again in all misses, None where one of them is unknown."""
        known = [miss.tokens for miss in self.misses if miss.tokens is not None]
        return sum(known) if len(known) == len(self.misses) else None


def priced(record: RequestRecord, lost: int) -> list[Miss]:
    """Price lost tokens at this prefill's own mean rate; nothing where that is unknown."""
    new, seconds = record.prompt.new, record.phases.prefill_s
    if not new or not seconds or not lost:
        return []
    lost = min(lost, new)
    return [Miss(record, seconds * lost / new, lost)]
