"""Datasheet rows of common devices, and the share of those peaks that engines reach.

Peaks are dense FP16 or BF16 with FP32 sums, no sparsity; None: no figure of that kind was found. A
peak alone predicts nothing: the assumed efficiency stands beside it.
Source: each row's `source` names the published figures it follows from; every row was compared with
  published specifications, those of memory buses by their arithmetic. Efficiencies: see EFFICIENCY.
"""

from __future__ import annotations

from types import MappingProxyType

from twostroke.dataclass import dataclass
from twostroke.errors import ConfigError
from twostroke.predict.figure import Figure, Source

_GIB = 1 << 30
_GIGA = 10**9
_TERA = 10**12


@dataclass(frozen=True, slots=True)
class Device:
    """One row. Units: bytes, bytes per second, operations per second (a multiply-add is two).

    kind: gpu, apple or cpu. memory_bytes None: as much as was built in.
    """

    name: str
    kind: str
    memory_bytes: int | None
    bandwidth: float
    flops: float | None
    source: str


def _row(
    name: str, kind: str, gib: float | None, gb_s: float, tflops: float | None, source: str
) -> Device:
    memory = None if gib is None else int(gib * _GIB)
    return Device(name, kind, memory, gb_s * _GIGA, tflops and tflops * _TERA, source)


_ROWS = (
    _row("h200", "gpu", 131.3, 4800, 989, "NVIDIA H200 SXM: 141 GB of 1e9, 4.8 TB/s, 989 dense"),
    _row("h100", "gpu", 80, 3350, 989, "NVIDIA H100 SXM5: 80 GB, 3.35 TB/s, 989 dense BF16"),
    _row("a100-80", "gpu", 80, 2039, 312, "NVIDIA A100 80GB SXM: 2,039 GB/s, 312 dense"),
    _row("a100-40", "gpu", 40, 1555, 312, "NVIDIA A100 40GB: 5,120 bits, 1,555 GB/s, 312 dense"),
    _row("l40s", "gpu", 48, 864, 362, "NVIDIA L40S: 864 GB/s, 362 dense BF16"),
    _row("l4", "gpu", 24, 300, 121, "NVIDIA L4: 300 GB/s, 121 dense FP16"),
    _row("a6000", "gpu", 48, 768, 154.8, "NVIDIA RTX A6000: 384 bits; 336 tensor cores at 1.8 GHz"),
    _row("t4", "gpu", 16, 320, 65, "NVIDIA T4: 256 bits at 10 Gb/s, 65 FP16"),
    _row("mi300x", "gpu", 192, 5300, 1307, "AMD MI300X: 192 GB, 5.3 TB/s, 1,307 dense BF16"),
    _row("5090", "gpu", 32, 1792, 209.6, "NVIDIA RTX 5090: 838.4 sparse with FP16 sums, a quarter"),
    _row("4090", "gpu", 24, 1008, 165.2, "NVIDIA RTX 4090: 165.2 dense with FP32 sums"),
    _row("4080", "gpu", 16, 716.8, 97.5, "NVIDIA RTX 4080: twice its 48.74 of FP32, as on Ada"),
    _row("3090", "gpu", 24, 936, 71, "NVIDIA RTX 3090: 142 dense with FP16 sums, half with FP32"),
    _row("3060", "gpu", 12, 360, None, "NVIDIA RTX 3060 12GB: 192 bits at 15 Gb/s"),
    _row("7900-xtx", "gpu", 24, 960, None, "AMD RX 7900 XTX: 384 bits at 20 Gb/s"),
    _row("m1-max", "apple", None, 400, None, "Apple M1 Max: half of an M1 Ultra's 800 GB/s"),
    _row("m2-max", "apple", None, 400, None, "Apple M2 Max: half of an M2 Ultra's 800 GB/s"),
    _row("m2-ultra", "apple", None, 800, None, "Apple M2 Ultra: 800 GB/s"),
    _row("m4-pro", "apple", None, 273, None, "Apple M4 Pro: 273 GB/s"),
    _row("m4-max", "apple", None, 546, None, "Apple M4 Max with 40 GPU cores: 546 GB/s"),
    _row("dgx-spark", "gpu", 128, 273, None, "NVIDIA DGX Spark: 128 GB of LPDDR5X, 273 GB/s"),
    _row("epyc-9654", "cpu", None, 460.8, None, "AMD EPYC 9004: 12 channels of DDR5-4800"),
    _row("epyc-7763", "cpu", None, 204.8, None, "AMD EPYC 7003: 8 channels of DDR4-3200"),
    _row("ddr5-5600x2", "cpu", None, 89.6, None, "arithmetic: 2 channels x 8 bytes x 5,600 MT/s"),
    _row("ddr4-3200x2", "cpu", None, 51.2, None, "arithmetic: 2 channels x 8 bytes x 3,200 MT/s"),
)
DEVICES = MappingProxyType({row.name: row for row in _ROWS})


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Shares of the peaks that a step reaches, and its constant. Units: 0 to 1; seconds."""

    compute: Figure
    memory: Figure
    step_s: Figure


def _assumed(value: float, low: float, high: float, note: str) -> Figure:
    return Figure(value, Source.ASSUMED, low, high, note)


EFFICIENCY = MappingProxyType(
    {
        "gpu": Efficiency(
            _assumed(0.5, 0.3, 0.7, "prefill of common engines"),
            _assumed(
                0.65, 0.27, 0.85, "batch-1 decode: 81 % on L4, 27 % on H100, arXiv:2605.30571"
            ),
            _assumed(0.001, 0.0003, 0.003, "3.0 ms fitted to llama.cpp's quantize table"),
        ),
        "apple": Efficiency(
            _assumed(0.6, 0.4, 0.8, "prefill of common engines"),
            _assumed(0.75, 0.6, 0.85, "decode of common engines"),
            _assumed(0.001, 0.0003, 0.003, "as on a GPU"),
        ),
        "cpu": Efficiency(
            _assumed(0.5, 0.3, 0.7, "prefill of common engines"),
            _assumed(0.75, 0.55, 0.9, "decode of common engines"),
            _assumed(0.0002, 0.0, 0.001, "barriers between layers"),
        ),
        "twostroke": Efficiency(  # of measured peaks, not of a datasheet's
            _assumed(0.6, 0.4, 0.75, "our kernels on Zen 4: 61 to 72 % of the measured peak"),
            _assumed(0.87, 0.7, 0.98, "our kernels on Zen 4: 84 to 98 % of a plain read"),
            _assumed(0.0002, 0.0, 0.001, "barriers between layers"),
        ),
    }
)


def find_device(name: str) -> Device:
    """Return the row of a device by name, spelled freely: `RTX 4090`, `rtx4090`, `4090`.

    Raises:
        ConfigError: not in the table.
    """
    plain = name.lower().replace(" ", "-").replace("_", "-")
    for prefix in ("nvidia-", "geforce-", "amd-", "apple-", "rtx-", "radeon-", "rx-", "rtx"):
        plain = plain.removeprefix(prefix)
    device = DEVICES.get(plain)
    if device is None:
        raise ConfigError(
            "this device is not in the table",
            value=ascii(name)[:60],
            limit=", ".join(DEVICES),
            remedy="Give --bandwidth (GB/s), --flops (TFLOP/s) and --memory instead.",
        )
    return device
