"""The backends by name: each turns an opened model into runners with a cache of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from twostroke.backend.runner import ModelRunner
from twostroke.config import EngineConfig
from twostroke.model.loaded import LoadedModel
from twostroke.predict.hardware import MachineProfile


class Backend(Protocol):
    """One model on one kind of kernels. Units: block_bytes in bytes a KV block, all layers."""

    @property
    def summary(self) -> str: ...
    @property
    def block_bytes(self) -> int: ...
    @property
    def profile(self) -> MachineProfile | None: ...
    @property
    def packed_bytes(self) -> Mapping[str, int] | None: ...

    def probe(self) -> Callable[[], tuple[float, float]]:
        """Return a function that measures this machine now: operations and bytes per second.

        Raises:
            ConfigError: this backend measures no speed.
        """
        ...

    def runner(self, num_blocks: int, *, max_tokens: int, max_positions: int) -> ModelRunner:
        """Return a runner whose steps hold at most max_tokens tokens."""
        ...


def choose_backend(model: LoadedModel, config: EngineConfig, *, calibrate: bool = False) -> Backend:
    """Return the backend that the config names; `auto` is the native one.

    Raises:
        ConfigError, UnsupportedCPU: a backend or kernel set that this build or CPU lacks.
        UnsupportedModel: a matrix that the kernels cannot take.
        CapacityError: the repacked weights do not fit into memory.
    """
    if config.backend == "reference":
        from twostroke.backend.reference_model import ReferenceBackend

        return ReferenceBackend(model, config)
    from twostroke.backend.native_backend import NativeBackend

    return NativeBackend(model, config, calibrate=calibrate)
