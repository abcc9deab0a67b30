"""Ollama's verbose block, JSON, server log, gin lines and process list."""
# ruff: noqa: E501 (log lines stand as engines print them)

from __future__ import annotations

import json

import pytest

from twostroke_doctor import parse

GIB = 1 << 30

VERBOSE = """\
total duration:       2m27.989997625s
load duration:        559.665542ms
prompt eval count:    13 token(s)
prompt eval duration: 19.747s
prompt eval rate:     0.66 tokens/s
eval count:           1133 token(s)
eval duration:        2m7.682s
eval rate:            8.87 tokens/s
"""


def test_verbose_block_of_llm_ollama_32():
    (record,) = parse(VERBOSE).records
    assert record.e2e_s == pytest.approx(147.989997625)
    assert record.phases.load_s == pytest.approx(0.559665542)
    assert (record.prompt.new, record.phases.prefill_s) == (13, 19.747)
    assert (record.output.total, record.phases.decode_s) == (1133, pytest.approx(127.682))
    assert record.prefill_tok_s is None, "13 tokens in 19.7 s is no prefill speed"
    assert record.decode_tok_s == pytest.approx(8.87, abs=0.005)
    assert record.reported == {"prefill_tok_s": 0.66, "decode_tok_s": 8.87}
    assert record.phases.decode_s / record.e2e_s == pytest.approx(0.86, abs=0.005)
    assert record.meter.flags == ("cached_may_be_counted",)


def test_lines_absent_when_zero_stay_unknown():
    text = "total duration:       1.5s\neval count:           9 token(s)\neval duration:        846.66ms\neval rate:            10.63 tokens/s\n"
    (record,) = parse(text).records
    assert record.prompt.new is None and record.phases.prefill_s is None
    assert record.phases.load_s is None
    assert record.reported["decode_tok_s"] == 10.63 and record.output.total == 9


def reply(**fields):
    return json.dumps({"model": "llama3.2", "done": True, "done_reason": "stop", **fields})


def test_api_docs_sample():
    text = reply(
        total_duration=174560334,
        load_duration=101397084,
        prompt_eval_count=11,
        prompt_eval_duration=13074791,
        eval_count=18,
        eval_duration=52479709,
    )
    (record,) = parse(text).records
    assert record.phases.load_s / record.e2e_s == pytest.approx(0.58, abs=0.002)
    assert record.prompt.new / record.phases.prefill_s == pytest.approx(841, abs=0.5)
    assert record.output.total / record.phases.decode_s == pytest.approx(343, abs=0.5)
    assert record.phases.unaccounted_s == pytest.approx(
        (174560334 - 101397084 - 13074791 - 52479709) / 1e9
    )
    assert record.model == "llama3.2" and record.finish == "stop"


RATES = [  # source, prompt tokens, pp, output tokens, tg
    ("llama.cpp#12237", 1119, 512.13, 9, 10.63),
    ("ollama#9683 27b", 2000, 285.7, 300, 27.95),
    ("ollama#9683 4b", 2000, 183.67, 300, 18.73),
]


@pytest.mark.parametrize("row", RATES, ids=[row[0] for row in RATES])
def test_rate_rows_hold_in_text_and_json(row):
    _, prompt, pp, output, tg = row
    text = (
        f"total duration:       {prompt / pp + output / tg + 0.1:.9f}s\nprompt eval count:    {prompt} token(s)\n"
        f"prompt eval duration: {prompt / pp:.9f}s\nprompt eval rate:     {pp} tokens/s\n"
        f"eval count:           {output} token(s)\neval duration:        {output / tg:.9f}s\neval rate:            {tg} tokens/s\n"
    )
    (verbose,) = parse(text).records
    assert verbose.prefill_tok_s == pytest.approx(pp) and verbose.reported["decode_tok_s"] == tg
    assert verbose.output.total / verbose.phases.decode_s == pytest.approx(tg)
    assert "meter_inconsistent" not in verbose.meter.flags
    ns = {
        "prompt_eval_count": prompt,
        "prompt_eval_duration": round(prompt / pp * 1e9),
        "eval_count": output,
        "eval_duration": round(output / tg * 1e9),
    }
    (parsed,) = parse(reply(**ns)).records
    assert parsed.prefill_tok_s == pytest.approx(pp) and parsed.output.total == output


def test_a_cache_hit_counted_as_prompt_gives_no_rate():
    (record,) = parse(
        reply(
            prompt_eval_count=10000,
            prompt_eval_duration=125_000_000,
            eval_count=20,
            eval_duration=10**9,
        )
    ).records
    assert record.meter.flags == ("cached_counted_as_prompt",)
    assert (
        record.prompt.total == 10000 and record.prompt.new is None and record.prefill_tok_s is None
    )


