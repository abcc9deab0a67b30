"""The header of a GGUF file, parsed with every count, length, offset and type checked before use.

Works on any bytes: a memory map, or the first megabytes of a remote file. It opens nothing.
Versions 2 and 3, little-endian. Strings that are not UTF-8 keep their bytes as lone surrogates, so
that a bad vocabulary entry neither crashes nor is lost: `text.encode("utf-8", "surrogateescape")`
gives the stored bytes back.
Source: the GGUF specification (ggml, docs/gguf.md).
"""

from __future__ import annotations

import itertools
import math
import mmap
import struct
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from twostroke.dataclass import dataclass
from twostroke.errors import CorruptCheckpoint, UnsupportedModel
from twostroke.formats.ggml_types import BLOCK_SIZES, GGMLType

Scalar = int | float | bool | str
Value = Scalar | list[int] | list[float] | list[bool] | list[str]
Buffer = bytes | bytearray | memoryview | mmap.mmap

MAGIC = b"GGUF"
DEFAULT_ALIGNMENT = 32

# Bounds far above any real model (Gemma 3: 40 keys, 262,144 strings, 8 MB) and far below harm.
MAX_KEYS = 1 << 14
MAX_TENSORS = 1 << 17
MAX_NAME_BYTES = 1024
MAX_STRING_BYTES = 1 << 26
MAX_ARRAY_VALUES = 1 << 22
MAX_ALL_ARRAY_VALUES = 1 << 24
MAX_HEADER_BYTES = 1 << 28
MAX_DIMS = 4
MAX_ALIGNMENT = 1 << 20

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
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_SHORTEST_TENSOR_RECORD = 8 + 1 + 4 + 8 + 4 + 8
_SHORTEST_KEY_RECORD = 8 + 1 + 4 + 1
_PLAIN_WINDOW_BYTES = 1 << 18  # stays in the second-level cache
# A hostile array changes kind at every string: after so many changes it is read the slow way.
_MOST_PLAIN_RUNS, _AFTER_A_PLAIN_RUN = 32, 64


