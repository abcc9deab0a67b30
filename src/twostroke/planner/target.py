"""The device of a plan: this machine, a row of the device table, or given numbers."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from twostroke.dataclass import dataclass
from twostroke.errors import ConfigError
from twostroke.predict.devices import find_device
from twostroke.predict.figure import Source
from twostroke.predict.fitted_speed import assumed_speed
from twostroke.predict.hardware import MachineProfile
from twostroke.predict.speed import Speed, given_speed, speed_of_device

_MOST_PROFILE_BYTES = 1 << 16
MAX_DEVICES = 64
_THIS_MACHINE = ("this", "here")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Devices that share a model by whole layers. memory_bytes: of each; None: unknown.

    is_here: this machine, where our engine runs.
    """

    name: str
    kind: str
    memory_bytes: float | None
    memory_source: Source | None
    num_devices: int
    speed: Speed
    is_here: bool = False

    @property
    def is_gpu(self) -> bool:
        """Whether a driver's context takes memory on it."""
        return self.kind == "gpu"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON."""
        return {
            "name": self.name,
            "kind": self.kind,
            "num_devices": self.num_devices,
            "memory_bytes": self.memory_bytes,
            "memory_source": self.memory_source.value if self.memory_source else None,
            "speed": self.speed.to_dict(),
        }


def make_target(
    device: str | None,
    *,
    num_devices: int = 1,
    bandwidth: float | None = None,
    flops: float | None = None,
    memory_bytes: float | None = None,
    here: Target | None = None,
) -> Target:
    """Return the target of the flags; a number given outright wins over a table.

    `here` is this machine, taken when neither a device nor a number is given.
    Units: bytes per second; operations per second; bytes.
    Raises:
        ConfigError: an unknown device, or a number out of range.
    """
    _check(num_devices, {"bandwidth": bandwidth, "flops": flops, "memory": memory_bytes})
    if device is not None and device not in _THIS_MACHINE:
        base = _of_table(device, bandwidth, flops)
    elif here is not None and bandwidth is None and flops is None:
        base = here
    else:
        base = _given(bandwidth, flops)
    if memory_bytes is not None:
        base = replace(base, memory_bytes=memory_bytes, memory_source=Source.GIVEN)
    return replace(base, num_devices=num_devices)


def _check(num_devices: int, numbers: dict[str, float | None]) -> None:
    for name, value in numbers.items():
        if value is not None and not 0 < value < 1e18:
            raise ConfigError(f"--{name} cannot be this", value=value, limit="above 0")
    if not 1 <= num_devices <= MAX_DEVICES:
        raise ConfigError(
            "--num-devices is out of range", value=num_devices, limit=f"[1, {MAX_DEVICES}]"
        )


def _given(bandwidth: float | None, flops: float | None) -> Target:
    return Target(
        name="given",
        kind="unknown",
        memory_bytes=None,
        memory_source=None,
        num_devices=1,
        speed=given_speed(bandwidth, flops),
    )


def _of_table(name: str, bandwidth: float | None, flops: float | None) -> Target:
    row = find_device(name)
    speed = speed_of_device(row)
    if bandwidth is not None or flops is not None:
        speed = given_speed(bandwidth or row.bandwidth, flops or row.flops)
    return Target(
        name=row.name,
        kind=row.kind,
        memory_bytes=row.memory_bytes,
        memory_source=Source.DATASHEET if row.memory_bytes is not None else None,
        num_devices=1,
        speed=speed,
    )


def this_machine(profile: MachineProfile | None, free_bytes: float | None) -> Target:
    """Return this machine; without a measured profile its speed is unknown."""
    unknown = Speed(name="this machine, not yet measured", source=Source.MEASURED)
    return Target(
        name=profile.cpu if profile is not None else "this machine",
        kind="cpu",
        memory_bytes=free_bytes,
        memory_source=Source.MEASURED if free_bytes is not None else None,
        num_devices=1,
        speed=unknown if profile is None else assumed_speed(profile),
        is_here=True,
    )


def stored_profile(folder: Path, cpu: str, threads: int | None = None) -> MachineProfile | None:
    """Return the newest profile that calibration stored for this CPU, None where there is none.

    threads: only a profile of that count; None: the one with most threads.
    """
    found = []
    for path in _files(folder):
        profile = _read(path)
        if profile is None or profile.cpu != cpu:
            continue
        if threads is None or profile.threads == threads:
            found.append((profile.threads, path.stat().st_mtime, profile))
    return max(found, key=lambda one: one[:2])[2] if found else None


def _files(folder: Path) -> Iterable[Path]:
    try:
        return sorted(folder.glob("*.json"))[:1000]
    except OSError:
        return ()


def _read(path: Path) -> MachineProfile | None:
    try:
        if path.stat().st_size > _MOST_PROFILE_BYTES:
            return None
        return MachineProfile.from_dict(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
