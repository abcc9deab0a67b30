"""The figures of single public reports: shares, prices of misses, savings, and their sentences."""

from __future__ import annotations

import pytest

from tests.doctor import doctor_logs as log
from tests.doctor.public_cases import CASES, by_name, findings, read
from twostroke.advice import arithmetic
from twostroke.predict.devices import DEVICES
from twostroke.predict.formulas import prefill_flop
from twostroke_doctor.diagnose import diagnose
from twostroke_doctor.given import make_given


def cure_of(finding, key):
    return next(cure for cure in finding.cures if cure.key == key)


def test_d01_cublas_moves_prefill_and_leaves_decode():
    (first, *_) = findings(by_name("D01 private-gpt#493, with cuBLAS"))
    assert "7.4 times faster and decodes the same (3.37 and 3.36 tok/s)" in first.says
    shorter = cure_of(first, "shorter_prompt")
    assert first.cures[0] is shorter, "fewer chunks come before a GPU"
    assert shorter.saves_low_s == pytest.approx(193.146 / 2)
    assert shorter.saves_high_s == pytest.approx(193.146 * 3 / 4)


def test_d02_load_is_shown_and_is_no_part_of_the_wait():
    first, second = findings(by_name("D02"))
    assert first.confidence == "low", "sizes are not in the log, so memory is inferred"
    assert "276 s" in first.says
    assert (first.share, second.code) == (1.0, "PREFILL_CPU")
    assert second.share == pytest.approx(0.952, abs=0.0005)


def test_d03_thirteen_times_slower_with_the_gpu():
    first = findings(by_name("D03"))[0]
    assert pytest.approx(13.1, abs=0.05) == (1245 / 10.762) / (1294 / 146.71289)
    assert "13 times slower" in first.says
    assert first.seconds == pytest.approx(146.71289 + 15.896)


def test_d04_saves_34_seconds_a_turn():
    first = findings(by_name("D04"))[0]
    head = cure_of(first, "stable_head")
    assert head.is_exact and head.saves_low_s == pytest.approx(34.76 - 0.81)
    assert "11,778 new tokens" in first.says and "76 in another" in first.says


def test_d06_prices_the_lost_prefix_at_this_prefills_own_rate():
    first = findings(by_name("D06"))[0]
    lost = (100_000 - 800) + (101_000 - 800)  # what the turn before had in the cache
    assert first.seconds == pytest.approx(lost * 4.92 / 4096, rel=1e-6)
    assert "from token 800 on" in first.says


def test_d07_finds_the_offset_of_the_time_stamp():
    first = findings(by_name("D07"))[0]
    assert "from token 1,200 on" in first.says
    assert first.seconds == pytest.approx(2 * 5.41, rel=2e-3)


def test_d08_names_the_cache_that_cannot_go_back():
    first, *rest = findings(by_name("D08"))
    assert "sliding-window" in first.says and cure_of(first, "swa_full")
    assert first.seconds == pytest.approx(12.45458)
    kv = next(f for f in rest if f.code == "DECODE_KV")
    assert "more for each 1,000" in kv.says


def test_d10_the_gpu_is_at_its_roof_and_the_prompt_was_shorter():
    width = make_given(model="llama-3.1-70b").attention_width
    linear = prefill_flop(70e9, 0, 16384)
    flop = prefill_flop(70e9, width, 16384)
    assert linear == pytest.approx(2.29e15, rel=2e-3)
    assert flop - linear == pytest.approx(0.35e15, rel=0.01)
    assert flop / DEVICES["a6000"].flops == pytest.approx(17.0, abs=0.1)
    first = findings(by_name("D10 sglang#922"))[0]
    assert "2.65 PFLOP take at least 17.0" in first.says
    assert "shorter or partly cached" in first.says and first.confidence == "medium"
    assert all("bits" not in cure.what and "knob" not in cure.what for cure in first.cures)


def test_d11_more_requests_arrive_than_are_completed():
    first = findings(by_name("D11"))[0]
    assert "12 requests a second arrive and 10 are completed" in first.says
    rateless = log.bench(**{"Traffic request rate": "12.0", "Mean TTFT (ms)": "18800.00"})
    assert "226 wait at once" in diagnose(read({"a": rateless})).findings[0].says


