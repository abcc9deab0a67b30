"""Find the lines of a log that any parser knows, and hand each to its parser.

Lines are looked for before they are split: a chunk is searched for a few byte strings (each
line that any parser reads holds one of them), so what matches none costs a memory scan. Mixed logs
are no special case: every line is routed by its own words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from twostroke.errors import ConfigError
from twostroke_doctor.parsed import Item, Parsed
from twostroke_doctor.parsers.json_reply import JsonParser
from twostroke_doctor.parsers.koboldcpp import KoboldcppParser
from twostroke_doctor.parsers.lines import MAX_JSON, MAX_TEXT, Line, load_json, unwrap
from twostroke_doctor.parsers.llama_cpp import LlamaCppParser
from twostroke_doctor.parsers.llama_server import LlamaServerParser
from twostroke_doctor.parsers.lm_studio import LmStudioParser
from twostroke_doctor.parsers.mlx_lm import MlxLmParser
from twostroke_doctor.parsers.ollama import BLOCK_OPENS, OllamaParser
from twostroke_doctor.parsers.reader import LogSource, chunks, open_source
from twostroke_doctor.parsers.sglang import SglangParser
from twostroke_doctor.parsers.tabby import TabbyParser
from twostroke_doctor.parsers.text_generation_webui import TextGenerationWebuiParser
from twostroke_doctor.parsers.tgi import TgiParser
from twostroke_doctor.parsers.vllm import VllmParser
from twostroke_doctor.parsers.vllm_bench import VllmBenchParser

# One of these is in every line that a parser reads; longer ones are found faster.
NEEDLES = (
    b"oken",
    b" time =",
    b"duration",
    b"rompt",
    b"slot ",
    b"[GIN]",
    b"CtxLimit",
    b"Process",
    b"GPU",
    b"% CPU",
    b"preempt",
    b"iB",
    b"requests:",
    b"equest rate",
    b"(ms):",
    b"lama",
    b"system_info",
    b"raft acceptance",
    b"graphs reused",
    b"STUDIO",
    b"Generated prediction",
    b"eak memory",
    b"-time: ",
    b"warmup model",
    b"torch.compile takes",
    b"cuda graph end",
    b"ReqTimeStats",
    b"Metrics",
    b"Output generated",
)
_DOCUMENT = re.compile(rb"\n[{\[](?=[\r\n])")  # pretty-printed JSON opens
_ENGINE_WORDS = re.compile(
    r"ollama|llama|vllm|sglang|text_generation_router|kobold|exllama|mlx_lm|LM STUDIO",
    re.IGNORECASE,
)
_KINDS = {"llama": "llama.cpp", "text_generation_router": "tgi", "kobold": "koboldcpp"}
_KINDS |= {"exllama": "tabbyapi", "mlx_lm": "mlx-lm", "lm studio": "lm-studio"}
_WRAPPED = (  # what opens a line that terminals and loggers wrap, and what a whole one holds
    ("Output generated in", re.compile(r"context \d+[^)]*\)")),
    ("Metrics", re.compile(r"Context: \d+ tokens.*\)\s*(?:<--.*)?$")),
    ("CtxLimit", re.compile(r"Total:\s?[\d.,]+s")),
)
MAX_BLOCK = 640
_MAX_WRAPS = 3
_MAX_ROUTES = 4
_STUDIO = "[LM STUDIO SERVER]"


class EngineParser(Protocol):
    """What a parser offers. `feed` returns None for a line that is not its own."""

    engine: str

    @property
    def signatures(self) -> tuple[str, ...]:
        """The words by which a line is routed here."""

    def feed(self, line: Line) -> list[Item] | None:
        """Return what a line completes."""

    def flush(self) -> list[Item]:
        """Return what the log's end leaves open."""


def _parsers() -> list[EngineParser]:
    return [
        LlamaServerParser(),
        LlamaCppParser(),
        VllmParser(),
        VllmBenchParser(),
        SglangParser(),
        TgiParser(),
        LmStudioParser(),
        TextGenerationWebuiParser(),
        TabbyParser(),
        MlxLmParser(),
        KoboldcppParser(),
    ]


