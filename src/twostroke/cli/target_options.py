"""Options that `plan` and `predict` share: this machine, or flags that name a device."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

from twostroke.backend.calibrate import cpu_name
from twostroke.cli import options
from twostroke.cli.engine_options import parse_bytes
from twostroke.cli.table import Option, Settings
from twostroke.dataclass import dataclass
from twostroke.errors import ConfigError
from twostroke.host import free_memory_bytes
from twostroke.model.local_models import cache_folder
from twostroke.planner.target import Target, make_target, stored_profile, this_machine

GIGA = 1e9
TERA = 1e12
UNKNOWN_EXIT = 3
_COUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([kmbt]?)", re.IGNORECASE)

OPTIONAL_MODEL = Option(
    "model",
    help="A .gguf file, smollm2:135m, hf:owner/repo[...] (only its header is fetched), a "
    "config.json; none: the flags tell the shape.",
    metavar="[MODEL]",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetFlags:
    """The device that the flags name. Units: bandwidth in GB/s, flops in TFLOP/s."""

    device: str | None = None
    num_devices: int = 1
    bandwidth: float | None = None
    flops: float | None = None
    memory: float | None = None
    threads: int | None = None

    def target(self) -> Target:
        """Return the target of the flags, this machine where they name none."""
        profile = stored_profile(cache_folder() / "profiles", cpu_name(), self.threads)
        free = free_memory_bytes()
        return make_target(
            self.device,
            num_devices=self.num_devices,
            bandwidth=None if self.bandwidth is None else self.bandwidth * GIGA,
            flops=None if self.flops is None else self.flops * TERA,
            memory_bytes=None if self.memory is None else float(self.memory),
            here=this_machine(profile, None if free is None else float(free)),
        )


_target = partial(Option, settings=Settings("where", TargetFlags))
DEVICE = _target("device", help="h100, 4090, m2-max, ddr5-5600x2 ...; default: this machine.")
NUM_DEVICES = _target("num_devices", int, "Devices that share the model by whole layers.", 1)
BANDWIDTH = _target("bandwidth", float, "Memory bandwidth that is reached, in GB/s.")
FLOPS = _target("flops", float, "Arithmetic that is reached, in TFLOP/s.")
MEMORY = _target(
    "memory",
    help="Memory of each device, such as 24GiB.",
    parse=partial(parse_bytes, param="--memory"),
)
THREADS = replace(options.THREADS, settings=DEVICE.settings)
PREFILL_CHUNK = replace(options.PREFILL_CHUNK, settings=None)  # of any engine, not of ours


def parse_count(text: str | None, *, param: str) -> float | None:
    """Return a count such as 8.03B, 135M or a plain number.

    Raises:
        ConfigError: not a count.
    """
    if text is None:
        return None
    match = _COUNT.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"{param} is not a count", value=text, remedy="Write it as 8.03B.")
    return float(match[1]) * {"": 1, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}[match[2].lower()]


def seconds_text(value: float | None) -> str:
    """Return seconds for people."""
    if value is None:
        return "unknown"
    if value < 1:
        return f"{value * 1e3:.3g} ms"
    return f"{value:.2f} s" if value < 600 else f"{value / 60:.1f} min"