def test_d15_prices_the_first_request():
    first = findings(by_name("D15"))[0]
    assert pytest.approx(80, abs=0.5) == 302 / 3.76 and "80 times slower" in first.says
    assert first.seconds == pytest.approx(100 / 3.76 - 100 / 302)


def test_d20_without_an_output_count_has_no_share():
    (first, *_) = diagnose(read({"a": "Prompt: 29411 tokens, 216.260 tokens-per-sec\n"})).findings
    assert first.code == "UNKNOWN" and first.share is None
    assert "the time and number of output tokens" in first.missing
    assert pytest.approx(136, abs=0.1) == 29411 / 216.26


def test_d23_lists_the_checks_of_a_cache_that_never_hits_in_order():
    first = findings(by_name("D23 vllm#31920"))[0]
    keys = [cure.key for cure in first.cures]
    assert keys == ["cache_on", "smaller_blocks", "without_drafts", "same_salt", "stable_head"]
    assert "33.3" in first.says


def test_d23_positive_control_hits_and_is_no_miss():
    text = log.vllm(900.0, 81.8, 2, 0, 20.0, 66.5)
    assert "PREFIX_MISS" not in {f.code for f in diagnose(read({"a": text})).findings}


def test_d24_prefill_at_decode_rate_is_named():
    first = findings(by_name("D24"))[0]
    assert pytest.approx(327.7, abs=0.05) == 4096 / 12.5
    assert "token by token" in first.says


def test_d25_follows_its_arithmetic_and_shows_no_prefill_speed():
    first, load = findings(by_name("D25"))
    assert first.share == pytest.approx(0.863, abs=0.0005)
    cold = 19.747 - 13 / (1132 / 127.682)
    assert load.seconds == pytest.approx(cold + 0.559665542)
    assert not any("0.66" in line.text for f in (first, load) for line in f.evidence)


def test_d26_reads_a_numa_nodes_share_and_four_bits_are_a_third():
    first = findings(by_name("D26 llama.cpp#2237"))[0]
    assert pytest.approx(60, abs=0.3) == 13.5 * 4.43 and "60 GB/s" in first.says
    assert pytest.approx(3.3, abs=0.05) == 16 / 4.89
    assert cure_of(first, "fewer_bits").saves_high_s == pytest.approx(100 / 4.43 / 2)


def test_d31_blames_the_context():
    first = findings(by_name("D31"))[0]
    each = make_given(model="deepseek-r1-70b").kv_bytes_per_token
    assert each == 320 * 1024
    assert 121_234 * each / 2**30 == pytest.approx(37.0, abs=0.05)
    assert "62 of 81 layers" in first.says and "37.0 GiB of KV" in first.says


def test_d32_says_that_the_context_moved_the_share():
    assert "40,000 to 128,000" in findings(by_name("D32"))[0].says


def test_d33_one_missing_layer_costs_as_in_the_table():
    by_layers = {33: 60.62, 35: 131.66}
    real = 1 - by_layers[33] / by_layers[35]
    low, high = (arithmetic.offload_saving(1.0, 33, 35, r) for r in (5.0, 25.0))
    assert low < real < high
    move = cure_of(findings(by_name("D33 ollama#10848"))[0], "offload_all")
    assert 0 < move.saves_low_s < move.saves_high_s < 24.0


def test_d38_reads_at_the_speed_of_swap():
    assert pytest.approx(0.26) == 13 * 0.02
    first = findings(by_name("D38"))[0]
    assert first.code == "SPILL" and "0.36 GB/s" in first.says, "an upper bound: 14 passes in 500 s"


def test_d39_saves_two_thirds():
    first = findings(by_name("D39"))[0]
    assert first.seconds == pytest.approx(60.0)
    assert cure_of(first, "fewer_threads").saves_low_s == pytest.approx(40.0)


def test_d41_kv_outweighs_the_weights():
    each = make_given(model="llama-3.1-8b").kv_bytes_per_token
    assert 16.06e9 / each == pytest.approx(122_500, rel=1e-3), "tokens at which KV equals weights"
    assert 90 * 8000 * each > 5 * 16.06e9
    text = "INFO 08-12 10:00:00 [kv_cache_utils.py:829] GPU KV cache size: 1,000,000 tokens\n"
    text += log.vllm(0.0, 273.0, 90, 0, 72.0, 0.0)
    given = make_given(model="llama-3.1-8b", weights_gb=16.06)
    assert diagnose(read({"a": text}), given).findings[0].code == "DECODE_KV"
    full = diagnose(read({"a": text.replace("72.0", "95.0")}), given).findings
    assert "DECODE_KV" not in {f.code for f in full}, "a full cache is another matter"


