"""A log as chunks of whole lines, with room to look ahead, in bounded memory.

Knows bytes and newlines only. A line longer than the chunk is cut, and the cut is counted.
"""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

CHUNK_BYTES = 1 << 20
AHEAD_BYTES = 1 << 20  # look-ahead of a candidate line: pretty-printed JSON, wrapped lines

LogSource = str | bytes | Path | BinaryIO | Iterable[str] | Iterable[bytes]


class Chunk:
    """Bytes of whole lines. Lines that start at or past `end` belong to the next chunk."""

    __slots__ = ("data", "end")

    def __init__(self, data: bytes, end: int) -> None:
        self.data = data
        self.end = end


def open_source(source: LogSource) -> tuple[Iterator[bytes], BinaryIO | None]:
    """Return byte blocks of a source, and the stream to close after them."""
    if isinstance(source, Path):
        stream = source.open("rb")
        return _blocks(stream), stream
    if isinstance(source, str):
        return _blocks(io.BytesIO(source.encode("utf-8", "surrogatepass"))), None
    if isinstance(source, bytes):
        return _blocks(io.BytesIO(source)), None
    if hasattr(source, "read"):
        return _blocks(cast(BinaryIO, source)), None
    return _joined(source), None


def _blocks(stream: BinaryIO) -> Iterator[bytes]:
    """Read blocks as UTF-8; a UTF-16 log (PowerShell's redirection writes them) is recoded."""
    decoder: codecs.IncrementalDecoder | None = None
    first = True
    while block := stream.read(CHUNK_BYTES):
        data = block.encode("utf-8", "surrogatepass") if isinstance(block, str) else block
        if first and data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            decoder = codecs.getincrementaldecoder("utf-16")("replace")
        elif first:
            data = data.removeprefix(codecs.BOM_UTF8)
        first = False
        yield decoder.decode(data).encode("utf-8", "replace") if decoder else data


def _joined(lines: Iterable[str] | Iterable[bytes]) -> Iterator[bytes]:
    held: list[bytes] = []
    size = 0
    for line in lines:
        data = line.encode("utf-8", "surrogatepass") if isinstance(line, str) else line
        held.append(data if data.endswith(b"\n") else data + b"\n")
        size += len(data)
        if size >= CHUNK_BYTES:
            yield b"".join(held)
            held, size = [], 0
    yield b"".join(held)


def chunks(blocks: Iterator[bytes]) -> Iterator[Chunk]:
    """Regroup byte blocks into chunks that end at a line's end and hold a look-ahead."""
    held = b""
    for block in blocks:
        held += block
        if len(held) < CHUNK_BYTES + AHEAD_BYTES:
            continue
        end = held.rfind(b"\n", 0, len(held) - AHEAD_BYTES) + 1
        if end == 0:  # one line of more than a chunk: cut it rather than hold it
            cut = held.find(b"\n", len(held) - AHEAD_BYTES)
            held = held[:CHUNK_BYTES] + (b"" if cut < 0 else held[cut:])
            if cut < 0:
                continue
            end = held.rfind(b"\n") + 1
        yield Chunk(held, end)
        held = held[end:]
    if held:
        yield Chunk(held, len(held))
