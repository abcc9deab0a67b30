"""What the user knows and the log does not: model, device, sizes. Optional; sharpens to ceilings.

Devices are the datasheet rows of `physics.devices`; the models are public model cards.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from twostroke.advice import arithmetic
from twostroke.dataclass import dataclass
from twostroke.errors import ConfigError
from twostroke.predict.devices import DEVICES

GIGA = 1e9
TERA = 1e12


class Model(NamedTuple):
    """Shape of a model. params and active in billions; width is query heads times head size."""

    params: float
    active: float
    layers: int
    width: int
    kv_heads: int
    head_dim: int


MODELS = MappingProxyType(
    {
        "llama-2-7b": Model(6.74, 6.74, 32, 4096, 32, 128),
        "llama-2-13b": Model(13.02, 13.02, 40, 5120, 40, 128),
        "llama-3.1-8b": Model(8.03, 8.03, 32, 4096, 8, 128),
        "llama-3.1-70b": Model(70.0, 70.0, 80, 8192, 8, 128),
        "llama-3.3-70b": Model(70.0, 70.0, 80, 8192, 8, 128),
        "deepseek-r1-70b": Model(70.0, 70.0, 80, 8192, 8, 128),
        "mistral-7b": Model(7.24, 7.24, 32, 4096, 8, 128),
        "qwen2.5-7b": Model(7.62, 7.62, 28, 3584, 4, 128),
        "qwen2.5-32b": Model(32.8, 32.8, 64, 5120, 8, 128),
        "qwen2.5-72b": Model(72.7, 72.7, 80, 8192, 8, 128),
        "qwen3-8b": Model(8.19, 8.19, 36, 4096, 8, 128),
        "qwen3-30b-a3b": Model(30.5, 3.3, 48, 4096, 4, 128),
    }
)
_BASE_UNITS = 1e7  # no device has ten million GB/s or TFLOP/s: --flops 155e12 is FLOP/s
_ANY_CPU = "cpu"  # says only that there is no GPU
_SIZE = re.compile(r"(\d{1,4}(?:\.\d{1,3})?)b(?:-a(\d{1,3}(?:\.\d{1,3})?)b)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The optional facts. Units: parameters, bytes, bytes/s, FLOP/s, cores.

    threads: cores that may run threads. shared_head: the requests are turns of one conversation, or
    share their beginning. on_cpu: there is no GPU.
    """

    params: float | None = None
    active_params: float | None = None
    layers: int = 0
    width: int = 0
    kv_bytes_per_token: int | None = None
    weights_bytes: float | None = None
    bandwidth: float | None = None
    flops: float | None = None
    memory_bytes: float | None = None
    threads: int | None = None
    shared_head: bool = False
    on_cpu: bool = False


def make_given(
    *,
    model: str | None = None,
    device: str | None = None,
    weights_gb: float | None = None,
    bandwidth: float | None = None,
    flops: float | None = None,
    memory_gb: float | None = None,
    threads: int | None = None,
    shared_head: bool = False,
) -> Given:
    """Return the facts of the flags; a number given outright wins over a table.

    Units: GB (1e9 bytes), GB/s, TFLOP/s.
    Raises:
        ConfigError: an unknown device or model, or a number that is not positive.
    """
    for name, value in (
        ("--weights-gb", weights_gb),
        ("--bandwidth", bandwidth),
        ("--flops", flops),
        ("--memory-gb", memory_gb),
        ("--threads", threads),
    ):
        if value is not None and not 0 < value < 1e20:
            raise ConfigError(f"{name} cannot be this", value=value, limit="above 0")
    given = Given(threads=threads, shared_head=shared_head)
    if model is not None:
        given = _with_model(given, model)
    if device is not None:
        given = _with_device(given, device)
    return replace(
        given,
        weights_bytes=_times(weights_gb, GIGA) or given.weights_bytes,
        bandwidth=_times(bandwidth, GIGA) or given.bandwidth,
        flops=_times(flops, TERA) or given.flops,
        memory_bytes=_times(memory_gb, GIGA) or given.memory_bytes,
    )


def _times(value: float | None, unit: float) -> float | None:
    """Return a value in base units; one that is huge for its unit is in base units already."""
    if value is None:
        return None
    return value if value >= _BASE_UNITS else value * unit


def _with_device(given: Given, name: str) -> Given:
    if name.lower() == _ANY_CPU:
        return replace(given, on_cpu=True)
    device = DEVICES.get(name.lower().replace(" ", "-"))
    if device is None:
        raise ConfigError(
            "this device is not in the table",
            value=name,
            limit=", ".join((*DEVICES, _ANY_CPU)),
            remedy="Give --bandwidth (GB/s), --flops (TFLOP/s) and --memory-gb instead.",
        )
    return replace(
        given,
        bandwidth=device.bandwidth,
        flops=device.flops,
        memory_bytes=device.memory_bytes,
        on_cpu=device.kind == "cpu",
    )


def _with_model(given: Given, name: str) -> Given:
    """Take a name of the table, a size such as 70B or 30B-A3B, or the size of a local file."""
    path = Path(name)
    if name.endswith(".gguf"):
        if not path.is_file():
            raise ConfigError("there is no such model file", value=name)
        return replace(given, weights_bytes=float(path.stat().st_size))
    model = MODELS.get(name.lower())
    if model is not None:
        return replace(
            given,
            params=model.params * GIGA,
            active_params=model.active * GIGA,
            layers=model.layers,
            width=model.width,
            kv_bytes_per_token=arithmetic.kv_bytes_per_token(
                model.layers, model.kv_heads, model.head_dim
            ),
        )
    size = _SIZE.fullmatch(name)
    if size is None:
        raise ConfigError(
            "this model is not in the table",
            value=name,
            limit=", ".join(MODELS),
            remedy="Give its size, such as 70B or 30B-A3B, or a .gguf file.",
        )
    params = float(size.group(1)) * GIGA
    active = float(size.group(2)) * GIGA if size.group(2) else params
    return replace(given, params=params, active_params=active)
