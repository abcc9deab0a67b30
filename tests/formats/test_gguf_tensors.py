"""Tensor records: where tensors lie, and the records that cannot be."""

from __future__ import annotations

import pytest

from tests.formats.gguf_bytes import (
    ABSURD,
    F32_TYPE,
    Q4_0_TYPE,
    file_bytes,
    refusal,
    tensor,
    text,
    u32,
)
from twostroke.errors import UnsupportedModel
from twostroke.formats.gguf_header import parse_header


@pytest.mark.parametrize("version", [2, 3])
def test_shapes_are_rows_first_and_offsets_absolute(version: int) -> None:
    data = file_bytes(
        tensors=[tensor("w", (64, 3), Q4_0_TYPE), tensor("b", (5,), F32_TYPE, 128)],
        data=160,
        version=version,
    )
    w, b = parse_header(data).tensors
    assert (w.shape, w.nbytes, w.offset) == ((3, 64), 3 * 36, len(data) - 160)
    assert (b.shape, b.nbytes, b.offset) == ((5,), 20, len(data) - 32)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (file_bytes(tensors=[tensor("", (8,))], data=32), "tensor without a name"),
        (file_bytes(tensors=[tensor("w", ())], data=32), "tensor 'w' has a bad number"),
        (file_bytes(tensors=[tensor("w", (1,) * 5)], data=32), "'w' has a bad number"),
        (file_bytes(tensors=[text("w") + u32(2**32 - 1) + bytes(40)]), "'w' has a bad number"),
        (file_bytes(tensors=[tensor("w", (8, 0))], data=32), "'w' has an empty dimension"),
        (file_bytes(tensors=[tensor("w", (8,))], data=16), "'w' lies outside the file"),
        (file_bytes(tensors=[tensor("w", (ABSURD, 4))], data=32), "'w' lies outside the file"),
        (file_bytes(tensors=[tensor("w", (2**32,) * 4)], data=32), "'w' lies outside the file"),
        (
            file_bytes(tensors=[tensor("w", (8,), F32_TYPE, 2**64 - 32)], data=32),
            "'w' lies outside the file",
        ),
        (file_bytes(tensors=[tensor("w", (8,), F32_TYPE, 8)], data=64), "'w' is not aligned"),
        (file_bytes(tensors=[tensor("w", (33,), Q4_0_TYPE)], data=64), "not whole Q4_0 blocks"),
        (
            file_bytes(tensors=[tensor("w", (8,)), tensor("w", (8,), F32_TYPE, 32)], data=64),
            "tensor 'w' appears twice",
        ),
        (
            file_bytes(tensors=[tensor("a", (16,)), tensor("b", (8,), F32_TYPE, 32)], data=64),
            "tensors 'a' and 'b' overlap",
        ),
    ],
)
def test_a_broken_tensor_record_is_refused_by_name(data: bytes, words: str) -> None:
    assert words in refusal(data)


@pytest.mark.parametrize("type_id", [4, 5, 31, 36, 41, 2**32 - 1])
def test_an_unknown_tensor_type_is_named_with_its_tensor(type_id: int) -> None:
    data = file_bytes(tensors=[tensor("blk.0.w", (8,), type_id)], data=64)
    message = refusal(data, UnsupportedModel)
    assert "'blk.0.w'" in message
    assert f"id {type_id}" in message
