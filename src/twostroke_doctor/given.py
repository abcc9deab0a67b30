"""Facts that the user knows and the log does not: model, device, sizes. All are optional.

Devices are the datasheet rows of `twostroke.predict.devices`; models are in `models`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from twostroke.dataclass import dataclass
from twostroke.errors import ConfigError
from twostroke.predict.devices import DEVICES
from twostroke.predict.kv import KvFormat, kv_bytes_per_token
from twostroke.predict.shape import ModelShape
from twostroke_doctor.models import MODELS

GIGA = 1e9
TERA = 1e12
_BASE_UNITS = 1e7  # no device has ten million GB/s or TFLOP/s: --flops 155e12 is FLOP/s
_ANY_CPU = "cpu"  # says only that there is no GPU
_SIZE = re.compile(r"(\d{1,4}(?:\.\d{1,3})?)b(?:-a(\d{1,3}(?:\.\d{1,3})?)b)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The optional facts. Units: parameters, bytes, bytes/s, FLOP/s, cores.

    shape: of a model known by name. threads: cores that may run threads. shared_head: the requests
    are turns of one conversation, or their prompts share a prefix. on_cpu: there is no GPU.
    """

    params: float | None = None
    active_params: float | None = None
    shape: ModelShape | None = None
    weights_bytes: float | None = None
    bandwidth: float | None = None
    flops: float | None = None
    memory_bytes: float | None = None
    threads: int | None = None
    shared_head: bool = False
    on_cpu: bool = False

    @property
    def kv_bytes_per_token(self) -> float | None:
        """Bytes of K and V of one token at 16 bits a value, None where the shape is unknown."""
        if self.shape is None or self.shape.layers is None:
            return None
        return kv_bytes_per_token(self.shape.layers, KvFormat("f16"))

    @property
    def attention_width(self) -> int:
        """Query heads times head size, of all layers together; 0 where the shape is unknown."""
        layers = (self.shape.layers if self.shape else None) or ()
        return sum(layer.heads * layer.key_dim for layer in layers)

    @property
    def read_bytes(self) -> float | None:
        """Weight bytes that one token reads: of a model of experts only the active ones."""
        if self.weights_bytes is None or not (self.params and self.active_params):
            return self.weights_bytes
        return self.weights_bytes * self.active_params / self.params


def make_given(
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
    _check_positive(
        weights_gb=weights_gb,
        bandwidth=bandwidth,
        flops=flops,
        memory_gb=memory_gb,
        threads=threads,
    )
    given = Given(threads=threads, shared_head=shared_head)
    if model is not None:
        given = _with_model(given, model)
    if device is not None:
        given = _with_device(given, device)
    return replace(
        given,
        weights_bytes=_in_base_units(weights_gb, GIGA) or given.weights_bytes,
        bandwidth=_in_base_units(bandwidth, GIGA) or given.bandwidth,
        flops=_in_base_units(flops, TERA) or given.flops,
        memory_bytes=_in_base_units(memory_gb, GIGA) or given.memory_bytes,
    )


def _check_positive(**numbers: float | None) -> None:
    for name, value in numbers.items():
        if value is not None and not 0 < value < 1e20:
            flag = "--" + name.replace("_", "-")
            raise ConfigError(f"{flag} cannot be this", value=value, limit="above 0")


def _in_base_units(value: float | None, unit: float) -> float | None:
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
    if name.endswith(".gguf"):
        path = Path(name)
        if not path.is_file():
            raise ConfigError("there is no such model file", value=name)
        return replace(given, weights_bytes=float(path.stat().st_size))
    if (model := MODELS.get(name.lower())) is not None:
        return replace(
            given, params=model.params, active_params=model.active_params, shape=model.shape
        )
    size = _SIZE.fullmatch(name)
    if size is None:
        raise ConfigError(
            "this model is not in the table",
            value=name,
            limit=", ".join(MODELS),
            remedy="Give its size, such as 70B or 30B-A3B, or a .gguf file.",
        )
    params, active = (float(text) * GIGA if text else None for text in size.groups())
    return replace(given, params=params, active_params=active or params)
