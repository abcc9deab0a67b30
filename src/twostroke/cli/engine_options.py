"""Parsers of the values that several verbs take, and the engine's settings made of them."""

from __future__ import annotations

import os
import re
from typing import Any

from twostroke.config import EngineConfig, KvType, environment_value
from twostroke.errors import ConfigError

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)


def parse_bytes(text: str, *, param: str) -> int:
    """Return a size in bytes: `4GB` is 4e9, `4GiB` is 2**32, a bare number is bytes.

    Raises:
        ConfigError: not a size.
    """
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise ConfigError(
            f"{param} is not a size", value=text, remedy="Write it as 4GB, 512MiB or plain bytes."
        )
    number, unit, binary = match.groups()
    power = "kmgt".find(unit.lower()) + 1 if unit else 0
    scale = 1024**power if binary else _UNITS[unit.lower()]
    return int(float(number) * scale)


def parse_ints(text: str, *, param: str, low: int = 1, high: int = 1 << 20) -> tuple[int, ...]:
    """Return the integers of a comma-separated list, each in [low, high].

    Raises:
        ConfigError: an entry that is no integer or out of range.
    """
    values = []
    for part in text.split(","):
        if not re.fullmatch(r"\d{1,9}", part.strip()) or not low <= int(part) <= high:
            raise ConfigError(
                f"{param} has a bad entry", value=repr(part), limit=f"integers in [{low}, {high}]"
            )
        values.append(int(part))
    return tuple(values)


def parse_kv_type(text: str) -> KvType:
    """Return how K and V are stored.

    Raises:
        ConfigError: no such type.
    """
    if text not in [t.value for t in KvType]:
        raise ConfigError("unknown --kv-type", value=text, limit="bf16, f16, q8")
    return KvType(text)


def engine_config(**fields: Any) -> EngineConfig:
    """Return the engine's settings with these fields; a field wins over its environment variable.

    Raises:
        ConfigError: a value that cannot be.
    """
    threads = environment_value(os.environ, "TWOSTROKE_THREADS")
    if "threads" not in fields and threads is not None:
        (fields["threads"],) = parse_ints(threads, param="TWOSTROKE_THREADS", high=1024)
    fields.setdefault("kernel_set", environment_value(os.environ, "TWOSTROKE_KERNELS"))
    return EngineConfig(**fields)
