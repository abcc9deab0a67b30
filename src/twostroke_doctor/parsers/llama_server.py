"""llama-server: timings by slot and task in all its log eras, and its JSON timings.

(a) JSON lines, early 2024; (b) `INFO [print_timings] ... | id_slot= id_task=`, mid 2024; (c) a
block under a `slot print_timing` header, to early 2026; (d) every line with its slot and task, and
progress lines, since.
"""

from __future__ import annotations

import re
from typing import Any

from twostroke_doctor.parsed import Fact, Item
from twostroke_doctor.parsers.draft import Draft, Sources
from twostroke_doctor.parsers.lines import Line, load_json
from twostroke_doctor.parsers.numbers import NUMBER, json_count, json_positive, positive
from twostroke_doctor.parsers.timing_lines import (
    TimeLine,
    read_time_line,
    settle_meter,
    take_decode,
    take_prompt,
)

ENGINE = "llama-server"
_SLOT = re.compile(
    r"slot\s{1,8}\w{1,40}:\s{1,4}id\s{1,4}(?P<slot>\d{1,6}) \| task (?P<task>-?\d{1,12}) \|"
)
_ID_SLOT = re.compile(r"\bid_slot=(\d{1,6})\b")
_ID_TASK = re.compile(r"\bid_task=(\d{1,12})(?=\s)")
_DRAFT = re.compile(
    rf"draft acceptance(?: rate)? =\s{{0,16}}{NUMBER} \(\s{{0,12}}(\d{{1,12}}) accepted"
    r" /\s{0,12}(\d{1,12}) generated\)"
)
_GRAPHS = re.compile(r"graphs reused =\s{0,20}(\d{1,12})(?=\s|$)")
_RELEASE = re.compile(
    r"stop processing: (?:n_past|n_tokens) =\s{0,16}(\d{1,12}), truncated =\s{0,16}([01])"
)
_CACHED = re.compile(r"\bcached n_tokens =\s{0,16}(\d{1,12})(?=\D)")
_KEPT = re.compile(r"(?:kv cache rm|memory_seq_rm) \[(\d{1,12}), end\)")
_TASK_TOKENS = re.compile(
    r"task\.n_tokens =\s{0,16}(\d{1,12})(?=\D|$)|n_prompt_tokens =\s{0,16}(\d{1,12})(?=\D|$)"
)
_SLOT_CONTEXT = re.compile(r"n_ctx_slot =\s{0,16}(\d{1,12}),")
_PROGRESS = re.compile(
    r"prompt processing(?: progress)?, n_tokens =\s{0,16}(\d{1,12}),.{0,80}?"
    rf"progress =\s{{0,16}}({NUMBER})"
    rf"(?:, t =\s{{0,16}}({NUMBER}) s / ({NUMBER}) tokens per second)?"
)
_GENERATED = re.compile(
    rf"n_(?:gen|decoded) =\s{{0,16}}(\d{{1,12}}), tg =\s{{0,16}}({NUMBER}) t/s"
    rf"(?:, tg_3s =\s{{0,16}}({NUMBER}) t/s)?"
)
_REPROCESS = re.compile(r"forcing full prompt re-processing(?: due to (.{1,160}))?")


