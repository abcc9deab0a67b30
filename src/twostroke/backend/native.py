"""The native backend: the forward pass recorded once, then one native call a step.

The call prepares blocks, runs every layer and samples, on its own threads with the GIL released.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from twostroke.backend.arrays import SAMPLE_RESULT, Results, StepArrays
from twostroke.backend.native_library import KV_TYPES, choose_kernel_set, native_module
from twostroke.backend.native_ops import GrowingRope, NativeOps
from twostroke.backend.native_sampling import NO_SAMPLES, SampleArrays, encode_samples
from twostroke.backend.packed import PackedMatrix, PackedWeights
from twostroke.config import KvType
from twostroke.dataclass import dataclass
from twostroke.errors import CapacityError, ShapeError
from twostroke.host import free_memory_bytes, usable_cores
from twostroke.model.config import ModelConfig, RopeConfig
from twostroke.model.decoder import forward
from twostroke.model.ops import Batch
from twostroke.model.weights import ModelWeights
from twostroke.predict.kv import KvFormat, kv_block_bytes
from twostroke.predict.shape import config_layers

_MAX_LOGIT_ROWS = 64  # wanted rows computed at once; more are computed in pieces


@dataclass(frozen=True, slots=True)
class RecordedProgram:
    """A compiled forward pass, and which of its rotary tables belongs to which embedding."""

    program: Any
    ropes: Mapping[RopeConfig, int]


def record_program(
    config: ModelConfig,
    weights: ModelWeights,
    matrices: Mapping[str, PackedMatrix],
    *,
    kernel_set: str,
    max_tokens: int,
) -> RecordedProgram:
    """Record the forward pass of a model and compile it for steps of at most max_tokens tokens."""
    recorder = native_module().Recorder(kernel_set, max_tokens, min(_MAX_LOGIT_ROWS, max_tokens))
    ops = NativeOps(recorder, config, matrices)
    batch: Batch[None, None] = Batch(None, None, None, None, None)
    logits = forward(ops, config, weights, batch, None)
    return RecordedProgram(recorder.compile(logits), ops.ropes)


@dataclass(frozen=True, slots=True)
class ProfileLine:
    """Time of one kind of section, summed. Units: seconds of wall clock."""

    label: str
    seconds: float
    calls: int


class NativeModel:
    """A model with its cache, recorded for one kernel set. Implements `arrays.CachedModel`."""

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
        self.config, self.weights, self.packed = config, weights, packed
        self.kernel_set = choose_kernel_set(kernel_set)
        self.num_blocks, self.max_tokens = num_blocks, max_tokens
        self.pool = pool or native_module().ThreadPool(threads or usable_cores())
        self._kv = _allocate_kv(config, kv_type, num_blocks, self.kernel_set)
        recorded = record_program(
            config, weights, packed.matrices, kernel_set=self.kernel_set, max_tokens=max_tokens
        )
        self._program = recorded.program
        positions = max_positions or config.context_length
        self._rope = GrowingRope(recorded.program, recorded.ropes, positions)

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
        self._run(arrays, NO_SAMPLES, np.empty(0, SAMPLE_RESULT), out)
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
                pool=self.pool,
                kv=self._kv,
                token_ids=a.token_ids,
                positions=a.positions,
                slots=a.slot_mapping,
                cu_seqlens_q=a.cu_seqlens_q,
                context_lens=a.context_lens,
                block_tables=a.block_tables,
                logit_rows=a.logit_rows,
                new_blocks=a.new_blocks,
                copies=a.copies,
                sample_records=samples.records.view(np.uint8),
                sample_ids=samples.ids,
                sample_biases=samples.biases,
                sample_masks=samples.masks,
                results=results.view(np.uint8),
                logits=logits,
            )
        except (ValueError, TypeError) as error:
            raise ShapeError(f"a step does not fit: {error}".splitlines()[0]) from None

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
            kernel_set=kernel_set,
            kv_type=KV_TYPES[kv_type],
            num_layers=config.num_layers,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            num_blocks=num_blocks,
        )
    except MemoryError:
        raise refusal from None
