"""Measure this machine's peaks, in about three seconds, and remember them.

Peaks are of the active kernel set and thread count; bandwidth is of plain reads by working set.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
from pathlib import Path
from typing import Any

from twostroke.backend.native_library import native_module
from twostroke.host import free_memory_bytes
from twostroke.predict.hardware import MachineProfile

_PEAKS = {"fp32": 0, "bf16": 1, "int8": 2}
_WORKING_SETS = tuple(1 << shift for shift in (18, 20, 22, 24, 26, 27, 28, 29))
_SECONDS_PER_POINT = 0.2
_SHORT_S = 0.05
PROBE_BYTES = 1 << 27  # beyond every cache, and about the sample model's weights
_ROUNDS = 2  # the better of them: another process can only slow a loop down
_MEMORY_SHARE = 4  # the largest working set is at most a quarter of free memory


def cpu_name() -> str:
    """Return the CPU's own name, or its architecture where the system does not give a name."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


class Probe:
    """Short measurements of the machine's speed right now. Keeps the memory that it reads."""

    def __init__(self, pool: Any, kernel_set: str, num_bytes: int = PROBE_BYTES) -> None:
        self._native, self._pool, self._kernel_set = native_module(), pool, kernel_set
        self._memory = self._native.huge_array(num_bytes)
        self._memory[:] = 1

    def read_bytes_per_s(self, num_bytes: int, seconds: float = _SECONDS_PER_POINT) -> float:
        """Return the bandwidth of plain reads of a working set: the best of two rounds."""
        part = self._memory[:num_bytes]
        read, each = self._native.read_bytes_per_s, seconds / _ROUNDS
        return max(float(read(self._pool, part, each)) for _ in range(_ROUNDS))

    def ops_per_s(self, kind: str, seconds: float = _SECONDS_PER_POINT) -> float:
        """Return operations per second of fp32, bf16 or int8: the best of two rounds; 0: none."""
        peak, each = self._native.peak_ops_per_s, seconds / _ROUNDS
        rounds = range(_ROUNDS)
        return max(float(peak(self._pool, self._kernel_set, _PEAKS[kind], each)) for _ in rounds)

    def speed(self) -> tuple[float, float]:
        """Return int8 operations and bytes read per second right now, in a tenth of a second."""
        arithmetic = self.ops_per_s("int8", _SHORT_S) or self.ops_per_s("fp32", _SHORT_S)
        return arithmetic, self.read_bytes_per_s(PROBE_BYTES, _SHORT_S)


def calibrate(pool: Any, kernel_set: str) -> MachineProfile:
    """Measure the peaks of a kernel set on the threads of a pool.

    Cost: about three seconds and 512 MiB, or a quarter of what is free.
    """
    free = free_memory_bytes()
    largest = _WORKING_SETS[-1] if free is None else free // _MEMORY_SHARE
    sizes = [size for size in _WORKING_SETS if size <= largest] or [_WORKING_SETS[0]]
    probe = Probe(pool, kernel_set, sizes[-1])
    peaks = {name: probe.ops_per_s(name) for name in _PEAKS}
    return MachineProfile(
        cpu=cpu_name(),
        kernel_set=kernel_set,
        threads=int(pool.size),
        int8_ops_per_s=peaks["int8"] or peaks["fp32"],
        # Where the bf16 instruction is the slower one, our attention multiplies by FMA.
        bf16_flops_per_s=max(peaks["bf16"], peaks["fp32"]),
        fp32_flops_per_s=peaks["fp32"],
        bandwidth=tuple((size, probe.read_bytes_per_s(size)) for size in sizes),
    )


def profile_path(folder: Path, kernel_set: str, threads: int) -> Path:
    """Return the path of the profile of this machine, kernel set and thread count."""
    fields = [cpu_name(), str(os.cpu_count()), kernel_set, str(threads)]
    name = hashlib.sha256("\x1f".join(fields).encode()).hexdigest()[:16]
    return folder / f"{name}.json"


def load_profile(folder: Path, pool: Any, kernel_set: str, *, redo: bool = False) -> MachineProfile:
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


def _read(path: Path) -> MachineProfile | None:
    try:
        return MachineProfile.from_dict(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
