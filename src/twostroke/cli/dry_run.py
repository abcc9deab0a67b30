"""The memory that our engine would allocate for a file: its forward pass recorded, no weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from twostroke.backend.native import record_program
from twostroke.backend.native_library import choose_kernel_set, native_module
from twostroke.backend.native_weights import matrices_of
from twostroke.backend.packed import PackedMatrix
from twostroke.dataclass import dataclass
from twostroke.errors import ConfigError, TwoStrokeError
from twostroke.formats.gguf import open_gguf
from twostroke.model.gguf_config import config_from_gguf
from twostroke.model.weights import load_weights, vocab_size_of
from twostroke.predict.shape import WeightSizes, shape_of_model


@dataclass(frozen=True, slots=True)
class DryRun:
    """Sizes of an allocation. Units: bytes. weights: as packed for the kernels."""

    arena_bytes: int
    weights: WeightSizes


def dry_run(path: Path, *, step_tokens: int) -> DryRun | None:
    """Return the exact buffers and packed weights of a file; None without a native library.

    Cost: address space of the packed weights, not their memory: their pages are never touched.
    """
    try:
        native = native_module()
        kernel_set = choose_kernel_set()
    except ConfigError:
        return None
    with open_gguf(path) as file:
        try:
            config = config_from_gguf(file.metadata, vocab_size=vocab_size_of(file))
            weights = load_weights(file, config)
            matrices = {}
            for weight in matrices_of(weights):
                n, k = weight.shape
                size = native.packed_bytes(int(weight.type), n, k)
                if size is None:
                    return None
                data = np.zeros(size, np.uint8)
                matrices[weight.name] = PackedMatrix(int(weight.type), n, k, data)
            recorded = record_program(
                config, weights, matrices, kernel_set=kernel_set, max_tokens=step_tokens
            )
        except (TwoStrokeError, ValueError, TypeError, MemoryError):
            return None
        packed = {name: matrix.data.nbytes for name, matrix in matrices.items()}
        sizes = shape_of_model(config, weights, packed).weights
        assert sizes is not None, "a loaded model has weights"
        return DryRun(int(recorded.program.arena_bytes), sizes)
