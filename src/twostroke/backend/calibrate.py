"""Measure what this machine can do at most, in about three seconds, and remember it.

Peaks are of the active kernel set and thread count; bandwidth is of plain reads by working set.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any

from twostroke.backend.memory import free_memory_bytes
from twostroke.backend.native import native_module
from twostroke.dataclass import dataclass

_PEAKS = {"fp32": 0, "bf16": 1, "int8": 2}
_WORKING_SETS = tuple(1 << shift for shift in (18, 20, 22, 24, 26, 27, 28, 29))
_SECONDS_PER_POINT = 0.2
_ROUNDS = 2  # the better of them: another process can only slow a loop down
_MEMORY_SHARE = 4  # the largest working set is at most this part of free memory


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPeaks:
    """Peaks of one machine, kernel set and thread count.

    Units: operations per second (a multiply-add is two); bandwidth as (working set in bytes, bytes
    per second), ascending. A type that the kernel set multiplies as fp32 has fp32's peak.
    """

    cpu: str
    kernel_set: str
    threads: int
    int8_ops_per_s: float
    bf16_flops_per_s: float
    fp32_flops_per_s: float
    bandwidth: tuple[tuple[int, float], ...]
    source: str = "measured"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON and for physics.hardware."""
        return asdict(self)


def cpu_name() -> str:
    """Return the CPU's own name, or its architecture where the system does not say."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def calibrate(pool: Any, kernel_set: str) -> MeasuredPeaks:
    """Measure the peaks of a kernel set on the threads of a pool.

    Cost: about three seconds and 512 MiB, or a quarter of what is free.
    """
    native = native_module()
    free = free_memory_bytes()
    largest = _WORKING_SETS[-1] if free is None else free // _MEMORY_SHARE
    sizes = [size for size in _WORKING_SETS if size <= largest] or [_WORKING_SETS[0]]
    memory = native.huge_array(sizes[-1])
    memory[:] = 1

    def best_read(size: int) -> float:
        seconds = _SECONDS_PER_POINT / _ROUNDS
        part = memory[:size]
        return max(float(native.read_bytes_per_s(pool, part, seconds)) for _ in range(_ROUNDS))

    def best_peak(kind: int) -> float:
        seconds = _SECONDS_PER_POINT / _ROUNDS
        rounds = [native.peak_ops_per_s(pool, kernel_set, kind, seconds) for _ in range(_ROUNDS)]
        return float(max(rounds))

    peaks = {name: best_peak(kind) for name, kind in _PEAKS.items()}
    return MeasuredPeaks(
        cpu=cpu_name(),
        kernel_set=kernel_set,
        threads=int(pool.size),
        int8_ops_per_s=peaks["int8"] or peaks["fp32"],
        bf16_flops_per_s=peaks["bf16"] or peaks["fp32"],
        fp32_flops_per_s=peaks["fp32"],
        bandwidth=tuple((size, best_read(size)) for size in sizes),
    )


def profile_path(folder: Path, kernel_set: str, threads: int) -> Path:
    """Return where the profile of this machine, kernel set and thread count is kept."""
    fields = [cpu_name(), str(os.cpu_count()), kernel_set, str(threads)]
    name = hashlib.sha256("\x1f".join(fields).encode()).hexdigest()[:16]
    return folder / f"{name}.json"


def load_profile(folder: Path, pool: Any, kernel_set: str, *, redo: bool = False) -> MeasuredPeaks:
    """Return the remembered profile of this machine, or measure and remember one.

    A folder that cannot be written costs a measurement at each start, no error.
    """
    path = profile_path(folder, kernel_set, int(pool.size))
    if not redo:
        found = _read(path)
        if found is not None:
            return found
    import tempfile

    peaks = calibrate(pool, kernel_set)
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=folder)
        with os.fdopen(handle, "w") as file:
            json.dump(peaks.to_dict(), file)
        os.replace(name, path)
    return peaks


def _read(path: Path) -> MeasuredPeaks | None:
    try:
        data = json.loads(path.read_text())
        points = tuple((int(size), float(rate)) for size, rate in data["bandwidth"])
        peaks = MeasuredPeaks(**{**data, "bandwidth": points})
        rates = (peaks.int8_ops_per_s, peaks.bf16_flops_per_s, peaks.fp32_flops_per_s)
        usable = bool(points) and min(*rates, *(rate for _, rate in points)) > 0
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return peaks if usable else None
