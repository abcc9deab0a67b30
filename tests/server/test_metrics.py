"""/metrics counts what happened, under names that vLLM's dashboards read."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.server.serving import Served


def scrape(served: Served) -> dict[tuple[str, ...], float]:
    values = {}
    for family in text_string_to_metric_families(served.get("/metrics").text):
        for sample in family.samples:
            labels = [v for k, v in sorted(sample.labels.items()) if k != "model_name"]
            values[(sample.name, *labels)] = sample.value
    return values


def test_tokens_requests_and_times_are_counted(tiny_path: Path) -> None:
    with Served(tiny_path) as served:
        before = scrape(served)
        assert before["vllm:prompt_tokens_total",] == 0, "the warm-up is not counted"
        first = served.chat("word " * 50, max_tokens=6, ignore_eos=True).json()["usage"]
        again = served.chat("word " * 50, max_tokens=6, ignore_eos=True).json()["usage"]
        served.chat(temperature=-1)
        now = scrape(served)
    prompt = first["prompt_tokens"] + again["prompt_tokens"]
    cached = again["prompt_tokens_details"]["cached_tokens"]
    assert now["vllm:prompt_tokens_total",] == prompt == now["vllm:prefix_cache_queries_total",]
    assert now["vllm:prefix_cache_hits_total",] == cached
    assert now["twostroke_prompt_tokens_total", "computed"] == prompt - cached
    assert now["vllm:generation_tokens_total",] == 12
    assert now["vllm:request_success_total", "length"] == 2
    for name in ("time_to_first_token", "e2e_request_latency", "request_queue_time"):
        assert now[f"vllm:{name}_seconds_count",] == 2
    assert now["vllm:inter_token_latency_seconds_count",] == 10
    assert now["vllm:request_time_per_output_token_seconds_count",] == 2
    decode_s = now["vllm:request_decode_time_seconds_sum",]
    assert abs(decode_s - now["vllm:inter_token_latency_seconds_sum",]) < 1e-6
    assert now["twostroke_step_seconds_total", "decode"] > 0
    assert now["twostroke_http_replies_total", "/v1/chat/completions", "400"] == 1
    assert now["vllm:num_requests_running",] == now["vllm:num_requests_waiting",] == 0
    assert now["twostroke_engine_alive",] == 1
