"""llama.cpp's library: the timing block at the end of a run, and its lines while loading.

Eras: `llama_print_timings` (2023 to mid 2024), `llama_perf_context_print` and `common_perf_print`
(since), with a decimal comma where the host program set a locale. The load time is the model's,
outside the request, so it is a fact.
"""

from __future__ import annotations

from twostroke_doctor.parsed import Item
from twostroke_doctor.parsers.draft import Draft
from twostroke_doctor.parsers.formats import ALWAYS, LineFormat, line_formats
from twostroke_doctor.parsers.quick import new_fact
from twostroke_doctor.parsers.table import TableParser
from twostroke_doctor.parsers.timing_lines import settle_meter, timing_formats

_LIBRARY = r"(?:llama_print_timings|llama_perf_\w{1,40}|common_perf_print)\b.{0,60}?"
_PHASES = ("prefill_s", "decode_s")
_DEVICE = r"(?:^|[:\s])(?P<label>[\w.\-+]{1,40}(?: \w{1,20})?)\s{1,40}"
_BUFFERS = (  # printed word, fact
    ("model", "model_buffer_bytes"),
    ("KV", "kv_buffer_bytes"),
    ("compute", "compute_buffer_bytes"),
    ("RS", "state_buffer_bytes"),
    ("output", "output_buffer_bytes"),
)
_PARAMETERS = (
    r"\s{1,8}(?:n_ctx\s{0,20}=\s{0,8}{n_ctx:int}|n_batch\s{0,20}=\s{0,8}{n_batch:int}"
    r"|n_ubatch\s{0,20}=\s{0,8}{n_ubatch:int}|flash_attn\s{0,20}=\s{0,8}{flash_attention:switch})"
    r"(?=\s|$)"
)
_LOADING = line_formats(
    *(
        rf"{_DEVICE}{word}\s{{1,8}}`buffer size`~=~{{{fact}:buffer_MiB}} MiB"
        for word, fact in _BUFFERS
    ),
    "offloaded {layers_offloaded:int}/{layers_total:int} `layers to GPU`",
    r"`using device` (?P<label>\S{1,40}) \(.{0,200}?\) - {device_free_bytes:MiB} MiB free",
    "`projected to use` {memory_required_bytes:MiB} MiB of (?:device|host) memory"
    r" vs\. {memory_available_bytes:MiB} MiB of free",
    "`will leave` {memory_margin_bytes:MiB} >= {:num} MiB",
    r"`system_info`.{0,40}?n_threads~=~{threads:int}(?: \(n_threads_batch = {threads_batch:int}\))?"
    r"(?: / {threads_available:int})?\s?\|",
    "`llama_context:`" + _PARAMETERS,
    "`llama_new_context_with_model:`" + _PARAMETERS,
    r"`llama_kv_cache`.*?K \({kv_type_k:word}\):.{0,40}?V \({kv_type_v:word}\):",
    r"_perf_.*?`graphs reused` =~{graphs_reused:int}(?=\s|$)",
)


class LlamaCppParser(TableParser):
    """Reads library timings and loading lines; one open block a source."""

    engine = "llama.cpp"
    words = ("llama_print_timings", "llama_perf_", "common_perf_print")
    formats = (
        LineFormat(r"\b`load time =`~{model_load_s:ms} ms", opens=_PHASES),
        LineFormat(r"\b`sample time =`~{:num} ms", joins=True),
        *timing_formats(_LIBRARY, "runs", _PHASES, is_closed_by_total=True),
        LineFormat(
            r"`Llama.generate`: (?:{prompt_cached:int} )?prefix-match hit",
            opens=_PHASES,
            facts=lambda match: [("prefix_match", True, None)],
        ),
        LineFormat(
            r"`[ Prompt:` {prefill_tok_s:num} t/s \| Generation: {decode_tok_s:num} t/s \]",
            opens=ALWAYS,
            closes=True,
        ),
        *_LOADING,
    )

    def finish(self, draft: Draft) -> list[Item]:
        """Return the record of a block that told a time or a rate, or that its meter is off."""
        if not settle_meter(draft):
            has_speed = draft.prefill_s or draft.decode_s or draft.reported
            return [draft.build()] if has_speed else []
        zeros = new_fact(
            name="meter_off", value=True, engine=self.engine, file=draft.file, line=draft.lines[-1]
        )
        return [draft.build(), zeros]
