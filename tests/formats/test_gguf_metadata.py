"""Keys and values of the metadata: every type read, every broken one refused by name."""

from __future__ import annotations

import struct

import pytest

from tests.formats.gguf_bytes import (
    ABSURD,
    ARRAY,
    BOOL,
    F32,
    F64,
    I8,
    I32,
    STRING,
    U8,
    U16,
    U64,
    file_bytes,
    key,
    refusal,
    text,
    u32,
    u64,
)
from twostroke.formats import gguf_reader
from twostroke.formats.gguf_header import parse_header


def test_all_value_types_are_read() -> None:
    header = parse_header(
        file_bytes(
            [
                key("u8", U8, b"\xff"),
                key("i8", I8, b"\xff"),
                key("u16", U16, b"\x01\x02"),
                key("i32", I32, struct.pack("<i", -7)),
                key("f32", F32, struct.pack("<f", 0.5)),
                key("f64", F64, struct.pack("<d", 0.1)),
                key("u64", U64, u64(2**63)),
                key("yes", BOOL, b"\x01"),
                key("s", STRING, text("héllo")),
                key("ints", ARRAY, u32(I32) + u64(2) + struct.pack("<ii", 3, -4)),
                key("flags", ARRAY, u32(BOOL) + u64(2) + b"\x00\x01"),
                key("words", ARRAY, u32(STRING) + u64(2) + text("a") + text("")),
                key("none", ARRAY, u32(STRING) + u64(0)),
            ]
        )
    )
    assert dict(header.metadata) == {
        "u8": 255,
        "i8": -1,
        "u16": 513,
        "i32": -7,
        "f32": 0.5,
        "f64": 0.1,
        "u64": 2**63,
        "yes": True,
        "s": "héllo",
        "ints": [3, -4],
        "flags": [False, True],
        "words": ["a", ""],
        "none": [],
    }
    assert header.metadata["yes"] is True


def test_strings_that_are_not_utf8_keep_their_bytes() -> None:
    header = parse_header(
        file_bytes([key("words", ARRAY, u32(STRING) + u64(1) + text(b"a\xff\xfe"))])
    )
    words = header.metadata["words"]
    assert isinstance(words, list)
    assert words[0].encode("utf-8", "surrogateescape") == b"a\xff\xfe"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (file_bytes([u64(ABSURD) + bytes(6)]), "name of key 0 is too long"),
        (file_bytes([key("", U8, b"\0")]), "key without a name"),
        (file_bytes([key("k", U8, b"\0"), key("k", U8, b"\0")]), "key 'k' appears twice"),
        (file_bytes([key("k", 13, bytes(8))]), "key 'k' has an unknown value type"),
        (file_bytes([key("k", BOOL, b"\x02")]), "key 'k' is not a boolean"),
        (file_bytes([key("k", STRING, u64(ABSURD))]), "key 'k' is too long"),
        (file_bytes([key("k", STRING, u64(-1))]), "key 'k' is too long"),
        (file_bytes([key("k", STRING, u64(1 << 20))]), "ends inside key 'k'"),
        (file_bytes([key("k", ARRAY, u32(ARRAY) + u64(1))]), "key 'k' has an unsupported item"),
        (file_bytes([key("k", ARRAY, u32(77) + u64(1))]), "key 'k' has an unsupported item"),
        (file_bytes([key("k", ARRAY, u32(U8) + u64(ABSURD))]), "length of key 'k' is absurd"),
        (file_bytes([key("k", ARRAY, u32(U64) + u64(1 << 20))]), "key 'k' of 1048576 cannot fit"),
        (file_bytes([key("k", ARRAY, u32(BOOL) + u64(1) + b"\x05")]), "item that is not a boolean"),
        (
            file_bytes([key("k", ARRAY, u32(STRING) + u64(2) + text("a") + u64(ABSURD))]),
            "ends inside string 1 of key 'k'",
        ),
    ],
)
def test_a_broken_key_is_refused_by_name(data: bytes, words: str) -> None:
    assert words in refusal(data)


def test_all_arrays_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_reader, "MAX_ALL_ARRAY_VALUES", 10)
    arrays = [key(f"k{i}", ARRAY, u32(U8) + u64(4) + bytes(4)) for i in range(3)]
    assert "up to key 'k2' hold too many" in refusal(file_bytes(arrays))
