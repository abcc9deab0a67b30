"""Random weights in the layouts of GGUF files: any integers, scales of a real model's size."""

from __future__ import annotations

import numpy as np

from twostroke.formats.ggml_types import GGMLType, row_bytes

FORMATS = (
    GGMLType.F32,
    GGMLType.F16,
    GGMLType.BF16,
    GGMLType.Q4_0,
    GGMLType.Q4_1,
    GGMLType.Q5_0,
    GGMLType.Q5_1,
    GGMLType.Q8_0,
    GGMLType.Q2_K,
    GGMLType.Q3_K,
    GGMLType.Q4_K,
    GGMLType.Q5_K,
    GGMLType.Q6_K,
    GGMLType.IQ4_NL,
    GGMLType.IQ4_XS,
)
FLOAT_FORMATS = FORMATS[:3]

# Bytes of a block, and where its float16 scales lie with their typical size.
_SCALES: dict[GGMLType, tuple[int, tuple[tuple[int, float], ...]]] = {
    GGMLType.Q4_0: (18, ((0, 0.02),)),
    GGMLType.Q4_1: (20, ((0, 0.02), (2, 0.1))),
    GGMLType.Q5_0: (22, ((0, 0.01),)),
    GGMLType.Q5_1: (24, ((0, 0.01), (2, 0.1))),
    GGMLType.Q8_0: (34, ((0, 0.002),)),
    GGMLType.Q2_K: (84, ((80, 0.005), (82, 0.005))),
    GGMLType.Q3_K: (110, ((108, 0.002),)),
    GGMLType.Q4_K: (144, ((0, 0.0005), (2, 0.002))),
    GGMLType.Q5_K: (176, ((0, 0.0003), (2, 0.002))),
    GGMLType.Q6_K: (210, ((208, 0.00005),)),
    GGMLType.IQ4_NL: (18, ((0, 0.002),)),
    GGMLType.IQ4_XS: (136, ((0, 0.0001),)),
}


def random_rows(type_: GGMLType, n: int, k: int, seed: int = 0) -> np.ndarray:
    """Rows of a weight matrix [n, k] as stored: uint8 [n, bytes of a row]."""
    rng = np.random.default_rng((seed, int(type_), n, k))
    if type_ in FLOAT_FORMATS:
        values = rng.standard_normal((n, k), dtype=np.float32) * np.float32(0.1)
        if type_ == GGMLType.F16:
            return values.astype(np.float16).view(np.uint8).reshape(n, -1)
        if type_ == GGMLType.BF16:
            return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8).reshape(n, -1)
        return values.view(np.uint8).reshape(n, -1)
    block_bytes, scales = _SCALES[type_]
    rows = rng.integers(0, 256, (n, row_bytes(type_, k)), dtype=np.uint8)
    blocks = rows.reshape(-1, block_bytes)
    for offset, size in scales:
        values = size * rng.standard_normal(len(blocks)).astype(np.float16)
        blocks[:, offset : offset + 2] = values.astype(np.float16).view(np.uint8).reshape(-1, 2)
    return rows


def shortest_k(type_: GGMLType) -> int:
    """Values of k that a row must be a multiple of."""
    if type_ in FLOAT_FORMATS:
        return 1
    return 256 if type_.name.endswith(("_K", "_XS")) else 32