class LogScanner:
    """Streams items out of logs; counts lines, and those that told nothing by kind."""

    def __init__(self) -> None:
        self.num_lines = 0
        self.unknown: dict[str, int] = {}
        self._json = JsonParser()
        self._ollama = OllamaParser()
        self._parsers = [self._ollama, *_parsers()]
        self._routes: dict[str, list[EngineParser]] = {}
        for parser in self._parsers:
            for signature in parser.signatures:
                self._routes.setdefault(signature, []).append(parser)
        longest_first = sorted(self._routes, key=len, reverse=True)
        self._route = re.compile("|".join(re.escape(one) for one in longest_first))
        self._file: str | None = None
        self._tail = b""

    def scan(self, source: LogSource, *, file: str | None = None) -> Iterator[Item]:
        """Yield the items of one log in order; memory stays bounded however long it is.

        Raises:
            ConfigError: the path cannot be read.
        """
        self._file = file if file is not None else str(source) if isinstance(source, Path) else None
        try:
            blocks, stream = open_source(source)
        except OSError as error:
            raise ConfigError(
                "this log cannot be read",
                value=f"{source!s}: {error.strerror}",
                remedy="Give the path of a text file, or - for standard input.",
            ) from error
        known, started_at = 0, self.num_lines
        before = sum(self.unknown.values())
        number = 0
        try:
            for chunk in chunks(blocks):
                walk = _Walk(chunk.data, chunk.end, number, self._tail)
                for start in walk.candidates():
                    line = walk.line(start, self._file)
                    items = self._take(line, walk)
                    if items is not None:
                        known += walk.consumed
                        yield from items
                number = walk.finish()
                self._tail = walk.last_line()
        finally:
            if stream is not None:
                stream.close()
        self.num_lines = started_at + number
        other = number - known - (sum(self.unknown.values()) - before)
        if other > 0:
            self.unknown["other"] = self.unknown.get("other", 0) + other
        yield from self._flush()

    def _flush(self) -> list[Item]:
        self._tail = b""
        parsers: list[EngineParser] = [self._json, *self._parsers]
        return [item for parser in parsers for item in parser.flush()]

    def _take(self, line: Line, walk: _Walk) -> list[Item] | None:
        """Return the items of a line, or None after counting it as unknown."""
        text = line.text
        if text.startswith(("{", "[")) and len(text.strip()) == 1:
            value = walk.gather()
            return None if value is None else self._json.read(value, line)
        if text.startswith(BLOCK_OPENS):
            block = self._ollama.feed_block(line, walk.window())
            if block is not None:
                walk.consume(block[1])
                return block[0]
        for opener, whole in _WRAPPED:
            if opener in text[:MAX_TEXT]:
                return self._rejoin(line, whole, walk)
        if line.t_s is None and _STUDIO in text[:MAX_TEXT]:
            line = line._replace(t_s=unwrap(walk.previous(), 0, None).t_s)
        return self._route_line(line)

    def _rejoin(self, line: Line, whole: re.Pattern[str], walk: _Walk) -> list[Item] | None:
        """Try a wrapped line with its continuations, joined by a blank and then by nothing."""
        parts = [line.text]
        for _ in range(_MAX_WRAPS):
            if whole.search(" ".join(parts)) or whole.search("".join(parts)):
                break
            following = walk.peek(len(parts))
            if following is None:
                break
            parts.append(unwrap(following, 0, None).text.strip())
        for joint in (" ", ""):
            joined = line
            if len(parts) > 1:
                joined = line._replace(text=joint.join(parts)[:MAX_TEXT])
                if not whole.search(joined.text):
                    continue
            items = self._route_line(joined, count=False)
            if items is not None:
                walk.consume(len(parts))
                return items
        return self._route_line(line)

    def _route_line(self, line: Line, *, count: bool = True) -> list[Item] | None:
        text = line.text
        if "{" in text and '"' in text:
            items = self._json.feed(line)
            if items is not None:
                return items
        tried: list[EngineParser] = []
        match = self._route.search(text, 0, MAX_TEXT)
        while match is not None and len(tried) < _MAX_ROUTES:
            for parser in self._routes[match.group()]:
                if parser not in tried:
                    items = parser.feed(line)
                    if items is not None:
                        return items
                    tried.append(parser)
            match = self._route.search(text, match.end(), MAX_TEXT)
        if count:
            self._count_unknown(text, tried)
        return None

    def _count_unknown(self, text: str, tried: list[EngineParser]) -> None:
        if tried:
            kind = tried[0].engine
        elif (match := _ENGINE_WORDS.search(text, 0, MAX_TEXT)) is not None:
            kind = _KINDS.get(match.group().lower(), match.group().lower())
        else:
            return
        self.unknown[kind] = self.unknown.get(kind, 0) + 1


