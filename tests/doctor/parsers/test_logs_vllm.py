"""vLLM's windows, speculation, start-up, preemption, per-request JSON, bench."""
# ruff: noqa: E501 (log lines stand as engines print them)

from __future__ import annotations

import json

import pytest

from twostroke_doctor import parse

GIB = 1 << 30


def v0(prompt, gen, running, pending, kv, *, swapped=0, cpu=0.0, end="."):
    return (
        f"INFO 07-10 12:00:{int(gen) % 60:02d} metrics.py:334] Avg prompt throughput: {prompt} tokens/s, Avg generation throughput: {gen} tokens/s, "
        f"Running: {running} reqs, Swapped: {swapped} reqs, Pending: {pending} reqs, GPU KV cache usage: {kv}%, CPU KV cache usage: {cpu}%{end}\n"
    )


def v1(prompt, gen, running, waiting, kv, hit, *, mm="", stamp="08-12 10:00:00", middle=""):
    return (
        f"(APIServer pid=3646) INFO {stamp} [loggers.py:215] Engine 000: Avg prompt throughput: {prompt} tokens/s, Avg generation throughput: {gen} tokens/s, "
        f"Running: {running} reqs, Waiting: {waiting} reqs, {middle}GPU KV cache usage: {kv}%, Prefix cache hit rate: {hit}%{mm}\n"
    )


def numbers(window):
    return (
        window.prompt_tok_s,
        window.output_tok_s,
        window.running,
        window.waiting,
        window.kv_usage,
        window.prefix_hit_rate,
    )


WINDOWS = [
    ("#4966", v0(0.0, 12.0, 1, 0, 0.3), (0.0, 12.0, 1, 0, 0.003, None)),
    ("#43295", v1(0.0, 1055.3, 18, 43, 95.9, 0.0), (0.0, 1055.3, 18, 43, 0.959, 0.0)),
    ("#4760", v0(102.0, 2.2, 0, 0, 0.0), (102.0, 2.2, 0, 0, 0.0, None)),
    (
        "#31920",
        v1(2.3, 3.0, 0, 0, 0.0, 29.1, mm=", MM cache hit rate: 0.0%"),
        (2.3, 3.0, 0, 0, 0.0, 0.291),
    ),
    (
        "#31920 later",
        v1(2.3, 3.0, 0, 0, 0.0, 33.3, mm=", MM cache hit rate: 0.0%"),
        (2.3, 3.0, 0, 0, 0.0, 0.333),
    ),
    ("vllm-ascend#2304", v1(36.1, 50.0, 0, 0, 0.0, 0.0), (36.1, 50.0, 0, 0, 0.0, 0.0)),
]


@pytest.mark.parametrize("row", WINDOWS, ids=[row[0] for row in WINDOWS])
def test_window_rows(row):
    _, text, expected = row
    parsed = parse(text)
    (window,) = parsed.windows
    assert numbers(window) == pytest.approx(expected)
    assert parsed.records == [], "a window is never a request"


def test_v0_line_pair_of_17954_is_one_window():
    text = (
        v0(13.2, 13.0, 1, 0, 0.1)
        + "INFO 07-10 12:00:13 metrics.py:350] Prefix cache hit rate: GPU: 0.00%, CPU: 0.00%\n"
    )
    (window,) = parse(text).windows
    assert numbers(window) == pytest.approx((13.2, 13.0, 1, 0, 0.001, 0.0))
    assert window.facts["cpu_prefix_cache_hit_rate"] == 0.0 and window.facts["swapped"] == 0
    assert window.meter.lines == (1, 2)


def test_v0_without_the_pair_comes_out_before_the_next_one():
    windows = parse(v0(1.0, 2.0, 1, 0, 0.1) + v0(3.0, 4.0, 2, 5, 0.2, end="")).windows
    assert [(w.prompt_tok_s, w.waiting) for w in windows] == [(1.0, 0), (3.0, 5)]


def test_window_length_is_the_gap_between_stamps():
    first, second = parse(
        v1(1, 2, 1, 0, 1.0, 0.0, stamp="08-12 10:00:00")
        + v1(1, 2, 1, 0, 1.0, 0.0, stamp="08-12 10:00:10")
    ).windows
    assert first.window_s is None and second.window_s == 10.0


def test_optional_fields_do_not_move_the_others():
    (window,) = parse(
        v1(
            1.5,
            2.5,
            3,
            4,
            5.0,
            6.0,
            middle="Preemptions: 7, ",
            mm=", External prefix cache hit rate: 8.0%",
        )
    ).windows
    assert window.preemptions == 7 and window.facts[
        "external_prefix_cache_hit_rate"
    ] == pytest.approx(0.08)
    assert window.running == 3 and window.prefix_hit_rate == pytest.approx(0.06)


@pytest.mark.parametrize("name", ["Avg Draft acceptance rate", "Draft acceptance rate"])
def test_speculation_sample(name):
    text = f"INFO 09-01 10:00:00 [metrics.py:96] SpecDecoding metrics: Mean acceptance length: 1.74, Accepted throughput: 25.10 tokens/s, Drafted throughput: 34.01 tokens/s, Accepted: 251 tokens, Drafted: 340 tokens, Per-position acceptance rate: 0.738, {name}: 73.8%\n"
    (window,) = parse(text).windows
    assert window.facts["mean_acceptance_length"] == 1.74
    assert window.facts["draft_acceptance"] == pytest.approx(0.738)
    assert window.facts["accepted"] == 251 and window.facts["drafted"] == 340
    assert window.facts["accepted_throughput"] == 25.1
    assert window.prompt_tok_s is None and window.output_tok_s is None


