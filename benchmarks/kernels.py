"""Linear kernels by format, rows and kernel set: GB/s and GOP/s beside the peaks of this machine.

One thread. A multiplication with few rows is bound by memory: its GB/s of stored weights are given
as a share of a plain read. One with many rows is bound by arithmetic: its GOP/s are given as a
share of the instruction's peak. The peaks are measured just before each repetition, so that a busy
machine lowers both. Repetitions use different copies of the weights, so that none are in a cache.

    python benchmarks/kernels.py --formats Q4_0,Q4_K --rows 1,8,512 --shape 4096x4096

The last line of stdout is one JSON document.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from typing import NamedTuple

import numpy as np

from tests.kernels.random_blocks import FORMATS, random_rows
from twostroke import _native
from twostroke import _native_testing as kernels
from twostroke.formats.ggml_types import GGMLType

COPIES_BYTES = 64 << 20  # one repetition reads at least so many bytes of weights
MANY_ROWS_OPS = 2e9  # one repetition does at most so many operations
PEAK_SECONDS = 0.02
INT8_PEAK = 2  # the native module numbers its peaks: fp32, bf16, int8
PEAK_OF = {GGMLType.F32: 0, GGMLType.F16: 0, GGMLType.BF16: 1}


class Measurement(NamedTuple):
    kernel_set: str
    format: str
    rows: int
    n: int
    k: int
    seconds: float
    gb_per_s: float  # of packed weights
    gop_per_s: float  # a multiply-add is two operations
    share_of_read: float
    share_of_peak: float | None  # None: the kernel set has no instruction for this format


class Peaks:
    """Peak bandwidth and arithmetic of one thread, measured at every call."""

    def __init__(self) -> None:
        self._pool = _native.ThreadPool(1)
        # Pages that were never written share one page of zeros, which a read finds in the L1 cache.
        self._memory = np.full(4 * COPIES_BYTES, 1, np.uint8)

    def read_gb_per_s(self) -> float:
        return _native.read_bytes_per_s(self._pool, self._memory, PEAK_SECONDS) / 1e9

    def gop_per_s(self, set_: str, format_: GGMLType) -> float:
        """Return the peak of the format's instruction; 0 where the kernel set has none."""
        kind = PEAK_OF.get(format_, INT8_PEAK)
        return _native.peak_ops_per_s(self._pool, set_, kind, PEAK_SECONDS) / 1e9


def measure(
    peaks: Peaks, set_: str, format_: GGMLType, n: int, k: int, rows: int, repeats: int
) -> Measurement:
    packed = kernels.pack(int(format_), n, k, random_rows(format_, n, k).reshape(-1))
    x = np.random.default_rng(0).standard_normal((rows, k), dtype=np.float32)
    operations = 2.0 * n * k * rows
    copies = max(1, int(min(COPIES_BYTES / packed.size + 1, MANY_ROWS_OPS / operations)))
    times, of_read, of_peak = [], [], []
    for _ in range(repeats):
        read, peak = peaks.read_gb_per_s(), peaks.gop_per_s(set_, format_)
        (seconds,) = kernels.linear_seconds(set_, int(format_), packed, n, x, 1, copies)
        times.append(seconds)
        of_read.append(packed.size / seconds / 1e9 / read)
        if peak:
            of_peak.append(operations / seconds / 1e9 / peak)
    seconds = statistics.median(times)
    return Measurement(
        set_,
        format_.name,
        rows,
        n,
        k,
        seconds,
        packed.size / seconds / 1e9,
        operations / seconds / 1e9,
        statistics.median(of_read),
        statistics.median(of_peak) if of_peak else None,
    )


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f}%"


def show(m: Measurement) -> None:
    print(
        f"{m.kernel_set:8}{m.format:8}{m.rows:5} rows  {m.n}x{m.k}  {m.seconds * 1e3:9.3f} ms"
        f"  {m.gb_per_s:7.2f} GB/s ({percent(m.share_of_read)} of a read)"
        f"  {m.gop_per_s:8.1f} GOP/s ({percent(m.share_of_peak)} of peak)",
        file=sys.stderr,
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--formats", default=",".join(f.name for f in FORMATS))
    parser.add_argument("--rows", default="1,8,512")
    parser.add_argument("--shape", default="4096x4096", help="NxK: output and input channels")
    parser.add_argument("--sets", default=",".join(_native.kernel_sets()))
    parser.add_argument("--repeats", type=int, default=9)
    return parser.parse_args()


def main() -> None:
    args = arguments()
    n, k = (int(size) for size in args.shape.split("x"))
    peaks, results = Peaks(), []
    for set_ in args.sets.split(","):
        for name in args.formats.split(","):
            for rows in (int(r) for r in args.rows.split(",")):
                result = measure(peaks, set_, GGMLType[name], n, k, rows, args.repeats)
                show(result)
                results.append(result._asdict())
    print(json.dumps({"results": results}))


if __name__ == "__main__":
    main()
