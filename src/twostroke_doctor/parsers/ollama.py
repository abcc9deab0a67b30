"""Ollama's `--verbose` blocks; its log and process list are facts.

Its prompt count may hold cached tokens while the duration never does (since the llama-server
backend of 2026), so `prompt.new` and a prompt rate are upper bounds unless nothing earlier shares
the prefix: records carry `cached_may_be_counted`.
"""

from __future__ import annotations

import re

from twostroke_doctor.parsed import Item
from twostroke_doctor.parsers.draft import Draft
from twostroke_doctor.parsers.formats import ALWAYS, LineFormat
from twostroke_doctor.parsers.lines import Line
from twostroke_doctor.parsers.numbers import is_cached_rate
from twostroke_doctor.parsers.ollama_log import LOG_FORMATS
from twostroke_doctor.parsers.table import TableParser

BLOCK_OPENS = "total duration:"
_LINES = {  # printed key -> its value; the eight lines as printed, each absent when it is zero
    "total duration": "{e2e_s:time}",
    "load duration": "{load_s:time}",
    "prompt eval count": r"{prompt_new:int} token\(s\)",
    "prompt eval duration": "{prefill_s:time}",
    "prompt eval rate": "{prefill_tok_s:num} tokens/s",
    "eval count": r"{output:int} token\(s\)",
    "eval duration": "{decode_s:time}",
    "eval rate": "{decode_tok_s:num} tokens/s",
}
_FIRST, _LAST = "total duration", "eval rate"


def _check_rates(draft: Draft, match: re.Match[str]) -> None:
    printed = match.groupdict()
    if rate := printed.get("prefill_tok_s"):
        draft.check("prefill_tok_s", draft.prompt_new, draft.prefill_s, rate)
    if rate := printed.get("decode_tok_s"):
        draft.check("decode_tok_s", draft.output, draft.decode_s, rate)


def _verbose_line(key: str, value: str) -> LineFormat:
    return LineFormat(
        rf"^\s{{0,40}}`{key}:`\s{{1,40}}{value}\s{{0,8}}$",
        _check_rates,
        opens=ALWAYS if key == _FIRST else (),
        closes=key == _LAST,
    )


def _block_line(key: str, value: str) -> str:
    line = rf"{key}:[ \t]{{1,20}}{value}"
    if key == _LAST:
        return line + r"(?=[\r\n])"
    line += r"\r?\n"
    return line if key == _FIRST else f"(?:{line})?"


_BLOCK = LineFormat(
    r"\A" + "".join(_block_line(*one) for one in _LINES.items()), _check_rates, literal=BLOCK_OPENS
)


class OllamaParser(TableParser):
    """Reads verbose blocks by source; everything else is one line, one fact."""

    engine = "ollama"
    formats = (*(_verbose_line(*one) for one in _LINES.items()), *LOG_FORMATS)

    def feed_block(self, line: Line, text: str) -> tuple[list[Item], int] | None:
        """Read a whole verbose block at once; return its items and the number of its lines."""
        match = _BLOCK.search(text)
        if match is None:
            return None
        out, draft = self.flush(), Draft(engine=self.engine)
        draft.see(line)
        _BLOCK.fill(draft, match)
        num_lines = match.group().count("\n") + 1
        draft.lines = list(range(line.number, line.number + num_lines))
        return out + self.finish(draft), num_lines

    def finish(self, draft: Draft) -> list[Item]:
        """Return the record of a block that told a time."""
        if draft.e2e_s is None and draft.prefill_s is None and draft.decode_s is None:
            return []
        judge_prompt_count(draft)
        return [draft.build()]


def judge_prompt_count(draft: Draft) -> None:
    """Say how far the prompt count can be trusted; drop it as `new` where it cannot be."""
    if draft.prompt_new is None:
        return
    rate = draft.reported.get("prefill_tok_s")
    if rate is None and draft.prefill_s:
        rate = draft.prompt_new / draft.prefill_s
    if rate is not None and is_cached_rate(rate):
        draft.flag("cached_counted_as_prompt")
        draft.prompt_total, draft.prompt_new = draft.prompt_new, None
    else:
        draft.flag("cached_may_be_counted")
