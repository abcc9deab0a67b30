"""How busy this machine is before anything is asked of a local server. Linux only; else unknown."""

from __future__ import annotations

import time
from pathlib import Path

_STAT = Path("/proc/stat")
_SAMPLE_S = 0.5


def _ticks() -> tuple[int, int] | None:
    """Return (busy, all) clock ticks of all CPUs since boot."""
    try:
        fields = _STAT.read_text(encoding="ascii").split("\n", 1)[0].split()
        values = [int(value) for value in fields[1:9]]
    except (OSError, ValueError, UnicodeDecodeError):
        return None
    if len(values) < 5:
        return None
    idle = values[3] + values[4]  # idle and waiting for input
    return sum(values) - idle, sum(values)


def cpu_busy_share(sample_s: float = _SAMPLE_S) -> float | None:
    """Return the share of the CPU that others take, over a short sample."""
    before = _ticks()
    time.sleep(sample_s)
    after = _ticks()
    if before is None or after is None or after[1] <= before[1]:
        return None
    return (after[0] - before[0]) / (after[1] - before[1])