class LlamaServerParser:
    """Reads slot blocks; a request closes when its slot is released or taken by another task."""

    engine = ENGINE
    signatures = (
        "slot ",
        "print_timing",
        "prompt eval time",
        "eval time =",
        "total time =",
        "draft acceptance",
        "graphs reused",
        "full prompt re-processing",
        "prompt processing, n_tokens",
        "n_decoded =",
        "n_gen =",
    )

    def __init__(self) -> None:
        self._slots = Sources()
        self._current: dict[str, str] = {}  # source -> slot whose block is being printed
        self._complete: set[object] = set()  # slots whose totals were printed

    def feed(self, line: Line) -> list[Item] | None:
        """Return what a line completes, or None when it is not this engine's."""
        if line.text.startswith("{"):
            return self._json_line(line)
        slot = _SLOT.search(line.text)
        out: list[Item] = []
        if slot is not None:
            out = self._enter(line, slot.group("slot"), slot.group("task"))
        time = read_time_line(line.text)
        if time is not None:
            return out + self._timing(line, time)
        if slot is not None:
            self._slot_line(line, slot.group("slot"), out)
        extra = self._after_block(line)
        if extra is not None or slot is not None:
            return out + (extra or [])
        return None

    def flush(self) -> list[Item]:
        """Return the requests that the log's end leaves open."""
        self._complete.clear()
        return [record for draft in self._slots.drain() for record in _finish(draft)]

    def _enter(self, line: Line, slot: str, task: str) -> list[Item]:
        """Make a slot current; a new task closes the request that the slot held."""
        self._set_current(line.source, slot)
        key = (line.source, slot)
        draft = self._slots.get(key)
        if task == "-1" or (draft is not None and draft.id == task):
            return []
        if draft is not None and draft.id == "":
            draft.id = task
            return []
        self._complete.discard(key)
        closed = self._slots.put(key, Draft(engine=ENGINE, id=task))
        return [record for old in closed for record in _finish(old)]

    def _set_current(self, source: str, slot: str) -> None:
        if len(self._current) > 64:
            self._current.clear()
        self._current[source] = slot

    def _draft(self, line: Line) -> Draft | None:
        return self._slots.get((line.source, self._current.get(line.source)))

    def _slot_line(self, line: Line, slot: str, out: list[Item]) -> None:
        """Take what a prefixed line says beside timings: cache, progress, release."""
        draft, text = self._slots.get((line.source, slot)), line.text
        if draft is None:
            return
        match = _RELEASE.search(text) if "stop processing" in text else None
        if match is not None:
            draft.ctx_end = int(match.group(1))
            if match.group(2) == "1":
                draft.flag("truncated")
            if draft.prefill_s is not None or draft.decode_s is not None:
                draft.see(line)
            key = (line.source, slot)
            self._slots.pop(key)
            self._complete.discard(key)
            out += _finish(draft)
        elif (match := _PROGRESS.search(text)) is not None:
            _take_progress(draft, line, match)
        elif (match := _GENERATED.search(text)) is not None:
            _take_generated(draft, line, match)
        else:
            _take_cache(draft, line, out)

    def _timing(self, line: Line, time: TimeLine) -> list[Item]:
        draft, out = self._block(line, time)
        draft.see(line)
        if "partial" in draft.flags:  # final timings replace what progress lines said
            draft.flags.remove("partial")
            draft.reported.clear()
        if time.what == "prompt eval":
            take_prompt(draft, time)
        elif time.what in ("eval", "generation eval"):
            take_decode(draft, time, runs_follow_first=False)
        elif time.what == "total":
            draft.e2e_s = time.seconds
            self._complete.add((line.source, self._current.get(line.source)))
        return out

    def _block(self, line: Line, time: TimeLine) -> tuple[Draft, list[Item]]:
        """Return the draft of a timing line, by its ids or by the block it stands in."""
        by_id = "id_slot=" in line.text
        slot = _ID_SLOT.search(line.text) if by_id else None
        task = _ID_TASK.search(line.text) if by_id else None
        out: list[Item] = []
        if slot is not None and task is not None:
            out = self._enter(line, slot.group(1), task.group(1))
        key = (line.source, self._current.get(line.source))
        draft = self._slots.get(key)
        done = key in self._complete and time.what != "total"
        if draft is not None and not done:
            return draft, out
        self._complete.discard(key)
        fresh = Draft(engine=ENGINE, id=task.group(1) if task else "")
        closed = self._slots.put(key, fresh)
        return fresh, out + [record for old in closed for record in _finish(old)]

    def _after_block(self, line: Line) -> list[Item] | None:
        draft, text = self._draft(line), line.text
        if "draft acceptance" in text and (match := _DRAFT.search(text)) is not None:
            if draft is not None:
                draft.accepted, draft.drafted = int(match.group(1)), int(match.group(2))
                draft.see(line)
            return []
        if "llama_perf" in text or "common_perf" in text:
            return None
        if (match := _GRAPHS.search(text)) is not None:
            return [_fact(line, "graphs_reused", int(match.group(1)))]
        if (match := _REPROCESS.search(text)) is not None:
            return [_fact(line, "full_reprocess", (match.group(1) or "not said").strip())]
        return None

    def _json_line(self, line: Line) -> list[Item] | None:
        obj = load_json(line.text)
        if not isinstance(obj, dict) or obj.get("function") != "print_timings":
            return None
        slot, task = str(obj.get("slot_id"))[:12], str(obj.get("task_id"))[:16]
        out = self._enter(line, slot, task)
        draft = self._slots.get((line.source, slot))
        if draft is None:
            return out
        draft.see(line)
        _take_json_era(draft, obj)
        if (ms := json_positive(obj.get("t_total"))) is not None:
            draft.e2e_s = ms / 1000
        return out


