"""The timings that engines put into JSON replies, as data: key, field, and how the value is read.

The reply's `usage` adds the counts that an engine's meter leaves out, and stands alone where there
is no meter: such a record has counts only, except where a provider adds times to `usage`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from twostroke_doctor.parsers.draft import Draft
from twostroke_doctor.parsers.numbers import json_count, json_number, json_positive
from twostroke_doctor.parsers.ollama import judge_prompt_count
from twostroke_doctor.parsers.openai_usage import add_usage, is_usage
from twostroke_doctor.parsers.tgi import fill_span

Json = Mapping[str, Any]
Read = Callable[[object], float | int | str | None]
Fields = Mapping[str, tuple[str, Read]]

_RATES = ("prefill_tok_s", "decode_tok_s", "e2e_tok_s")
_TPS = "tokens_per_second"


def _in_seconds(
    per_second: float, read: Callable[[object], float | None] = json_positive
) -> Callable[[object], float | None]:
    def seconds(value: object) -> float | None:
        time = read(value)
        return None if time is None else time / per_second

    return seconds


def _text(value: object) -> str | None:
    return value[:200] if isinstance(value, str) else None


_ms, _ns = _in_seconds(1e3), _in_seconds(1e9)
_waited_ms = _in_seconds(1e3, json_number)  # a queue may be empty


def _has(*keys: str) -> Callable[[Json], bool]:
    return lambda obj: all(key in obj for key in keys)


class JsonMeter(NamedTuple):
    """One engine's shape of timings.

    parts: keys of the reply under which they may stand; empty: in the reply itself. fits: tells
    the shape by its keys. then: arithmetic on the request, after its fields and usage are set.
    """

    engine: str
    parts: tuple[str, ...]
    fits: Callable[[Json], bool]
    fields: Fields
    then: Callable[[Draft, Json], None] | None = None

    def draft(self, obj: Json, usage: dict[str, Any] | None = None) -> Draft:
        """Return the draft of one reply."""
        draft = Draft(engine=self.engine)
        _fill(draft, obj, self.fields)
        add_usage(draft, usage or {})
        if self.then is not None:
            self.then(draft, obj)
            add_usage(draft, usage or {})  # in place of counts that had no time
        draft.check_rates()
        return draft


def _fill(draft: Draft, obj: Json, fields: Fields) -> None:
    """Set fields by keys; a key `a.b` stands in the object under `a`."""
    for key, (name, read) in fields.items():
        value: object = obj
        for step in key.split("."):
            value = value.get(step) if isinstance(value, dict) else None
        found = read(value)
        if found is None:
            continue
        if name in _RATES:
            if isinstance(found, float) and found:
                draft.reported[name] = found
        else:
            setattr(draft, name, found)


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
    gap_s = _ms(obj.get("mean_itl_ms"))
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
        if (seconds := _ms(obj.get(key))) is not None:
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


_USAGE_TIMES: Fields = {
    "prompt_time": ("prefill_s", json_positive),
    "completion_time": ("decode_s", json_positive),
    "total_time": ("e2e_s", json_positive),
}
LLAMA_SERVER = JsonMeter(
    "llama-server",
    ("timings", ""),
    _has("prompt_ms", "predicted_ms"),
    {
        "cache_n": ("prompt_cached", json_count),
        "prompt_n": ("prompt_new", json_count),
        "prompt_ms": ("prefill_s", _ms),
        "prompt_per_second": ("prefill_tok_s", json_positive),
        "predicted_n": ("output", json_count),
        "predicted_ms": ("decode_s", _ms),
        "predicted_per_second": ("decode_tok_s", json_positive),
        "draft_n": ("drafted", json_count),
        "draft_n_accepted": ("accepted", json_count),
    },
    _drop_unmetered,
)
_OLLAMA_TIMES: Fields = {
    "total_duration": ("e2e_s", _ns),
    "load_duration": ("load_s", _ns),
    "prompt_eval_duration": ("prefill_s", _ns),
    "eval_duration": ("decode_s", _ns),
}
OLLAMA = JsonMeter(
    "ollama",
    ("",),
    lambda obj: any(_ns(obj.get(key)) for key in _OLLAMA_TIMES if key != "load_duration"),
    {
        **_OLLAMA_TIMES,
        "model": ("model", _text),
        "done_reason": ("finish", _text),
        "prompt_eval_count": ("prompt_new", json_count),
        "eval_count": ("output", json_count),
    },
    lambda draft, obj: judge_prompt_count(draft),
)
METERS = (
    LLAMA_SERVER,
    OLLAMA,
    JsonMeter(
        "lm-studio",
        ("stats",),
        _has(_TPS, "time_to_first_token_seconds"),
        {
            "input_tokens": ("prompt_total", json_count),
            "total_output_tokens": ("output", json_count),
            "reasoning_output_tokens": ("output_reasoning", json_count),
            "model_load_time_seconds": ("load_s", json_positive),
            "time_to_first_token_seconds": ("ttft_any_s", json_positive),
            _TPS: ("decode_tok_s", json_positive),
            "stop_reason": ("finish", _text),
        },
        _studio_v1,
    ),
    JsonMeter(
        "lm-studio",
        ("stats",),
        _has(_TPS, "time_to_first_token"),
        {
            "time_to_first_token": ("ttft_any_s", json_positive),
            "generation_time": ("decode_s", json_positive),
            _TPS: ("decode_tok_s", json_positive),
            "stop_reason": ("finish", _text),
        },
        _first_token,
    ),
    JsonMeter(
        "vllm",
        ("metrics",),
        _has("time_to_first_token_ms"),
        {
            "queue_time_ms": ("queue_s", _waited_ms),
            "time_to_first_token_ms": ("prefill_s", _ms),
            "generation_time_ms": ("decode_s", _ms),
            "speculative_decoding.num_draft_tokens": ("drafted", json_count),
            "speculative_decoding.num_accepted_draft_tokens": ("accepted", json_count),
            "output_token_metrics.reasoning_token_count": ("output_reasoning", json_count),
            "output_token_metrics.content_token_count": ("output_visible", json_count),
            _TPS: ("e2e_tok_s", json_positive),  # it includes prefill
        },
        _scheduled,
    ),
    JsonMeter(
        "koboldcpp",
        ("",),
        _has("last_process", "last_eval"),
        {"last_token_count": ("output", json_count)},
        _per_token,
    ),
    JsonMeter("tgi", ("span", ""), _has("inference_time", "total_time"), {}, fill_span),
    JsonMeter(
        "tabbyapi",
        ("usage",),
        lambda obj: "completion_tokens_per_sec" in obj or "prompt_tokens_per_sec" in obj,
        {
            **_USAGE_TIMES,
            "prompt_tokens_per_sec": ("prefill_tok_s", json_number),
            "completion_tokens_per_sec": ("decode_tok_s", json_number),
        },
        _split_by_rate,
    ),
    JsonMeter(
        "openai", ("usage",), is_usage, {**_USAGE_TIMES, "queue_time": ("queue_s", json_positive)}
    ),
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
