"""One thing to change, and the seconds that the change would save."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from twostroke.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Cure:
    """A change, in the imperative, with its saving over the requests that it was computed from.

    saves_low_s, saves_high_s: equal when the arithmetic is exact, a range when it is bounded, None
    when nothing can be computed. basis: the arithmetic in words. side_effect: other consequences.
    """

    key: str
    what: str
    saves_low_s: float | None = None
    saves_high_s: float | None = None
    basis: str = ""
    side_effect: str = ""

    @property
    def is_exact(self) -> bool:
        """Whether the saving is one number."""
        return self.saves_low_s is not None and self.saves_low_s == self.saves_high_s

    @property
    def is_predicted(self) -> bool:
        """Whether any saving could be computed."""
        return self.saves_high_s is not None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data in field order, ready for JSON."""
        return asdict(self)


def exact(key: str, what: str, seconds: float, basis: str, side_effect: str = "") -> Cure:
    """Return a cure whose saving follows from the numbers given alone."""
    saving = max(seconds, 0.0)
    return Cure(
        key=key,
        what=what,
        saves_low_s=saving,
        saves_high_s=saving,
        basis=basis,
        side_effect=side_effect,
    )


def between(key: str, what: str, low: float, high: float, basis: str) -> Cure:
    """Return a cure whose saving is bounded."""
    low, high = sorted((max(low, 0.0), max(high, 0.0)))
    return Cure(key=key, what=what, saves_low_s=low, saves_high_s=high, basis=basis)


def unpredicted(key: str, what: str, basis: str = "") -> Cure:
    """Return a cure of which nothing measured tells the saving."""
    return Cure(key=key, what=what, basis=basis)


def in_order(cures: list[Cure]) -> tuple[Cure, ...]:
    """Return the cures, the largest sure saving first; those without a number last.

    Where nothing can be predicted the given order stays, as Python's sort is stable.
    """
    return tuple(sorted(cures, key=lambda c: -(c.saves_low_s or 0.0) if c.is_predicted else 1.0))