def _take_json_era(draft: Draft, obj: dict[str, Any]) -> None:
    prompt_ms = json_positive(obj.get("t_prompt_processing"))
    decode_ms = json_positive(obj.get("t_token_generation"))
    if "n_prompt_tokens_processed" in obj and prompt_ms is not None:
        draft.prompt_new = json_count(obj["n_prompt_tokens_processed"])
        draft.prefill_s = prompt_ms / 1000
        rate = json_positive(obj.get("n_tokens_second"))
        draft.report_value("prefill_tok_s", rate, draft.prompt_new, draft.prefill_s)
    elif "n_decoded" in obj and decode_ms is not None:
        draft.output = json_count(obj["n_decoded"])
        draft.decode_s = decode_ms / 1000
        rate = json_positive(obj.get("n_tokens_second"))
        draft.report_value("decode_tok_s", rate, draft.output, draft.decode_s)
    elif isinstance(obj.get("msg"), str):
        time = read_time_line(obj["msg"][:1024])
        if time is not None and time.what == "total":
            draft.e2e_s = time.seconds


def _take_progress(draft: Draft, line: Line, match: re.Match[str]) -> None:
    """Count a prefill batch; its time stands until the final timing comes."""
    draft.see(line)
    draft.flag("partial")
    draft.chunks = (draft.chunks or 0) + 1
    seconds = positive(match.group(3))
    if seconds is None:
        return
    count = int(match.group(1))
    draft.prefill_s = seconds
    draft.prompt_new = count - draft.prompt_cached if draft.prompt_cached is not None else None
    if draft.prompt_new is None or draft.prompt_new < 0:
        rate = positive(match.group(4))
        near = rate is not None and abs(count / seconds - rate) <= 0.02 * rate
        draft.prompt_new = count if near else None
    if match.group(4) and (rate := positive(match.group(4))) is not None:
        draft.reported["prefill_tok_s"] = rate


def _take_generated(draft: Draft, line: Line, match: re.Match[str]) -> None:
    count, rate = int(match.group(1)), positive(match.group(2))
    draft.see(line)
    draft.flag("partial")
    draft.output = count
    if rate is not None:
        draft.reported["decode_tok_s"] = rate
        draft.decode_s = count / rate
        draft.flag("time_derived")
    now = positive(match.group(3))
    if now is not None:
        draft.reported["decode_now_tok_s"] = now


def _take_cache(draft: Draft, line: Line, out: list[Item]) -> None:
    text = line.text
    cached = _CACHED.search(text) or _KEPT.search(text)
    # later prefill batches print where they start: only the first line tells the cached part
    if cached is not None and draft.prompt_cached is None and draft.prompt_new is None:
        draft.prompt_cached = int(cached.group(1))
        draft.see(line)
    if (match := _TASK_TOKENS.search(text)) is not None:
        draft.prompt_total = int(match.group(1) or match.group(2))
        draft.see(line)
    if (match := _SLOT_CONTEXT.search(text)) is not None:
        out.append(_fact(line, "n_ctx_slot", int(match.group(1))))


def _finish(draft: Draft) -> list[Item]:
    off = settle_meter(draft)
    if draft.prefill_s is None and draft.decode_s is None and not off:
        return []
    if "partial" not in draft.flags and "time_derived" in draft.flags:
        draft.flags.remove("time_derived")  # the final timing replaced the derived one
    if draft.prompt_total is not None and draft.prompt_new is not None:
        draft.prompt_cached = max(draft.prompt_total - draft.prompt_new, 0)
    return [draft.build()]


def _fact(line: Line, name: str, value: float | str) -> Fact:
    return Fact(name=name, value=value, engine=ENGINE, file=line.file, line=line.number)


def is_timings(obj: dict[str, Any]) -> bool:
    """Tell whether a JSON object is the server's `timings`."""
    return "prompt_ms" in obj and "predicted_ms" in obj


def draft_from_timings(timings: dict[str, Any]) -> Draft:
    """Return a draft from the JSON `timings` of the native or OpenAI endpoint."""
    draft = Draft(engine=ENGINE)
    draft.prompt_cached = json_count(timings.get("cache_n"))
    prompt_ms = json_positive(timings.get("prompt_ms"))
    if prompt_ms is not None:
        draft.prefill_s = prompt_ms / 1000
        draft.prompt_new = json_count(timings.get("prompt_n"))
        rate = json_positive(timings.get("prompt_per_second"))
        draft.report_value("prefill_tok_s", rate, draft.prompt_new, draft.prefill_s)
    decode_ms = json_positive(timings.get("predicted_ms"))
    if decode_ms is not None:
        draft.decode_s = decode_ms / 1000
        draft.output = json_count(timings.get("predicted_n"))
        rate = json_positive(timings.get("predicted_per_second"))
        draft.report_value("decode_tok_s", rate, draft.output, draft.decode_s)
    if prompt_ms is None and decode_ms is None:
        draft.flag("meter_off")
    draft.drafted = json_count(timings.get("draft_n"))
    draft.accepted = json_count(timings.get("draft_n_accepted"))
    return draft
