"""Matrices repacked for the kernels, kept in one file a model so that the next start only maps it.

The file is a cache: bounded in size, written whole or not at all, rebuilt when damaged or when the
model, the layout or the version changes. Layout: fixed header, JSON table, then the matrices.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import struct
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from twostroke.backend.packed_folder import PackedFolder
from twostroke.dataclass import dataclass
from twostroke.errors import UnsupportedModel
from twostroke.model.weights import Weight

LAYOUT_VERSION = 1  # of this file; the key also holds a hash of how the build packs a matrix
MAGIC = b"twostroke-packed"
_HEADER = struct.Struct("<16sIIQ32s")  # magic, layout, table bytes, data bytes, SHA-256 of the data
_ALIGN = 4096
_MAX_TABLE_BYTES = 64 << 20

Bytes = npt.NDArray[np.uint8]
PackOne = Callable[[Bytes, Weight], None]
PackedBytes = Callable[[int, int, int], int | None]  # by GGML type, n and k; None: not packable


@dataclass(frozen=True, slots=True, eq=False)
class PackedMatrix:
    """One matrix [n, k] in panels."""

    format: int
    n: int
    k: int
    data: Bytes


@dataclass(frozen=True, slots=True, eq=False)
class PackedWeights:
    """All matrices of a model by tensor name. `path` is None while they live in memory alone."""

    matrices: Mapping[str, PackedMatrix]
    path: Path | None
    was_cached: bool

    @property
    def nbytes(self) -> int:
        """Bytes of all matrices."""
        return sum(matrix.data.nbytes for matrix in self.matrices.values())


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    format: int
    n: int
    k: int
    offset: int
    nbytes: int


def cache_key(source: Iterable[object], build: str) -> str:
    """Return the name of a model's packed file: SHA-256 over the source and the build."""
    fields = ["packed", str(LAYOUT_VERSION), build, *(str(field) for field in source)]
    return hashlib.sha256("\x1f".join(fields).encode()).hexdigest()


def plan_layout(weights: Iterable[Weight], packed_bytes: PackedBytes) -> tuple[list[_Entry], int]:
    """Return where each matrix goes, in the order given, and the bytes of all.

    Raises:
        UnsupportedModel: a matrix that the kernels cannot take, by name and type.
    """
    entries: list[_Entry] = []
    offset = 0
    for weight in weights:
        n, k = weight.shape
        nbytes = packed_bytes(int(weight.type), n, k)
        if nbytes is None:
            raise UnsupportedModel(
                f"tensor {weight.name} cannot run on the native backend",
                value=f"{weight.type.name}, {n} x {k}",
                remedy="Use --backend reference, or another quantisation of the model.",
            )
        entries.append(_Entry(weight.name, int(weight.type), n, k, offset, nbytes))
        offset += -(-nbytes // 64) * 64
    return entries, max(offset, 64)


def _views(entries: Iterable[_Entry], data: Bytes) -> dict[str, PackedMatrix]:
    return {
        e.name: PackedMatrix(e.format, e.n, e.k, data[e.offset : e.offset + e.nbytes])
        for e in entries
    }


def load_packed(
    weights: Iterable[Weight],
    *,
    pack: PackOne,
    packed_bytes: PackedBytes,
    allocate: Callable[[int], Bytes],
    folder: PackedFolder | None = None,
    key: str = "",
    verify: bool = False,
) -> PackedWeights:
    """Map the packed file of a model, or repack and write it.

    Raises:
        UnsupportedModel: a matrix that the kernels cannot take.
        MemoryError: the repacked weights do not fit.
    """
    matrices = list({w.name: w for w in weights}.values())
    entries, total = plan_layout(matrices, packed_bytes)
    if folder is not None and key:
        data = _read(folder.path_of(key), entries, total, verify=verify)
        if data is not None:
            folder.touch(key)
            return PackedWeights(_views(entries, data), folder.path_of(key), was_cached=True)
    data = allocate(total)
    for entry, weight in zip(entries, matrices, strict=True):
        pack(data[entry.offset : entry.offset + entry.nbytes], weight)
    path = folder.write(key, _file_parts(entries, data)) if folder is not None and key else None
    return PackedWeights(_views(entries, data), path, was_cached=False)


def _table(entries: Iterable[_Entry]) -> bytes:
    rows = [[e.name, e.format, e.n, e.k, e.offset, e.nbytes] for e in entries]
    return json.dumps(rows, separators=(",", ":")).encode()


def _file_parts(entries: list[_Entry], data: Bytes) -> tuple[bytes, Bytes]:
    table = _table(entries)
    digest = hashlib.sha256(data.data).digest()
    header = _HEADER.pack(MAGIC, LAYOUT_VERSION, len(table), data.nbytes, digest) + table
    return header.ljust(-(-len(header) // _ALIGN) * _ALIGN, b"\0"), data


def _read(path: Path, entries: list[_Entry], total: int, *, verify: bool) -> Bytes | None:
    """Map the file, or return None where it is damaged or holds other matrices."""
    try:
        with open(path, "rb") as file:
            header = file.read(_HEADER.size)
            if len(header) < _HEADER.size:
                return None
            magic, layout, table_bytes, data_bytes, digest = _HEADER.unpack(header)
            if (magic, layout, data_bytes) != (MAGIC, LAYOUT_VERSION, total):
                return None
            if table_bytes > _MAX_TABLE_BYTES or file.read(table_bytes) != _table(entries):
                return None
            begin = -(-(_HEADER.size + table_bytes) // _ALIGN) * _ALIGN
            if file.seek(0, 2) != begin + data_bytes:
                return None
            mapped = mmap.mmap(file.fileno(), 0, flags=_map_flags(), prot=mmap.PROT_READ)
    except (OSError, ValueError):
        return None
    data = np.frombuffer(mapped, np.uint8, data_bytes, begin)
    if verify and hashlib.sha256(data.data).digest() != digest:
        return None
    return data


def _map_flags() -> int:
    populate: Any = getattr(mmap, "MAP_POPULATE", 0)  # Linux; elsewhere pages come as they are read
    return mmap.MAP_SHARED | int(populate)
