"""The tensor records of a GGUF header: where each tensor lies, checked against its file.

Every tensor is a whole number of blocks, aligned, inside the file, and shares no byte with another.
Source: the GGUF specification (ggml, docs/gguf.md).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

from twostroke.dataclass import dataclass
from twostroke.errors import CorruptCheckpoint, UnsupportedModel
from twostroke.formats.ggml_types import BLOCK_SIZES, OTHER_QUANTISATION, GGMLType
from twostroke.formats.gguf_reader import MAX_DIMS, MAX_NAME_BYTES, HeaderReader, quoted


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
class TensorRecord:
    """One record as stored, not yet checked against the file."""

    name: str
    dims: tuple[int, ...]  # fastest first
    type_id: int
    offset: int  # from the start of the data section


@dataclass(frozen=True, slots=True)
class DataSection:
    """The part of one file that holds its tensors. Units: bytes."""

    start: int
    alignment: int
    file_size: int
    shard: int


def read_tensor_record(reader: HeaderReader, index: int) -> TensorRecord:
    """Read one tensor's name, dimensions, type and offset.

    Raises:
        TruncatedHeader: the bytes end inside the record.
        CorruptCheckpoint: no name, or another number of dimensions than 1 to MAX_DIMS.
    """
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
    return TensorRecord(name, dims, type_id, reader.u64(f"the offset of {what}"))


def located(records: Iterable[TensorRecord], section: DataSection) -> tuple[TensorInfo, ...]:
    """Return where each tensor lies in its file.

    Raises:
        UnsupportedModel: an unknown tensor type.
        CorruptCheckpoint: a tensor that cannot lie there, or two in one place or of one name.
    """
    tensors = tuple(_located(record, section) for record in records)
    _check_disjoint(tensors)
    return tensors


def _located(record: TensorRecord, section: DataSection) -> TensorInfo:
    what = f"tensor {quoted(record.name)}"
    type_ = _type_of(record, what)
    nbytes = _checked_bytes(record, type_, what)
    if record.offset % section.alignment:
        raise CorruptCheckpoint(
            f"{what} is not aligned",
            value=f"offset {record.offset}",
            limit=f"{section.alignment} bytes",
        )
    offset = section.start + record.offset
    if offset + nbytes > section.file_size:
        raise CorruptCheckpoint(
            f"{what} lies outside the file",
            value=f"bytes {offset} to {offset + nbytes}",
            limit=f"file of {section.file_size} bytes",
            remedy="The file is cut off or damaged: download it again.",
        )
    return TensorInfo(record.name, type_, record.dims[::-1], nbytes, section.shard, offset)


def _type_of(record: TensorRecord, what: str) -> GGMLType:
    try:
        return GGMLType(record.type_id)
    except ValueError:
        raise UnsupportedModel(
            f"{what} has an unknown type", value=f"id {record.type_id}", remedy=OTHER_QUANTISATION
        ) from None


def _checked_bytes(record: TensorRecord, type_: GGMLType, what: str) -> int:
    """Return the tensor's bytes; its rows must be whole blocks."""
    block = BLOCK_SIZES[type_]
    if 0 in record.dims:
        raise CorruptCheckpoint(f"{what} has an empty dimension", value=list(record.dims))
    if record.dims[0] % block.values:
        raise CorruptCheckpoint(
            f"{what} has rows that are not whole {type_.name} blocks",
            value=f"{record.dims[0]} values",
            limit=f"multiple of {block.values}",
        )
    return math.prod(record.dims) // block.values * block.nbytes


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
