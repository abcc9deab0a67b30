"""llama.cpp's library: the timing block at the end of a run, and what it says while loading.

Eras: `llama_print_timings` (2023 to mid 2024), `llama_perf_context_print` and `common_perf_print`
(since), with a decimal comma where the host program set a locale. The load time is the model's,
outside the request, so it is a fact.
"""

from __future__ import annotations

import re

from twostroke_doctor.parsed import Fact, Item
from twostroke_doctor.parsers.draft import Draft, Sources
from twostroke_doctor.parsers.lines import Line
from twostroke_doctor.parsers.numbers import NUMBER, num, positive, whole
from twostroke_doctor.parsers.timing_lines import (
    TimeLine,
    read_time_line,
    settle_meter,
    take_decode,
    take_prompt,
)

ENGINE = "llama.cpp"
_LIBRARY = re.compile(r"llama_print_timings|llama_perf_\w+|common_perf_print")
_MIB = 1 << 20
_BUFFER = re.compile(
    r"(?:^|[:\s])(?P<dev>[\w.\-+]{1,40}(?: \w{1,20})?)\s{1,40}(?P<what>model|KV|compute|RS|output)"
    rf"\s{{1,8}}(?:buffer )?size\s{{0,8}}=\s{{0,20}}(?P<mib>{NUMBER}) MiB"
)
_OUTPUT = re.compile(
    rf"(?P<dev>[\w\-]{{1,40}})\s{{1,40}}output buffer size =\s{{0,20}}({NUMBER}) MiB"
)
_BUFFER_NAMES = {
    "model": "model_buffer_bytes",
    "KV": "kv_buffer_bytes",
    "compute": "compute_buffer_bytes",
    "RS": "state_buffer_bytes",
    "output": "output_buffer_bytes",
}
_LAYERS = re.compile(r"offloaded (\d{1,5})/(\d{1,5}) layers to GPU")
_DEVICE = re.compile(r"using device (\S{1,40}) \(.{0,200}?\) - (\d{1,9}) MiB free")
_FIT = re.compile(
    r"projected to use (\d{1,9}) MiB of (?:device|host) memory vs\. (-?\d{1,9}) MiB of free"
)
_MARGIN = re.compile(r"will leave (\d{1,9}) >= (\d{1,9}) MiB")
_THREADS = re.compile(
    r"n_threads\s{0,8}=\s{0,8}(\d{1,5})(?: \(n_threads_batch = (\d{1,5})\))?(?: / (\d{1,5}))?\s?\|"
)
_PARAM = re.compile(
    r"llama\w{0,60}:\s{1,8}(n_ctx|n_batch|n_ubatch|flash_attn)\s{0,20}=\s{0,8}(\w{1,12})(?=\s|$)"
)
_KV_TYPES = re.compile(r"K \((\w{1,12})\):.{0,40}?V \((\w{1,12})\):")
_PREFIX_OLD = re.compile(r"Llama\.generate: prefix-match hit")
_PREFIX_NEW = re.compile(
    r"Llama\.generate: (\d{1,9}) prefix-match hit, remaining (\d{1,9}) prompt tokens to eval"
)
_CLI = re.compile(rf"\[ Prompt: ({NUMBER}) t/s \| Generation: ({NUMBER}) t/s \]")
_GRAPHS = re.compile(r"graphs reused =\s{0,20}(\d{1,12})(?=\s|$)")
_BOOLEANS = {"0": False, "1": True, "enabled": True, "disabled": False}


class LlamaCppParser:
    """Reads library timings and loading lines; one open block a source."""

    engine = ENGINE
    signatures = (
        "llama_print_timings",
        "llama_perf_",
        "common_perf_print",
        "load time =",
        "sample time =",
        " runs ",
        "buffer size",
        "layers to GPU",
        "using device",
        "projected to use",
        "will leave",
        "system_info",
        "llama_context:",
        "llama_new_context_with_model:",
        "llama_kv_cache",
        "Llama.generate",
        "[ Prompt:",
    )

    def __init__(self) -> None:
        self._blocks = Sources()
        self._prefix: dict[str, int | None] = {}

    def feed(self, line: Line) -> list[Item] | None:
        """Return what a line completes, or None when it is not this engine's."""
        time = read_time_line(line.text)
        if time is not None:
            return self._timing(line, time) if _is_library(line.text, time) else None
        return self._prefix_line(line) or self._cli_line(line) or _facts(line)

    def flush(self) -> list[Item]:
        """Return the blocks that the log's end leaves open."""
        return [record for draft in self._blocks.drain() for record in _finish(draft)]

    def _timing(self, line: Line, time: TimeLine) -> list[Item]:
        draft, out = self._block(line, time)
        draft.see(line)
        if time.what == "load":
            if time.seconds is not None:
                out.append(_fact(line, "model_load_s", time.seconds))
        elif time.what == "prompt eval":
            take_prompt(draft, time)
        elif time.what == "eval":
            take_decode(draft, time, runs_follow_first=True)
        elif time.what == "total":
            draft.e2e_s = time.seconds
            self._blocks.pop(line.source)
            out += _finish(draft)
        return out

    def _block(self, line: Line, time: TimeLine) -> tuple[Draft, list[Item]]:
        """Return the open block, closing it first when this line belongs to the next one."""
        draft = self._blocks.get(line.source)
        if draft is not None and not _starts_anew(draft, time):
            return draft, []
        fresh = Draft(engine=ENGINE)
        if line.source in self._prefix:
            fresh.prompt_cached = self._prefix.pop(line.source)
        closed = self._blocks.put(line.source, fresh)
        return fresh, [record for old in closed for record in _finish(old)]

    def _prefix_line(self, line: Line) -> list[Item] | None:
        match = _PREFIX_NEW.search(line.text)
        if match is None and _PREFIX_OLD.search(line.text) is None:
            return None
        if len(self._prefix) < 64:
            self._prefix[line.source] = whole(match.group(1)) if match else None
        return [_fact(line, "prefix_match", True)]

    def _cli_line(self, line: Line) -> list[Item] | None:
        match = _CLI.search(line.text)
        if match is None:
            return None
        draft = Draft(engine=ENGINE)
        draft.see(line)
        draft.report("prefill_tok_s", match.group(1))
        draft.report("decode_tok_s", match.group(2))
        return [draft.build()]


