"""llama.cpp's library timings, and what the library says while loading."""
# ruff: noqa: E501 (log lines stand as engines print them)

from __future__ import annotations

import pytest

from twostroke_doctor import parse

GIB = 1 << 30
MIB = 1 << 20


def library_block(
    prompt_ms: str,
    prompt_n: int,
    eval_ms: str,
    eval_n: int,
    *,
    total_ms: str = "",
    prefix: str = "llama_print_timings",
    rates: tuple[str, str] | None = None,
    load_ms: str = "1234.56",
) -> str:
    pp, tg = (f", {r} tokens per second" if r else "" for r in rates or ("", ""))
    lines = [
        f"{prefix}:        load time = {load_ms} ms",
        f"{prefix}:      sample time =    16.35 ms / {eval_n + 1:5d} runs   (    0.53 ms per token)",
        f"{prefix}: prompt eval time = {prompt_ms} ms / {prompt_n:5d} tokens (  127.07 ms per token{pp})",
        f"{prefix}:        eval time = {eval_ms} ms / {eval_n:5d} runs   (  296.90 ms per token{tg})",
        f"{prefix}:       total time = {total_ms or '9.00'} ms / {prompt_n + eval_n} tokens",
    ]
    return "\n".join(lines) + "\n"


ROWS = [  # name, prompt ms, n, eval ms, n, printed pp, tg, prefill share of prefill + decode
    ("private-gpt#493 A", "193146.00", 1520, "8907.04", 30, "7.87", "3.37", 0.956),
    ("private-gpt#493 B", "35152,85", 2052, "7137,17", 24, "58,37", "3,36", 0.831),
    ("text-generation-webui#2645", "715484.66", 1326, "36384.77", 55, "1.85", "1.51", 0.952),
    ("llama.cpp#1786 GPU", "146712.89", 1294, "15896.00", 64, "8.82", "4.03", 0.902),
    ("llama.cpp#1786 CPU", "10762.00", 1245, "34006.00", 110, "115.68", "3.23", 0.240),
    ("llama.cpp#9013 cli", "927.17", 49, "14085.85", 178, "52.85", "12.64", 0.062),
]


@pytest.mark.parametrize("prefix", ["llama_print_timings", "llama_perf_context_print"])
@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_each_library_row_is_read_to_its_numbers(row, prefix):
    _, prompt_ms, prompt_n, eval_ms, eval_n, pp, tg, share = row
    text = library_block(prompt_ms, prompt_n, eval_ms, eval_n, prefix=prefix, rates=(pp, tg))
    (record,) = parse(text).records
    prefill, decode = (float(ms.replace(",", ".")) / 1000 for ms in (prompt_ms, eval_ms))
    assert record.phases.prefill_s == pytest.approx(prefill)
    assert record.phases.decode_s == pytest.approx(decode)
    assert record.prompt.new == prompt_n
    assert record.prompt.total is None and record.prompt.cached is None
    assert record.output.total == eval_n + 1, "the first token comes from prefill"
    assert record.prefill_tok_s == pytest.approx(prompt_n / prefill)
    assert record.decode_tok_s == pytest.approx(eval_n / decode)
    assert record.reported["prefill_tok_s"] == float(pp.replace(",", "."))
    assert record.reported["decode_tok_s"] == float(tg.replace(",", "."))
    assert prefill / (prefill + decode) == pytest.approx(share, abs=0.0006)
    assert record.meter.flags == ()
    assert record.meter.lines == (1, 2, 3, 4, 5)


def test_total_and_load_of_private_gpt_are_kept_apart_from_the_phases():
    text = library_block("193146.00", 1520, "8907.04", 30, total_ms="203319.03", load_ms="276000.0")
    parsed = parse(text)
    (record,) = parsed.records
    assert record.e2e_s == pytest.approx(203.31903)
    assert record.phases.load_s is None
    assert record.phases.unaccounted_s == pytest.approx(203.31903 - 193.146 - 8.90704)
    assert parsed.fact("model_load_s").value == pytest.approx(276.0)


def test_a_meter_that_is_off_is_no_speed():
    prefix = "llama_perf_context_print"
    text = (
        f"{prefix}:        load time =       0.00 ms\n"
        f"{prefix}: prompt eval time =       0.00 ms /     1 tokens "
        "(    0.00 ms per token,      inf tokens per second)\n"
        f"{prefix}:        eval time =       0.00 ms /     1 runs   "
        "(    0.00 ms per token,      inf tokens per second)\n"
        f"{prefix}:       total time =   12345.00 ms /     2 tokens\n"
    )
    parsed = parse(text)
    (record,) = parsed.records
    assert record.meter.flags == ("meter_off",)
    assert record.phases.prefill_s is None and record.phases.decode_s is None
    assert record.prefill_tok_s is None and record.decode_tok_s is None and record.reported == {}
    assert parsed.fact("meter_off").value is True