SLOG = (
    'time=2025-05-20T10:00:00.000+02:00 level=INFO source=memory.go:356 msg="offload to cuda" library=cuda layers.requested=-1 layers.model=35 '
    'layers.offload={layers} layers.split="" memory.available="[{available}]" memory.gpu_overhead="0 B" memory.required.full="{full}" '
    'memory.required.partial="{full}" memory.required.kv="457.0 MiB" memory.required.allocations="[0 B]" memory.weights.total="2.3 GiB" '
    'memory.weights.repeating="1.8 GiB" memory.weights.nonrepeating="525.0 MiB" memory.graph.full="517.0 MiB" memory.graph.partial="1.0 GiB"\n'
)


@pytest.mark.parametrize(
    ("available", "full", "layers"), [("3.2 GiB", "4.26 GiB", 0), ("22.7 GiB", "23.5 GiB", 30)]
)
def test_offload_lines(available, full, layers):
    parsed = parse(SLOG.format(available=available, full=full, layers=layers))
    facts = {fact.name: fact.value for fact in parsed.facts}
    assert facts["layers_offloaded"] == layers and facts["layers_total"] == 35
    assert facts["layers_requested"] == -1
    assert facts["memory_available_bytes"] == round(float(available.split()[0]) * GIB)
    assert facts["memory_required_bytes"] == round(float(full.split()[0]) * GIB)
    assert facts["kv_required_bytes"] == 457 << 20 and facts["graph_bytes"] == 517 << 20
    assert facts["weights_bytes"] == round(2.3 * GIB)


def test_two_devices_are_two_facts():
    parsed = parse(SLOG.format(available="3.2 GiB 10.5 GiB", full="4.0 GiB", layers=3))
    found = [(f.label, f.value) for f in parsed.facts if f.name == "memory_available_bytes"]
    assert found == [("device 0", round(3.2 * GIB)), ("device 1", round(10.5 * GIB))]


def test_runner_start_layers_and_truncation():
    text = (
        'time=2025-06-01T10:00:00Z level=INFO source=server.go:630 msg="llama runner started in 33.87 seconds"\n'
        "load_tensors: offloaded 5/37 layers to GPU\n"
        'time=2025-06-01T10:00:00Z level=WARN source=runner.go:131 msg="truncating input prompt" limit=2048 prompt=5321 keep=4 new=2048\n'
    )
    parsed = parse(text)
    assert parsed.fact("runner_start_s").value == 33.87
    assert (parsed.fact("layers_offloaded").value, parsed.fact("layers_total").value) == (5, 37)
    fact = parsed.fact("prompt_truncated_tokens")
    assert (fact.value, fact.label, fact.line) == (5321 - 2048, "limit 2048", 3)


def test_runner_command_line():
    text = 'time=2025-05-20T10:00:00Z level=INFO source=server.go:405 msg="starting llama server" cmd="/usr/bin/ollama runner --model /m --ctx-size 8192 --batch-size 512 --n-gpu-layers 37 --threads 8 --flash-attn --kv-cache-type q8_0 --parallel 1 --port 41000"\n'
    facts = {fact.name: fact.value for fact in parse(text).facts}
    assert facts == {
        "n_ctx": 8192,
        "n_batch": 512,
        "layers_requested": 37,
        "threads": 8,
        "flash_attention": True,
        "kv_type_k": "q8_0",
        "kv_type_v": "q8_0",
    }


def test_gin_line_of_a_client_that_gave_up():
    parsed = parse(
        '[GIN] 2025/05/20 - 10:11:12 | 499 |  5.239788128s |       127.0.0.1 | POST     "/api/chat"\n'
    )
    fact = parsed.fact("endpoint_latency_s")
    assert fact.value == pytest.approx(5.239788128) and fact.label == "499 POST /api/chat"


PS = """\
NAME                ID              SIZE      PROCESSOR          CONTEXT    UNTIL
deepseek-r1:70b     0c1615a8ca32    156 GB    41%/59% CPU/GPU    121234     4 minutes from now
llama3.2:3b         a80c4f17acd5    4.0 GB    100% GPU           4096       Forever
bge-m3:latest       790764642607    1.2 GB    100% CPU           4096       3 minutes from now
"""


def test_process_list_gives_the_share_on_the_gpu():
    parsed = parse(PS)
    shares = {fact.label: fact.value for fact in parsed.facts if fact.name == "gpu_share"}
    assert shares == {"deepseek-r1:70b": 0.59, "llama3.2:3b": 1.0, "bge-m3:latest": 0.0}
    sizes = {fact.label: fact.value for fact in parsed.facts if fact.name == "model_size_bytes"}
    assert sizes["deepseek-r1:70b"] == 156 * 10**9
    assert {f.label: f.value for f in parsed.facts if f.name == "n_ctx"}[
        "deepseek-r1:70b"
    ] == 121234
    older = "NAME  ID  SIZE  PROCESSOR  UNTIL\nllama3.2:3b    a80c4f17acd5    4.0 GB    33%/67% CPU/GPU    Forever\n"
    assert parse(older).fact("gpu_share").value == 0.67
    assert parse(older).fact("n_ctx") is None
