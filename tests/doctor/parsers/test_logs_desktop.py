"""LM Studio, text-generation-webui, TabbyAPI, mlx-lm, KoboldCpp."""
# ruff: noqa: E501 (log lines stand as engines print them)

from __future__ import annotations

import json

import pytest

from twostroke_doctor import parse

V0 = [  # prompt, output, rate, ttft, generation, flags
    (24, 53, 51.43709529007664, 0.111, 0.954, {"meter_inconsistent", "ttft_as_prefill"}),
    (5, 9, 57.692307692307686, 0.299, 0.156, {"ttft_as_prefill"}),
]


@pytest.mark.parametrize("row", V0)
def test_lm_studio_v0_rows(row):
    prompt, output, rate, first, generation, flags = row
    stats = {
        "tokens_per_second": rate,
        "time_to_first_token": first,
        "generation_time": generation,
        "stop_reason": "eosFound",
    }
    text = json.dumps(
        {
            "object": "chat.completion",
            "usage": {"prompt_tokens": prompt, "completion_tokens": output},
            "stats": stats,
        },
        indent=2,
    )
    (record,) = parse(text).records
    assert record.engine == "lm-studio" and record.finish == "eosFound"
    assert (record.prompt.total, record.output.total) == (prompt, output)
    assert (record.ttft_any_s, record.phases.decode_s) == (first, generation)
    assert set(record.meter.flags) == flags
    assert record.reported["decode_tok_s"] == pytest.approx(rate)
    assert record.prefill_tok_s is None
    if output == 9:
        share = record.ttft_any_s / (record.ttft_any_s + record.phases.decode_s)
        assert share == pytest.approx(0.66, abs=0.003)


V1 = [
    (646, 586, 0, 29.753900615398926, 1.088, 2.656),
    (17, 50, 0, 51.04, 0.814, None),
    (329, 268, 5, 43.73, 0.781, None),
]


@pytest.mark.parametrize("row", V1)
def test_lm_studio_v1_rows(row):
    prompt, output, reasoning, rate, first, load = row
    stats = {
        "input_tokens": prompt,
        "total_output_tokens": output,
        "reasoning_output_tokens": reasoning,
        "tokens_per_second": rate,
        "time_to_first_token_seconds": first,
    }
    if load:
        stats["model_load_time_seconds"] = load
    (record,) = parse(
        "event: chat.end\ndata: "
        + json.dumps({"type": "chat.end", "result": {"stats": stats}})
        + "\n\n"
    ).records
    assert (record.prompt.total, record.output.total, record.output.reasoning) == (
        prompt,
        output,
        reasoning,
    )
    assert record.phases.decode_s == pytest.approx(output / rate)
    assert (record.ttft_any_s, record.phases.load_s) == (first, load)
    if load:
        assert record.phases.decode_s == pytest.approx(19.70, abs=0.006)
        share = record.phases.decode_s / (record.phases.decode_s + first + load)
        assert share == pytest.approx(0.84, abs=0.001)
        assert prompt / first == pytest.approx(594, abs=0.5)


STUDIO = """\
2024-12-20 16:08:12  [INFO]
[LM STUDIO SERVER] Running chat completion on conversation with 3 messages.
2024-12-20 16:08:46  [INFO]
[LM STUDIO SERVER] Accumulating tokens ... (stream = false)
2024-12-20 16:08:47  [INFO]
[LM STUDIO SERVER] Generated prediction: {
2024-12-20 16:09:12 [INFO] [LM STUDIO SERVER] Running chat completion on conversation with 4 messages.
2024-12-20 16:09:20 [INFO] [LM STUDIO SERVER] Accumulating tokens ... (stream = false)
2024-12-20 16:09:21 [INFO] [LM STUDIO SERVER] Generated prediction: {
"""


def test_lm_studio_log_of_258_takes_its_times_from_the_stamps():
    first, second = parse(STUDIO).records
    assert (first.phases.prefill_s, first.phases.decode_s, first.e2e_s) == (34, 1, 35)
    assert first.phases.prefill_s / first.e2e_s == pytest.approx(0.97, abs=0.002)
    assert second.phases.prefill_s == 8
    assert set(first.meter.flags) == {"time_derived", "ttft_as_prefill"}


