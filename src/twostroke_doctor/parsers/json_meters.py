"""The timings that engines put into JSON replies, as a table of formats.

The reply's `usage` adds the counts that an engine's meter leaves out, and stands alone where there
is no meter: such a record has counts only, except where a provider adds times to `usage`.
"""

from __future__ import annotations

from twostroke_doctor.parsers.draft import Draft
from twostroke_doctor.parsers.json_formats import Json, JsonFormat, has, in_seconds
from twostroke_doctor.parsers.numbers import json_count, json_positive
from twostroke_doctor.parsers.ollama import judge_prompt_count
from twostroke_doctor.parsers.openai_usage import is_usage
from twostroke_doctor.parsers.tgi import fill_span

_TPS = "tokens_per_second"


def _drop_unmetered(draft: Draft, obj: Json) -> None:
    """Drop the count and rate of a phase that has no time."""
    if draft.prefill_s is None:
        draft.prompt_new = None
        draft.reported.pop("prefill_tok_s", None)
    if draft.decode_s is None:
        draft.output = None
        draft.reported.pop("decode_tok_s", None)
    if draft.prefill_s is None and draft.decode_s is None:
        draft.flag("meter_off")


def _first_token(draft: Draft, obj: Json) -> None:
    """Keep the time to the first token as prefill: queue and load may be in it."""
    if draft.ttft_any_s is not None:
        draft.prefill_s = draft.ttft_any_s
        draft.flag("ttft_as_prefill")


def _studio_v1(draft: Draft, obj: Json) -> None:
    draft.derive_decode()
    _first_token(draft, obj)


def _scheduled(draft: Draft, obj: Json) -> None:
    """Add up vLLM's request: its first-token time starts when the request is scheduled.

    `generation_time_ms` counts as decode only without a mean gap: the gaps are exact.
    """
    tokens = obj.get("output_token_metrics")
    if draft.output is None and isinstance(tokens, dict):
        kinds = ("reasoning", "content", "unclassified")
        counts = [json_count(tokens.get(f"{kind}_token_count")) for kind in kinds]
        known = [count for count in counts if count is not None]
        draft.output = sum(known) if known else None
    gap_s = in_seconds(1e3)(obj.get("mean_itl_ms"))
    if gap_s is not None:
        gaps = (draft.output or 0) - 1
        draft.decode_s = gap_s * gaps if gaps > 0 else None
    if draft.prefill_s is not None and draft.queue_s is not None:
        draft.ttft_any_s = draft.queue_s + draft.prefill_s
        draft.e2e_s = None if draft.decode_s is None else draft.ttft_any_s + draft.decode_s


def _per_token(draft: Draft, obj: Json) -> None:
    """Turn KoboldCpp's milliseconds a token into rates."""
    keys = {"prefill_tok_s": "last_process", "decode_tok_s": "last_eval"}
    for name, key in keys.items():
        if (seconds := in_seconds(1e3)(obj.get(key))) is not None:
            draft.reported[name] = 1 / seconds
    draft.derive_decode()


def _split_by_rate(draft: Draft, obj: Json) -> None:
    """Derive TabbyAPI's new tokens where it does not tell the cached ones."""
    rate = draft.reported.get("prefill_tok_s")
    if rate and draft.prefill_s and draft.prompt_cached is None:
        new = round(rate * draft.prefill_s)  # the rate is of new tokens only
        if draft.prompt_total is not None and 0 < new <= draft.prompt_total:
            draft.prompt_new = new
            draft.flag("count_derived")
    draft.complete_prompt()


