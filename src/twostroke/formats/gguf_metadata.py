"""The metadata of a GGUF header: its keys and their typed values, each checked as it is read.

Strings that are not UTF-8 keep their bytes as lone surrogates, so that a bad vocabulary entry
neither crashes nor is lost: `text.encode("utf-8", "surrogateescape")` gives the stored bytes back.
Source: the GGUF specification (ggml, docs/gguf.md).
"""

from __future__ import annotations

import struct

import numpy as np

from twostroke.errors import CorruptCheckpoint
from twostroke.formats.gguf_reader import (
    MAX_NAME_BYTES,
    MAX_STRING_BYTES,
    HeaderReader,
    quoted,
)
from twostroke.formats.gguf_strings import read_strings

Scalar = int | float | bool | str
Value = Scalar | list[int] | list[float] | list[bool] | list[str]

_STRING, _ARRAY, _BOOL = 8, 9, 7
_NUMBERS: dict[int, tuple[struct.Struct, np.dtype[np.generic]]] = {
    0: (struct.Struct("<B"), np.dtype("<u1")),
    1: (struct.Struct("<b"), np.dtype("<i1")),
    2: (struct.Struct("<H"), np.dtype("<u2")),
    3: (struct.Struct("<h"), np.dtype("<i2")),
    4: (struct.Struct("<I"), np.dtype("<u4")),
    5: (struct.Struct("<i"), np.dtype("<i4")),
    6: (struct.Struct("<f"), np.dtype("<f4")),
    _BOOL: (struct.Struct("<B"), np.dtype("<u1")),
    10: (struct.Struct("<Q"), np.dtype("<u8")),
    11: (struct.Struct("<q"), np.dtype("<i8")),
    12: (struct.Struct("<d"), np.dtype("<f8")),
}


def read_metadata(reader: HeaderReader, num_keys: int) -> dict[str, Value]:
    """Read the keys and their values.

    Raises:
        TruncatedHeader: the bytes end before the last value does.
        CorruptCheckpoint: a value breaks the format or a bound; names its key.
    """
    metadata: dict[str, Value] = {}
    for index in range(num_keys):
        key = reader.string(f"the name of key {index}", MAX_NAME_BYTES)
        what = f"key {quoted(key)}"
        if not key:
            raise CorruptCheckpoint("GGUF key without a name", value=f"key {index}")
        if key in metadata:
            raise CorruptCheckpoint(f"{what} appears twice")
        metadata[key] = _read_value(reader, reader.u32(f"the type of {what}"), what)
    return metadata


def _read_value(reader: HeaderReader, type_id: int, what: str) -> Value:
    if type_id == _STRING:
        return reader.string(what, MAX_STRING_BYTES)
    if type_id == _ARRAY:
        return _read_array(reader, what)
    if type_id not in _NUMBERS:
        raise CorruptCheckpoint(f"{what} has an unknown value type", value=type_id, limit="0 to 12")
    number, _ = _NUMBERS[type_id]
    value: int | float = number.unpack_from(reader.data, reader.take(number.size, what))[0]
    if type_id != _BOOL:
        return value
    if value not in (0, 1):
        raise CorruptCheckpoint(f"{what} is not a boolean", value=value, limit="0 or 1")
    return bool(value)


def _read_array(reader: HeaderReader, what: str) -> Value:
    type_id = reader.u32(f"the item type of {what}")
    if type_id == _STRING:
        return read_strings(reader, reader.array_length(what, item_bytes=8), what)
    if type_id not in _NUMBERS:
        raise CorruptCheckpoint(f"{what} has an unsupported item type", value=type_id)
    number, dtype = _NUMBERS[type_id]
    count = reader.array_length(what, number.size)
    values = np.frombuffer(reader.raw(count * number.size, what), dtype)
    if type_id != _BOOL:
        items: list[int] | list[float] = values.tolist()
        return items
    if values.size and values.max() > 1:
        raise CorruptCheckpoint(f"{what} has an item that is not a boolean", value=values.max())
    flags: list[bool] = values.astype(bool).tolist()
    return flags
