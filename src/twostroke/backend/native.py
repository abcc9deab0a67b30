"""The native backend: the forward pass recorded once, then one native call a step.

The call prepares blocks, runs every layer and samples, on its own threads with the GIL released.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from twostroke.backend.arrays import SAMPLE_RESULT, Results, StepArrays
from twostroke.backend.native_ops import GrowingRope, NativeOps
from twostroke.backend.native_sampling import SampleArrays, encode_samples
from twostroke.backend.packed import (
    PackedWeights,
    cache_key,
    layout_probe,
    load_packed,
    packer,
)
from twostroke.backend.packed_folder import PackedFolder
from twostroke.config import KvType
from twostroke.dataclass import dataclass
from twostroke.errors import CapacityError, ConfigError, ShapeError, UnsupportedCPU
from twostroke.host import free_memory_bytes, usable_cores
from twostroke.model.config import ModelConfig
from twostroke.model.decoder import forward
from twostroke.model.ops import Batch
from twostroke.model.weights import ModelWeights, Weight
from twostroke.predict.kv import KvFormat, kv_block_bytes
from twostroke.predict.shape import config_layers

_KV_TYPES = {KvType.BF16: 0, KvType.F16: 1, KvType.Q8: 2}
_MAX_LOGIT_ROWS = 64  # wanted rows computed at once; more are done in pieces


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


def matrices_of(weights: ModelWeights) -> list[Weight]:
    """Return the matrices that are multiplied by, in order of use; the head last."""
    found = []
    for layer in weights.layers:
        found += [layer.q, layer.k, layer.v, layer.o, layer.gate, layer.up, layer.down]
    return [*found, weights.output]


@dataclass(frozen=True, slots=True)
class ProfileLine:
    """Time of one kind of section, summed. Units: seconds of wall clock."""

    label: str
    seconds: float
    calls: int


class NativeModel:
    """A model with its cache, recorded for one kernel set. Implements `arrays.Backend`."""

    def __init__(
        self,
        config: ModelConfig,
        weights: ModelWeights,
        packed: PackedWeights,
        *,
        num_blocks: int,
        kv_type: KvType = KvType.BF16,
        max_tokens: int = 512,
        max_positions: int | None = None,
        threads: int | None = None,
        kernel_set: str | None = None,
        pool: Any = None,
    ) -> None:
        """Record the forward pass and allocate the cache.

        Raises:
            UnsupportedCPU: the kernel set is not available.
            CapacityError: the cache does not fit into memory.
        """
        native = native_module()
        self.config, self.weights, self.packed = config, weights, packed
        self.kernel_set = choose_kernel_set(kernel_set)
        self.num_blocks, self.max_tokens = num_blocks, max_tokens
        self.pool = pool or native.ThreadPool(threads or usable_cores())
        self._kv = _allocate_kv(config, kv_type, num_blocks, self.kernel_set)
        self._program = native.Program(
            self.kernel_set, max_tokens, min(_MAX_LOGIT_ROWS, max_tokens)
        )
        ops = NativeOps(self._program, config, packed.matrices)
        batch: Batch[None, None] = Batch(None, None, None, None, None)
        self._program.compile(forward(ops, config, weights, batch, None))
        self._rope = GrowingRope(self._program, ops.ropes, max_positions or config.context_length)

    @property
    def threads(self) -> int:
        """Threads of a step."""
        return int(self.pool.size)

    @property
    def kv_bytes(self) -> int:
        """Bytes of the cache."""
        return int(self._kv.nbytes)

    @property
    def arena_bytes(self) -> int:
        """Bytes of the buffers between ops."""
        return int(self._program.arena_bytes)

    def packed_bytes(self) -> Mapping[str, int]:
        """Return the bytes of each matrix as stored for the kernels, by tensor name."""
        return {name: matrix.data.nbytes for name, matrix in self.packed.matrices.items()}

    def step(self, arrays: StepArrays) -> Results:
        """Prepare blocks, run the forward pass, sample the wanted rows.

        Shapes: returns [R] SAMPLE_RESULT
        Raises:
            ShapeError: arrays that do not fit the model, the cache or each other.
        """
        results = np.empty(len(arrays.specs), SAMPLE_RESULT)
        samples = encode_samples(arrays.specs, arrays.targets, self.config.vocab_size)
        self._run(arrays, samples, results)
        return results

    def logits(self, arrays: StepArrays) -> npt.NDArray[np.float32]:
        """Run a step without sampling and return the logits of the wanted rows.

        Shapes: returns [R, V]
        Raises:
            ShapeError: arrays that do not fit the model, the cache or each other.
        """
        out = np.empty((len(arrays.logit_rows), self.config.vocab_size), np.float32)
        self._run(arrays, encode_samples((), (), 0), np.empty(0, SAMPLE_RESULT), out)
        return out

    def _run(
        self,
        a: StepArrays,
        samples: SampleArrays,
        results: Results,
        logits: npt.NDArray[np.float32] | None = None,
    ) -> None:
        if len(a.positions):
            self._rope.cover(int(a.positions.max()) + 1)
        try:
            self._program.step(
                *(self.pool, self._kv, a.token_ids, a.positions, a.slot_mapping),
                *(a.cu_seqlens_q, a.context_lens, a.block_tables, a.logit_rows),
                *(samples.records.view(np.uint8), samples.ids, samples.biases, samples.masks),
                *(a.new_blocks, a.copies),
                *(results.view(np.uint8), logits),
            )
        except (ValueError, TypeError) as error:
            raise ShapeError(f"a step does not fit: {error}".splitlines()[0]) from None

    def read_kv(self, layer: int, slot: int) -> npt.NDArray[np.float32]:
        """Return K and V of one slot as stored.

        Shapes: returns [2, K, D]
        """
        size = self.config.num_kv_heads * self.config.head_dim
        k, v = np.empty(size, np.float32), np.empty(size, np.float32)
        self._kv.read(layer, slot, k, v)
        return np.stack([k, v]).reshape(2, self.config.num_kv_heads, self.config.head_dim)

    def profile(self, on: bool) -> None:
        """Turn the built-in profile on or off."""
        self._program.set_profile(on)

    def take_profile(self) -> tuple[ProfileLine, ...]:
        """Return times by kind of section since the last call, longest first."""
        lines = [ProfileLine(*line) for line in self._program.take_profile()]
        return tuple(sorted(lines, key=lambda line: -line.seconds))


def _allocate_kv(config: ModelConfig, kv_type: KvType, num_blocks: int, kernel_set: str) -> Any:
    wanted = kv_block_bytes(config_layers(config), KvFormat(kv_type.value)) * num_blocks
    free = free_memory_bytes()
    refusal = CapacityError(
        "the KV cache does not fit into memory",
        value=f"{wanted / 2**30:.2f} GiB",
        limit="unknown" if free is None else f"{free / 2**30:.2f} GiB free",
        remedy="Lower --kv-memory or --max-model-len.",
    )
    if free is not None and wanted > free:
        raise refusal
    try:
        return native_module().KvPool(
            *(kernel_set, _KV_TYPES[kv_type], config.num_layers),
            *(config.num_kv_heads, config.head_dim, num_blocks),
        )
    except MemoryError:
        raise refusal from None


def pack_weights(
    weights: ModelWeights,
    pool: Any,
    *,
    folder: PackedFolder | None = None,
    fingerprint: tuple[object, ...] = (),
    verify: bool = False,
) -> PackedWeights:
    """Map a model's repacked matrices from the cache folder, or repack them on a pool's threads.

    Raises:
        UnsupportedModel: a matrix that the kernels cannot take.
        CapacityError: the repacked weights do not fit into memory.
    """
    native = native_module()
    matrices = matrices_of(weights)
    key = ""
    if fingerprint:
        key = cache_key(fingerprint, layout_probe(native, pool, (w.type for w in matrices)))
    try:
        return load_packed(
            matrices,
            pack=packer(native, pool),
            packed_bytes=native.panel_bytes,
            allocate=native.huge_array,
            folder=folder,
            key=key,
            verify=verify,
        )
    except MemoryError:
        raise CapacityError(
            "the repacked weights do not fit into memory", remedy="Use a smaller model."
        ) from None