_USAGE_TIMES = {
    "prompt_time": "prefill_s:positive",
    "completion_time": "decode_s:positive",
    "total_time": "e2e_s:positive",
}
LLAMA_SERVER = JsonFormat(
    "llama-server",
    ("timings", ""),
    has("prompt_ms", "predicted_ms"),
    {
        "cache_n": "prompt_cached:count",
        "prompt_n": "prompt_new:count",
        "prompt_ms": "prefill_s:ms",
        "prompt_per_second": "prefill_tok_s:positive",
        "predicted_n": "output:count",
        "predicted_ms": "decode_s:ms",
        "predicted_per_second": "decode_tok_s:positive",
        "draft_n": "drafted:count",
        "draft_n_accepted": "accepted:count",
    },
    _drop_unmetered,
)
_OLLAMA_TIMES = {
    "total_duration": "e2e_s:ns",
    "load_duration": "load_s:ns",
    "prompt_eval_duration": "prefill_s:ns",
    "eval_duration": "decode_s:ns",
}
OLLAMA = JsonFormat(
    "ollama",
    ("",),
    lambda obj: any(json_positive(obj.get(key)) for key in _OLLAMA_TIMES if key != "load_duration"),
    {
        **_OLLAMA_TIMES,
        "model": "model:text",
        "done_reason": "finish:text",
        "prompt_eval_count": "prompt_new:count",
        "eval_count": "output:count",
    },
    lambda draft, obj: judge_prompt_count(draft),
)
METERS = (
    LLAMA_SERVER,
    OLLAMA,
    JsonFormat(
        "lm-studio",
        ("stats",),
        has(_TPS, "time_to_first_token_seconds"),
        {
            "input_tokens": "prompt_total:count",
            "total_output_tokens": "output:count",
            "reasoning_output_tokens": "output_reasoning:count",
            "model_load_time_seconds": "load_s:positive",
            "time_to_first_token_seconds": "ttft_any_s:positive",
            _TPS: "decode_tok_s:positive",
            "stop_reason": "finish:text",
        },
        _studio_v1,
    ),
    JsonFormat(
        "lm-studio",
        ("stats",),
        has(_TPS, "time_to_first_token"),
        {
            "time_to_first_token": "ttft_any_s:positive",
            "generation_time": "decode_s:positive",
            _TPS: "decode_tok_s:positive",
            "stop_reason": "finish:text",
        },
        _first_token,
    ),
    JsonFormat(
        "vllm",
        ("metrics",),
        has("time_to_first_token_ms"),
        {
            "queue_time_ms": "queue_s:waited_ms",
            "time_to_first_token_ms": "prefill_s:ms",
            "generation_time_ms": "decode_s:ms",
            "speculative_decoding.num_draft_tokens": "drafted:count",
            "speculative_decoding.num_accepted_draft_tokens": "accepted:count",
            "output_token_metrics.reasoning_token_count": "output_reasoning:count",
            "output_token_metrics.content_token_count": "output_visible:count",
            _TPS: "e2e_tok_s:positive",  # it includes prefill
        },
        _scheduled,
    ),
    JsonFormat(
        "koboldcpp",
        ("",),
        has("last_process", "last_eval"),
        {"last_token_count": "output:count"},
        _per_token,
    ),
    JsonFormat("tgi", ("span", ""), has("inference_time", "total_time"), {}, fill_span),
    JsonFormat(
        "tabbyapi",
        ("usage",),
        lambda obj: "completion_tokens_per_sec" in obj or "prompt_tokens_per_sec" in obj,
        {
            **_USAGE_TIMES,
            "prompt_tokens_per_sec": "prefill_tok_s:number",
            "completion_tokens_per_sec": "decode_tok_s:number",
        },
        _split_by_rate,
    ),
    JsonFormat("openai", ("usage",), is_usage, {**_USAGE_TIMES, "queue_time": "queue_s:positive"}),
)


def draft_of(obj: Json) -> Draft | None:
    """Return a draft by the first shape that the keys fit, engines' own meters first."""
    usage = obj.get("usage")
    for meter in METERS:
        for key in meter.parts:
            part = obj.get(key) if key else obj
            if isinstance(part, dict) and meter.fits(part):
                return meter.draft(part, usage if isinstance(usage, dict) else None)
    return None
