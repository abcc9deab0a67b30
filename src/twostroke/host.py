"""What this process may use of its host: cores and memory, its control group's bounds included."""

from __future__ import annotations

import os
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def usable_cores() -> int:
    """Return how many cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def free_memory_bytes(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int | None:
    """Return bytes that can be allocated without swapping, None where the system does not say.

    Page cache counts as free, as in MemAvailable of /proc/meminfo.
    """
    machine = _machine_bytes(meminfo)
    group = _group_bytes(cgroup)
    known = [value for value in (machine, group) if value is not None]
    return min(known) if known else None


def _machine_bytes(meminfo: Path) -> int | None:
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _group_bytes(cgroup: Path) -> int | None:
    try:
        limit = (cgroup / "memory.max").read_text().strip()
        used = int((cgroup / "memory.current").read_text())
        stat = (cgroup / "memory.stat").read_text().splitlines()
    except (OSError, ValueError):
        return None
    if limit == "max":
        return None
    cached = sum(int(line.split()[1]) for line in stat if line.startswith("inactive_file "))
    return max(int(limit) - used + cached, 0)
