"""The bounds of a GGUF header, and a cursor over its bytes that holds them.

Works on any bytes: a memory map, or the first megabytes of a remote file. It opens nothing, and
knows nothing of keys and tensors.
Source: the GGUF specification (ggml, docs/gguf.md).
"""

from __future__ import annotations

import mmap
import struct

from twostroke.errors import CorruptCheckpoint

Buffer = bytes | bytearray | memoryview | mmap.mmap

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

_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


class TruncatedHeader(CorruptCheckpoint):
    """The bytes end inside the header; it needs `needed_bytes` at least."""

    def __init__(self, what: str, *, needed_bytes: int, available_bytes: int) -> None:
        self.needed_bytes = needed_bytes
        super().__init__(
            what,
            value=f"{available_bytes} bytes",
            limit=f"at least {needed_bytes} needed",
            remedy="The file is cut off or damaged: download it again.",
        )


def quoted(name: str) -> str:
    """Return untrusted text as a short, printable literal for a message."""
    text = ascii(name)
    return text if len(text) <= 80 else text[:76] + "...'"


class HeaderReader:
    """A cursor that stops at the end of the bytes and at the largest header allowed.

    `what` names the part being read, for the message of a refusal.

    Raises: every method
        TruncatedHeader: the bytes end before the part does.
        CorruptCheckpoint: the part breaks a bound.
    """

    def __init__(self, data: Buffer) -> None:
        self.data = data
        self.end = len(data)
        self.limit = min(self.end, MAX_HEADER_BYTES)  # nothing is read from here on
        self.pos = 0
        self._array_values_left = MAX_ALL_ARRAY_VALUES

    def take(self, nbytes: int, what: str) -> int:
        """Step over `nbytes` bytes and return the position of the first."""
        start, stop = self.pos, self.pos + nbytes
        if stop > self.end:
            raise TruncatedHeader(
                f"GGUF file ends inside {what}", needed_bytes=stop, available_bytes=self.end
            )
        if stop > self.limit:
            raise CorruptCheckpoint(
                f"GGUF header is too large at {what}", value=stop, limit=self.limit
            )
        self.pos = stop
        return start

    def raw(self, nbytes: int, what: str) -> bytes:
        """Return a copy of the next `nbytes` bytes."""
        start = self.take(nbytes, what)
        return bytes(self.data[start : start + nbytes])

    def u32(self, what: str) -> int:
        """Read an unsigned number of 32 bits."""
        value: int = _U32.unpack_from(self.data, self.take(4, what))[0]
        return value

    def u64(self, what: str) -> int:
        """Read an unsigned number of 64 bits."""
        value: int = _U64.unpack_from(self.data, self.take(8, what))[0]
        return value

    def count(self, what: str, limit: int, least_bytes: int) -> int:
        """Read how many items follow; each takes `least_bytes` bytes or more, so they must fit."""
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

    def array_length(self, what: str, item_bytes: int) -> int:
        """Read an array's length, and count its values towards those of all arrays."""
        length = self.count(f"length of {what}", MAX_ARRAY_VALUES, item_bytes)
        self._array_values_left -= length
        if self._array_values_left < 0:
            raise CorruptCheckpoint(
                f"the arrays up to {what} hold too many values", limit=MAX_ALL_ARRAY_VALUES
            )
        return length

    def string(self, what: str, limit: int) -> str:
        """Read a string of at most `limit` bytes; bytes that are no UTF-8 become surrogates."""
        length = self.u64(f"the length of {what}")
        if length > limit:
            raise CorruptCheckpoint(f"{what} is too long", value=length, limit=f"{limit} bytes")
        return self.raw(length, what).decode("utf-8", "surrogateescape")
