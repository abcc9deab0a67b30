"""The lines of one chunk that some parser may know, with their numbers and their neighbours.

Lines are looked for before they are split: each line that any parser reads holds one of NEEDLES, so
text that holds none costs a memory scan.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from twostroke_doctor.parsers.lines import MAX_JSON, MAX_TEXT, Line, load_json, unwrap

NEEDLES = tuple(  # one of these is in every line that a parser reads; longer ones are found faster
    word.encode()
    for word in (
        *("oken", " time =", "duration", "rompt", "slot ", "[GIN]", "CtxLimit", "Process", "GPU"),
        *("% CPU", "preempt", "iB", "requests:", "equest rate", "(ms):", "lama", "system_info"),
        *("raft acceptance", "graphs reused", "STUDIO", "Generated prediction", "eak memory"),
        *("-time: ", "warmup model", "torch.compile takes", "cuda graph end", "ReqTimeStats"),
        *("Metrics", "Output generated"),
    )
)
_DOCUMENT = re.compile(rb"\n[{\[](?=[\r\n])")  # pretty-printed JSON opens
_MAX_BLOCK = 640
_MAX_LOOK_BACK = 1024


class Walk:
    """The candidate lines of one chunk, with their numbers and their neighbours."""

    def __init__(self, data: bytes, end: int, number: int, tail: bytes) -> None:
        self._data = data
        self._end = end
        self._lines_before = self._number = number  # `_number`: of lines before `_at`
        num_ends = data.count(b"\n", 0, end)
        self._num_lines = num_ends if data.endswith(b"\n", 0, end) else num_ends + 1
        self._at = 0
        self._start = 0
        self._stop = 0  # end of the current line
        self._skip_to = 0
        self._no_gather_before = 0
        self._tail = tail
        self.consumed = 1

    def candidates(self) -> Iterator[int]:
        """Yield the starts of the lines that hold a needle and are not consumed yet."""
        data, end = self._data, self._end
        find, rfind = data.find, data.rfind
        starts: set[int] = set()
        for needle in NEEDLES:
            if len(starts) >= self._num_lines:  # every line is a candidate already
                break
            at = find(needle, 0, end)
            while at >= 0:
                starts.add(rfind(b"\n", 0, at) + 1)
                stop = find(b"\n", at, end)
                at = find(needle, stop, end) if stop >= 0 else -1
        starts.update(match.start() + 1 for match in _DOCUMENT.finditer(data, 0, end))
        if data[:2] in (b"{\n", b"{\r", b"[\n", b"[\r"):
            starts.add(0)
        for start in sorted(starts):
            if self._skip_to <= start < end:
                yield start

    def line(self, start: int, file: str | None) -> Line:
        """Return the line at an offset, unwrapped."""
        self._number += self._data.count(b"\n", self._at, start)
        self._at = self._start = start
        self._stop = self._end_of(start)
        self.consumed = 1
        stop = min(self._stop, start + MAX_JSON)
        return unwrap(self._text(start, stop).rstrip("\r\n"), self._number + 1, file)

    def previous(self) -> str:
        """Return the raw line before the current one."""
        if self._start == 0:
            return self._tail.decode("utf-8", "replace")
        begin = self._data.rfind(b"\n", 0, self._start - 1) + 1
        return self._text(max(begin, self._start - _MAX_LOOK_BACK), self._start - 1)

    def peek(self, ahead: int) -> str | None:
        """Return the raw line `ahead` lines further on."""
        start = self._start
        for _ in range(ahead):
            start = self._end_of(start) + 1
            if start >= len(self._data):
                return None
        stop = min(self._end_of(start), start + MAX_TEXT)
        return self._text(start, stop).rstrip("\r\n")

    def window(self) -> str:
        """Return the text from the current line on, as much as a printed block takes."""
        return self._text(self._start, self._start + _MAX_BLOCK)

    def consume(self, count: int) -> None:
        """Mark the current line and those after it, `count` in all, as read."""
        stop = self._start
        for _ in range(count):
            stop = self._end_of(stop) + 1
        self._skip_to = stop
        self.consumed = count

    def gather(self) -> object:
        """Return the JSON document that opens here and closes in the first column."""
        start = self._start
        if start < self._no_gather_before:
            return None
        closer = b"\n}" if self._data[start : start + 1] == b"{" else b"\n]"
        close = self._data.find(closer, start, start + MAX_JSON)
        stop = close + 2 if close >= 0 else min(start + MAX_JSON, len(self._data))
        self._no_gather_before = stop
        if close < 0:
            return None
        value: object = load_json(self._text(start, stop))
        if value is not None:
            self.consume(self._data.count(b"\n", start, stop) + 1)
        return value

    def finish(self) -> int:
        """Return the number of lines up to the chunk's end."""
        return self._lines_before + self._num_lines

    def last_line(self) -> bytes:
        """Return the last line of the chunk, for the next chunk to look back at."""
        begin = self._data.rfind(b"\n", 0, max(self._end - 1, 0)) + 1
        return self._data[max(begin, self._end - _MAX_LOOK_BACK) : self._end].rstrip(b"\r\n")

    def _end_of(self, start: int) -> int:
        stop = self._data.find(b"\n", start)
        return stop if stop >= 0 else len(self._data)

    def _text(self, start: int, stop: int) -> str:
        return self._data[start:stop].decode("utf-8", "replace")
