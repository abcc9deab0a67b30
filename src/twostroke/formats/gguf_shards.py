"""One GGUF file on disk, alone or a shard of a split model: mapped read-only, its header checked.

A shard is known by its name, NAME-00001-of-0000N.gguf, and must say the same of itself.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import re
import stat
from pathlib import Path

from twostroke.dataclass import dataclass
from twostroke.errors import CorruptCheckpoint, ModelError, ModelNotFound, UnsupportedModel
from twostroke.formats.gguf_header import GGUFHeader, parse_header
from twostroke.formats.gguf_reader import quoted

MAX_SHARDS = 512
_SHARD_NAME = r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf"
_GIVE_A_FILE = "Give the path of a .gguf file."


@dataclass(frozen=True, slots=True)
class Shard:
    """One open file and its header. Units: mtime_ns is the time of its last change."""

    path: Path
    map: mmap.mmap
    header: GGUFHeader
    size_bytes: int
    mtime_ns: int

    @property
    def header_hash(self) -> str:
        """SHA-256 of the header bytes, hex."""
        return hashlib.sha256(self.map[: self.header.header_bytes]).hexdigest()

    @property
    def num_shards(self) -> int:
        """Number of files that the model has, by this one's metadata."""
        return self.split_count("split.count", default=1)

    def split_count(self, key: str, *, default: int) -> int:
        """Return a number of the split's metadata.

        Raises:
            CorruptCheckpoint: the value is not a count.
        """
        value = self.header.metadata.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 31:
            raise CorruptCheckpoint(f"{self.path.name}: key {key!r} is not a count")
        return value

    def check_place(self, number: int, count: int) -> None:
        """Check that the file's metadata give the same place among the shards as its name.

        Raises:
            CorruptCheckpoint: they give another one.
        """
        said = (self.split_count("split.no", default=0), self.num_shards)
        if said != (number, count):
            raise CorruptCheckpoint(
                f"{self.path.name} is not the shard that its name says",
                value=f"shard {said[0] + 1} of {said[1]}",
                limit=f"shard {number + 1} of {count}",
            )


def shard_paths(path: Path) -> tuple[Path, ...]:
    """Return the paths of all shards in order, by the name of any; another name gives itself.

    Raises:
        CorruptCheckpoint: the name has an impossible shard number or count.
    """
    match = re.fullmatch(_SHARD_NAME, path.name, re.DOTALL)
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


def open_shard(path: Path, *, shard: int) -> Shard:
    """Map a file and check its header.

    Raises:
        ModelNotFound: no such file.
        ModelError: a directory, a pipe, or a file that may not be read.
        CorruptCheckpoint, UnsupportedModel: as `parse_header`; the message begins with the name.
    """
    mapped, status = _mapped(path)
    try:
        header = parse_header(mapped, shard=shard)
    except (CorruptCheckpoint, UnsupportedModel) as error:
        error.args = (f"{path.name}: {error}",)
        error.what = f"{path.name}: {error.what}"
        raise
    return Shard(path, mapped, header, len(mapped), status.st_mtime_ns)


def _mapped(path: Path) -> tuple[mmap.mmap, os.stat_result]:
    shown = _printable(path)
    try:
        with open(path, "rb", opener=_open_without_waiting) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ModelError(f"{shown} is not a regular file", remedy=_GIVE_A_FILE)
            if status.st_size == 0:
                raise CorruptCheckpoint(f"{shown} is empty", remedy="Download it again.")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), status
    except FileNotFoundError:
        raise ModelNotFound(f"no such file: {shown}") from None
    except IsADirectoryError:
        raise ModelError(f"{shown} is a directory", remedy=_GIVE_A_FILE) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ModelError(f"{shown} cannot be read: {reason}") from None


def _open_without_waiting(name: str, flags: int) -> int:
    # Opening a pipe would wait for a writer for ever; O_NONBLOCK does not change regular files.
    return os.open(name, flags | getattr(os, "O_NONBLOCK", 0))


def _printable(path: Path) -> str:
    """Return a path for a message: undecodable bytes and control characters escaped."""
    text = str(path)
    return text if text.isprintable() else ascii(text)