def test_lm_studio_progress_that_stands_still():
    text = "".join(
        f"2025-11-01 10:00:{i:02d} [INFO] [qwen3-30b] Prompt processing progress: {p}%\n"
        for i, p in enumerate((0.0, 11.5, 11.5))
    )
    fact = parse(text).fact("prefill_progress")
    assert (fact.value, fact.label) == (pytest.approx(0.115), "qwen3-30b")
    done = text + "2025-11-01 10:00:09 [INFO] [qwen3-30b] Prompt processing progress: 100.0%\n"
    assert parse(done).fact("prefill_progress") is None


WEBUI = [  # seconds, rate, tokens, context, flags, output
    ("12.97", "15.34", 199, 4, {"prefill_mixed_in"}, 199),
    ("4.07", "2.21", 9, 1848, {"prefill_mixed_in"}, 9),
    ("92.31", "-0.11", -10, 1848, {"prefill_mixed_in", "negative_count"}, None),
    ("0.52", "0.00", 0, 3550, {"prefill_mixed_in", "no_output"}, 0),
]


@pytest.mark.parametrize("row", WEBUI)
@pytest.mark.parametrize("prefix", ["", "16:08:12-123456 INFO     "])
def test_webui_rows(row, prefix):
    seconds, rate, tokens, context, flags, output = row
    (record,) = parse(
        f"{prefix}Output generated in {seconds} seconds ({rate} tokens/s, {tokens} tokens, context {context}, seed 1234567)\n"
    ).records
    assert (record.e2e_s, record.prompt.total, record.output.total) == (
        float(seconds),
        context,
        output,
    )
    assert set(record.meter.flags) == flags
    assert record.decode_tok_s is None and record.prefill_tok_s is None
    assert record.reported == ({"e2e_tok_s": float(rate)} if output else {})


@pytest.mark.parametrize("cut", range(20, 80, 3))
def test_webui_line_wrapped_anywhere_reads_the_same(cut):
    line = "Output generated in 12.97 seconds (15.34 tokens/s, 199 tokens, context 1494, seed 77)"
    (record,) = parse(line[:cut] + "\n" + line[cut:] + "\n").records or [None]
    assert (record.e2e_s, record.output.total, record.prompt.total) == (12.97, 199, 1494)


def test_webui_rates_are_estimated_from_lines_of_different_shape():
    lines = "".join(
        f"Output generated in {c / 400 + n / 16:.2f} seconds ({n / (c / 400 + n / 16):.2f} tokens/s, {n} tokens, context {c}, seed 1)\n"
        for c, n in ((4, 199), (1848, 9), (900, 120))
    )
    parsed = parse(lines)
    assert parsed.fact("estimated_prefill_tok_s").value == pytest.approx(400, rel=0.01)
    assert parsed.fact("estimated_decode_tok_s").value == pytest.approx(16, rel=0.01)
    alike = "Output generated in 1.00 seconds (10.00 tokens/s, 10 tokens, context 100, seed 1)\n"
    assert parse(alike * 3).fact("estimated_decode_tok_s") is None


def test_tabby_old_row_sums_up():
    text = "INFO:     Metrics: 167 tokens generated in 21.39 seconds (Queue: 0.0 s, Process: 626.24 T/s, Generate: 8.79 T/s, Context: 1494 tokens)\n"
    (record,) = parse(text).records
    assert (record.output.total, record.e2e_s, record.phases.queue_s) == (167, 21.39, 0.0)
    assert record.phases.prefill_s == pytest.approx(2.39, abs=0.005)
    assert record.phases.decode_s == pytest.approx(19.0, abs=0.005)
    assert record.phases.prefill_s / 21.385 == pytest.approx(0.11, abs=0.002)
    assert record.reported == {"prefill_tok_s": 626.24, "decode_tok_s": 8.79}
    assert (
        record.prompt.total == 1494 and record.prompt.new is None and record.prefill_tok_s is None
    )
    assert "meter_inconsistent" not in record.meter.flags


def test_tabby_cache_hit_counted_as_processing():
    text = "Metrics: 167 tokens generated in 19.01 seconds (Queue: 0.0 s, Process: 308821.16 T/s, Generate: 8.79 T/s, Context: 1494 tokens)\n"
    (record,) = parse(text).records
    assert "cached_counted_as_prompt" in record.meter.flags and record.prefill_tok_s is None


