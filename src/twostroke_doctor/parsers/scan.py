"""Hand each line that any parser knows to its parser.

Mixed logs are no special case: every line is routed by its own words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from twostroke.errors import ConfigError
from twostroke_doctor.parsed import Item, Parsed
from twostroke_doctor.parsers.json_reply import JsonParser
from twostroke_doctor.parsers.koboldcpp import KoboldcppParser
from twostroke_doctor.parsers.lines import MAX_TEXT, Line, unwrap
from twostroke_doctor.parsers.llama_cpp import LlamaCppParser
from twostroke_doctor.parsers.llama_server import LlamaServerParser
from twostroke_doctor.parsers.lm_studio import SERVER_MARK, LmStudioParser
from twostroke_doctor.parsers.mlx_lm import MlxLmParser
from twostroke_doctor.parsers.ollama import BLOCK_OPENS, OllamaParser
from twostroke_doctor.parsers.reader import LogSource, chunks, open_source
from twostroke_doctor.parsers.sglang import SglangParser
from twostroke_doctor.parsers.tabby import TabbyParser
from twostroke_doctor.parsers.table import TableParser
from twostroke_doctor.parsers.text_generation_webui import TextGenerationWebuiParser
from twostroke_doctor.parsers.tgi import TgiParser
from twostroke_doctor.parsers.vllm import VllmParser
from twostroke_doctor.parsers.vllm_bench import VllmBenchParser
from twostroke_doctor.parsers.walk import NEEDLES, Walk

__all__ = ["NEEDLES", "LogScanner", "iter_items", "parse"]

_ENGINE_WORDS = re.compile(
    r"ollama|llama|vllm|sglang|text_generation_router|kobold|exllama|mlx_lm|LM STUDIO",
    re.IGNORECASE,
)
_KINDS = {"llama": "llama.cpp", "text_generation_router": "tgi", "kobold": "koboldcpp"}
_KINDS |= {"exllama": "tabbyapi", "mlx_lm": "mlx-lm", "lm studio": "lm-studio"}
_WRAPPED = (  # the opening of a line that terminals and loggers wrap, and a mark that it is whole
    ("Output generated in", re.compile(r"context \d+[^)]*\)")),
    ("Metrics", re.compile(r"Context: \d+ tokens.*\)\s*(?:<--.*)?$")),
    ("CtxLimit", re.compile(r"Total:\s?[\d.,]+s")),
)
_JOINTS = (" ", "")
_MAX_PARTS = 4
_MAX_ROUTES = 4


def _parsers() -> list[TableParser]:
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
        self._parsers: list[TableParser] = [self._ollama, *_parsers()]
        self._routes: dict[str, list[TableParser]] = {}
        for parser in self._parsers:
            for signature in parser.signatures:
                self._routes.setdefault(signature, []).append(parser)
        longest_first = sorted(self._routes, key=len, reverse=True)
        self._route = re.compile("|".join(re.escape(one) for one in longest_first))
        self._tail = b""
        self._num_known = 0

    def scan(self, source: LogSource, *, file: str | None = None) -> Iterator[Item]:
        """Yield the items of one log in order; memory stays bounded however long it is.

        Raises:
            ConfigError: the path cannot be read.
        """
        if file is None and isinstance(source, Path):
            file = str(source)
        try:
            blocks, stream = open_source(source)
        except OSError as error:
            raise ConfigError(
                "this log cannot be read",
                value=f"{source!s}: {error.strerror}",
                remedy="Give the path of a text file, or - for standard input.",
            ) from error
        try:
            yield from self._scan(blocks, file)
        finally:
            if stream is not None:
                stream.close()
        yield from self._flush()

    def _scan(self, blocks: Iterator[bytes], file: str | None) -> Iterator[Item]:
        number = self._num_known = 0
        counted = sum(self.unknown.values())
        for chunk in chunks(blocks):
            walk = Walk(chunk.data, chunk.end, number, self._tail)
            for start in walk.candidates():
                items = self._take(walk.line(start, file), walk)
                if items is not None:
                    self._num_known += walk.consumed
                    yield from items
            number = walk.finish()
            self._tail = walk.last_line()
        self.num_lines += number
        other = number - self._num_known - (sum(self.unknown.values()) - counted)
        if other > 0:
            self.unknown["other"] = self.unknown.get("other", 0) + other

    def _flush(self) -> list[Item]:
        self._tail = b""
        parsers: list[TableParser] = [self._json, *self._parsers]
        return [item for parser in parsers for item in parser.flush()]

    def _take(self, line: Line, walk: Walk) -> list[Item] | None:
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
        beginning = text[:MAX_TEXT]
        for opener, whole in _WRAPPED:
            if opener in beginning and whole.search(beginning) is None:
                return self._rejoin(line, whole, walk)
        if line.t_s is None and SERVER_MARK in beginning:
            line = line._replace(t_s=unwrap(walk.previous(), 0, None).t_s)
        return self._read(line)

    def _rejoin(self, line: Line, whole: re.Pattern[str], walk: Walk) -> list[Item] | None:
        """Read a wrapped line with its continuations, joined by a blank or by nothing."""
        parts = [line.text]
        joined: list[str] = []
        while not joined and len(parts) < _MAX_PARTS:
            following = walk.peek(len(parts))
            if following is None:
                break
            parts.append(unwrap(following, 0, None).text.strip())
            texts = [joint.join(parts)[:MAX_TEXT] for joint in _JOINTS]
            joined = [text for text in texts if whole.search(text)]
        for text in joined:
            items, _ = self._route_line(line._replace(text=text))
            if items is not None:
                walk.consume(len(parts))
                return items
        return self._read(line)

    def _read(self, line: Line) -> list[Item] | None:
        items, tried = self._route_line(line)
        if items is None:
            self._count_unknown(line.text, tried)
        return items

    def _route_line(self, line: Line) -> tuple[list[Item] | None, list[TableParser]]:
        """Return the items of a line, or None and the parsers that did not know it."""
        text = line.text
        tried: list[TableParser] = []
        if "{" in text and '"' in text:
            items = self._json.feed(line)
            if items is not None:
                return items, tried
        match = self._route.search(text, 0, MAX_TEXT)
        while match is not None and len(tried) < _MAX_ROUTES:
            for parser in self._routes[match.group()]:
                if parser not in tried:
                    items = parser.feed(line)
                    if items is not None:
                        return items, tried
                    tried.append(parser)
            match = self._route.search(text, match.end(), MAX_TEXT)
        return None, tried

    def _count_unknown(self, text: str, tried: list[TableParser]) -> None:
        """Count a line that told nothing, under the engine whose words it holds."""
        if tried:
            kind = tried[0].engine
        elif (match := _ENGINE_WORDS.search(text, 0, MAX_TEXT)) is not None:
            kind = _KINDS.get(match.group().lower(), match.group().lower())
        else:
            return
        self.unknown[kind] = self.unknown.get(kind, 0) + 1


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