def test_a_zero_prefill_beside_a_real_decode_is_a_cache_hit_not_a_dead_meter():
    text = library_block("0.00", 1, "14085.85", 178)
    (record,) = parse(text).records
    assert record.meter.flags == ()
    assert record.phases.prefill_s is None
    assert record.decode_tok_s == pytest.approx(178 / 14.08585)


def test_a_printed_rate_that_is_not_count_over_time_is_flagged():
    (record,) = parse(
        library_block("1000.00", 500, "1000.00", 50, rates=("800.00", "50.00"))
    ).records
    assert record.meter.flags == ("meter_inconsistent",)
    assert record.prefill_tok_s == 500 and record.reported["prefill_tok_s"] == 800


def test_prefix_match_tells_what_came_from_the_cache():
    hit = "Llama.generate: 1400 prefix-match hit, remaining 120 prompt tokens to eval\n"
    parsed = parse(hit + library_block("900.00", 120, "1000.00", 50))
    (record,) = parsed.records
    assert (record.prompt.total, record.prompt.cached, record.prompt.new) == (1520, 1400, 120)
    assert parsed.fact("prefix_match").value is True
    parsed = parse("Llama.generate: prefix-match hit\n" + library_block("9.00", 12, "10.00", 5))
    assert parsed.fact("prefix_match") and parsed.records[0].prompt.cached is None


def test_verbose_stamps_and_two_blocks_in_a_row_are_two_requests():
    block = library_block("927.17", 49, "14085.85", 178, prefix="llama_perf_context_print")
    stamped = "".join(f"0.00.052.726 I {line}\n" for line in block.splitlines())
    older = "".join(f"00000.00.451.962 I {line}\n" for line in block.splitlines())
    parsed = parse(stamped + older + "common_perf_print:    graphs reused =        174\n")
    assert [record.output.total for record in parsed.records] == [179, 179]
    fact = parsed.fact("graphs_reused")
    assert (fact.value, fact.engine) == (174, "llama.cpp")


def test_llama_cli_of_2026_gives_rates_only():
    (record,) = parse("[ Prompt: 217.7 t/s | Generation: 20.6 t/s ]\n").records
    assert record.reported == {"prefill_tok_s": 217.7, "decode_tok_s": 20.6}
    assert record.prefill_tok_s is None and record.phases.prefill_s is None


LOADING = """\
ggml_cuda_init: found 1 CUDA devices:
llama_model_load_from_file_impl: using device CUDA0 (NVIDIA GeForce RTX 3060) - 11247 MiB free
llama_params_fit_impl: projected to use 24840 MiB of device memory vs. 22341 MiB of free device memory
llama_params_fit_impl: will leave 1024 >= 1024 MiB of free device memory
load_tensors: offloaded 5/37 layers to GPU
load_tensors:   CPU_Mapped model buffer size =  4685.30 MiB
load_tensors:        CUDA0 model buffer size =   512.50 MiB
llama_context: n_ctx         = 49152
llama_context: n_ubatch      = 512
llama_kv_cache_unified:      CUDA0 KV buffer size =  5712.00 MiB
llama_kv_cache: size = 5712.00 MiB ( 49152 cells,  56 layers,  1 seqs), K (q8_0): 2856.00 MiB, V (q8_0): 2856.00 MiB
llama_memory_recurrent:      CUDA0 RS buffer size =    75.38 MiB
llama_context:      CUDA0 compute buffer size =   353.01 MiB
llama_context:  CUDA_Host  output buffer size =     0.58 MiB
system_info: n_threads = 8 (n_threads_batch = 16) / 32 | CUDA : ARCHS = 860 |
"""


def test_loading_lines_become_facts_with_their_device():
    parsed = parse(LOADING)
    facts = {(fact.name, fact.label): fact.value for fact in parsed.facts}
    assert facts[("device_free_bytes", "CUDA0")] == 11247 * MIB
    assert facts[("memory_required_bytes", None)] == 24840 * MIB
    assert facts[("memory_available_bytes", None)] == 22341 * MIB
    assert facts[("memory_margin_bytes", None)] == GIB
    assert facts[("layers_offloaded", None)] == 5 and facts[("layers_total", None)] == 37
    assert facts[("model_buffer_bytes", "CPU_Mapped")] == round(4685.30 * MIB)
    assert facts[("model_buffer_bytes", "CUDA0")] == round(512.5 * MIB)
    assert facts[("kv_buffer_bytes", "CUDA0")] == 5712 * MIB
    assert facts[("state_buffer_bytes", "CUDA0")] == round(75.38 * MIB)
    assert facts[("compute_buffer_bytes", "CUDA0")] == round(353.01 * MIB)
    assert facts[("output_buffer_bytes", "CUDA_Host")] == round(0.58 * MIB)
    assert facts[("n_ctx", None)] == 49152 and facts[("n_ubatch", None)] == 512
    assert facts[("kv_type_k", None)] == "q8_0" and facts[("kv_type_v", None)] == "q8_0"
    assert facts[("threads", None)] == 8 and facts[("threads_batch", None)] == 16
    assert facts[("threads_available", None)] == 32
    assert parsed.records == [] and parsed.windows == []
