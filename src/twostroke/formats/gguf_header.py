"""The header of a GGUF file, parsed with every count, length, offset and type checked before use.

Versions 2 and 3, little-endian. The bounds are in gguf_reader; the parts of the header are read by
gguf_metadata and gguf_tensors.
Source: the GGUF specification (ggml, docs/gguf.md).
"""

from __future__ import annotations

from collections.abc import Mapping

from twostroke.dataclass import dataclass
from twostroke.errors import CorruptCheckpoint, UnsupportedModel
from twostroke.formats.gguf_metadata import Value, read_metadata
from twostroke.formats.gguf_reader import (
    MAX_ALIGNMENT,
    MAX_KEYS,
    MAX_TENSORS,
    Buffer,
    HeaderReader,
    quoted,
)
from twostroke.formats.gguf_tensors import DataSection, TensorInfo, located, read_tensor_record

MAGIC = b"GGUF"
DEFAULT_ALIGNMENT = 32
# Length and first character of a name, type, least value; for tensors also dimensions and offset.
_SHORTEST_KEY_RECORD = 8 + 1 + 4 + 1
_SHORTEST_TENSOR_RECORD = 8 + 1 + 4 + 8 + 4 + 8


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """All that precedes the tensor data of one file."""

    version: int
    metadata: Mapping[str, Value]
    tensors: tuple[TensorInfo, ...]
    header_bytes: int  # up to the end of the last tensor record, padding not counted


def parse_header(data: Buffer, *, file_size: int | None = None, shard: int = 0) -> GGUFHeader:
    """Parse the header at the start of `data`.

    `file_size`: the whole file's size where `data` is only its first bytes; tensors are checked
    against it. None: `data` is the whole file.

    Raises:
        TruncatedHeader: `data` ends inside the header (a CorruptCheckpoint); more may help.
        CorruptCheckpoint: anything that breaks the format or a bound; names the key or tensor.
        UnsupportedModel: big-endian, another version, or an unknown tensor type.
    """
    reader = HeaderReader(data)
    version = _read_version(reader)
    num_tensors = reader.count("tensor count", MAX_TENSORS, _SHORTEST_TENSOR_RECORD)
    num_keys = reader.count("key count", MAX_KEYS, _SHORTEST_KEY_RECORD)
    metadata = read_metadata(reader, num_keys)
    alignment = _alignment(metadata)
    records = [read_tensor_record(reader, index) for index in range(num_tensors)]
    section = DataSection(
        start=-(-reader.pos // alignment) * alignment,
        alignment=alignment,
        file_size=len(data) if file_size is None else file_size,
        shard=shard,
    )
    tensors = located(records, section)
    return GGUFHeader(version, metadata, tensors, reader.pos)


def _read_version(reader: HeaderReader) -> int:
    first = bytes(reader.data[:16])
    if first[:4] != MAGIC:
        is_pointer = first.startswith(b"version https://")
        raise CorruptCheckpoint(
            "not a GGUF file: it does not begin with 'GGUF'",
            value=repr(first[:8]),
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


def _alignment(metadata: Mapping[str, Value]) -> int:
    value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if isinstance(value, int) and not isinstance(value, bool):
        is_power_of_two = value > 0 and not value & (value - 1)
        if is_power_of_two and value <= MAX_ALIGNMENT:
            return value
    raise CorruptCheckpoint(
        "key 'general.alignment' is not a usable alignment",
        value=quoted(value) if isinstance(value, str) else str(value)[:40],
        limit=f"a power of two up to {MAX_ALIGNMENT}",
    )