NEW = "2025-06-01 10:00:00.123 INFO:     Metrics (ID: 1f2e3d): 167 tokens generated in 20.39 seconds (Queue: 0.5 s, Process: 1024 cached tokens and 470 new tokens at 626.24 T/s, Generate: 8.79 T/s, Context: 1494 tokens, Draft: 90 / 120 tokens accepted (75.0%))"


def test_tabby_new_line():
    (record,) = parse(NEW + "\n").records
    assert record.id == "1f2e3d"
    assert (record.prompt.total, record.prompt.cached, record.prompt.new) == (1494, 1024, 470)
    assert record.prefill_tok_s == pytest.approx(626.24) and record.phases.queue_s == 0.5
    assert (record.speculation.accepted, record.speculation.drafted) == (90, 120)
    assert record.meter.flags == ("time_derived",)


@pytest.mark.parametrize("cut", range(42, len(NEW) - 12, 3))
def test_tabby_line_wrapped_anywhere_reads_the_same(cut):
    (record,) = parse(
        NEW[:cut]
        + "\n    " * NEW[cut - 1].isspace()
        + "\n" * (not NEW[cut - 1].isspace())
        + NEW[cut:]
        + "\n"
    ).records
    assert (record.output.total, record.prompt.new, record.reported["decode_tok_s"]) == (
        167,
        470,
        8.79,
    )
    assert record.reported["prefill_tok_s"] == 626.24


def test_tabby_indeterminate_and_truncated():
    text = (
        NEW.replace("470 new tokens at 626.24", "0 new tokens at Indeterminate").replace(
            "1024", "1494"
        )
        + " <-- Not accurate (truncated)\n"
    )
    (record,) = parse(text).records
    assert (
        record.phases.prefill_s is None
        and record.prompt.new == 0
        and "truncated" in record.meter.flags
    )


def test_tabby_progress_without_metrics_is_partial():
    text = "Generation progress (ID: ab12): 0 tokens in 31.50 seconds (Stage: prefill, Generate: 0.00 T/s, No activity: 31.50 s)\n"
    (record,) = parse(text).records
    assert (
        record.meter.flags == ("partial",)
        and record.phases.prefill_s == 31.5
        and record.output.total == 0
    )


def test_tabby_usage_rates_may_be_text():
    usage = {
        "prompt_tokens": 1494,
        "prompt_time": 0.75,
        "prompt_tokens_per_sec": 626.67,
        "completion_tokens": 167,
        "completion_time": 19.0,
        "completion_tokens_per_sec": 8.79,
        "total_time": 19.75,
    }
    (record,) = parse(json.dumps({"id": "c", "usage": usage})).records
    assert (record.prompt.total, record.prompt.new, record.prompt.cached) == (1494, 470, 1024)
    usage |= {
        "prompt_tokens_per_sec": "Indeterminate",
        "prompt_time": 0,
        "prompt_tokens_details": {"cached_tokens": 1494},
    }
    (record,) = parse(json.dumps({"id": "c", "usage": usage})).records
    assert (record.prompt.cached, record.prompt.new, record.phases.prefill_s) == (1494, 0, None)


@pytest.mark.parametrize(
    ("count", "rate", "peak"), [(33898, 676.212, 12.257), (33898, 869.279, 9.111)]
)
def test_mlx_rows(count, rate, peak):
    text = f"==========\nPrompt: {count} tokens, {rate} tokens-per-sec\nGeneration: 100 tokens, 25.000 tokens-per-sec\nPeak memory: {peak} GB\n"
    parsed = parse(text)
    (record,) = parsed.records
    assert record.reported == {"prefill_tok_s": rate, "decode_tok_s": 25.0}
    assert record.ttft_any_s == pytest.approx(count / rate) and record.phases.decode_s == 4.0
    assert (
        record.prompt.total == count and record.prompt.new is None and record.prefill_tok_s is None
    )
    assert parsed.fact("peak_memory_bytes").value == round(peak * 1e9)


def test_mlx_benchmark_row():
    parsed = parse("Averages: prompt_tps=439.847, generation_tps=86.450, peak_memory=61.323\n")
    (window,) = parsed.windows
    assert (window.prompt_tok_s, window.output_tok_s) == (439.847, 86.45)
    assert parsed.fact("peak_memory_bytes").value == 61_323_000_000 and parsed.records == []


