"""Facts about the machine on which a result was measured."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

FLAGS = ("avx2", "f16c", "fma", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "amx_int8")


def cpu_fields() -> dict[str, str]:
    """Return the first processor's fields of /proc/cpuinfo, empty where there is none."""
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return {}
    first = path.read_text(encoding="utf-8").split("\n\n", 1)[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def memory_bytes() -> int | None:
    """Return the machine's memory, None where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def cache_sizes() -> dict[str, str]:
    """Return the sizes of the first processor's caches, by level and kind."""
    folder = Path("/sys/devices/system/cpu/cpu0/cache")
    sizes = {}
    for index in sorted(folder.glob("index*")):
        level = (index / "level").read_text().strip()
        kind = (index / "type").read_text().strip()
        sizes[f"L{level} {kind}"] = (index / "size").read_text().strip()
    return sizes


def git_commit() -> str | None:
    """Return the commit, with `-dirty` where files were changed since; None outside git."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip() or None


def machine_card() -> dict[str, Any]:
    """Return processor, memory, system, load and commit."""
    cpu = cpu_fields()
    flags = cpu.get("flags", "").split()
    return {
        "cpu": cpu.get("model name"),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "flags": [flag for flag in FLAGS if flag in flags],
        "caches": cache_sizes(),
        "memory_bytes": memory_bytes(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load_1m": os.getloadavg()[0],
        "commit": git_commit(),
    }


if __name__ == "__main__":
    print(json.dumps(machine_card(), indent=2))
