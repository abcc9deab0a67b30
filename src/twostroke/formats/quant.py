"""Stored blocks -> float32, the definition of a quantised weight's value.

Slow and plain: kernels are checked against it. The arithmetic of each type is in block_decoders.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from twostroke.errors import ShapeError, UnsupportedModel
from twostroke.formats.block_decoders import DECODERS, Bytes, Floats
from twostroke.formats.ggml_types import GGMLType, block_size, row_bytes

DEQUANTIZABLE: tuple[GGMLType, ...] = tuple(DECODERS)
_VALUES_PER_PIECE = 1 << 20  # temporaries stay near 20 MB however large the tensor is


def dequantize(raw: Bytes, type_id: int, shape: Sequence[int]) -> Floats:
    """Decode the stored bytes of a tensor.

    Shapes:
        raw      the tensor's bytes, any shape, contiguous or not
        returns  `shape`, rows first
    Raises:
        UnsupportedModel: a type without a decoder, by name.
        ShapeError: the bytes are not those of this type and shape.
    """
    block = block_size(type_id)
    type_ = GGMLType(type_id)
    if type_ not in DECODERS:
        raise UnsupportedModel(
            "tensor type cannot be decoded",
            value=type_.name,
            limit=", ".join(t.name for t in DEQUANTIZABLE),
        )
    _check_size(raw, type_, shape)
    layout, decode = DECODERS[type_]
    blocks = np.ascontiguousarray(raw).reshape(-1).view(layout)
    out = np.empty((blocks.shape[0], block.values), dtype=np.float32)
    piece = _VALUES_PER_PIECE // block.values
    with np.errstate(all="ignore"):  # scales may be inf or nan: the result says so
        for start in range(0, blocks.shape[0], piece):
            part = blocks[start : start + piece]
            out[start : start + piece] = decode(part).reshape(part.shape[0], block.values)
    return out.reshape(tuple(shape))


def _check_size(raw: Bytes, type_: GGMLType, shape: Sequence[int]) -> None:
    wanted = math.prod(shape[:-1]) * row_bytes(type_, shape[-1] if shape else 1)
    if raw.dtype != np.uint8 or raw.size != wanted:
        raise ShapeError(
            f"a {type_.name} tensor of shape {tuple(shape)} has another size",
            value=f"{raw.size} items of {raw.dtype}",
            limit=f"{wanted} bytes",
        )
