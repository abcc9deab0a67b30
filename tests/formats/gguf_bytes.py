"""Builds the bytes of GGUF files, broken ones too."""

from __future__ import annotations

import io
import struct

import pytest

from twostroke.errors import CorruptCheckpoint, TwoStrokeError
from twostroke.formats.gguf_header import parse_header

U8, I8, U16, U32, I32, F32, BOOL, STRING, ARRAY, U64, F64 = 0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 12
F32_TYPE, Q4_0_TYPE = 0, 2


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value & (2**64 - 1))


def text(value: str | bytes) -> bytes:
    raw = value if isinstance(value, bytes) else value.encode()
    return u64(len(raw)) + raw


def key(name: str | bytes, type_id: int, value: bytes) -> bytes:
    return text(name) + u32(type_id) + value


def tensor(name: str, dims: tuple[int, ...], type_id: int = F32_TYPE, offset: int = 0) -> bytes:
    return text(name) + u32(len(dims)) + b"".join(map(u64, dims)) + u32(type_id) + u64(offset)


def file_bytes(
    keys: list[bytes] = [],  # noqa: B006 - never changed
    tensors: list[bytes] = [],  # noqa: B006
    *,
    data: int = 0,
    version: int = 3,
    num_keys: int | None = None,
    num_tensors: int | None = None,
) -> bytes:
    out = io.BytesIO()
    out.write(b"GGUF" + u32(version))
    out.write(u64(len(tensors) if num_tensors is None else num_tensors))
    out.write(u64(len(keys) if num_keys is None else num_keys))
    out.write(b"".join(keys) + b"".join(tensors))
    out.write(bytes(-out.tell() % 32) + bytes(data))
    return out.getvalue()


ABSURD = 2**63


def refusal(data: bytes, kind: type[TwoStrokeError] = CorruptCheckpoint) -> str:
    """Return the message by which the parser refuses these bytes."""
    with pytest.raises(kind) as caught:
        parse_header(data)
    return str(caught.value)
