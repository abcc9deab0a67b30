"""GGUF files on disk: memory-mapped read-only, one or several shards as one model.

A header is checked whole before any tensor byte is touched (see gguf_header). The views that `data`
returns stay valid after `close`. A mapped file that another process cuts short cannot be defended
against.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from twostroke.errors import CorruptCheckpoint, ModelError
from twostroke.formats.gguf_metadata import Value
from twostroke.formats.gguf_reader import quoted
from twostroke.formats.gguf_shards import Shard, open_shard, shard_paths
from twostroke.formats.gguf_tensors import TensorInfo


class Fingerprint(NamedTuple):
    """Tells one state of a model file from another without reading its weights; a cache key."""

    size_bytes: int  # all shards
    mtime_ns: int  # the latest
    header_hash: str  # SHA-256, hex; of several shards it also covers each one's size and time


class GGUFFile:
    """An open model: metadata of its first shard, tensors of all. A context manager."""

    def __init__(self, shards: tuple[Shard, ...]) -> None:
        self._shards = shards
        self.paths: tuple[Path, ...] = tuple(shard.path for shard in shards)
        self.metadata: Mapping[str, Value] = MappingProxyType(dict(shards[0].header.metadata))
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(_joined_tensors(shards))

    def data(self, name: str) -> npt.NDArray[np.uint8]:
        """Return the stored bytes of a tensor as a read-only view of the map: nothing is copied.

        Shapes:
            returns  [nbytes]
        Raises:
            CorruptCheckpoint: no tensor of that name.
            ModelError: the file is closed.
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
        """Let go of the files. Views that `data` returned keep their map until they are gone."""
        self._shards = ()

    def _open_shards(self) -> tuple[Shard, ...]:
        if not self._shards:
            raise ModelError(f"{self.paths[0].name} is closed")
        return self._shards

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def open_gguf(path: str | os.PathLike[str]) -> GGUFFile:
    """Open a GGUF file, and with any shard of a split model all of them.

    Raises:
        ModelNotFound: no such file, or a shard of it is missing.
        ModelError: a directory, a pipe, or a file that may not be read.
        CorruptCheckpoint: the file breaks its format; names the key or tensor.
        UnsupportedModel: big-endian, another version, or an unknown tensor type.
    """
    given = open_shard(Path(path), shard=0)
    return _open_split(given) if given.num_shards > 1 else GGUFFile((given,))


def _open_split(given: Shard) -> GGUFFile:
    """Open all shards of the model that `given` belongs to."""
    count, paths = given.num_shards, shard_paths(given.path)
    if len(paths) != count:
        raise CorruptCheckpoint(
            f"{given.path.name} says it is one of {count} shards, its name says {len(paths)}",
            remedy="Rename the files to NAME-00001-of-0000N.gguf as they were published.",
        )
    shards = tuple(open_shard(shard_path, shard=i) for i, shard_path in enumerate(paths))
    for number, shard in enumerate(shards):
        shard.check_place(number, count)
    model = GGUFFile(shards)
    num_tensors = shards[0].split_count("split.tensors.count", default=len(model.tensors))
    if num_tensors != len(model.tensors):
        raise CorruptCheckpoint(
            f"the shards of {shards[0].path.name} hold another number of tensors than they say",
            value=len(model.tensors),
            limit=num_tensors,
        )
    return model


def _joined_tensors(shards: tuple[Shard, ...]) -> dict[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    for shard in shards:
        for info in shard.header.tensors:
            if info.name in tensors:
                raise CorruptCheckpoint(f"tensor {quoted(info.name)} appears in two shards")
            tensors[info.name] = info
    return tensors