def test_start_up_of_a_qwen3_class_model():
    text = "INFO 08-12 10:00:00 [kv_cache_utils.py:829] GPU KV cache size: 772,736 tokens\nINFO 08-12 10:00:00 [kv_cache_utils.py:833] Maximum concurrency for 40,960 tokens per request: 18.87x\n"
    parsed = parse(text)
    assert parsed.fact("kv_tokens").value == 772736
    fact = parsed.fact("max_concurrency")
    assert (fact.value, fact.label) == (18.87, "40960 tokens")


def test_memory_equation_of_13882_says_that_it_does_not_fit():
    text = (
        "INFO 03-01 10:00:00 worker.py:267] the current vLLM instance can use total_gpu_memory (8.00GiB) x gpu_memory_utilization (0.70) = 5.60GiB\n"
        "INFO 03-01 10:00:00 worker.py:267] model weights take 5.20GiB; non_torch_memory takes 0.03GiB; PyTorch activation peak memory takes 1.42GiB; the rest of the memory reserved for KV Cache is -1.05GiB.\n"
        "INFO 03-01 10:00:01 executor_base.py:110] # GPU blocks: 3947, # CPU blocks: 2048\n"
    )
    facts = {fact.name: fact.value for fact in parse(text).facts}
    assert facts["gpu_memory_bytes"] == 8 * GIB and facts["gpu_memory_utilization"] == 0.70
    assert facts["gpu_memory_budget_bytes"] == round(5.60 * GIB)
    assert facts["weights_bytes"] == round(5.20 * GIB) and facts["non_torch_bytes"] == round(
        0.03 * GIB
    )
    assert facts["activation_peak_bytes"] == round(1.42 * GIB)
    assert facts["kv_reserve_bytes"] == round(-1.05 * GIB)
    assert facts["kv_blocks"] == 3947 and facts["cpu_kv_blocks"] == 2048


def test_preemption_of_limo_29():
    text = "WARNING 02-10 10:00:00 scheduler.py:1057] Sequence group 12 is preempted by PreemptionMode.RECOMPUTE mode because there is not enough KV cache space. This can affect the end-to-end performance. total_num_cumulative_preemption=101\n"
    parsed = parse(text)
    assert parsed.fact("preemptions_total").value == 101
    assert parsed.fact("preemption_mode").value == "recompute"


def test_per_request_metrics_start_when_scheduled():
    metrics = {
        "time_to_first_token_ms": 120.0,
        "generation_time_ms": 900.0,
        "queue_time_ms": 50.0,
        "mean_itl_ms": 10.0,
        "tokens_per_second": 89.2,
        "output_token_metrics": {
            "reasoning_token_count": 60,
            "content_token_count": 31,
            "unclassified_token_count": 0,
        },
        "speculative_decoding": {"num_draft_tokens": 40, "num_accepted_draft_tokens": 30},
    }
    (record,) = parse(
        json.dumps(
            {
                "id": "cmpl-1",
                "object": "chat.completion",
                "usage": {"prompt_tokens": 200, "completion_tokens": 91},
                "metrics": metrics,
            }
        )
    ).records
    assert record.engine == "vllm"
    assert (record.phases.queue_s, record.phases.prefill_s) == (0.05, 0.12)
    assert record.ttft_any_s == pytest.approx(0.17)
    assert record.phases.decode_s == pytest.approx(0.9)
    assert (record.output.total, record.output.reasoning, record.output.visible) == (91, 60, 31)
    assert (record.speculation.drafted, record.speculation.accepted) == (40, 30)
    assert record.reported == {"e2e_tok_s": 89.2}
    assert record.prompt.total == 200


def bench(**over):
    rows = {
        "Traffic request rate": "12.0", "Successful requests": "1000", "Benchmark duration (s)": "100.00", "Total input tokens": "220000",
        "Total generated tokens": "198000", "Request throughput (req/s)": "10.00", "Output token throughput (tok/s)": "1980.00",
        "Total Token throughput (tok/s)": "4180.00", "Mean TTFT (ms)": "18800.00", "Median TTFT (ms)": "17000.00", "P99 TTFT (ms)": "40000.00",
        "Mean TPOT (ms)": "55.00", "Mean ITL (ms)": "54.00", **over,
    }  # fmt: skip
    body = "".join(f"{name + ':':<41}{value:<10}\n" for name, value in rows.items())
    return "============ Serving Benchmark Result ============\n" + body + "=" * 50 + "\n"


def test_bench_blocks_are_windows_of_a_benchmark():
    burst = bench(**{"Traffic request rate": "inf", "Mean TTFT (ms)": "515000.00"})
    parsed = parse(bench() + burst)
    first, second = parsed.windows
    assert first.facts["mean_ttft_s"] == pytest.approx(18.8) and first.facts["request_rate"] == 12
    assert first.facts["p99_ttft_s"] == 40 and first.facts["mean_tpot_s"] == pytest.approx(0.055)
    assert (first.window_s, first.prompt_tok_s, first.output_tok_s) == (100, 2200, 1980)
    assert second.facts["request_rate"] == "inf" and second.facts["mean_ttft_s"] == 515
    assert first.meter.flags == ("benchmark",) and parsed.records == []
    assert second.facts["successful_requests"] == 1000
