"""A number that says where it comes from and how far it can be off."""

from __future__ import annotations

import enum
from typing import Any

from twostroke.dataclass import dataclass


class Source(enum.Enum):
    """Where a number comes from, the best first."""

    MEASURED = "measured"  # on this machine
    FITTED = "fitted"  # to steps measured on this machine
    GIVEN = "given"  # by the user
    FILE = "file"  # the model's own file
    DATASHEET = "datasheet"  # of a vendor: a peak
    ASSUMED = "assumed"  # from public measurements on other machines


@dataclass(frozen=True, slots=True)
class Figure:
    """A value, its source and its interval; `note` names the datasheet or the reason."""

    value: float
    source: Source
    low: float
    high: float
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON."""
        return {
            "value": self.value,
            "low": self.low,
            "high": self.high,
            "source": self.source.value,
            "note": self.note,
        }


def exactly(value: float, source: Source, note: str = "") -> Figure:
    """Return a figure without an interval."""
    return Figure(value, source, value, value, note)
