"""The composition root: a name becomes a loaded model, a loaded model becomes an engine.

Everything else is handed what it needs; only here are the parts chosen and wired.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from twostroke import __version__
from twostroke.backend.memory import free_memory_bytes
from twostroke.cache.manager import KVCacheManager
from twostroke.config import EngineConfig, environment_value
from twostroke.dataclass import dataclass
from twostroke.engine.engine import Engine
from twostroke.errors import CapacityError, ConfigError, TemplateError
from twostroke.events import Observer
from twostroke.formats.gguf import GGUFFile, open_gguf
from twostroke.formats.quant import dequantize
from twostroke.meters.phase_meter import Floors, PhaseMeter
from twostroke.model.config import ModelConfig, config_from_gguf
from twostroke.model.hub import Progress, models_folder, resolve
from twostroke.model.weights import ModelWeights, load_weights, vocab_size_of
from twostroke.physics.cost import CostModel
from twostroke.physics.fit import assumed_speed
from twostroke.physics.hardware import MachineProfile
from twostroke.physics.predict import PhysicsPredictor
from twostroke.physics.stored import stored_fit
from twostroke.record import RequestRecord
from twostroke.request import MessageSpan
from twostroke.runner.runner import ModelRunner
from twostroke.scheduler.predictor import FittedPredictor
from twostroke.scheduler.scheduler import MAX_WAIT_S, MAX_WAITING, Scheduler
from twostroke.step import BLOCK_SIZE, Predictor, StepPlan
from twostroke.text.chat import ChatTemplate, Rendered, encode_chat
from twostroke.text.tokenizer import Segment, Tokenizer

_GIB = 1 << 30


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model file, opened: its shape, its weights in place, its tokenizer."""

    name: str
    file: GGUFFile
    config: ModelConfig
    weights: ModelWeights
    tokenizer: Tokenizer
    load_s: float

    @property
    def end_token_ids(self) -> frozenset[int]:
        """Ids that end an answer: the union of all sources."""
        return self.tokenizer.end_ids

    @cached_property
    def template(self) -> ChatTemplate:
        """The model's own chat template.

        Raises:
            TemplateError: the file brings none.
        """
        return ChatTemplate.from_gguf(self.file.metadata, self.tokenizer)

    @property
    def has_template(self) -> bool:
        """Whether chat messages can be taken."""
        try:
            return bool(self.template)
        except TemplateError:
            return False

    def render_chat(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> Rendered:
        """Render messages up to the point where the model speaks.

        Raises:
            TemplateError: no template, or it refused. RequestError: messages of the wrong shape.
        """
        return self.template.render(messages, **variables)

    def encode_rendered(
        self, rendered: Rendered
    ) -> tuple[tuple[int, ...], tuple[MessageSpan, ...]]:
        """Return a rendered prompt's ids, and which of them each message became."""
        ids, spans = encode_chat(self.tokenizer, rendered)
        return tuple(ids), spans

    def encode_after(self, rendered: Rendered, position: int) -> tuple[int, ...]:
        """Return the ids of a rendered prompt from a character position on, as a text of its
        own.
        """
        rest, at = [], 0
        for segment in rendered.segments:
            end = at + len(segment.text)
            if end > position:
                text = segment.text[max(position - at, 0) :]
                rest.append(Segment(text, segment.parse_special))
            at = end
        return tuple(self.tokenizer.encode_segments(rest))


def cache_folder() -> Path:
    """Return the folder for models, repacked weights and machine profiles."""
    return models_folder().parent


def fits_folder() -> Path:
    """Return the folder of what was fitted to this machine's measured steps."""
    return cache_folder() / "fits"


def load_model(name: str, *, progress: Progress | None = None) -> LoadedModel:
    """Find a model by name, fetching it if needed, and open it.

    Raises:
        ModelError: not found, broken or not supported. CapacityError: larger than the memory.
    """
    start = time.monotonic()
    files = resolve(name, progress=progress)
    file = open_gguf(files.path)
    try:
        config = config_from_gguf(
            file.metadata, vocab_size=vocab_size_of(file), freq_factors=_freq_factors(file)
        )
        weights = load_weights(file, config)
        _check_memory(files.path, weights)
        tokenizer = Tokenizer.from_gguf(file.metadata, cache_folder() / "tokenizers")
    except BaseException:
        file.close()
        raise
    for warning in tokenizer.warnings:
        import logging

        logging.getLogger(__name__).warning("%s: %s", files.path.name, warning)
    return LoadedModel(name, file, config, weights, tokenizer, time.monotonic() - start)


def _freq_factors(file: GGUFFile) -> tuple[float, ...]:
    info = file.tensors.get("rope_freqs.weight")
    if info is None:
        return ()
    values = dequantize(file.data(info.name), info.type, info.shape)
    return tuple(float(v) for v in values.reshape(-1))


def _check_memory(path: Path, weights: ModelWeights) -> None:
    free, wanted = free_memory_bytes(), sum(w.nbytes for w in weights.all())
    if free is not None and wanted > free:
        raise CapacityError(
            f"{path.name} does not fit into memory",
            value=f"{wanted / _GIB:.2f} GiB of weights",
            limit=f"{free / _GIB:.2f} GiB free",
            remedy="Use a smaller model, or one with fewer bits a weight.",
        )


class Machine(Protocol):
    """A backend that can make runners of one model, each with a cache of its own."""

    @property
    def summary(self) -> str: ...
    @property
    def block_bytes(self) -> int: ...
    @property
    def profile(self) -> MachineProfile | None: ...
    @property
    def packed_bytes(self) -> Mapping[str, int] | None: ...

    def probe(self) -> Callable[[], tuple[float, float]]:
        """Return what measures the machine's speed right now: operations and bytes per second.

        Raises:
            ConfigError: a backend that measures none.
        """
        ...

    def runner(self, num_blocks: int, *, max_tokens: int, max_positions: int) -> ModelRunner:
        """Return a runner whose steps hold at most max_tokens tokens."""
        ...


class _NativeMachine:
    def __init__(self, model: LoadedModel, config: EngineConfig, *, calibrate: bool) -> None:
        from twostroke.backend import calibrate as measure
        from twostroke.backend import native, packed_folder

        kernel_set = native.choose_kernel_set(config.kernel_set)
        self._native, self._model, self._config = native, model, config
        self._kernel_set = kernel_set
        self._pool = native.native_module().ThreadPool(config.threads or native.usable_cores())
        budget = float(environment_value(os.environ, "TWOSTROKE_PACKED_CACHE_GB") or 20)
        fingerprint = model.file.fingerprint()
        self._packed = native.pack_weights(
            model.weights,
            self._pool,
            folder=packed_folder.PackedFolder(cache_folder() / "packed", int(budget * 10**9)),
            fingerprint=tuple(fingerprint),
        )
        self.packed_bytes = {k: m.data.nbytes for k, m in self._packed.matrices.items()}
        self.block_bytes = native.kv_block_bytes(model.config, config.kv_type)
        self.summary = f"{kernel_set} kernels, {self._pool.size} threads"
        folder = cache_folder() / "profiles"
        if calibrate or not measure.profile_path(folder, kernel_set, self._pool.size).exists():
            print("twostroke: measuring this machine's peaks (about 3 s, once)", file=sys.stderr)
        self.profile: MachineProfile | None = measure.load_profile(
            folder, self._pool, kernel_set, redo=calibrate
        )

    def probe(self) -> Callable[[], tuple[float, float]]:
        """Return what measures this machine's int8 and read rates right now."""
        from twostroke.backend.calibrate import Probe

        return Probe(self._pool, self._kernel_set).speed

    def runner(self, num_blocks: int, *, max_tokens: int, max_positions: int) -> ModelRunner:
        model = self._native.NativeModel(
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


class _ReferenceMachine:
    summary = "reference backend (NumPy float32)"
    profile = None
    packed_bytes = None

    def __init__(self, model: LoadedModel, config: EngineConfig) -> None:
        self._model, self._config = model, config
        c = model.config
        values = 2 * c.num_layers * c.num_kv_heads * c.head_dim * BLOCK_SIZE
        self.block_bytes = 4 * values  # float32, rounded to the KV type

    def probe(self) -> Callable[[], tuple[float, float]]:
        raise ConfigError("this backend has no peaks to fit to", remedy="Use the native backend.")

    def runner(self, num_blocks: int, *, max_tokens: int, max_positions: int) -> ModelRunner:
        from twostroke.backend.eager import EagerModel

        model = EagerModel(
            self._model.config,
            self._model.weights,
            num_blocks=num_blocks,
            kv_type=self._config.kv_type,
            max_tokens=max_tokens,
        )
        return ModelRunner(model)


def _machine(model: LoadedModel, config: EngineConfig, *, calibrate: bool) -> Machine:
    if config.backend == "reference":
        return _ReferenceMachine(model, config)
    return _NativeMachine(model, config, calibrate=calibrate)


class _Floors:
    """The meter's cost model: what a step must cost at least on this machine."""

    def __init__(self, cost: CostModel, profile: MachineProfile) -> None:
        self._cost, self._profile = cost, profile

    def floors(self, plan: StepPlan) -> Floors:
        work = self._cost.step_work(plan)
        return Floors(
            self._profile.arithmetic_s(work),
            self._profile.memory_s(work, self._cost.weight_bytes),
        )


@dataclass(frozen=True, eq=False)
class BuiltEngine:
    """An engine and what was chosen for it. `config` is resolved: no None is left in it."""

    engine: Engine
    machine: Machine
    config: EngineConfig
    cost: CostModel
    num_blocks: int
    physics: PhysicsPredictor | None = None  # None: this backend's peaks are unknown

    @property
    def summary(self) -> str:
        """One line on the backend and the KV cache, said at start."""
        tokens = self.num_blocks * BLOCK_SIZE
        gib = self.num_blocks * self.machine.block_bytes / _GIB
        kv = f"{gib:.2f} GiB of {self.config.kv_type.value} KV cache for {tokens} tokens"
        return f"{self.machine.summary}, {kv}"

    def new_runner(self, num_tokens: int) -> ModelRunner:
        """Return a runner apart from the engine's, with a cache for num_tokens tokens."""
        return self.machine.runner(
            -(-num_tokens // BLOCK_SIZE),
            max_tokens=self.config.prefill_chunk + self.config.max_num_seqs,
            max_positions=num_tokens,
        )


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
    machine = _machine(model, config, calibrate=calibrate)
    resolved, num_blocks = _resolve(model, config, machine)
    cost = CostModel(model.config, model.weights, resolved.kv_type, machine.packed_bytes)
    assert resolved.max_model_len is not None
    runner = machine.runner(
        num_blocks,
        max_tokens=resolved.prefill_chunk + resolved.max_num_seqs,
        max_positions=resolved.max_model_len,
    )
    predictor = _predictor(model, resolved, machine, cost)
    meter = PhaseMeter(
        model=model.name,
        build=__version__,
        cost=_Floors(cost, machine.profile) if machine.profile is not None else None,
        advise=_advise,
    )
    scheduler = Scheduler(
        resolved,
        KVCacheManager(num_blocks),
        predictor,
        clock=time.monotonic,
        max_waiting=max_waiting,
        max_wait_s=max_wait_s,
        block_bytes=machine.block_bytes,
    )
    engine = Engine(
        scheduler,
        runner,
        observers=(meter, *observers),
        predictor=predictor,
        take_record=meter.take,
    )
    physics = predictor if isinstance(predictor, PhysicsPredictor) else None
    return BuiltEngine(engine, machine, resolved, cost, num_blocks, physics)


def _advise(record: RequestRecord) -> tuple[str, ...]:
    from twostroke.advice.brief import brief  # a first token does not wait for it

    return brief(record)


def _predictor(
    model: LoadedModel, config: EngineConfig, machine: Machine, cost: CostModel
) -> Predictor:
    """Return the predictor of the engine's steps: physics where this machine's peaks are known.

    It starts from the fit of this model, of another one here, or from assumed shares of the peaks.
    """
    profile = machine.profile
    if profile is None:
        return FittedPredictor()
    path = model.file.paths[0]
    speed = stored_fit(fits_folder(), path, config.kv_type.value, profile)
    return PhysicsPredictor.learning(cost, speed or assumed_speed(profile))


def _resolve(
    model: LoadedModel, config: EngineConfig, machine: Machine
) -> tuple[EngineConfig, int]:
    free = free_memory_bytes()
    resolved = config.resolved(
        model_max_len=model.config.context_length,
        block_bytes=machine.block_bytes,
        block_size=BLOCK_SIZE,
        free_bytes=free if free is not None else 4 * _GIB,
        cpu_count=os.cpu_count() or 1,
    )
    assert resolved.kv_memory_bytes is not None
    num_blocks = resolved.kv_memory_bytes // machine.block_bytes
    if num_blocks < 1:
        raise CapacityError(
            "the KV memory holds not one block",
            value=f"{resolved.kv_memory_bytes} bytes",
            limit=f"{machine.block_bytes} bytes a block of {BLOCK_SIZE} tokens",
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