class _Walk:
    """The candidate lines of one chunk, with their numbers and their neighbours."""

    def __init__(self, data: bytes, end: int, number: int, tail: bytes) -> None:
        self._data = data
        self._end = end
        self._number = number  # lines before `_at`
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
        raw = self._data[start:stop].decode("utf-8", "replace").rstrip("\r\n")
        return unwrap(raw, self._number + 1, file)

    def previous(self) -> str:
        """Return the raw line before the current one."""
        if self._start == 0:
            return self._tail.decode("utf-8", "replace")
        begin = self._data.rfind(b"\n", 0, self._start - 1) + 1
        return self._data[max(begin, self._start - 1024) : self._start - 1].decode(
            "utf-8", "replace"
        )

    def peek(self, ahead: int) -> str | None:
        """Return the raw line `ahead` lines further on."""
        start = self._start
        for _ in range(ahead):
            start = self._end_of(start) + 1
            if start >= len(self._data):
                return None
        stop = min(self._end_of(start), start + MAX_TEXT)
        return self._data[start:stop].decode("utf-8", "replace").rstrip("\r\n")

    def window(self) -> str:
        """Return the text from the current line on, as much as a printed block takes."""
        data = self._data[self._start : self._start + MAX_BLOCK]
        return data.decode("utf-8", "replace")

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
        value: object = load_json(self._data[start:stop].decode("utf-8", "replace"))
        if value is not None:
            self.consume(self._data.count(b"\n", start, stop) + 1)
        return value

    def finish(self) -> int:
        """Return the number of lines up to the chunk's end."""
        self._number += self._data.count(b"\n", self._at, self._end)
        ends_open = self._end == len(self._data) and not self._data.endswith(b"\n")
        return self._number + (1 if ends_open else 0)

    def last_line(self) -> bytes:
        """Return the last line of the chunk, for the next chunk to look back at."""
        begin = self._data.rfind(b"\n", 0, max(self._end - 1, 0)) + 1
        return self._data[max(begin, self._end - 1024) : self._end].rstrip(b"\r\n")

    def _end_of(self, start: int) -> int:
        stop = self._data.find(b"\n", start)
        return stop if stop >= 0 else len(self._data)


def iter_items(source: LogSource, *, file: str | None = None) -> Iterator[Item]:
    """Yield the requests, windows and facts of one log as they are read.

    source: a Path, the text itself (str or bytes), a binary stream, or an iterable of lines.
    """
    return LogScanner().scan(source, file=file)


def parse(*sources: LogSource, file: str | None = None) -> Parsed:
    """Read whole logs into one bounded result; a str is the text itself, a Path is a file.

    Raises:
        ConfigError: a path cannot be read.
    """
    scanner, parsed = LogScanner(), Parsed()
    for source in sources:
        parsed.add_all(scanner.scan(source, file=file))
    parsed.num_lines = scanner.num_lines
    parsed.unknown = dict(scanner.unknown)
    return parsed