class TruncatedHeader(CorruptCheckpoint):
    """The bytes end inside the header; `needed_bytes` is the least that could hold what is read."""

    def __init__(self, what: str, *, needed_bytes: int, available_bytes: int) -> None:
        self.needed_bytes = needed_bytes
        super().__init__(
            what,
            value=f"{available_bytes} bytes",
            limit=f"at least {needed_bytes} needed",
            remedy="The file is cut off or damaged: download it again.",
        )


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies. Shape is rows first (GGUF stores the fastest dimension first).

    Units: offset in bytes from the start of the shard's file.
    """

    name: str
    type: GGMLType
    shape: tuple[int, ...]
    nbytes: int
    shard: int
    offset: int


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """All that precedes the tensor data of one file."""

    version: int
    metadata: Mapping[str, Value]
    tensors: tuple[TensorInfo, ...]
    alignment: int
    header_bytes: int  # up to the end of the last tensor record, padding not counted
    data_start: int


def quoted(name: str) -> str:
    """Return untrusted text as a short, printable literal for a message."""
    text = ascii(name)
    return text if len(text) <= 80 else text[:76] + "...'"


def parse_header(data: Buffer, *, file_size: int | None = None, shard: int = 0) -> GGUFHeader:
    """Parse the header at the start of `data`.

    `file_size` is the whole file's size when `data` is only its head; tensors are checked against
    it. None: `data` is the whole file.

    Raises:
        TruncatedHeader: `data` ends inside the header (a CorruptCheckpoint); more may help.
        CorruptCheckpoint: anything that breaks the format or a bound; names the key or tensor.
        UnsupportedModel: big-endian, another version, or an unknown tensor type.
    """
    reader = _Reader(data)
    version = _read_version(reader)
    num_tensors = reader.count("tensor count", MAX_TENSORS, _SHORTEST_TENSOR_RECORD)
    num_keys = reader.count("key count", MAX_KEYS, _SHORTEST_KEY_RECORD)
    metadata = _read_metadata(reader, num_keys)
    alignment = _alignment(metadata)
    records = [_read_tensor_record(reader, index) for index in range(num_tensors)]
    data_start = -(-reader.pos // alignment) * alignment
    size = len(data) if file_size is None else file_size
    tensors = tuple(_located(record, data_start, alignment, size, shard) for record in records)
    _check_disjoint(tensors)
    return GGUFHeader(version, metadata, tensors, alignment, reader.pos, data_start)


class _Reader:
    """A cursor that refuses to pass the end of the bytes or of the largest header allowed."""

    def __init__(self, data: Buffer) -> None:
        self.data = data
        self.end = len(data)
        self.pos = 0
        self.array_values_left = MAX_ALL_ARRAY_VALUES

    def take(self, nbytes: int, what: str) -> int:
        """Return the position of the next `nbytes` bytes and step over them."""
        start, stop = self.pos, self.pos + nbytes
        if stop > self.end:
            raise TruncatedHeader(
                f"GGUF file ends inside {what}", needed_bytes=stop, available_bytes=self.end
            )
        if stop > MAX_HEADER_BYTES:
            raise CorruptCheckpoint(
                f"GGUF header is too large at {what}", value=stop, limit=MAX_HEADER_BYTES
            )
        self.pos = stop
        return start

    def u32(self, what: str) -> int:
        value: int = _U32.unpack_from(self.data, self.take(4, what))[0]
        return value

    def u64(self, what: str) -> int:
        value: int = _U64.unpack_from(self.data, self.take(8, what))[0]
        return value

    def count(self, what: str, limit: int, least_bytes: int) -> int:
        """Read a number of things that take at least `least_bytes` bytes each."""
        value = self.u64(f"the {what}")
        if value > limit:
            raise CorruptCheckpoint(f"GGUF {what} is absurd", value=value, limit=limit)
        if value * least_bytes > self.end - self.pos:
            raise TruncatedHeader(
                f"GGUF {what} of {value} cannot fit the file",
                needed_bytes=self.pos + value * least_bytes,
                available_bytes=self.end,
            )
        return value

    def string(self, what: str, limit: int) -> str:
        length = self.u64(f"the length of {what}")
        if length > limit:
            raise CorruptCheckpoint(f"{what} is too long", value=length, limit=f"{limit} bytes")
        start = self.take(length, what)
        return bytes(self.data[start : start + length]).decode("utf-8", "surrogateescape")

    def strings(self, count: int, what: str) -> list[str]:
        """Read `count` strings: plain ones many at a time, the few others one by one."""
        out: list[str] = []
        for _ in range(_MOST_PLAIN_RUNS):
            self._add_plain_strings(count, out)
            if len(out) == count:
                return out
            self._add_strings(min(count, len(out) + _AFTER_A_PLAIN_RUN), out, what)
        self._add_strings(count, out, what)
        return out

    def _add_strings(self, count: int, out: list[str], what: str) -> None:
        """Read strings one by one until there are `count`."""
        data, pos, end = self.data, self.pos, min(self.end, MAX_HEADER_BYTES)
        unpack = _U64.unpack_from
        for index in range(len(out), count):
            start = pos + 8
            pos = start + unpack(data, pos)[0] if start <= end else start
            if pos > end:
                self.take(pos - self.pos, f"string {index} of {what}")  # refuses, with the reason
            out.append(str(data[start:pos], "utf-8", "surrogateescape"))
        self.pos = pos

    def _add_plain_strings(self, count: int, out: list[str]) -> None:
        """Read strings until there are `count` or one is not plain, a window of bytes at a time."""
        end = min(self.end, MAX_HEADER_BYTES)
        while len(out) < count and self.pos < end:
            size = min(end - self.pos, _PLAIN_WINDOW_BYTES)
            window = np.frombuffer(self.data, np.uint8, size, self.pos)
            ends = _plain_ends(window)[: count - len(out)]
            if not len(ends):
                return
            text = window[: ends[-1]].copy()
            text[0] = text[ends[:-1]] = 0  # now eight zeros begin each string and are nowhere else
            out += str(text.data, "utf-8", "surrogateescape").split("\0" * 8)[1:]
            self.pos += int(ends[-1])


def _plain_ends(window: npt.NDArray[np.uint8]) -> npt.NDArray[np.intp]:
    """Return where each plain string at the head of a window ends; the next one starts there.

    A plain string has 1 to 255 bytes, none of them zero: a byte of length, seven zeros, the text.
    Every length is checked against the place of the next one, all at once.
    """
    zeros = np.flatnonzero(window == 0)
    runs = zeros[: len(zeros) // 7 * 7].reshape(-1, 7)
    starts = runs[:, 0] - 1
    if not len(starts) or starts[0] != 0:
        return starts[:0]
    lengths = window[starts]
    ends = starts + 8 + lengths
    is_plain = (runs[:, 6] - runs[:, 0] == 6) & (lengths != 0)
    is_plain[1:] &= starts[1:] == ends[:-1]
    num_plain = len(ends) if is_plain.all() else int(np.argmin(is_plain))
    # What follows the last one does not vouch for it: it may be cut off, or hold a zero.
    limit = zeros[7 * num_plain] if 7 * num_plain < len(zeros) else len(window)
    if num_plain and ends[num_plain - 1] > limit:
        num_plain -= 1
    return ends[:num_plain]


def _read_version(reader: _Reader) -> int:
    head = bytes(reader.data[:16])
    if head[:4] != MAGIC:
        is_pointer = head.startswith(b"version https://")
        raise CorruptCheckpoint(
            "not a GGUF file: it does not begin with 'GGUF'",
            value=repr(head[:8]),
            remedy="It is a Git LFS pointer: download the real file." if is_pointer else None,
        )
    reader.take(4, "the magic number")
    version = reader.u32("the version")
    if version & 0xFFFF == 0 and version:
        raise UnsupportedModel(
            "big-endian GGUF files are not supported",
            remedy="Convert it with gguf-convert-endian, or use the little-endian file.",
        )
    if version not in (2, 3):
        raise UnsupportedModel("unknown GGUF version", value=version, limit="2 and 3")
    return version


def _read_metadata(reader: _Reader, num_keys: int) -> dict[str, Value]:
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


def _read_value(reader: _Reader, type_id: int, what: str) -> Value:
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


def _read_array(reader: _Reader, what: str) -> Value:
    type_id = reader.u32(f"the item type of {what}")
    if type_id != _STRING and type_id not in _NUMBERS:
        raise CorruptCheckpoint(f"{what} has an unsupported item type", value=type_id)
    item_bytes = 8 if type_id == _STRING else _NUMBERS[type_id][0].size
    count = reader.count(f"length of {what}", MAX_ARRAY_VALUES, item_bytes)
    reader.array_values_left -= count
    if reader.array_values_left < 0:
        raise CorruptCheckpoint(
            f"the arrays up to {what} hold too many values", limit=MAX_ALL_ARRAY_VALUES
        )
    if type_id == _STRING:
        return reader.strings(count, what)
    start = reader.take(count * item_bytes, what)
    raw = bytes(reader.data[start : start + count * item_bytes])
    values = np.frombuffer(raw, dtype=_NUMBERS[type_id][1])
    if type_id != _BOOL:
        items: list[int] | list[float] = values.tolist()
        return items
    if values.size and values.max() > 1:
        raise CorruptCheckpoint(f"{what} has an item that is not a boolean", value=values.max())
    flags: list[bool] = values.astype(bool).tolist()
    return flags


def _alignment(metadata: Mapping[str, Value]) -> int:
    value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    if is_integer and 0 < value <= MAX_ALIGNMENT and not value & (value - 1):  # type: ignore[operator]
        return int(value)  # type: ignore[arg-type]
    shown = quoted(value) if isinstance(value, str) else str(value)[:40]
    raise CorruptCheckpoint(
        "key 'general.alignment' is not a usable alignment",
        value=shown,
        limit=f"a power of two up to {MAX_ALIGNMENT}",
    )


@dataclass(frozen=True, slots=True)
class _TensorRecord:
    name: str
    dims: tuple[int, ...]  # as stored, fastest first
    type_id: int
    offset: int  # from the start of the data section


def _read_tensor_record(reader: _Reader, index: int) -> _TensorRecord:
    name = reader.string(f"the name of tensor {index}", MAX_NAME_BYTES)
    what = f"tensor {quoted(name)}"
    if not name:
        raise CorruptCheckpoint("GGUF tensor without a name", value=f"tensor {index}")
    num_dims = reader.u32(f"the dimension count of {what}")
    if not 1 <= num_dims <= MAX_DIMS:
        raise CorruptCheckpoint(
            f"{what} has a bad number of dimensions", value=num_dims, limit=f"1 to {MAX_DIMS}"
        )
    dims = tuple(reader.u64(f"the dimensions of {what}") for _ in range(num_dims))
    type_id = reader.u32(f"the type of {what}")
    return _TensorRecord(name, dims, type_id, reader.u64(f"the offset of {what}"))


def _located(
    record: _TensorRecord, data_start: int, alignment: int, file_size: int, shard: int
) -> TensorInfo:
    """Check a tensor record against the file and turn it into a place in it."""
    what = f"tensor {quoted(record.name)}"
    try:
        type_ = GGMLType(record.type_id)
    except ValueError:
        raise UnsupportedModel(
            f"{what} has an unknown type",
            value=f"id {record.type_id}",
            remedy="Use a file in another quantisation, for example Q4_K_M or Q8_0.",
        ) from None
    block = BLOCK_SIZES[type_]
    if 0 in record.dims:
        raise CorruptCheckpoint(f"{what} has an empty dimension", value=list(record.dims))
    if record.dims[0] % block.values:
        raise CorruptCheckpoint(
            f"{what} has rows that are not whole {type_.name} blocks",
            value=f"{record.dims[0]} values",
            limit=f"multiple of {block.values}",
        )
    if record.offset % alignment:
        raise CorruptCheckpoint(
            f"{what} is not aligned", value=f"offset {record.offset}", limit=f"{alignment} bytes"
        )
    nbytes = math.prod(record.dims) // block.values * block.nbytes
    offset = data_start + record.offset
    if offset + nbytes > file_size:
        raise CorruptCheckpoint(
            f"{what} lies outside the file",
            value=f"bytes {offset} to {offset + nbytes}",
            limit=f"file of {file_size} bytes",
            remedy="The file is cut off or damaged: download it again.",
        )
    return TensorInfo(record.name, type_, record.dims[::-1], nbytes, shard, offset)


def _check_disjoint(tensors: tuple[TensorInfo, ...]) -> None:
    """Refuse two tensors of one name, or bytes that belong to two tensors."""
    seen: set[str] = set()
    for tensor in tensors:
        if tensor.name in seen:
            raise CorruptCheckpoint(f"tensor {quoted(tensor.name)} appears twice")
        seen.add(tensor.name)
    in_file_order = sorted(tensors, key=lambda t: t.offset)
    for before, after in itertools.pairwise(in_file_order):
        if before.offset + before.nbytes > after.offset:
            raise CorruptCheckpoint(
                f"tensors {quoted(before.name)} and {quoted(after.name)} overlap",
                value=f"bytes from {after.offset}",
            )