def test_kobold_2023():
    (record,) = parse(
        "Time Taken - Processing:134.0s (88ms/T), Generation:763.6s (1491ms/T), Total:897.6s (0.6T/s)\n"
    ).records
    assert (record.phases.prefill_s, record.phases.decode_s, record.e2e_s) == (134.0, 763.6, 897.6)
    assert record.phases.decode_s / record.e2e_s == pytest.approx(0.85, abs=0.002)
    assert record.output.total == pytest.approx(763600 / 1491, abs=1)


KOBOLD_2024 = "CtxLimit: {}/12288, Process:{}s ({}ms/T = {}T/s), Generate:{}s ({}ms/T = {}T/s), Total:{}s ({}T/s)\n"


def test_kobold_681_reprefill_and_after_the_shift():
    miss = KOBOLD_2024.format(11892, 34.76, 3.0, 338.83, 9.61, 82.8, 12.07, 44.37, 2.61)
    hit = KOBOLD_2024.format(11976, 0.81, 10.6, 94.41, 9.38, 82.3, 12.15, 10.19, 11.19)
    first, second = parse(miss + hit).records
    assert first.prompt.new == 11778 and first.ctx_end == 11892 and first.e2e_s == 44.37
    assert second.prompt.new == 76 and second.phases.prefill_s == 0.81 and second.e2e_s == 10.19
    assert (first.output.total, second.output.total) == (116, 114)
    assert first.reported["prefill_tok_s"] == 338.83 and second.reported["decode_tok_s"] == 12.15


KOBOLD_2025 = "[16:08:12] CtxLimit:8519/49664, Amt:23/1024, Init:{init}s, Process:0.02s (55.56T/s), Generate:0.81s (28.43T/s), Total:0.83s\n"


@pytest.mark.parametrize("init", ["3.19", "0.02"])
@pytest.mark.parametrize("wrap", [False, True])
def test_kobold_1453_total_leaves_init_out(init, wrap):
    text = KOBOLD_2025.format(init=init)
    (record,) = parse(text.replace(" Total", "\nTotal") if wrap else text).records
    assert (record.phases.init_s, record.phases.prefill_s, record.phases.decode_s) == (
        float(init),
        0.02,
        0.81,
    )
    assert record.e2e_s == pytest.approx(0.83 + float(init))
    assert (record.output.total, record.prompt.total, record.prompt.new) == (23, 8496, 1)
    assert record.meter.flags == ("count_derived",) and record.prefill_tok_s is None


def test_kobold_october_2024():
    (record,) = parse(
        "CtxLimit:1200/4096, Amt:200/512, Init:0.01s, Process:2.00s (2.0ms/T = 500.00T/s), Generate:10.00s (50.0ms/T = 20.00T/s), Total:12.00s (16.67T/s)\n"
    ).records
    assert (record.prompt.new, record.prompt.cached, record.output.total) == (1000, 0, 200)
    assert record.prefill_tok_s == 500


@pytest.mark.parametrize("before", [True, False])
def test_kobold_852_used_the_requested_count(before):
    line = "CtxLimit: 1754/8192, Process:25.05s (66.89T/s), Generate:59.05s (6.55T/s), Total:84.10s (4.60T/s)\n"
    count = "Generating (78 / 387 tokens)\n"
    (record,) = parse(count + line if before else line + count).records
    assert record.output.total == 78
    assert {"requested_count", "meter_inconsistent"} <= set(record.meter.flags)
    assert 78 / record.phases.decode_s == pytest.approx(1.32, abs=0.002)
    assert record.reported["decode_tok_s"] == 6.55


def test_kobold_perf_endpoint_speaks_milliseconds_per_token():
    perf = {
        "last_process": 2.95,
        "last_eval": 82.8,
        "last_token_count": 116,
        "last_seed": 1,
        "total_gens": 4,
        "stop_reason": 1,
        "queue": 0,
        "idle": 1,
        "uptime": 100,
    }
    (record,) = parse(json.dumps(perf)).records
    assert record.phases.decode_s == pytest.approx(116 * 0.0828)
    assert record.reported["prefill_tok_s"] == pytest.approx(338.98, abs=0.01)
