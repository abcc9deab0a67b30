"""A GGUF array of strings, read a window of bytes at a time: vocabularies have 250,000 and more.

A plain string has 1 to 255 bytes, none of them zero. Its record is one byte of length, seven zero
bytes (the rest of the 64-bit length) and the text, so that the lengths of a whole window are
checked against each other at once. All other strings are read one by one.
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

from twostroke.formats.gguf_reader import HeaderReader

_LENGTH = struct.Struct("<Q")
_WINDOW_BYTES = 1 << 18  # stays in the second-level cache
# A hostile array alternates plain and other strings: after so many windows all are read one by one.
_MAX_WINDOWED_RUNS = 32
_SINGLE_RUN_STRINGS = 64  # read one by one before the next window is tried


def read_strings(reader: HeaderReader, count: int, what: str) -> list[str]:
    """Read `count` strings; `what` names the array in messages.

    Raises:
        TruncatedHeader: the bytes end inside a string.
        CorruptCheckpoint: the header is larger than allowed.
    """
    strings: list[str] = []
    for _ in range(_MAX_WINDOWED_RUNS):
        _add_plain_strings(reader, count, strings)
        if len(strings) == count:
            return strings
        _add_single_strings(reader, min(count, len(strings) + _SINGLE_RUN_STRINGS), strings, what)
    _add_single_strings(reader, count, strings, what)
    return strings


def _add_single_strings(reader: HeaderReader, count: int, strings: list[str], what: str) -> None:
    """Read strings one by one until there are `count`."""
    data, pos, limit = reader.data, reader.pos, reader.limit
    unpack = _LENGTH.unpack_from
    for index in range(len(strings), count):
        start = pos + 8
        pos = start + unpack(data, pos)[0] if start <= limit else start
        if pos > limit:
            reader.take(pos - reader.pos, f"string {index} of {what}")  # refuses, with the reason
        strings.append(str(data[start:pos], "utf-8", "surrogateescape"))
    reader.pos = pos


def _add_plain_strings(reader: HeaderReader, count: int, strings: list[str]) -> None:
    """Read strings, a window of bytes at a time, until there are `count` or one is not plain."""
    while len(strings) < count and reader.pos < reader.limit:
        size = min(reader.limit - reader.pos, _WINDOW_BYTES)
        window = np.frombuffer(reader.data, np.uint8, size, reader.pos)
        ends = _plain_ends(window)[: count - len(strings)]
        if not len(ends):
            return
        text = window[: ends[-1]].copy()
        # The length bytes become zero: eight zeros stand before each string and nowhere else.
        text[0] = text[ends[:-1]] = 0
        strings += str(text.data, "utf-8", "surrogateescape").split("\0" * 8)[1:]
        reader.pos += int(ends[-1])


def _plain_ends(window: npt.NDArray[np.uint8]) -> npt.NDArray[np.intp]:
    """Return where each of a window's first strings ends, up to the first that is not plain."""
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
    # No start confirms the end of the last one: it may reach past the window, or hold a zero.
    limit = zeros[7 * num_plain] if 7 * num_plain < len(zeros) else len(window)
    if num_plain and ends[num_plain - 1] > limit:
        num_plain -= 1
    return ends[:num_plain]
