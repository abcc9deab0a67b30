"""The native library: loading it, and the choice of a kernel set."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from twostroke.config import KvType
from twostroke.errors import ConfigError, UnsupportedCPU

KV_TYPES = {KvType.BF16: 0, KvType.F16: 1, KvType.Q8: 2}


def native_module() -> Any:
    """Return the native library.

    Raises:
        ConfigError: this installation has none.
    """
    try:
        return import_module("twostroke._native")
    except ImportError as error:
        raise ConfigError(
            f"the native library is missing: {error}",
            remedy="Reinstall with a C++20 compiler and without TWOSTROKE_NATIVE=off, "
            "or use --backend reference.",
        ) from None


def choose_kernel_set(name: str | None = None) -> str:
    """Return the kernel set asked for, or the best of this CPU.

    Raises:
        UnsupportedCPU: this CPU or build does not have it.
    """
    sets = native_module().kernel_sets()
    if name is None:
        return str(sets[0])
    if name not in sets:
        raise UnsupportedCPU(
            "kernel set is not available on this CPU", value=name, limit=", ".join(sets)
        )
    return name
