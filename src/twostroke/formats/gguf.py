"""GGUF files on disk: memory-mapped read-only, one or several shards as one model.

A header is checked whole before any tensor byte is touched (see gguf_header). The views that `data`
gives stay valid after `close`. A file that somebody cuts short while it is mapped cannot be
defended against.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from twostroke.dataclass import dataclass
from twostroke.errors import CorruptCheckpoint, ModelError, ModelNotFound, UnsupportedModel
from twostroke.formats.ggml_types import GGMLType
from twostroke.formats.gguf_header import (
    GGUFHeader,
    TensorInfo,
    TruncatedHeader,
    Value,
    parse_header,
    quoted,
)

__all__ = [
    "Fingerprint",
    "GGMLType",
    "GGUFFile",
    "GGUFHeader",
    "TensorInfo",
    "TruncatedHeader",
    "Value",
    "open_gguf",
    "parse_header",
    "shard_paths",
]

MAX_SHARDS = 512
_SHARD_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


class Fingerprint(NamedTuple):
    """Tells one state of a model file from another without reading its weights; a cache key."""

    size_bytes: int  # all shards
    mtime_ns: int  # the latest
    header_hash: str  # SHA-256, hex; of several shards it also covers each one's size and time


@dataclass(frozen=True, slots=True)
class _Shard:
    path: Path
    map: mmap.mmap
    header: GGUFHeader
    size_bytes: int
    mtime_ns: int

    @property
    def header_hash(self) -> str:
        return hashlib.sha256(self.map[: self.header.header_bytes]).hexdigest()


class GGUFFile:
    """An open model: metadata of its first shard, tensors of all. A context manager."""

    def __init__(self, shards: tuple[_Shard, ...]) -> None:
        self._shards = shards
        self.paths: tuple[Path, ...] = tuple(shard.path for shard in shards)
        self.metadata: Mapping[str, Value] = MappingProxyType(dict(shards[0].header.metadata))
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(_joined_tensors(shards))

    @property
    def version(self) -> int:
        """GGUF version of the first shard."""
        return self._open_shards()[0].header.version

    @property
    def header_hash(self) -> str:
        """SHA-256 of the header bytes, hex; of several shards the hash of their fingerprints."""
        return self.fingerprint().header_hash

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return not self._shards

    def data(self, name: str) -> npt.NDArray[np.uint8]:
        """Return the stored bytes of a tensor as a read-only view of the map: nothing is copied.

        Shapes:
            returns  [nbytes]
        Raises:
            CorruptCheckpoint: no tensor of that name.
        """
        shards = self._open_shards()
        info = self.tensors.get(name)
        if info is None:
            raise CorruptCheckpoint(
                f"{self.paths[0].name} has no tensor {quoted(name)}",
                remedy="The file is incomplete, or of another model family than it says.",
            )
        return np.frombuffer(shards[info.shard].map, np.uint8, info.nbytes, info.offset)

    def fingerprint(self) -> Fingerprint:
        """Return size, time and header hash, as they were when the file was opened."""
        shards = self._open_shards()
        header_hash = shards[0].header_hash
        if len(shards) > 1:
            facts = [f"{s.size_bytes} {s.mtime_ns} {s.header_hash}" for s in shards]
            header_hash = hashlib.sha256("\n".join(facts).encode()).hexdigest()
        return Fingerprint(
            sum(s.size_bytes for s in shards), max(s.mtime_ns for s in shards), header_hash
        )

    def close(self) -> None:
        """Let go of the files. Views already given out keep their map until they are gone."""
        self._shards = ()

    def _open_shards(self) -> tuple[_Shard, ...]:
        if not self._shards:
            raise ModelError(f"{self.paths[0].name} is closed")
        return self._shards

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def open_gguf(path: str | os.PathLike[str]) -> GGUFFile:
    """Open a GGUF file, and with any shard of a split model all of them.

    Raises:
        ModelNotFound: no such file, or a shard of it is missing.
        ModelError: a directory, a pipe, or a file that may not be read.
        CorruptCheckpoint: the file breaks its format; names the key or tensor.
        UnsupportedModel: big-endian, another version, or an unknown tensor type.
    """
    given = _open_shard(Path(path), shard=0)
    count = _split_number(given, "split.count", default=1)
    if count <= 1:
        return GGUFFile((given,))
    paths = shard_paths(given.path)
    if len(paths) != count:
        raise CorruptCheckpoint(
            f"{given.path.name} says it is one of {count} shards, its name says {len(paths)}",
            remedy="Rename the files to NAME-00001-of-0000N.gguf as they were published.",
        )
    shards = tuple(_open_shard(shard_path, shard=i) for i, shard_path in enumerate(paths))
    for number, shard in enumerate(shards):
        _check_place(shard, number, count)
    model = GGUFFile(shards)
    wanted = _split_number(shards[0], "split.tensors.count", default=len(model.tensors))
    if wanted != len(model.tensors):
        raise CorruptCheckpoint(
            f"the shards of {shards[0].path.name} hold another number of tensors than they say",
            value=len(model.tensors),
            limit=wanted,
        )
    return model


def shard_paths(path: Path) -> tuple[Path, ...]:
    """Return the paths of all shards in order, by the name of any; an unsplit name gives itself.

    Raises:
        CorruptCheckpoint: a shard number or count that cannot be.
    """
    match = _SHARD_NAME.fullmatch(path.name)
    if match is None:
        return (path,)
    number, count = int(match["number"]), int(match["count"])
    if not 1 <= number <= count <= MAX_SHARDS:
        raise CorruptCheckpoint(
            f"{quoted(path.name)} names a shard that cannot be",
            value=f"{number} of {count}",
            limit=f"{MAX_SHARDS} shards",
        )
    names = [f"{match['stem']}-{i:05d}-of-{count:05d}.gguf" for i in range(1, count + 1)]
    return tuple(path.with_name(name) for name in names)


def _open_shard(path: Path, *, shard: int) -> _Shard:
    shown = printable_path(path)
    try:
        with open(path, "rb", opener=_open_without_waiting) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ModelError(f"{shown} is not a regular file", remedy=_GIVE_A_FILE)
            if status.st_size == 0:
                raise CorruptCheckpoint(f"{shown} is empty", remedy="Download it again.")
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise ModelNotFound(f"no such file: {shown}") from None
    except IsADirectoryError:
        raise ModelError(f"{shown} is a directory", remedy=_GIVE_A_FILE) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ModelError(f"{shown} cannot be read: {reason}") from None
    try:
        header = parse_header(mapped, shard=shard)
    except (CorruptCheckpoint, UnsupportedModel) as error:
        error.args = (f"{path.name}: {error}",)
        error.what = f"{path.name}: {error.what}"
        raise
    return _Shard(path, mapped, header, len(mapped), status.st_mtime_ns)


def _open_without_waiting(name: str, flags: int) -> int:
    # Opening a pipe would wait for a writer for ever; O_NONBLOCK does not change regular files.
    return os.open(name, flags | getattr(os, "O_NONBLOCK", 0))


def printable_path(path: Path) -> str:
    """Return a path for a message: undecodable bytes and control characters escaped."""
    text = str(path)
    return text if text.isprintable() else ascii(text)


def _split_number(shard: _Shard, key: str, *, default: int) -> int:
    value = shard.header.metadata.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 31:
        raise CorruptCheckpoint(f"{shard.path.name}: key {key!r} is not a count")
    return value


def _check_place(shard: _Shard, number: int, count: int) -> None:
    said = (
        _split_number(shard, "split.no", default=0),
        _split_number(shard, "split.count", default=1),
    )
    if said != (number, count):
        raise CorruptCheckpoint(
            f"{shard.path.name} is not the shard that its name says",
            value=f"shard {said[0] + 1} of {said[1]}",
            limit=f"shard {number + 1} of {count}",
        )


def _joined_tensors(shards: tuple[_Shard, ...]) -> dict[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    for shard in shards:
        for info in shard.header.tensors:
            if info.name in tensors:
                raise CorruptCheckpoint(f"tensor {quoted(info.name)} appears in two shards")
            tensors[info.name] = info
    return tensors


_GIVE_A_FILE = "Give the path of a .gguf file."
