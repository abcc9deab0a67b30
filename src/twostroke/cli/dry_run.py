"""What our engine would allocate for a file: its forward pass recorded without the weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from twostroke.backend.native import choose_kernel_set, matrices_of, native_module
from twostroke.backend.native_ops import NativeOps
from twostroke.backend.packed import PackedMatrix
from twostroke.dataclass import dataclass
from twostroke.errors import ConfigError, TwoStrokeError
from twostroke.formats.gguf import open_gguf
from twostroke.model.decoder import forward
from twostroke.model.gguf_config import config_from_gguf
from twostroke.model.ops import Batch
from twostroke.model.weights import load_weights, vocab_size_of
from twostroke.predict.shape import WeightSizes, shape_of_model

_LOGIT_ROWS = 64  # as the native backend's


@dataclass(frozen=True, slots=True)
class DryRun:
    """What an allocation would be. Units: bytes. weights: as packed for the kernels."""

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
                size = native.panel_bytes(int(weight.type), n, k)
                if size < 0:
                    return None
                data = np.zeros(size, np.uint8)
                matrices[weight.name] = PackedMatrix(int(weight.type), n, k, data)
            program = native.Program(kernel_set, step_tokens, min(_LOGIT_ROWS, step_tokens))
            ops = NativeOps(program, config, matrices)
            batch: Batch[None, None] = Batch(None, None, None, None, None)
            program.compile(forward(ops, config, weights, batch, None))
        except (TwoStrokeError, ValueError, TypeError, MemoryError):
            return None
        packed = {name: matrix.data.nbytes for name, matrix in matrices.items()}
        sizes = shape_of_model(config, weights, packed).weights
        assert sizes is not None, "a loaded model has weights"
        return DryRun(int(program.arena_bytes), sizes)