def _is_library(text: str, time: TimeLine) -> bool:
    if _LIBRARY.search(text) or time.what in ("load", "sample"):
        return True
    return "print_timing" not in text and time.unit == "runs" and time.what == "eval"


def _starts_anew(draft: Draft, time: TimeLine) -> bool:
    if time.what == "load":
        return bool(draft.lines)
    return time.what == "prompt eval" and (
        draft.prefill_s is not None or draft.decode_s is not None
    )


def _finish(draft: Draft) -> list[Item]:
    off = settle_meter(draft)
    if draft.prefill_s is None and draft.decode_s is None and not off:
        return []
    record = draft.build()
    if off:
        line = draft.lines[-1] if draft.lines else None
        zeros = Fact(name="meter_off", value=True, engine=ENGINE, file=draft.file, line=line)
        return [record, zeros]
    return [record]


def _fact(line: Line, name: str, value: float | str | bool, label: str | None = None) -> Fact:
    return Fact(
        name=name, value=value, engine=ENGINE, label=label, file=line.file, line=line.number
    )


def _facts(line: Line) -> list[Item] | None:
    """Read what the library says while it loads a model and makes a context."""
    text = line.text
    if (match := _BUFFER.search(text)) is not None:
        name, mib = _BUFFER_NAMES.get(match.group("what")), positive(match.group("mib"))
        if name is None or mib is None:
            return None
        return [_fact(line, name, round(mib * _MIB), match.group("dev"))]
    if (match := _LAYERS.search(text)) is not None:
        return [
            _fact(line, "layers_offloaded", int(match.group(1))),
            _fact(line, "layers_total", int(match.group(2))),
        ]
    return _device_facts(line) or _context_facts(line)


def _device_facts(line: Line) -> list[Item] | None:
    text = line.text
    if (match := _DEVICE.search(text)) is not None:
        return [_fact(line, "device_free_bytes", int(match.group(2)) * _MIB, match.group(1))]
    if (match := _FIT.search(text)) is not None:
        free = num(match.group(2))
        required = _fact(line, "memory_required_bytes", int(match.group(1)) * _MIB)
        return [required] if free is None else [required, _free(line, free)]
    if (match := _MARGIN.search(text)) is not None:
        return [_fact(line, "memory_margin_bytes", int(match.group(1)) * _MIB)]
    return None


def _free(line: Line, mib: float) -> Fact:
    return _fact(line, "memory_available_bytes", round(mib) * _MIB)


def _context_facts(line: Line) -> list[Item] | None:
    text, out = line.text, list[Item]()
    if "_perf_" in text and (match := _GRAPHS.search(text)) is not None:
        out.append(_fact(line, "graphs_reused", int(match.group(1))))
    elif (match := _THREADS.search(text)) is not None:
        names = ("threads", "threads_batch", "threads_available")
        pairs = zip(names, match.groups(), strict=True)
        out += [_fact(line, name, int(value)) for name, value in pairs if value]
    elif (match := _PARAM.search(text)) is not None:
        name, value = match.groups()
        if name == "flash_attn":
            if value in _BOOLEANS:
                out.append(_fact(line, "flash_attention", _BOOLEANS[value]))
        elif (count := whole(value)) is not None:
            out.append(_fact(line, name, count))
    elif "llama_kv_cache" in text and (match := _KV_TYPES.search(text)) is not None:
        out.append(_fact(line, "kv_type_k", match.group(1)))
        out.append(_fact(line, "kv_type_v", match.group(2)))
    return out or None
