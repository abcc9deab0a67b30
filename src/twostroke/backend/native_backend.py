"""The native backend of one model: kernel set, threads, repacked weights, this machine's peaks."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from twostroke.backend.calibrate import Probe, load_profile, profile_path
from twostroke.backend.native import NativeModel
from twostroke.backend.native_library import choose_kernel_set, native_module
from twostroke.backend.native_weights import pack_weights
from twostroke.backend.packed_folder import PackedFolder
from twostroke.backend.runner import ModelRunner
from twostroke.config import EngineConfig, environment_value
from twostroke.host import usable_cores
from twostroke.model.loaded import LoadedModel
from twostroke.model.local_models import cache_folder
from twostroke.predict.hardware import MachineProfile
from twostroke.predict.kv import KvFormat, kv_block_bytes
from twostroke.predict.shape import config_layers


class NativeBackend:
    """Implements `choose.Backend` on the native library."""

    def __init__(self, model: LoadedModel, config: EngineConfig, *, calibrate: bool) -> None:
        self._model, self._config = model, config
        self._kernel_set = choose_kernel_set(config.kernel_set)
        self._pool = native_module().ThreadPool(config.threads or usable_cores())
        budget = float(environment_value(os.environ, "TWOSTROKE_PACKED_CACHE_GB") or 20)
        self._packed = pack_weights(
            model.weights,
            self._pool,
            folder=PackedFolder(cache_folder() / "packed", int(budget * 10**9)),
            fingerprint=tuple(model.file.fingerprint()),
        )
        self.packed_bytes = {k: m.data.nbytes for k, m in self._packed.matrices.items()}
        self.block_bytes = kv_block_bytes(
            config_layers(model.config), KvFormat(config.kv_type.value)
        )
        self.summary = f"{self._kernel_set} kernels, {self._pool.size} threads"
        self.profile: MachineProfile | None = self._measured(redo=calibrate)

    def _measured(self, *, redo: bool) -> MachineProfile:
        folder = cache_folder() / "profiles"
        if redo or not profile_path(folder, self._kernel_set, self._pool.size).exists():
            print("twostroke: measuring this machine's peaks (about 3 s, once)", file=sys.stderr)
        return load_profile(folder, self._pool, self._kernel_set, redo=redo)

    def probe(self) -> Callable[[], tuple[float, float]]:
        """Return the function that measures this machine's int8 and read rates right now."""
        return Probe(self._pool, self._kernel_set).speed

    def runner(self, num_blocks: int, *, max_tokens: int, max_positions: int) -> ModelRunner:
        """Return a runner whose steps hold at most max_tokens tokens."""
        model = NativeModel(
            self._model.config,
            self._model.weights,
            self._packed,
            num_blocks=num_blocks,
            kv_type=self._config.kv_type,
            max_tokens=max_tokens,
            max_positions=max_positions,
            kernel_set=self._kernel_set,
            pool=self._pool,
        )
        return ModelRunner(model)
