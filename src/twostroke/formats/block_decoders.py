"""How the blocks of each tensor type unpack to float32: layouts and arithmetic, one row a type.

Every float operation runs in the order of ggml's scalar code, so that the result is equal bit for
bit (tests compare with the `gguf` package). Layouts are structured dtypes, little-endian.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from twostroke.formats.ggml_types import GGMLType

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Blocks = npt.NDArray[Any]  # structured: one record a block

# The 16 levels of IQ4_NL and IQ4_XS (ggml, kvalues_iq4nl).
_IQ4_LEVELS = np.array(
    (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113), dtype=np.float32
)


def _planes(packed: Bytes, group: int, bits: int) -> Bytes:
    """Unpack fields of `bits` bits: of each group of bytes first all lowest fields, then the next.

    Shapes:
        packed   [N, G * group]
        returns  [N, G * group * 8 / bits]
    """
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    fields = packed.reshape(packed.shape[0], -1, 1, group) >> shifts[:, None]
    values: Bytes = (fields & np.uint8((1 << bits) - 1)).reshape(packed.shape[0], -1)
    return values


def _bits32(packed: Bytes) -> Bytes:
    """Unpack [N, 4] bytes to [N, 32] bits, lowest first."""
    return np.unpackbits(packed, axis=1, bitorder="little")


def _scale(blocks: Blocks, name: str) -> Floats:
    """Return a half-precision field as [N, 1] float32."""
    scale: Floats = blocks[name].astype(np.float32)[:, None]
    return scale


def _signed(values: Bytes, zero_point: int) -> Floats:
    shifted: Floats = (values.astype(np.int16) - np.int16(zero_point)).astype(np.float32)
    return shifted


def _f32(blocks: Blocks) -> Floats:
    values: Floats = blocks["x"]
    return values


def _f16(blocks: Blocks) -> Floats:
    return _scale(blocks, "x")


def _bf16(blocks: Blocks) -> Floats:
    wide: npt.NDArray[np.uint32] = blocks["x"].astype(np.uint32) << np.uint32(16)
    return wide.view(np.float32)


def _q4_0(blocks: Blocks) -> Floats:
    return _scale(blocks, "d") * _signed(_planes(blocks["qs"], 16, 4), 8)


def _q4_1(blocks: Blocks) -> Floats:
    quants = _planes(blocks["qs"], 16, 4).astype(np.float32)
    return _scale(blocks, "d") * quants + _scale(blocks, "m")


def _q5(blocks: Blocks) -> Bytes:
    quants: Bytes = _planes(blocks["qs"], 16, 4) | (_bits32(blocks["qh"]) << np.uint8(4))
    return quants


def _q5_0(blocks: Blocks) -> Floats:
    return _scale(blocks, "d") * _signed(_q5(blocks), 16)


def _q5_1(blocks: Blocks) -> Floats:
    return _scale(blocks, "d") * _q5(blocks).astype(np.float32) + _scale(blocks, "m")


def _q8_0(blocks: Blocks) -> Floats:
    quants: Floats = blocks["qs"].astype(np.float32)
    return quants * _scale(blocks, "d")


def _q2_k(blocks: Blocks) -> Floats:
    packed = blocks["scales"]  # low nibble: scale, high nibble: minimum, one byte per 16 values
    scales = (_scale(blocks, "d") * (packed & np.uint8(15)).astype(np.float32))[:, :, None]
    minima = (_scale(blocks, "dmin") * (packed >> np.uint8(4)).astype(np.float32))[:, :, None]
    quants = _planes(blocks["qs"], 32, 2).astype(np.float32).reshape(-1, 16, 16)
    values: Floats = scales * quants - minima
    return values


def _q3_k(blocks: Blocks) -> Floats:
    packed = blocks["scales"]  # 16 scales of 6 bits: 8 bytes of nibbles, then 4 bytes of high pairs
    low, high = _planes(packed[:, :8], 8, 4), _planes(packed[:, 8:], 4, 2)
    scales = _scale(blocks, "d") * _signed(low | (high << np.uint8(4)), 32)
    third_bit = _planes(blocks["hmask"], 32, 1) << np.uint8(2)
    quants = _signed(_planes(blocks["qs"], 32, 2) | third_bit, 4)
    return scales[:, :, None] * quants.reshape(-1, 16, 16)


def _six_bit_pairs(packed: Bytes) -> tuple[Floats, Floats]:
    """Unpack the 8 scales and 8 minima of Q4_K and Q5_K.

    Bytes 0-3 and 4-7 hold the first four of each in 6 bits; their top pairs complete the nibbles of
    bytes 8-11.
    """
    first, second, nibbles = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    top = np.uint8(0x30)
    scales = [first & np.uint8(63), (nibbles & np.uint8(15)) | ((first >> np.uint8(2)) & top)]
    minima = [second & np.uint8(63), (nibbles >> np.uint8(4)) | ((second >> np.uint8(2)) & top)]
    return (
        np.concatenate(scales, axis=1).astype(np.float32),
        np.concatenate(minima, axis=1).astype(np.float32),
    )


def _scaled_by_32(blocks: Blocks, quants: Bytes) -> Floats:
    scales, minima = _six_bit_pairs(blocks["scales"])
    scales = (_scale(blocks, "d") * scales)[:, :, None]
    minima = (_scale(blocks, "dmin") * minima)[:, :, None]
    return scales * quants.astype(np.float32).reshape(-1, 8, 32) - minima


def _q4_k(blocks: Blocks) -> Floats:
    return _scaled_by_32(blocks, _planes(blocks["qs"], 32, 4))


def _q5_k(blocks: Blocks) -> Floats:
    fifth_bit = _planes(blocks["qh"], 32, 1) << np.uint8(4)
    return _scaled_by_32(blocks, _planes(blocks["qs"], 32, 4) | fifth_bit)


def _q6_k(blocks: Blocks) -> Floats:
    scales = _scale(blocks, "d") * blocks["scales"].astype(np.float32)
    high = _planes(blocks["qh"], 32, 2) << np.uint8(4)
    quants = _signed(_planes(blocks["ql"], 64, 4) | high, 32)
    return scales[:, :, None] * quants.reshape(-1, 16, 16)


def _iq4_nl(blocks: Blocks) -> Floats:
    return _scale(blocks, "d") * _IQ4_LEVELS[_planes(blocks["qs"], 16, 4)]


def _iq4_xs(blocks: Blocks) -> Floats:
    low = _planes(blocks["scales_l"], 1, 4)
    pairs = blocks["scales_h"][:, None] >> np.arange(0, 16, 2, dtype=np.uint16)
    high = (pairs & np.uint16(3)).astype(np.uint8) << np.uint8(4)
    scales = _scale(blocks, "d") * _signed(low | high, 32)
    levels = _IQ4_LEVELS[_planes(blocks["qs"], 16, 4)]
    return scales[:, :, None] * levels.reshape(-1, 8, 32)


def _layout(*fields: tuple[str, str, int]) -> np.dtype[Any]:
    return np.dtype([(name, kind, (n,)) if n > 1 else (name, kind) for name, kind, n in fields])


_D, _M, _DMIN = ("d", "<f2", 1), ("m", "<f2", 1), ("dmin", "<f2", 1)
_K_SCALES = ("scales", "u1", 12)

DECODERS: dict[GGMLType, tuple[np.dtype[Any], Callable[[Blocks], Floats]]] = {
    GGMLType.F32: (_layout(("x", "<f4", 1)), _f32),
    GGMLType.F16: (_layout(("x", "<f2", 1)), _f16),
    GGMLType.BF16: (_layout(("x", "<u2", 1)), _bf16),
    GGMLType.Q4_0: (_layout(_D, ("qs", "u1", 16)), _q4_0),
    GGMLType.Q4_1: (_layout(_D, _M, ("qs", "u1", 16)), _q4_1),
    GGMLType.Q5_0: (_layout(_D, ("qh", "u1", 4), ("qs", "u1", 16)), _q5_0),
    GGMLType.Q5_1: (_layout(_D, _M, ("qh", "u1", 4), ("qs", "u1", 16)), _q5_1),
    GGMLType.Q8_0: (_layout(_D, ("qs", "i1", 32)), _q8_0),
    GGMLType.Q2_K: (_layout(("scales", "u1", 16), ("qs", "u1", 64), _D, _DMIN), _q2_k),
    GGMLType.Q3_K: (_layout(("hmask", "u1", 32), ("qs", "u1", 64), _K_SCALES, _D), _q3_k),
    GGMLType.Q4_K: (_layout(_D, _DMIN, _K_SCALES, ("qs", "u1", 128)), _q4_k),
    GGMLType.Q5_K: (_layout(_D, _DMIN, _K_SCALES, ("qh", "u1", 32), ("qs", "u1", 128)), _q5_k),
    GGMLType.Q6_K: (
        _layout(("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), _D),
        _q6_k,
    ),
    GGMLType.IQ4_NL: (_layout(_D, ("qs", "u1", 16)), _iq4_nl),
    GGMLType.IQ4_XS: (
        _layout(_D, ("scales_h", "<u2", 1), ("scales_l", "u1", 4), ("qs", "u1", 128)),
        _iq4_xs,
    ),
}
