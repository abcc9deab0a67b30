"""llama-server: timings by slot and task in all its log eras.

(a) JSON lines, early 2024; (b) `INFO [print_timings] ... | id_slot= id_task=`, mid 2024; (c) a
block under a `slot print_timing` header, to early 2026; (d) every line with its slot and task, and
progress lines, since.
"""

from __future__ import annotations

import re
from typing import Any

from twostroke_doctor.parsed import Item
from twostroke_doctor.parsers.draft import Draft
from twostroke_doctor.parsers.formats import LineFormat, Then, line_formats
from twostroke_doctor.parsers.lines import Line, load_json
from twostroke_doctor.parsers.numbers import positive
from twostroke_doctor.parsers.table import MAX_OPEN, TableParser
from twostroke_doctor.parsers.timing_lines import settle_meter, timing_formats

_SLOT = re.compile(
    r"slot\s{1,8}\w{1,40}:\s{1,4}id\s{1,4}(?P<slot>\d{1,6}) \| task (?P<task>-?\d{1,12}) \|"
)
_IDS = re.compile(r"\bid_slot=(?P<slot>\d{1,6}) id_task=(?P<task>\d{1,12})(?=\s)")
_NO_TASK = "-1"
_HAS_TASK = r"\| task \d.{0,200}?"
_NEAR = 0.02  # a printed rate is its count over its time when it is this close


def _release(draft: Draft, match: re.Match[str]) -> None:
    if match["cut"] == "1":
        draft.flag("truncated")


def _progress(draft: Draft, match: re.Match[str]) -> None:
    """Count a prefill batch; its time stands until the final timing comes."""
    draft.chunks = (draft.chunks or 0) + 1
    count, seconds, rate = int(match["count"]), draft.prefill_s, positive(match["prefill_tok_s"])
    if match["prefill_s"] is None or not seconds:
        return
    draft.prompt_new = None if draft.prompt_cached is None else count - draft.prompt_cached
    if draft.prompt_new is None or draft.prompt_new < 0:
        is_near = rate is not None and abs(count / seconds - rate) <= _NEAR * rate
        draft.prompt_new = count if is_near else None


def _generated(draft: Draft, match: re.Match[str]) -> None:
    draft.derive_decode()


def _take_cached(draft: Draft, match: re.Match[str]) -> None:
    """Take the cached part from the first line only: later batches print where they start."""
    if draft.prompt_cached is None and draft.prompt_new is None:
        draft.prompt_cached = int(match["cached"])


def _in_slot(pattern: str, then: Then | None = None, **options: Any) -> LineFormat:
    return LineFormat(_HAS_TASK + pattern, then, joins=True, **options)


_GENERATED = "~{output:int}, tg =~{decode_tok_s:num} t/s(?:, tg_3s =~{decode_now_tok_s:num} t/s)?"


class LlamaServerParser(TableParser):
    """Reads slot blocks; a request closes when its slot is released or taken by another task."""

    engine = "llama-server"
    words = ("slot ", "print_timing")
    formats = (
        *timing_formats("", "whole", ("e2e_s",), is_closed_by_total=False),
        _in_slot(
            "`stop processing`: (?:n_past|n_tokens) =~{ctx_end:int}, truncated =~(?P<cut>[01])",
            _release,
            closes=True,
        ),
        _in_slot(
            r"`prompt processing`(?: progress)?, n_tokens =~(?P<count>\d{1,12}),.{0,80}?"
            "progress =~{:num}"
            "(?:, t =~{prefill_s:positive} s / {prefill_tok_s:num} tokens per second)?",
            _progress,
            flags=("partial",),
        ),
        _in_slot("`n_gen =`" + _GENERATED, _generated, flags=("partial",)),
        _in_slot("`n_decoded =`" + _GENERATED, _generated, flags=("partial",)),
        _in_slot(r"\b`cached n_tokens` =~(?P<cached>\d{1,12})(?=\D)", _take_cached),
        _in_slot(r"(?:kv cache |memory_seq_)`rm [`(?P<cached>\d{1,12}), end\)", _take_cached),
        _in_slot(r"`task.n_tokens` =~{prompt_total:int}(?=\D|$)"),
        _in_slot(r"`n_prompt_tokens` =~{prompt_total:int}(?=\D|$)"),
        LineFormat(
            r"`draft acceptance`(?: rate)? =~{:num} \(~{accepted:int} accepted"
            r" /~{drafted:int} generated\)",
            joins=True,
        ),
        *line_formats(
            "`n_ctx_slot` =~{n_ctx_slot:int},",
            r"`graphs reused` =~{graphs_reused:int}(?=\s|$)",
            "forcing `full prompt re-processing` due to {full_reprocess:text}",
        ),
        LineFormat(
            "forcing `full prompt re-processing`(?! due to .)",
            facts=lambda match: [("full_reprocess", "not said", None)],
        ),
    )

    def __init__(self) -> None:
        super().__init__()
        self._current: dict[str, str] = {}  # source -> slot whose block is being printed

    def feed(self, line: Line) -> list[Item] | None:
        """Return the items that a line completes, or None when it is not this engine's."""
        if line.text.startswith("{"):
            return self._json_line(line)
        ids = _SLOT.search(line.text)
        if ids is None and "id_slot=" in line.text:
            ids = _IDS.search(line.text)
        if ids is None:
            return super().feed(line)
        out = self._enter(line.source, ids["slot"], ids["task"])
        return out + (super().feed(line) or [])

    def key(self, line: Line, match: re.Match[str]) -> object:
        """Return the source and the slot whose lines are being printed."""
        return line.source, self._current.get(line.source)

    def finish(self, draft: Draft) -> list[Item]:
        """Return the record of a request that told a time, or that its meter is off."""
        is_off = settle_meter(draft)
        if draft.prefill_s is None and draft.decode_s is None and not is_off:
            return []
        if "partial" not in draft.flags and "time_derived" in draft.flags:
            draft.flags.remove("time_derived")  # the final timing replaced the derived one
        if draft.prompt_total is not None and draft.prompt_new is not None:
            draft.prompt_cached = max(draft.prompt_total - draft.prompt_new, 0)
        return [draft.build()]

    def _enter(self, source: str, slot: str, task: str) -> list[Item]:
        """Make a slot current; a new task closes the request that the slot held."""
        if len(self._current) > MAX_OPEN:
            self._current.clear()
        self._current[source] = slot
        draft = self._drafts.get((source, slot))
        if task == _NO_TASK or (draft is not None and draft.id == task):
            return []
        if draft is not None and draft.id == "":
            draft.id = task
            return []
        return self.opened((source, slot), Draft(engine=self.engine, id=task))

    def _json_line(self, line: Line) -> list[Item] | None:
        """Read a line of early 2024: its message is the text line of the later eras."""
        obj = load_json(line.text)
        if not isinstance(obj, dict) or obj.get("function") != "print_timings":
            return None
        slot, task = str(obj.get("slot_id"))[:12], str(obj.get("task_id"))[:16]
        message = Line(str(obj.get("msg"))[:1024], *line[1:])
        return self._enter(line.source, slot, task) + (super().feed(message) or [])
