"""Tensor types of GGUF files: ids, and how many values and bytes one block holds.

A row of n values takes n / block_values blocks; nothing is padded. A type outside the table is
unknown, never guessed.
Source: the type ids and block sizes of the GGUF format (ggml, `enum ggml_type`).
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from twostroke.errors import ShapeError, UnsupportedModel

OTHER_QUANTISATION = "Use a file in another quantisation, for example Q4_K_M or Q8_0."


class GGMLType(enum.IntEnum):
    """Type id as stored in a GGUF tensor record."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q8_1 = 9
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    Q8_K = 15
    IQ2_XXS = 16
    IQ2_XS = 17
    IQ3_XXS = 18
    IQ1_S = 19
    IQ4_NL = 20
    IQ3_S = 21
    IQ2_S = 22
    IQ4_XS = 23
    I8 = 24
    I16 = 25
    I32 = 26
    I64 = 27
    F64 = 28
    IQ1_M = 29
    BF16 = 30
    TQ1_0 = 34
    TQ2_0 = 35
    MXFP4 = 39
    NVFP4 = 40


class BlockSize(NamedTuple):
    """Values and bytes of one block, the smallest piece of a row."""

    values: int
    nbytes: int


BLOCK_SIZES: dict[GGMLType, BlockSize] = {
    GGMLType.F32: BlockSize(1, 4),
    GGMLType.F16: BlockSize(1, 2),
    GGMLType.Q4_0: BlockSize(32, 18),
    GGMLType.Q4_1: BlockSize(32, 20),
    GGMLType.Q5_0: BlockSize(32, 22),
    GGMLType.Q5_1: BlockSize(32, 24),
    GGMLType.Q8_0: BlockSize(32, 34),
    # An activation format, never in files: d and s are half floats in ggml today (40 bytes before).
    GGMLType.Q8_1: BlockSize(32, 36),
    GGMLType.Q2_K: BlockSize(256, 84),
    GGMLType.Q3_K: BlockSize(256, 110),
    GGMLType.Q4_K: BlockSize(256, 144),
    GGMLType.Q5_K: BlockSize(256, 176),
    GGMLType.Q6_K: BlockSize(256, 210),
    GGMLType.Q8_K: BlockSize(256, 292),
    GGMLType.IQ2_XXS: BlockSize(256, 66),
    GGMLType.IQ2_XS: BlockSize(256, 74),
    GGMLType.IQ3_XXS: BlockSize(256, 98),
    GGMLType.IQ1_S: BlockSize(256, 50),
    GGMLType.IQ4_NL: BlockSize(32, 18),
    GGMLType.IQ3_S: BlockSize(256, 110),
    GGMLType.IQ2_S: BlockSize(256, 82),
    GGMLType.IQ4_XS: BlockSize(256, 136),
    GGMLType.I8: BlockSize(1, 1),
    GGMLType.I16: BlockSize(1, 2),
    GGMLType.I32: BlockSize(1, 4),
    GGMLType.I64: BlockSize(1, 8),
    GGMLType.F64: BlockSize(1, 8),
    GGMLType.IQ1_M: BlockSize(256, 56),
    GGMLType.BF16: BlockSize(1, 2),
    GGMLType.TQ1_0: BlockSize(256, 54),
    GGMLType.TQ2_0: BlockSize(256, 66),
    GGMLType.MXFP4: BlockSize(32, 17),
    GGMLType.NVFP4: BlockSize(64, 36),
}


def block_size(type_id: int) -> BlockSize:
    """Return the block of a type.

    Raises:
        UnsupportedModel: an id that the table does not know.
    """
    try:
        return BLOCK_SIZES[GGMLType(type_id)]
    except ValueError:
        raise UnsupportedModel(
            "unknown GGUF tensor type", value=f"id {type_id}", remedy=OTHER_QUANTISATION
        ) from None


def row_bytes(type_id: int, num_values: int) -> int:
    """Return the bytes of a row of `num_values` values.

    Raises:
        UnsupportedModel: an id that the table does not know.
        ShapeError: the row is not a whole number of blocks.
    """
    block = block_size(type_id)
    if num_values < 0 or num_values % block.values:
        raise ShapeError(
            f"a row of {GGMLType(type_id).name} must be a whole number of blocks",
            value=f"{num_values} values",
            limit=f"multiple of {block.values}",
        )
    return num_values // block.values * block.nbytes
