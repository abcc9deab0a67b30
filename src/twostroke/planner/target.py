"""The device that a plan is for: this machine, a row of the table, or numbers given."""

from __future__ import annotations

import json
from collections.abc import Iterable
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
    for name, value in (("--bandwidth", bandwidth), ("--flops", flops), ("--memory", memory_bytes)):
        if value is not None and not 0 < value < 1e18:
            raise ConfigError(f"{name} cannot be this", value=value, limit="above 0")
    if not 1 <= num_devices <= MAX_DEVICES:
        raise ConfigError(
            "--num-devices is out of range", value=num_devices, limit=f"[1, {MAX_DEVICES}]"
        )
    if (
        device in (None, "this", "here")
        and here is not None
        and bandwidth is None
        and flops is None
    ):
        base = here
    elif device in (None, "this", "here"):
        base = Target(
            name="given",
            kind="unknown",
            memory_bytes=None,
            memory_source=None,
            num_devices=1,
            speed=given_speed(bandwidth, flops),
        )
    else:
        assert device is not None
        base = _of_table(device, bandwidth, flops)
    memory, source = base.memory_bytes, base.memory_source
    if memory_bytes is not None:
        memory, source = memory_bytes, Source.GIVEN
    return Target(
        name=base.name,
        kind=base.kind,
        memory_bytes=memory,
        memory_source=source,
        num_devices=num_devices,
        speed=base.speed,
        is_here=base.is_here,
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
