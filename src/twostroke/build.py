"""The composition root: a name becomes a loaded model, a loaded model becomes an engine.

Everything else is handed what it needs; only here are the parts chosen and wired.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from twostroke import __version__
from twostroke.backend.choose import Backend, choose_backend
from twostroke.backend.runner import ModelRunner
from twostroke.cache.manager import KVCacheManager, blocks_for
from twostroke.config import EngineConfig
from twostroke.dataclass import dataclass
from twostroke.engine.engine import Engine
from twostroke.errors import CapacityError
from twostroke.events import Observer
from twostroke.host import free_memory_bytes, usable_cores
from twostroke.meters.floors import MachineFloors
from twostroke.meters.phase_meter import PhaseMeter
from twostroke.model.loaded import LoadedModel
from twostroke.model.local_models import fits_folder
from twostroke.predict.cost import CostModel
from twostroke.predict.fitted_speed import assumed_speed
from twostroke.predict.hardware import MachineProfile
from twostroke.predict.kv import KvFormat
from twostroke.predict.learning import LearningPredictor
from twostroke.predict.shape import shape_of_model
from twostroke.predict.stored import stored_fit
from twostroke.record import RequestRecord
from twostroke.scheduler.scheduler import Scheduler
from twostroke.scheduler.wait import MAX_WAIT_S, MAX_WAITING
from twostroke.step import BLOCK_SIZE

_GIB = 1 << 30


@dataclass(frozen=True, eq=False)
class BuiltEngine:
    """An engine and its parts. `config` is resolved for the model and this machine."""

    engine: Engine
    backend: Backend
    config: EngineConfig
    cost: CostModel
    num_blocks: int
    predictor: LearningPredictor

    @property
    def summary(self) -> str:
        """One line on the backend and the KV cache, said at start."""
        tokens = self.num_blocks * BLOCK_SIZE
        gib = self.num_blocks * self.backend.block_bytes / _GIB
        kv = f"{gib:.2f} GiB of {self.config.kv_type.value} KV cache for {tokens} tokens"
        return f"{self.backend.summary}, {kv}"

    def new_runner(self, num_tokens: int) -> ModelRunner:
        """Return a runner apart from the engine's, with a cache for num_tokens tokens."""
        config = replace(self.config, max_model_len=num_tokens)
        return _runner(self.backend, config, blocks_for(num_tokens))


def build_engine(
    model: LoadedModel,
    config: EngineConfig,
    *,
    observers: Sequence[Observer] = (),
    calibrate: bool = False,
    max_waiting: int = MAX_WAITING,
    max_wait_s: float = MAX_WAIT_S,
) -> BuiltEngine:
    """Choose a backend, size the KV cache, and wire scheduler, runner and meter.

    Units: max_waiting in requests, max_wait_s in seconds: the bounds of the queue.

    Raises:
        ConfigError, UnsupportedCPU: a backend or kernel set that is not here.
        CapacityError: the KV cache does not fit.
    """
    backend = choose_backend(model, config, calibrate=calibrate)
    resolved, num_blocks = _resolve(model, config, backend)
    shape = shape_of_model(model.config, model.weights, backend.packed_bytes)
    cost = CostModel(shape, KvFormat(resolved.kv_type.value))
    runner = _runner(backend, resolved, num_blocks)
    predictor = _predictor(model, resolved, backend, cost)
    meter = PhaseMeter(
        model=model.name,
        build=__version__,
        floors=MachineFloors(predictor, backend.profile) if backend.profile is not None else None,
        advise=_advise,
    )
    scheduler = Scheduler(
        resolved,
        KVCacheManager(num_blocks),
        predictor,
        clock=time.monotonic,
        max_waiting=max_waiting,
        max_wait_s=max_wait_s,
        block_bytes=backend.block_bytes,
    )
    engine = Engine(scheduler, runner, meter=meter, observers=observers, predictor=predictor)
    return BuiltEngine(engine, backend, resolved, cost, num_blocks, predictor)


def _runner(backend: Backend, config: EngineConfig, num_blocks: int) -> ModelRunner:
    """Return a runner for steps as large as the scheduler makes them."""
    assert config.max_model_len is not None, "the config must be resolved"
    return backend.runner(
        num_blocks,
        max_tokens=config.prefill_chunk + config.max_num_seqs,
        max_positions=config.max_model_len,
    )


def _advise(record: RequestRecord) -> tuple[str, ...]:
    from twostroke.advice.brief import brief  # a first token does not wait for it

    return brief(record)


def _predictor(
    model: LoadedModel, config: EngineConfig, backend: Backend, cost: CostModel
) -> LearningPredictor:
    """Return the predictor of the engine's steps.

    It starts from the fit of this model, of another one here, or from assumed shares of the peaks;
    where the peaks are unknown it knows nothing before the first step.
    """
    profile = backend.profile
    if profile is None:
        return LearningPredictor.untaught(cost)
    path = model.file.paths[0]
    speed = stored_fit(fits_folder(), path, config.kv_type.value, profile)
    return LearningPredictor(cost, speed or assumed_speed(profile))


def _resolve(
    model: LoadedModel, config: EngineConfig, backend: Backend
) -> tuple[EngineConfig, int]:
    free = free_memory_bytes()
    resolved = config.resolved(
        model_max_len=model.config.context_length,
        block_bytes=backend.block_bytes,
        block_size=BLOCK_SIZE,
        free_bytes=free if free is not None else 4 * _GIB,
        num_cores=usable_cores(),
    )
    assert resolved.kv_memory_bytes is not None
    num_blocks = resolved.kv_memory_bytes // backend.block_bytes
    if num_blocks < 1:
        raise CapacityError(
            "the KV memory holds not one block",
            value=f"{resolved.kv_memory_bytes} bytes",
            limit=f"{backend.block_bytes} bytes a block of {BLOCK_SIZE} tokens",
            remedy="Raise --kv-memory.",
        )
    return resolved, num_blocks


def machine_card(profile: MachineProfile | None) -> dict[str, Any]:
    """Return what identifies a measurement: the machine's profile and this build."""
    return {
        "twostroke": __version__,
        "python": sys.version.split()[0],
        "cores": os.cpu_count(),
        "profile": profile.to_dict() if profile is not None else None,
    }