def test_d42_says_how_much_1000_tokens_of_context_cost():
    slope = (1 / 5.95 - 1 / 25.0) / (146_000 - 30_000)
    assert slope * 1e6 == pytest.approx(1.104, abs=0.001)
    assert "1.1" in findings(by_name("D42"))[0].says


def test_d45_drafts_under_their_break_even_are_spec_bad_and_good_ones_not():
    num_drafts, cost_ratio, accepted = 4, 0.25, 0.34
    assert 1 + num_drafts * cost_ratio == 2.0, "accepted length at which drafting pays"
    # Leviathan et al. 2023, arXiv:2211.17192, equation 1, with 3 drafts
    assert (1 - accepted**4) / (1 - accepted) == pytest.approx(1.495, abs=0.001)
    first = findings(by_name("D45 vllm#8439"))[0]
    saved = cure_of(first, "no_drafts").saves_low_s
    assert saved == pytest.approx(199 / 61.8 - 199 / 69.8)
    faster = {
        "drafts.log": log.vllm_request(100, 200, ttft_s=0.1, decode_s=4, drafts=(100, 72)),
        "plain.log": log.vllm_request(100, 200, ttft_s=0.1, decode_s=4 * 55.5 / 32.5),
    }
    assert "SPEC_BAD" not in {f.code for f in diagnose(read(faster)).findings}


def test_d46_graphs_on_the_fast_gpu_and_never_fewer_bits():
    first = findings(by_name("D46 arXiv:2605.30571 on an H100"))[0]
    assert "27% of the bandwidth" in first.says
    assert [cure.key for cure in first.cures] == ["graphs", "batch"]
    slow = findings(by_name("D46 arXiv:2605.30571 on an L4"))[0]
    assert pytest.approx(0.815, abs=0.001) == 15.24 / 300 / 0.0623
    assert "82% of the bandwidth" in slow.says


def test_d57_both_rates_are_right():
    first = findings(by_name("D57"))[0]
    assert pytest.approx(43.09, abs=0.005) == 190 / 4.409816
    assert pytest.approx(50.38, abs=0.005) == 189 / 3.751546
    assert "43.09" in first.says and "50.38" in first.says


def test_d60_prefill_grows_faster_than_the_prompt():
    first_of = {20_000: 12.80, 40_000: 34.58, 80_000: 161.10}
    rates = [n / t for n, t in first_of.items()]
    assert rates == pytest.approx([1562, 1157, 497], abs=0.6)
    a, b = arithmetic.fit_prefill(list(first_of), list(first_of.values()))
    assert b * 80_000 > a, "at 80k the quadratic part is the larger"
    first = findings(by_name("D60"))[0]
    late = (12.94 - 1.67) + (67.83 - 5.56) + (174.99 - 5.00)
    assert first.seconds == pytest.approx(late)
    text = "".join(
        log.vllm_request(n, 40, ttft_s=t, decode_s=1.0, cached=0) for n, t in first_of.items()
    )
    alone = diagnose(read({"a": text})).findings[0]
    assert alone.code == "PREFILL" and "grows with the square" in alone.says


def test_d62_fewer_bits_are_no_cure_for_prefill():
    for case in CASES:
        for finding in findings(case):
            if finding.phase == "prefill" and finding.code in (
                "PREFILL",
                "PREFILL_CPU",
                "EXPECTED",
            ):
                assert all(cure.key != "fewer_bits" for cure in finding.cures), case.name
    fast_prefill = {
        "fp16.log": log.vllm_request(4000, 20, ttft_s=1.0, decode_s=0.5),
        "awq.log": log.vllm_request(4000, 20, ttft_s=3.0, decode_s=0.2),
    }
    first = diagnose(read(fast_prefill)).findings[0]
    assert first.code == "PREFILL" and first.share == pytest.approx(4 / 4.7)
